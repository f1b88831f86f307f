"""Bodies of the verification of one thread."""

from typing import Annotated

from msgspec import Meta

from gateway.wire.base import Request, Response


class VerifyRequest(Request):
    """What to verify: one thread, or all of the subject's, a stretch at a time from ``cursor`` on."""

    thread_id: Annotated[str, Meta(min_length=1, max_length=1024)] | None = None
    cursor: str | None = None


class VerifyFinding(Response):
    """Damage, by place; never what is stored there. ``code`` is stable."""

    code: str
    detail: str
    thread_id: str | None
    namespace: str | None
    checkpoint_id: str | None


class VerifyReport(Response):
    """How many rows were opened, and what was found.

    ``threads_skipped`` were not opened: only their client holds a share of their keys. Nor were ``threads_frozen``:
    they are archived, and have to be thawed first. Of ``items_skipped``, under such a share, it was only compared that
    they are all there.
    """

    threads: int
    threads_skipped: int
    threads_frozen: int
    checkpoints: int
    pending_writes: int
    pieces: int
    items_opened: int
    items_skipped: int
    findings: list[VerifyFinding]
    next_cursor: str | None
