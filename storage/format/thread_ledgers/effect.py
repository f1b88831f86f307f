"""An effect's row: what its MAC covers, and what is sealed in it.

Four envelopes: what was **asked** (name, tool) and its **arguments**, written once; the **outcome** (the name of
an error) and the **result**. The small ones are apart, so that a list opens no large one. The MAC covers every clear
column, the thread's life, and keyed tags of all four; never an envelope, so that sealing them again leaves it as it is.
All of them take the client's share of their thread, if that has one.
"""

import hmac
from datetime import datetime
from typing import Final, Literal, get_args
from uuid import UUID

import msgspec

from crypto import Kind, OpenError, Sealer
from crypto.context import encode_fields
from storage.encoding import encode_msgpack
from storage.errors import IntegrityFailure
from storage.format.thread_ledgers.names import member_of
from storage.format.thread_ledgers.seal import row_mac


class EffectColumns(msgspec.Struct, frozen=True):
    """The clear columns of an effect's row.

    Attributes:
        thread_id: The id of the thread.
        namespace: The root of the namespace.
        name_mac: The tag of its name.
        execution: The number of the execution under that name.
        attempt: How often it was started.
        mode: What may be repeated.
        status: How it stands.
        intent_mac: The tag of what is meant.
        provider_key: What a provider tells repetitions by.
        anchor_checkpoint_id: The checkpoint that it was started at.
        run_id: The id of the run.
        fence: That of the claim under which it was started; 0: none.
        created_at: When its first attempt was started.
        started_at: When its newest attempt was started.
        leased_until: When whoever started it is taken for dead.
        finished_at: When it ended.
        started_by: The id of the key that started it.
        resolved_by: Who said whether it happened.
        result_state: Whether there is a result, and where.
        result_bytes: The size of the result.
        artifact_id: The artifact that holds it.
        approval_id: The approval that its start consumed.
        approval_position: Which action of that.
        copied: Whether it came with a copy of its thread.
        client_share: Whether the envelopes take the client's share.
        asked_member: The tag of what was asked.
        args_member: The tag of the arguments.
        outcome_member: The tag of the outcome; None: there is nothing to say.
        result_member: The tag of the result; None: it is not here.
    """

    thread_id: str
    namespace: str
    name_mac: bytes
    execution: int
    attempt: int
    mode: str
    status: str
    intent_mac: bytes
    provider_key: UUID
    anchor_checkpoint_id: str | None
    run_id: str | None
    fence: int
    created_at: datetime
    started_at: datetime
    leased_until: datetime
    finished_at: datetime | None
    started_by: str
    resolved_by: str | None
    result_state: str
    result_bytes: int | None
    artifact_id: UUID | None
    approval_id: UUID | None
    approval_position: int | None
    copied: bool
    client_share: bool
    asked_member: bytes
    args_member: bytes
    outcome_member: bytes | None
    result_member: bytes | None

    def proof(self, sealer: Sealer, incarnation: bytes) -> bytes:
        """The MAC of the row, in this life of its thread."""
        values = msgspec.structs.astuple(self)
        plain = [int(each) if isinstance(each, bool) else each for each in values]
        return row_mac(sealer, "effect", (incarnation, *plain))

    def check(self, sealer: Sealer, incarnation: bytes, mac: bytes) -> None:
        """Return if the row is as a gateway wrote it.

        Raises:
            IntegrityFailure: It was edited, or is another's.
        """
        if not hmac.compare_digest(self.proof(sealer, incarnation), mac):
            raise IntegrityFailure("an effect of this thread was altered outside the gateway")

    def location(self, part: str) -> tuple[str, bytes, int, str]:
        """The context fields of an envelope: its place, and which of the four it is."""
        return (self.thread_id, self.name_mac, self.execution, part)


def counted(namespace: str, name_mac: bytes, execution: int, mac: bytes) -> bytes:
    """What the seal counts of an effect: its MAC and where it is, so that one that was moved is missed there.

    A start compares the MACs of a whole part but checks only the rows that it finds at its own place.
    """
    return encode_fields((namespace, name_mac, execution)) + mac


class Asked(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What was asked, besides the arguments.

    Attributes:
        name: The name of the call.
        tool: The name of the tool.
        identity: The pointers into the arguments that say what is the same.
        tool_digest: A digest of what the tool is.
        repeats: The number of the earlier execution of the same intent.
        repeats_name: The name of that one, if it is another.
    """

    name: str
    tool: str
    identity: tuple[str, ...]
    tool_digest: str | None = None
    repeats: int | None = None
    repeats_name: str | None = None


class Outcome(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What became of it, besides the result.

    Attributes:
        result_digest: The digest of the result that its finish named.
        error: The short name of the error's class.
    """

    result_digest: bytes | None = None
    error: str | None = None


Part = Literal["asked", "args", "outcome", "result"]
PARTS: Final[tuple[Part, ...]] = get_args(Part)
NOTHING: Final = Outcome()
_asked = msgspec.msgpack.Decoder(Asked)
_outcome = msgspec.msgpack.Decoder(Outcome)


def encode(record: Asked | Outcome) -> bytes:
    """The plaintext of what was asked, or of an outcome."""
    return encode_msgpack(record)


def part_member(sealer: Sealer, part: Part, plaintext: bytes) -> bytes:
    """The tag of what a part says."""
    return member_of(sealer, b"effect-" + part.encode(), plaintext)


def seal_part(sealer: Sealer, columns: EffectColumns, part: Part, plaintext: bytes) -> bytes:
    """The envelope of a part."""
    return sealer.seal(Kind.EFFECT, columns.location(part), plaintext)


def open_part(sealer: Sealer, columns: EffectColumns, part: Part, envelope: bytes | None) -> bytes | None:
    """Undo `seal_part`; None: the effect has no such part.

    Raises:
        IntegrityFailure: It is not this effect's, or was removed.
    """
    member: bytes | None = getattr(columns, f"{part}_member")
    if envelope is None and member is None:
        return None
    try:
        plaintext = b"" if envelope is None else sealer.open(Kind.EFFECT, columns.location(part), envelope)
    except OpenError:
        raise IntegrityFailure from None
    if envelope is None or not hmac.compare_digest(part_member(sealer, part, plaintext), member or b""):
        raise IntegrityFailure("a part of an effect was altered")
    return plaintext


def open_asked(sealer: Sealer, columns: EffectColumns, envelope: bytes) -> Asked:
    """What was asked.

    Raises:
        IntegrityFailure: As `open_part`.
    """
    plaintext = open_part(sealer, columns, "asked", envelope)
    try:
        return _asked.decode(plaintext or b"")
    except msgspec.DecodeError:
        raise IntegrityFailure from None


def open_outcome(sealer: Sealer, columns: EffectColumns, envelope: bytes | None) -> Outcome:
    """What became of it.

    Raises:
        IntegrityFailure: As `open_part`.
    """
    plaintext = open_part(sealer, columns, "outcome", envelope)
    try:
        return NOTHING if plaintext is None else _outcome.decode(plaintext)
    except msgspec.DecodeError:
        raise IntegrityFailure from None
