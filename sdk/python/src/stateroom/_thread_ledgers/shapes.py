"""What claims and effects look like to a caller, and on the wire.

This module owns no behaviour. It promises that members of a newer gateway are passed over.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal, TypedDict

import msgspec
from msgspec import UNSET, UnsetType

from stateroom.types import Status

ClaimStatus = Literal["live", "expired", "released", "stuck"]
EffectMode = Literal["read", "idempotent", "once"]
EffectStatus = Literal["started", "done", "failed", "unknown", "voided"]
FinishStatus = Literal["done", "failed", "unknown"]
ALL_ARGUMENTS = ("",)
CLAIM_LEASE_SECONDS = 60
EFFECT_LEASE_SECONDS = 300


class ClaimInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The newest claim of a thread, as it stands.

    Attributes:
        thread_id: The id of the thread.
        fence: The number that proves the claim; later claims of the thread have greater ones.
        holder: The name of the worker.
        run_id: The id of its run.
        status: ``live``; ``expired``, its holder is taken for dead; ``released``; ``stuck``, it is handed to nobody.
        claimed_at: When it was claimed.
        claimed_until: When it is over unless it is renewed.
        lease_seconds: For how long it is renewed each time.
        takeovers: How often it was handed on since anything was written.
        required: Whether the thread takes no write without a claim.
        note: What its holder noted.
    """

    thread_id: str
    fence: int
    holder: str
    status: ClaimStatus
    claimed_at: datetime
    lease_seconds: int
    run_id: str | None = None
    claimed_until: datetime | None = None
    takeovers: int = 0
    required: bool = False
    note: str | None = None


class SilentThread(msgspec.Struct, frozen=True, kw_only=True):
    """A thread whose claim is over although nobody released it.

    Attributes:
        subject_id: Whose it is.
        thread_id: The id of the thread.
        agent: The program's name.
        status: That of its newest checkpoint.
        fence: That of the claim.
        holder: The name of the worker that is silent.
        run_id: The id of its run.
        claimed_at: When it was claimed.
        claimed_until: Since when the claim is over.
        lease_seconds: For how long it was renewed each time.
        takeovers: How often it was handed on since anything was written.
        stuck: Whether it is handed to nobody any more who does not take it over on purpose.
    """

    subject_id: str
    thread_id: str
    status: Status
    fence: int
    holder: str
    claimed_at: datetime
    claimed_until: datetime
    lease_seconds: int
    agent: str | None = None
    run_id: str | None = None
    takeovers: int = 0
    stuck: bool = False


class Effect(msgspec.Struct, frozen=True, kw_only=True):
    """One execution of a tool call with consequences.

    Attributes:
        thread_id: The thread that it was done for.
        namespace: The root of the namespace.
        name: The name of the call.
        execution: The number of the execution under that name, from 1.
        attempt: How often it was started, from 1.
        mode: What may be repeated.
        tool: The name of the tool.
        status: ``started``, ``done``, ``failed`` for certain, ``unknown``, or ``voided``: it did not happen.
        provider_key: What a service tells repetitions by: the same for every attempt at this execution.
        anchor_checkpoint_id: The checkpoint that it was started at.
        run_id: The id of the run.
        started_at: When the newest attempt was started.
        finished_at: When it ended.
        leased_until: When whoever started it is taken for dead.
        result_state: ``none``, ``stored``, ``artifact`` or ``missing``.
        args: The tool's arguments, where one effect was asked for.
        result: The result, where it is stored and one effect was asked for.
        result_bytes: How many bytes it has as MessagePack.
        artifact_id: The artifact that holds it.
        error: The short name of the error's class.
        resolved_by: Who said whether it happened.
        started_by: The id of the API key that started it.
        repeats: The number of the earlier execution beside which it was meant, or whose provider key it has.
        repeats_name: The name of that one, if it is another.
        is_copy: Whether it came with a copy of its thread.
    """

    thread_id: str
    name: str
    execution: int
    attempt: int
    mode: EffectMode
    tool: str
    status: EffectStatus
    provider_key: str
    started_at: datetime
    leased_until: datetime
    namespace: str = ""
    result_state: Literal["none", "stored", "artifact", "missing"] = "none"
    anchor_checkpoint_id: str | None = None
    run_id: str | None = None
    finished_at: datetime | None = None
    args: Any = None
    result: Any = None
    result_bytes: int | None = None
    artifact_id: str | None = None
    error: str | None = None
    resolved_by: str | None = None
    started_by: str | None = None
    repeats: int | None = None
    repeats_name: str | None = None
    is_copy: bool = False


class EffectStarted(msgspec.Struct, frozen=True, kw_only=True):
    """What a start was answered.

    Attributes:
        must_run: Whether the tool is to run now; if not, ``effect`` says what it did the other time.
        effect: What is known of the effect.
    """

    must_run: bool
    effect: Effect


class EffectOutcome(msgspec.Struct, frozen=True):
    """What somebody found out about an effect of unknown outcome.

    Attributes:
        happened: Whether it did.
        result: What it gave, if that is known.
    """

    happened: bool
    result: Any = UNSET


