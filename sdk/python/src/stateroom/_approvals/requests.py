"""The calls on approvals, as steps without I/O.

A decision may be repeated: it is the same one, and says so. It echoes the hash of what was shown, so that no other one
is ever decided in its place.
"""

import math
from collections.abc import Sequence
from secrets import SystemRandom
from typing import Any, Final

from stateroom._approvals.shapes import Approval, ApprovalContent, ApprovalPage, Verdict
from stateroom._protocol.core import Call, Steps, asked, encode_body, encode_id, path

PRINCIPAL_HEADER: Final = "Stateroom-Principal"
WAIT_SECONDS: Final = 25
SOON_SECONDS: Final = 1.0
_JITTER = SystemRandom()


def page(wanted: dict[str, str | None], size: int, cursor: str | None) -> Steps[ApprovalPage]:
    """A page of approvals, newest first."""
    query = (*wanted.items(), ("limit", size), ("cursor", cursor))
    return asked(Call(method="GET", path="/approvals", query=query, repeatable=True), ApprovalPage)


def get(approval_id: str, wait_seconds: int = 0, after_seconds: float = 0.0) -> Steps[Approval]:
    """How an approval stands; as soon as it is decided, if that is waited for."""
    call = Call(
        method="GET",
        path=path("approvals", ":", approval_id),
        query=(("wait_seconds", wait_seconds or None),),
        repeatable=True,
        extra_seconds=float(wait_seconds),
        after_seconds=after_seconds,
    )
    return asked(call, Approval)


def wait_seconds(end: float | None, now: float) -> int:
    """How long the gateway is to wait for a decision, where the caller waits until ``end``."""
    return WAIT_SECONDS if end is None else max(0, min(WAIT_SECONDS, math.ceil(end - now)))


def idle_seconds(asked_seconds: int, lasted_seconds: float) -> float:
    """How long to wait after a question that was answered too soon: by a gateway that stops, or because time is up."""
    if lasted_seconds >= min(asked_seconds, SOON_SECONDS):
        return 0.0
    return _JITTER.uniform(SOON_SECONDS / 2, SOON_SECONDS * 1.5)


def content(approval_id: str) -> Steps[ApprovalContent]:
    """What exactly is asked, and what was answered."""
    target = path("approvals", ":", approval_id, "content")
    return asked(Call(method="GET", path=target, repeatable=True), ApprovalContent)


def decide(approval_id: str, action_hash: str, verdicts: Sequence[Verdict], principal: str | None) -> Steps[Approval]:
    """Decide."""
    body: dict[str, Any] = {"action_hash": action_hash, "verdicts": [*verdicts]}
    call = Call(
        method="POST",
        path=path("approvals", ":", approval_id, "decisions"),
        body=encode_body(body),
        headers={} if principal is None else {PRINCIPAL_HEADER: encode_id(principal)},
        repeatable=True,
    )
    return asked(call, Approval)


def cancel(approval_id: str) -> Steps[Approval]:
    """Take a question back."""
    return asked(Call(method="POST", path=path("approvals", ":", approval_id, "cancel"), repeatable=True), Approval)
