"""Bodies of effects: tool calls with consequences, in a thread's ledger."""

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

from msgspec import UNSET, Meta, Raw, UnsetType

from gateway.wire.base import CheckpointIdText, Fence, Name, Namespace, Request, Response
from storage.effects.model import (
    EFFECT_IDENTITY_MAX,
    EFFECT_LEASE_SECONDS_DEFAULT,
    EFFECT_LEASE_SECONDS_MAX,
    EFFECT_LEASE_SECONDS_MIN,
    EFFECT_POINTER_BYTES_MAX,
)

EffectMode = Literal["read", "idempotent", "once"]
EffectStatus = Literal["started", "done", "failed", "unknown", "voided"]
EffectLeaseSeconds = Annotated[int, Meta(ge=EFFECT_LEASE_SECONDS_MIN, le=EFFECT_LEASE_SECONDS_MAX)]
Digest = Annotated[bytes, Meta(min_length=32, max_length=32)]
_Pointer = Annotated[str, Meta(max_length=EFFECT_POINTER_BYTES_MAX)]
_Pointers = Annotated[list[_Pointer], Meta(min_length=1, max_length=EFFECT_IDENTITY_MAX)]
_Count = Annotated[int, Meta(ge=1, lt=2**31)]


class EffectStartRequest(Request):
    """Ask whether an effect is to happen, and note that it begins if so.

    ``identity`` are JSON pointers into ``args``: what of them makes the same intent; absent, or ``""``: all.
    ``checkpoint_id`` absent: the namespace's head. ``needs_approval``: without an approval nothing begins that was not
    begun with one before. ``repeat``: it is meant to happen once more, although the same
    intent happened just now, or on another line of the thread.
    """

    tool: Name
    args: Raw
    mode: EffectMode
    namespace: Namespace = ""
    identity: _Pointers | UnsetType = UNSET
    checkpoint_id: CheckpointIdText | None = None
    run_id: Name | None = None
    fence: Fence | None = None
    lease_seconds: EffectLeaseSeconds = EFFECT_LEASE_SECONDS_DEFAULT
    approval_id: UUID | None = None
    approval_position: Annotated[int, Meta(ge=0, lt=2**15)] = 0
    tool_digest: Name | None = None
    needs_approval: bool = False
    repeat: bool = False


class EffectFinishRequest(Request):
    """Say how an effect ended: ``execution`` and ``attempt`` are those that its start gave.

    ``done`` with a ``result``, with the ``artifact_id`` that has it, or with ``result_bytes`` alone: then it is done,
    and its result is missing. ``failed``: it certainly did not happen. ``unknown``: it may have.
    """

    execution: _Count
    attempt: _Count
    status: Literal["done", "failed", "unknown"]
    namespace: Namespace = ""
    result: Raw | UnsetType = UNSET
    result_digest: Digest | None = None
    result_bytes: Annotated[int, Meta(ge=0, le=2**53)] | None = None
    artifact_id: UUID | None = None
    error: Name | None = None


class EffectResolveRequest(Request):
    """Say of an effect whose outcome is unknown whether it happened.

    A person says so by another key than the one that started it, with ``approval:decide``; ``by_check``: the program
    asked the service that the tool calls.
    """

    execution: _Count
    attempt: _Count
    happened: bool
    namespace: Namespace = ""
    result: Raw | UnsetType = UNSET
    by_check: bool = False


class Effect(Response, omit_defaults=True):
    """A tool call with consequences.

    ``result_state``: ``stored``, and ``result`` has it where one effect is shown, beside ``args``; ``artifact``, that
    of ``artifact_id`` does; ``missing``, it happened and its result was lost; ``none``, it has none. ``provider_key``
    is the same for all attempts at one execution: give it to the service as its idempotency key. ``is_copy``: it came
    with a copy of its thread, as history.
    """

    thread_id: str
    namespace: str
    name: str
    execution: int
    attempt: int
    mode: EffectMode
    tool: str
    status: EffectStatus
    provider_key: str
    anchor_checkpoint_id: str | None
    run_id: str | None
    started_at: datetime
    finished_at: datetime | None
    leased_until: datetime
    result_state: Literal["none", "stored", "artifact", "missing"]
    error: str | None
    resolved_by: str | None
    started_by: str
    repeats: int | None
    repeats_name: str | None
    is_copy: bool
    result_bytes: int | None
    artifact_id: str | None
    result_digest: bytes | UnsetType = UNSET
    args: Raw | UnsetType = UNSET
    result: Raw | UnsetType = UNSET


class EffectStarted(Response):
    """Whether the tool is to run now. If not, the effect is done, and its result is that of the time it was."""

    must_run: bool
    effect: Effect


class EffectPage(Response):
    """Effects of a thread, in the order in which they began."""

    effects: list[Effect]
    next_cursor: str | None


class UnknownEffect(Response):
    """An effect that may have happened or not; what it was is sealed, and shown by its thread."""

    subject_id: str
    thread_id: str
    namespace: str
    name_tag: str
    execution: int
    attempt: int
    mode: EffectMode
    anchor_checkpoint_id: str | None
    run_id: str | None
    started_at: datetime
    started_by: str


class UnknownEffectPage(Response):
    """Effects of unknown outcome, by subject and thread."""

    effects: list[UnknownEffect]
    next_cursor: str | None