class UnknownEffect(msgspec.Struct, frozen=True, kw_only=True):
    """An effect of which nobody knows whether it happened; its name and arguments are sealed, its thread shows them.

    Attributes:
        subject_id: Whose thread it is of.
        thread_id: The id of the thread.
        namespace: The root of the namespace.
        name_tag: The keyed tag of its name.
        execution: The number of the execution.
        attempt: How often it was started.
        mode: What may be repeated.
        started_at: When the newest attempt was started.
        run_id: The id of the run.
        anchor_checkpoint_id: The checkpoint that it was started at.
        started_by: The id of the API key that started it.
    """

    subject_id: str
    thread_id: str
    name_tag: str
    execution: int
    attempt: int
    mode: EffectMode
    started_at: datetime
    namespace: str = ""
    run_id: str | None = None
    anchor_checkpoint_id: str | None = None
    started_by: str | None = None


class SilentThreadPage(msgspec.Struct, kw_only=True):
    """Silent threads."""

    items: list[SilentThread] = msgspec.field(name="threads")
    next_cursor: str | None = None


class EffectPage(msgspec.Struct, kw_only=True):
    """Effects of a thread."""

    items: list[Effect] = msgspec.field(name="effects")
    next_cursor: str | None = None


class UnknownEffectPage(msgspec.Struct, kw_only=True):
    """Effects of unknown outcome."""

    items: list[UnknownEffect] = msgspec.field(name="effects")
    next_cursor: str | None = None


class StartOptions(TypedDict, total=False):
    """How an effect is started; each may be left out.

    Attributes:
        mode: What may be repeated; ``once`` when left out.
        identity: JSON pointers into the arguments that say what is the same intent; all of them when left out.
        lease_seconds: After how long whoever does it is taken for dead; 300 when left out.
        approval_id: The approval that this start uses up.
        approval_position: Which of its actions.
        tool_digest: A digest of what the tool is, as it was approved.
        repeat: Whether it is meant to happen once more.
    """

    mode: EffectMode
    identity: Sequence[str]
    lease_seconds: int
    approval_id: str | None
    approval_position: int
    tool_digest: str | None
    repeat: bool


class RecoverOptions(TypedDict, total=False):
    """Which threads a worker recovers, and how; each may be left out.

    Attributes:
        holder: The name of this worker; of the machine and process when left out.
        agent: Only threads of this agent.
        silent_seconds: Only those that are silent for so long; 0 when left out.
        lease_seconds: After how long without a word this run is taken for dead in turn; 60 when left out.
        run_seconds_max: For how long a claim is renewed at most; an hour when left out.
        state_type: What ``load`` of the threads converts states to.
        whole_tenant: Of all subjects; takes a service key with ``tenant:admin`` and ``subject:act_as``.
        follow: Whether to wait for more when there are none, as when left out; else the iterator ends.
        idle_seconds_max: The longest wait between two looks; 30 when left out.
    """

    holder: str | None
    agent: str | None
    silent_seconds: int
    lease_seconds: int
    run_seconds_max: float
    state_type: Any
    whole_tenant: bool
    follow: bool
    idle_seconds_max: float


class ClaimOptions(TypedDict, total=False):
    """How a thread is claimed; each may be left out.

    Attributes:
        holder: The name of this worker; of the machine and process when left out.
        lease_seconds: After how long without a word a run is taken for dead; 60 when left out, 5 to 300.
        exclusive: Refuse all writes to the thread without a claim from now on.
        take_over: Take the thread from who holds it, or although it is stuck.
        note: What to note on the claim.
        run_seconds_max: For how long a claim is renewed: a run that hangs is taken for dead after that; an hour.
    """

    holder: str | None
    lease_seconds: int
    exclusive: bool
    take_over: bool
    note: str | None
    run_seconds_max: float


class ClaimRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A claim to make."""

    holder: str
    run_id: str
    lease_seconds: int = CLAIM_LEASE_SECONDS
    exclusive: bool = False
    take_over: bool = False
    note: str | None = None
    if_fence: int | None = None


class ClaimRenewal(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A claim to renew."""

    fence: int
    note: str | None = None


class ClaimRelease(msgspec.Struct, kw_only=True):
    """A claim to release."""

    fence: int


class ClaimsRequired(msgspec.Struct, kw_only=True):
    """Whether a thread takes no write without a claim."""

    required: bool


class EffectStart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An effect to start."""

    tool: str
    # Never left out: the gateway requires it, whatever it is.
    args: Any
    mode: EffectMode | UnsetType = UNSET
    namespace: str = ""
    identity: tuple[str, ...] = ALL_ARGUMENTS
    checkpoint_id: str | None = None
    run_id: str | None = None
    fence: int | None = None
    lease_seconds: int = EFFECT_LEASE_SECONDS
    approval_id: str | None = None
    approval_position: int = 0
    tool_digest: str | None = None
    needs_approval: bool = False
    repeat: bool = False


class EffectFinish(msgspec.Struct, kw_only=True, omit_defaults=True):
    """How an effect ended."""

    execution: int
    attempt: int
    status: FinishStatus
    namespace: str = ""
    result: Any = UNSET
    result_digest: bytes | None = None
    result_bytes: int | None = None
    artifact_id: str | None = None
    error: str | None = None


class EffectResolve(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What became of an effect of unknown outcome."""

    execution: int
    attempt: int
    happened: bool
    namespace: str = ""
    result: Any = UNSET
    by_check: bool = False
