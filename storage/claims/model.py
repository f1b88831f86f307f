"""Claims as verbs take and give them, and the limits of one."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from storage.errors import InvalidState, LimitExceeded
from storage.scope import check_id

LEASE_SECONDS_MIN: Final = 5
LEASE_SECONDS_MAX: Final = 300
LEASE_SECONDS_DEFAULT: Final = 60
CLAIM_NOTE_BYTES_MAX: Final = 2048
# Takeovers with nothing written in between, after which a thread is handed to nobody any more.
TAKEOVERS_MAX: Final = 5
BACK_OFF_SECONDS_MAX: Final = 3600
SILENT_SECONDS_MAX: Final = 366 * 86_400

ClaimStatus = Literal["live", "expired", "released", "stuck"]


def check_lease(lease_seconds: int) -> None:
    """Return if a claim can last so long.

    Raises:
        InvalidState: It cannot.
    """
    if not LEASE_SECONDS_MIN <= lease_seconds <= LEASE_SECONDS_MAX:
        raise InvalidState(f"a claim lasts {LEASE_SECONDS_MIN} to {LEASE_SECONDS_MAX} seconds", "/lease_seconds")


def check_note(note: str | None) -> None:
    """Return if this can be noted on a claim.

    Raises:
        InvalidState: It is no valid Unicode.
        LimitExceeded: It is longer than a note may be.
    """
    if note is None:
        return
    try:
        size = len(note.encode())
    except UnicodeEncodeError:
        raise InvalidState("a note is not valid Unicode", "/note") from None
    if size > CLAIM_NOTE_BYTES_MAX:
        raise LimitExceeded("CLAIM_NOTE_BYTES_MAX", CLAIM_NOTE_BYTES_MAX, size, "/note")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRequest:
    """Who wants to go on with a thread.

    Attributes:
        thread_id: The id of the thread to claim.
        holder: The name of the worker, an id.
        run_id: The id of the run; the same holder that claims for the same run again keeps its fence. None: no other
            request is the same run.
        lease_seconds: The seconds until the claim is over, unless it is renewed.
        exclusive: Whether nobody writes to the thread without a claim from now on.
        take_over: Whether a live claim of another ends, and a thread that is stuck is handed out.
        note: What is shown to who asks about the claim, such as how far the run is; None: nothing.
        if_fence: The fence of the claim that this one takes the place of: then it is another run's whoever asks, and is
            refused if that claim was released or somebody else has the thread. None: whatever claim there is.
    """

    thread_id: str
    holder: str
    run_id: str | None = None
    lease_seconds: int = LEASE_SECONDS_DEFAULT
    exclusive: bool = False
    take_over: bool = False
    note: str | None = None
    if_fence: int | None = None

    def check(self) -> None:
        """Return if it can be asked for.

        Raises:
            InvalidState: A part of it cannot be what it is.
            LimitExceeded: The note is too long.
        """
        check_id(self.thread_id, "thread id")
        check_id(self.holder, "holder")
        if self.run_id is not None:
            check_id(self.run_id, "run id")
        check_lease(self.lease_seconds)
        check_note(self.note)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The newest claim of a thread.

    Attributes:
        thread_id: The id of the thread.
        fence: The number that proves it; no later claim of a thread of this id has one that is not greater.
        holder: The name of the worker.
        run_id: The id of its run.
        claimed_at: When it was claimed, by the database's clock.
        claimed_until: When it is over, unless it is renewed; saves under it renew it, too.
        lease_seconds: For how long it is renewed each time.
        status: Whether it is live, expired (its worker said nothing for too long), released, or the thread is stuck.
        takeovers: How often it was handed on since anything was written.
        required: Whether the thread takes no write without a claim.
        note: What its holder noted; None: nothing, or it is under a client's share that was not sent.
    """

    thread_id: str
    fence: int
    holder: str
    run_id: str | None
    claimed_at: datetime
    claimed_until: datetime | None
    lease_seconds: int
    status: ClaimStatus
    takeovers: int
    required: bool
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SilentThread:
    """A thread whose claim is over though nobody released it; only clear columns, nothing is opened.

    Attributes:
        subject_id: Whose thread it is.
        thread_id: The id of the thread.
        agent: Its agent.
        status: That of its newest checkpoint.
        fence: That of the claim.
        holder: The name of the worker that is silent.
        run_id: The id of its run.
        claimed_at: When it was claimed.
        claimed_until: Since when it is over.
        lease_seconds: For how long it was renewed each time.
        takeovers: How often it was handed on since anything was written.
        stuck: Whether it is handed to nobody any more, unless it is taken over on purpose.
    """

    subject_id: str
    thread_id: str
    agent: str | None
    status: str
    fence: int
    holder: str
    run_id: str | None
    claimed_at: datetime
    claimed_until: datetime
    lease_seconds: int
    takeovers: int
    stuck: bool
