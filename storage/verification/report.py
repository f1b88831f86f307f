"""What verification finds, and how it is counted."""

from dataclasses import dataclass, field
from typing import Final, Literal

# Findings of a thread, or of a subject's items, that are listed; where there are more, it is beyond repair by hand.
FINDINGS_MAX: Final = 100

Code = Literal[
    "thread-missing", "thread-seal", "namespaces", "head-missing", "head-seal", "head-checkpoint", "checkpoint",
    "live-set", "pending-write", "pending-writes", "piece", "piece-missing", "older-than-anchor",
    "missing-since-anchor", "anchor", "keys", "subject-missing", "tombstone", "shred-undone", "control-row",
    "archive", "artifact", "blob", "upload", "item", "items", "item-labels", "item-path", "item-paths", "item-scope",
    "item-vector", "item-vectors", "item-clear-vectors", "ledger", "claim", "effect", "approval",
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Damage, by place."""

    code: Code
    detail: str
    thread_id: str | None = None
    namespace: str | None = None
    checkpoint_id: str | None = None


@dataclass(slots=True, kw_only=True)
class Report:
    """What was verified, and what was found. ``after``: the thread to go on after; None: this was all.

    ``items_after``: once the threads are done, the path of items to go on after; empty: before the first.
    ``threads_skipped`` counts threads under a share that only the client holds: without it they cannot be opened.
    ``threads_frozen`` counts archived threads whose object has to be thawed first: nothing of them was opened.
    ``items_skipped`` counts items under such a share: that they are all there was compared, but none was opened.
    """

    threads: int = 0
    threads_skipped: int = 0
    threads_frozen: int = 0
    checkpoints: int = 0
    pending_writes: int = 0
    pieces: int = 0
    items_opened: int = 0
    items_skipped: int = 0
    findings: list[Finding] = field(default_factory=list)
    after: str | None = None
    items_after: str | None = None
