"""A claim's row: what its MAC covers, and the note that is sealed in it.

The MAC covers every clear column, the thread's life, and a keyed tag of the note; never the envelope, so that sealing
it again leaves the MAC as it is. The note takes the client's share of its thread, if that has one.
"""

import hmac
from datetime import datetime

import msgspec

from crypto import Kind, OpenError, Sealer
from storage.errors import IntegrityFailure
from storage.format.thread_ledgers.names import member_of
from storage.format.thread_ledgers.seal import row_mac


class ClaimColumns(msgspec.Struct, frozen=True):
    """The clear columns of a claim's row.

    Attributes:
        thread_id: The id of the thread.
        fence: The number that proves it.
        holder: The name of the worker.
        run_id: The id of its run.
        lease_seconds: For how long it is renewed each time.
        claimed_at: When it was claimed.
        takeovers: How often it was handed on since anything was written.
        activity: The thread's count of writes when it was claimed.
        status: ``held``, ``stuck`` (handed to nobody any more, and told of) or ``released``.
        required: Whether the thread takes no write without a claim.
        client_share: Whether the note takes the client's share.
        note_member: The tag of the note; None: there is none.
    """

    thread_id: str
    fence: int
    holder: str
    run_id: str | None
    lease_seconds: int
    claimed_at: datetime
    takeovers: int
    activity: int
    status: str
    required: bool
    client_share: bool
    note_member: bytes | None

    @property
    def thread_fence(self) -> int:
        """The fence that the thread has while this is its newest claim: of a released one the next number.

        Nobody is told that number, so that whatever still names the fence of the claim that ended is refused.
        """
        return self.fence + (self.status == "released")

    def proof(self, sealer: Sealer, incarnation: bytes) -> bytes:
        """The MAC of the row, in this life of its thread."""
        head = (self.thread_id, incarnation, self.fence, self.holder, self.run_id, self.lease_seconds, self.claimed_at)
        rest = (self.takeovers, self.activity, self.status, int(self.required), int(self.client_share))
        return row_mac(sealer, "claim", (*head, *rest, self.note_member))

    def check(self, sealer: Sealer, incarnation: bytes, mac: bytes) -> None:
        """Return if the row is as a gateway wrote it.

        Raises:
            IntegrityFailure: It was edited, or is another thread's.
        """
        if not hmac.compare_digest(self.proof(sealer, incarnation), mac):
            raise IntegrityFailure("the claim of this thread was altered outside the gateway")


def note_location(thread_id: str, fence: int) -> tuple[str, int]:
    """The context fields of a note's envelope."""
    return (thread_id, fence)


class SealedNote(msgspec.Struct, frozen=True):
    """A note's envelope and tag; of no note both are None."""

    envelope: bytes | None = None
    member: bytes | None = None


def seal_note(sealer: Sealer, thread_id: str, fence: int, note: str | None) -> SealedNote:
    """A note, sealed for its claim; its length says nothing of how well it compresses."""
    if note is None:
        return SealedNote()
    plaintext = note.encode()
    envelope = sealer.seal(Kind.CLAIM_NOTE, note_location(thread_id, fence), plaintext, compress=False)
    return SealedNote(envelope, member_of(sealer, b"claim-note", plaintext))


def open_note(sealer: Sealer, columns: ClaimColumns, envelope: bytes | None) -> str | None:
    """Undo `seal_note`.

    Raises:
        IntegrityFailure: It is not this claim's note.
    """
    if envelope is None:
        return None
    try:
        plaintext = sealer.open(Kind.CLAIM_NOTE, note_location(columns.thread_id, columns.fence), envelope)
    except OpenError:
        raise IntegrityFailure from None
    if not hmac.compare_digest(member_of(sealer, b"claim-note", plaintext), columns.note_member or b""):
        raise IntegrityFailure("a claim's note was altered")
    return plaintext.decode()
