"""Effects as verbs take and give them, and the limits of one."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal
from uuid import UUID

from storage.errors import InvalidState, LimitExceeded
from storage.scope import check_id

EFFECTS_MAX: Final = 10_000
# Of one name, on as many lines of a thread.
EFFECT_EXECUTIONS_MAX: Final = 100
EFFECT_NAME_BYTES_MAX: Final = 255
EFFECT_ARGS_BYTES_MAX: Final = 1024 * 1024
EFFECT_RESULT_BYTES_MAX: Final = 1024 * 1024
EFFECT_ARGS_VALUES_MAX: Final = 10_000
EFFECT_IDENTITY_MAX: Final = 32
EFFECT_POINTER_BYTES_MAX: Final = 1024
EFFECT_LEASE_SECONDS_MIN: Final = 5
EFFECT_LEASE_SECONDS_MAX: Final = 3600
EFFECT_LEASE_SECONDS_DEFAULT: Final = 300
# Within this time the same is not done twice under another name, unless it is said to be meant.
REPEAT_WINDOW_SECONDS: Final = 3600
EFFECT_TOMBSTONE_DAYS: Final = 30

Mode = Literal["read", "idempotent", "once"]
EffectStatus = Literal["started", "done", "failed", "unknown", "voided"]
FinishStatus = Literal["done", "failed", "unknown"]
ResultState = Literal["none", "stored", "artifact", "missing"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectStart:
    """What a tool is about to do.

    Attributes:
        thread_id: The thread that it is done for.
        namespace: The namespace; the effect counts for the root of it, the part before the first ``:`` or ``|``.
        name: The name of the call, such as the id of the tool's call: the same again is the same effect.
        tool: The name of the tool.
        args: The arguments, as MessagePack.
        identity: JSON pointers into the arguments that say what is the same effect; ``""``: all of them.
        mode: What may be repeated: ``read`` always, ``idempotent`` under the same provider key, ``once`` never.
        checkpoint_id: The checkpoint that the step began at; None: the newest of the namespace.
        run_id: The id of the run.
        fence: The fence of the claim that the run holds; None: it has none.
        lease_seconds: The seconds after which whoever started it is taken for dead.
        approval_id: The approval that this start consumes; None: none.
        approval_position: Which action of the approval it is.
        tool_digest: A digest of what the tool is, as it was approved.
        needs_approval: Whether it is started with an approval only, whatever policies say.
        repeat: Whether it is meant to be done again though the same was done a moment ago, or on another line.
    """

    thread_id: str
    namespace: str
    name: str
    tool: str
    args: bytes
    identity: tuple[str, ...] = ("",)
    mode: Mode = "once"
    checkpoint_id: str | None = None
    run_id: str | None = None
    fence: int | None = None
    lease_seconds: int = EFFECT_LEASE_SECONDS_DEFAULT
    approval_id: UUID | None = None
    approval_position: int = 0
    tool_digest: str | None = None
    needs_approval: bool = False
    repeat: bool = False

    def check(self) -> None:
        """Return if it can be asked for; the pointers are looked up where the arguments are opened.

        Raises:
            InvalidState: A part of it cannot be what it is.
            LimitExceeded: The arguments or the pointers are too large.
        """
        check_id(self.thread_id, "thread id")
        check_id(self.name, "name of an effect")
        check_id(self.tool, "name of a tool")
        if self.run_id is not None:
            check_id(self.run_id, "run id")
        if len(self.args) > EFFECT_ARGS_BYTES_MAX:
            raise LimitExceeded("EFFECT_ARGS_BYTES_MAX", EFFECT_ARGS_BYTES_MAX, len(self.args), "/args")
        if not 1 <= len(self.identity) <= EFFECT_IDENTITY_MAX:
            raise LimitExceeded("EFFECT_IDENTITY_MAX", EFFECT_IDENTITY_MAX, len(self.identity), "/identity")
        for pointer in self.identity:
            if len(pointer.encode()) > EFFECT_POINTER_BYTES_MAX or (pointer and not pointer.startswith("/")):
                raise InvalidState("an identity is a JSON pointer into the arguments", "/identity")
        if not EFFECT_LEASE_SECONDS_MIN <= self.lease_seconds <= EFFECT_LEASE_SECONDS_MAX:
            raise InvalidState(
                f"an effect is leased for {EFFECT_LEASE_SECONDS_MIN} to {EFFECT_LEASE_SECONDS_MAX} seconds",
                "/lease_seconds",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectFinish:
    """What became of a tool's call.

    Attributes:
        thread_id: The thread that it was done for.
        namespace: The namespace, as at the start.
        name: The name of the call.
        execution: The number that the start gave.
        attempt: Likewise; a finish of another attempt is refused.
        status: Whether it was done, certainly failed, or nobody knows.
        result: The result, as MessagePack; None: there is none, or it is elsewhere or could not be kept.
        result_digest: A digest of it (any 32 bytes), kept even if the result cannot be.
        result_bytes: The size of a result in bytes; with neither ``result`` nor ``artifact_id`` it is missing.
        artifact_id: The artifact of the thread that holds it.
        error: The short name of the error's class; None: there was none.
    """

    thread_id: str
    namespace: str
    name: str
    execution: int
    attempt: int
    status: FinishStatus
    result: bytes | None = None
    result_digest: bytes | None = None
    result_bytes: int | None = None
    artifact_id: UUID | None = None
    error: str | None = None

    def check(self) -> None:
        """Return if it can be asked for.

        Raises:
            InvalidState: A part of it cannot be what it is, or parts contradict each other.
            LimitExceeded: The result is too large; keep it as an artifact.
        """
        check_id(self.thread_id, "thread id")
        check_id(self.name, "name of an effect")
        if self.error is not None:
            check_id(self.error, "name of an error")
        if self.result is not None and len(self.result) > EFFECT_RESULT_BYTES_MAX:
            raise LimitExceeded("EFFECT_RESULT_BYTES_MAX", EFFECT_RESULT_BYTES_MAX, len(self.result), "/result")
        if self.status != "done" and any(
            each is not None for each in (self.result, self.artifact_id, self.result_bytes)
        ):
            raise InvalidState("only what is done has a result", "/result")
        if self.result is not None and self.artifact_id is not None:
            raise InvalidState("a result is either here or in an artifact", "/artifact_id")
        if self.result_digest is not None and len(self.result_digest) != 32:
            raise InvalidState("a digest of a result has 32 bytes", "/result_digest")


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """One execution of a named effect.

    Attributes:
        thread_id: The thread that it was done for.
        namespace: The root of the namespace.
        name: The name of the call.
        execution: The number of the execution under that name, from 1; another line of the thread has its own.
        attempt: How often it was started, from 1.
        mode: What may be repeated.
        tool: The name of the tool.
        status: Whether it is started, done, failed for certain, unknown, or voided (it was found not to have happened).
        provider_key: What a provider tells repetitions by: the same for every attempt.
        anchor_checkpoint_id: The checkpoint that it was started at; None: the namespace had none.
        run_id: The id of the run.
        started_at: When the newest attempt was started, by the database's clock.
        finished_at: When it ended.
        leased_until: When whoever started it is taken for dead.
        result_state: Whether there is a result, and where.
        result: The result, as MessagePack, if it is stored; never of a listing.
        args: The arguments, as MessagePack; never of a listing.
        result_digest: The digest of the result that its finish named.
        result_bytes: The size of the result.
        artifact_id: The artifact that holds it.
        error: The short name of the error's class.
        resolved_by: Who said whether it happened: a principal, or ``check`` for a program that looked.
        started_by: The id of the key that started it.
        repeats: The number of the earlier execution of the same intent, whose provider key it has or beside which it
            was meant; None: there was none.
        repeats_name: The name of that one, if it is another; None: it is the same.
        is_copy: Whether it was copied with its thread, as history.
    """

    thread_id: str
    namespace: str
    name: str
    execution: int
    attempt: int
    mode: Mode
    tool: str
    status: EffectStatus
    provider_key: UUID
    anchor_checkpoint_id: str | None
    run_id: str | None
    started_at: datetime
    finished_at: datetime | None
    leased_until: datetime
    result_state: ResultState
    result: bytes | None
    result_digest: bytes | None
    result_bytes: int | None
    artifact_id: UUID | None
    error: str | None
    resolved_by: str | None
    started_by: str
    repeats: int | None
    repeats_name: str | None
    is_copy: bool = False
    args: bytes | None = None


@dataclass(frozen=True, slots=True)
class EffectStarted:
    """What a start was answered: whether to run, or (``must_run`` False) what it did the other time."""

    effect: Effect
    must_run: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectResolve:
    """What somebody found out about an effect of which nobody knew whether it happened.

    Attributes:
        thread_id: The thread that it was done for.
        namespace: The namespace, as at the start.
        name: The name of the call.
        execution: The number of the execution.
        attempt: Which attempt at it was looked at: nothing is said of a later one.
        happened: Whether it did.
        result: The result, as MessagePack, if it is known.
        by_check: Whether a program looked; else a person says so.
    """

    thread_id: str
    namespace: str
    name: str
    execution: int
    attempt: int
    happened: bool
    result: bytes | None = None
    by_check: bool = False

    def check(self) -> None:
        """Return if it can be asked for.

        Raises:
            InvalidState: A part of it cannot be what it is.
            LimitExceeded: The result is too large.
        """
        check_id(self.thread_id, "thread id")
        check_id(self.name, "name of an effect")
        if self.result is not None and not self.happened:
            raise InvalidState("what did not happen has no result", "/result")
        if self.result is not None and len(self.result) > EFFECT_RESULT_BYTES_MAX:
            raise LimitExceeded("EFFECT_RESULT_BYTES_MAX", EFFECT_RESULT_BYTES_MAX, len(self.result), "/result")


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownEffect:
    """An effect of which nobody knows whether it happened; only clear columns, nothing is opened.

    Attributes:
        subject_id: Whose thread it is of.
        thread_id: The id of the thread.
        namespace: The root of the namespace.
        name_tag: The keyed tag of its name, hexadecimal; the name is sealed.
        execution: The number of the execution.
        attempt: How often it was started.
        mode: What may be repeated.
        anchor_checkpoint_id: The checkpoint that it was started at.
        run_id: The id of the run.
        started_at: When the newest attempt was started.
        started_by: The id of the key that started it.
    """

    subject_id: str
    thread_id: str
    namespace: str
    name_tag: str
    execution: int
    attempt: int
    mode: Mode
    anchor_checkpoint_id: str | None
    run_id: str | None
    started_at: datetime
    started_by: str

    @property
    def effect_id(self) -> str:
        """What tells it apart in a list, where its name is sealed."""
        return f"{self.name_tag}-{self.execution}"
