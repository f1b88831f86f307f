"""Bodies of claims: who goes on with a thread, and which threads nobody goes on with any more."""

from datetime import datetime
from typing import Annotated, Literal

from msgspec import Meta

from gateway.wire.base import WITHOUT_NUL, Fence, Name, Request, Response, Status
from storage.claims.model import CLAIM_NOTE_BYTES_MAX, LEASE_SECONDS_DEFAULT, LEASE_SECONDS_MAX, LEASE_SECONDS_MIN

LeaseSeconds = Annotated[int, Meta(ge=LEASE_SECONDS_MIN, le=LEASE_SECONDS_MAX)]
Note = Annotated[str, Meta(max_length=CLAIM_NOTE_BYTES_MAX, pattern=WITHOUT_NUL)]


class ClaimRequest(Request):
    """Claim a thread: nobody else goes on with it until the claim is released, or its lease is over.

    ``exclusive``: from now on nobody writes to the thread without a claim. ``take_over``: also from who holds it now,
    whose writes are refused then. ``if_fence``: only in the place of the claim of that fence, if nobody released it and
    nobody else has the thread; whoever recovers threads names the one that it was told of.
    """

    holder: Name
    run_id: Name | None = None
    lease_seconds: LeaseSeconds = LEASE_SECONDS_DEFAULT
    exclusive: bool = False
    take_over: bool = False
    note: Note | None = None
    if_fence: Fence | None = None


class ClaimRenewal(Request):
    """Renew a claim; what is absent stays."""

    fence: Fence
    lease_seconds: LeaseSeconds | None = None
    note: Note | None = None


class ClaimRelease(Request):
    """Release a claim. One that is released, or was taken over, stays so."""

    fence: Fence


class ClaimsRequired(Request):
    """Whether nobody writes to the thread without a claim."""

    required: bool


class Claim(Response):
    """A claim, as it stands. ``fence`` goes into the body of each write under it.

    ``live``: it is held. ``expired``: it was not renewed, so that its holder is taken for dead. ``stuck``: one holder
    after the other died and none got on; it is handed out to nobody who does not say ``take_over``.
    """

    thread_id: str
    fence: int
    holder: str
    run_id: str | None
    status: Literal["live", "expired", "released", "stuck"]
    claimed_at: datetime
    claimed_until: datetime | None
    lease_seconds: int
    takeovers: int
    required: bool
    note: str | None


class SilentThread(Response):
    """A thread whose claim was neither renewed nor released: whoever held it is taken for dead."""

    subject_id: str
    thread_id: str
    agent: str | None
    status: Status
    fence: int
    holder: str
    run_id: str | None
    claimed_at: datetime
    claimed_until: datetime
    lease_seconds: int
    takeovers: int
    stuck: bool


class SilentThreadPage(Response):
    """Threads that nobody goes on with any more, by subject and id."""

    threads: list[SilentThread]
    next_cursor: str | None
