"""Bodies of the policies that say who decides about which tools."""

from datetime import datetime
from typing import Annotated

from msgspec import Meta

from gateway.wire.base import Request, Response


class ApprovalPolicy(Request):
    """What is asked of approvals. It is copied into each when it is made: loosening it changes none that waits.

    ``required``: the ledger refuses an action without an approval. ``asserted_count``: each person that a backend names
    counts; false: all of them together are one.
    """

    required: bool = False
    decisions_needed: Annotated[int, Meta(ge=1, le=5)] = 1
    requester_may_approve: bool = False
    edit_allowed: bool = True
    expires_seconds: Annotated[int, Meta(ge=60, le=30 * 86_400)] = 7 * 86_400
    valid_seconds: Annotated[int, Meta(ge=60, le=30 * 86_400)] = 86_400
    asserted_count: bool = False


class ApprovalPolicyEntry(Response):
    """The policy of a tool of an agent; null: of all agents, of all tools. ``damaged``: somebody edited its row."""

    agent: str | None
    tool: str | None
    policy: ApprovalPolicy | None
    updated_at: datetime | None
    damaged: bool


class ApprovalPolicies(Response):
    """All policies of a tenant."""

    policies: list[ApprovalPolicyEntry]
