"""One thread, for callers on an event loop: what a program loads, saves and asks of it.

This module owns the verbs of a thread object and what they promise; ``ThreadSteps`` owns what it remembers, and the
client what is sent and sent again. An ``AsyncThread`` object belongs to one task at a time.
"""

import functools
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, Unpack, cast, overload

from stateroom._approvals.asked import Asked, is_about, is_asked_here
from stateroom._approvals.async_approvals import AsyncApprovals
from stateroom._approvals.shapes import NewApproval
from stateroom._artifacts.async_ranges import AsyncCarrier
from stateroom._io.on_loop import finished
from stateroom._items.shapes import ItemVectors, Near
from stateroom._options import refuse_unknown
from stateroom._protocol import calls
from stateroom._protocol.core import Call, Pinned
from stateroom._protocol.wire import ParentRequest
from stateroom._remembered.pieces import PieceCache
from stateroom._resuming.context import ResumeContext
from stateroom._resuming.gathering import ContextWanted
from stateroom._thread_ledgers import requests as ledgers
from stateroom._thread_ledgers.async_claims import RUN_SECONDS_MAX, AsyncClaim
from stateroom._thread_ledgers.shapes import (
    ALL_ARGUMENTS,
    EFFECT_LEASE_SECONDS,
    ClaimInfo,
    ClaimOptions,
    Effect,
    EffectFinish,
    EffectResolve,
    EffectStart,
    EffectStarted,
    EffectStatus,
    FinishStatus,
    StartOptions,
)
from stateroom._threads.async_effects import async_run_effect, starting
from stateroom._threads.effect_calls import EffectOptions, EffectPolicy, Result, ToolCall
from stateroom._threads.fixtures import Fixture, fixture_lines, loading
from stateroom._threads.once.async_calls import async_call_once
from stateroom._threads.plain import to_plain
from stateroom._threads.steps import ThreadOptions, ThreadSteps
from stateroom._threads.trajectories import Lines, StepT, TrajectoryStep, Wanted, step_lines
from stateroom._workspaces.async_workspace import AsyncWorkspace
from stateroom.async_artifacts import AsyncArtifacts
from stateroom.errors import ApprovalNotFound, GatewayUnavailable, InvalidRequest
from stateroom.types import (
    CheckpointInfo,
    CheckpointOptions,
    CopyReceipt,
    Head,
    LargeValue,
    LongList,
    MaybeSummary,
    ResolveArtifacts,
    SaveOptions,
    SaveReceipt,
    StateT,
    Status,
    ThreadInfo,
    ThreadMove,
)

P = ParamSpec("P")
R = TypeVar("R")


class AsyncCaller(AsyncCarrier, Protocol):
    """What a thread needs of a client."""

    pieces: PieceCache

    def monotonic(self) -> float:
        """Seconds since some fixed moment."""

    def infos(self, selection: calls.Selection, limit: int | None) -> AsyncIterator[CheckpointInfo]:
        """Selected checkpoints, newest first, page by page."""

    def steps_of(
        self, lines: Lines[StepT], call_of: Callable[[Lines[StepT]], Call], pinned: Pinned
    ) -> AsyncIterator[StepT]:
        """The steps of a trajectory as they arrive."""


class AsyncThread(ThreadSteps[StateT], Generic[StateT]):
    """One thread, and the head this object last saw of it. Not to be shared between threads of execution."""

    def __init__(self, client: AsyncCaller, thread_id: str, **options: Unpack[ThreadOptions]) -> None:
        super().__init__(thread_id, client.pieces, options)
        self._client = client

    async def load(self, *, resolve_artifacts: ResolveArtifacts = False) -> Head[StateT] | None:
        """The newest checkpoint, or the one a fork starts from; later saves follow it.

        Args:
            resolve_artifacts: Bring along the artifacts that the state names, as ``Head.artifacts``; ``"previews"``:
                their names, types, sizes and previews only.

        Returns:
            The checkpoint with its state, or ``None`` when the thread is new.

        Raises:
            IntegrityFailure: The stored state is damaged or was tampered with.
            StateTooNew: It was saved at a version from which no steps lead to the one this program knows.
            StateUpcastFailed: A step on the way cannot be applied to it.
            msgspec.ValidationError: The state does not fit ``state_type``.
        """
        pinned = self._client.pin()
        return await self._client.drive(self._load(pinned, resolve_artifacts=resolve_artifacts), pinned)

    async def at(self, checkpoint_id: str, *, resolve_artifacts: ResolveArtifacts = False) -> Head[StateT]:
        """An old checkpoint, without changing what later saves follow.

        Args:
            checkpoint_id: Its id.
            resolve_artifacts: Bring along the artifacts that the state names, as ``Head.artifacts``; ``"previews"``:
                their names, types, sizes and previews only.

        Raises:
            CheckpointNotFound: There is none.
        """
        pinned = self._client.pin()
        steps = self._at(pinned, checkpoint_id, resolve_artifacts=resolve_artifacts)
        return await self._client.drive(steps, pinned)

    async def large_values(self, checkpoint_id: str | None = None) -> dict[str, LargeValue]:
        """What the large values of a state are, by their paths in it, without fetching any of them.

        Args:
            checkpoint_id: Of which checkpoint; the newest, or the one a fork starts from, when left out.

        Returns:
            Those whose paths are known; none when the thread is new. ``load`` has the same as ``Head.large_values``.

        Raises:
            CheckpointNotFound: There is no such checkpoint.
        """
        return await self._client.drive(self._large_values(checkpoint_id))

    async def save(self, state: StateT, **options: Unpack[SaveOptions]) -> SaveReceipt:
        """Save a checkpoint; when this returns, it is durable.

        Args:
            state: The whole state; only what changed is stored.
            options: What ``SaveOptions`` lists.

        Returns:
            The receipt.

        Raises:
            HeadMoved: Another writer saved since this object last loaded or saved. Load and try again.
            CheckpointExists: ``checkpoint_id`` is taken by other content.
            StateTooNew: The state's schema is not registered at this version.
            GatewayUnavailable: No answer in time. Saving the same again is safe.
        """
        refuse_unknown("save", options, SaveOptions)
        request = self._save_request(options, options.get("state_schema"), options.get("state_version"))
        pinned = self._client.pin()
        return await self._client.drive(self._save(pinned, state, request, options), pinned)

    async def ask(
        self,
        state: StateT,
        approval: NewApproval,
        *,
        timeout_seconds: float | None = None,
        **options: Unpack[SaveOptions],
    ) -> Asked:
        """Save a checkpoint that waits for a person, and wait for the answer: for agents without a framework.

        A program that was stopped meanwhile asks again, by the same name: the same question is the same approval, also
        when it was decided by then. Another action under that name is another question, and takes the place of the
        one before, even if that was approved.

        Args:
            state: The whole state.
            approval: The question, with one action.
            timeout_seconds: How long to wait for the answer; left out: as long as it takes.
            options: What ``SaveOptions`` lists; the status is ``waiting`` when left out.

        Returns:
            The answer. Do what was approved with ``args`` and nothing else: a person may have edited them.

        Raises:
            ApprovalNotFound: Another writer to the thread asked something else in its place.
            StateroomError: As ``save``, and as ``client.approvals.wait`` and ``open``. It takes ``approval:read`` and
                ``approval:open``, for the key's own subject.
        """
        refuse_unknown("ask", options, SaveOptions)
        await self.save(state, **self._asking(approval, options))
        approvals = AsyncApprovals(self._client)
        async for each in approvals.list(thread=self.thread_id):
            if is_asked_here(each, self.namespace) and is_about(each, await approvals.open(each.approval_id), approval):
                decided = await approvals.wait(each.approval_id, timeout_seconds=timeout_seconds)
                return Asked(decided, await approvals.open(each.approval_id))
        raise ApprovalNotFound("another writer to the thread asked something else in its place")

    async def complete(
        self, state: StateT, *, vectors: Mapping[str, ItemVectors] | None = None, **options: Unpack[SaveOptions]
    ) -> SaveReceipt:
        """Save a last checkpoint, and what it learned: facts that say ``keep`` become items with it, or neither.

        Args:
            state: The whole state; its ``facts`` are ``Fact`` or mappings with the same members.
            vectors: By the names of facts, vectors by which they are found by what they mean.
            options: What ``SaveOptions`` lists; the status is ``done`` when left out.

        Raises:
            ItemMoved: A fact was remembered at another revision than the state believes: somebody else changed it.
                Nothing was saved; ``resume_context`` says what is different.
            StateroomError: As ``save``.
        """
        refuse_unknown("complete", options, SaveOptions)
        return await self.save(state, **self._completing(state, options, vectors or {}, datetime.now(UTC)))

    async def resume_context(
        self,
        *,
        messages: int = 20,
        items: int = 10,
        paths: Iterable[Sequence[str]] = (),
        near: Near | None = None,
    ) -> ResumeContext:
        """What an agent needs to go on, and what happened while it was away.

        The state's members ``goal``, ``plan``, ``done``, ``facts``, ``summary`` and ``messages`` are told as far as it
        has them (``AgentState`` has all). Facts that were remembered are compared with the items that they came from.

        Args:
            messages: How many of the newest messages.
            items: How many items.
            paths: The beginnings of the paths whose items matter; left out: those that the facts are under.
            near: The vector that items are to be near to; left out: the last changed matter.

        Returns:
            A bounded account; ``text()`` is the same for a model.
        """
        wanted = ContextWanted(messages=messages, items=items, paths=tuple(map(tuple, paths)), near=near)
        pinned = self._client.pin()
        return await self._client.drive(self._resume_context(pinned, wanted), pinned)

    async def patch(
        self,
        *,
        set: Mapping[str, Any] | None = None,  # noqa: A002 - the word of the API
        append: Mapping[str, Sequence[Any]] | None = None,
        remove: Sequence[str] = (),
        **options: Unpack[CheckpointOptions],
    ) -> SaveReceipt:
        """Save a checkpoint by saying what changed since the head.

        Args:
            set: Top-level keys to set.
            append: Elements to append to lists, by top-level key.
            remove: Top-level keys to remove.
            options: What ``CheckpointOptions`` lists.

        Returns:
            The receipt.

        Raises:
            CheckpointNotFound: There is no head to change.
            HeadMoved: Another writer saved since this object last loaded or saved.
        """
        refuse_unknown("patch", options, CheckpointOptions)
        pinned = self._client.pin()
        return await self._client.drive(self._patch(pinned, set, append, remove, options), pinned)

    async def compact(
        self,
        channel: str,
        *,
        keep_last: int,
        summary: Sequence[Any] = (),
        status: Status | None = None,
        metadata: Mapping[str, Any] | None = None,
        run_id: str | None = None,
        checkpoint_id: str | None = None,
    ) -> SaveReceipt:
        """Save a checkpoint whose list is a summary and the newest elements of the head's; the list does not travel.

        Nothing is removed: older checkpoints hold the whole list, until retention archives or thins them. What is left
        out is as the head has it.

        Args:
            channel: The top-level key of the list.
            keep_last: How many of its newest elements stay.
            summary: Elements to put in front of them, in the place of the older ones.
            status: Its status.
            metadata: Its metadata.
            run_id: The run that makes it.
            checkpoint_id: An id of the caller's own; minted by the gateway when left out.

        Returns:
            The receipt; later saves follow it. A state that was loaded before still has the whole list: load again.

        Raises:
            CheckpointNotFound: There is no head.
            HeadMoved: Another writer saved since this object last loaded or saved. Without either, the newest head is
                taken.
            WritesPending: Tasks have written to the head, and no checkpoint has taken up what they wrote.
            InvalidRequest: The key is not there, or is no list.
        """
        pinned = self._client.pin()
        steps = self._compact(
            channel,
            keep_last,
            summary,
            status=status,
            metadata=metadata,
            run_id=run_id,
            checkpoint_id=checkpoint_id,
        )
        return await self._client.drive(steps, pinned)

    async def compact_if_needed(
        self,
        state: StateT,
        needs_compaction: Callable[[LongList, list[Any]], Awaitable[MaybeSummary] | MaybeSummary],
        *,
        every: int | None = None,
    ) -> StateT:
        """Compact the lists that have become too long, by summaries that the program makes.

        A save policy of the tenant, or of the agent, says which are: the answer to the last save told this object so.
        With ``every`` the program is asked about each list at every so-many-th step, too. Call it after each save:

            thread.save(state)
            state = thread.compact_if_needed(state, janitor, every=10)

        Args:
            state: The state that was saved last.
            needs_compaction: Called with a list and its elements; a function or a coroutine function. It returns what
                stands for the list from now on, or ``None`` to leave it as it is.
            every: At which steps to ask about all lists: those that are a multiple of it.

        Returns:
            The state to go on with: ``state``, if nothing was compacted.

        Raises:
            HeadMoved: Another writer saved since.
            WritesPending: Tasks have written to the head, and no checkpoint has taken up what they wrote.
        """
        is_shorter = False
        for long, elements in self._lists_to_compact(state, every):
            summary = await finished(needs_compaction(long, elements))
            if summary is not None:
                await self.compact(long.channel, keep_last=summary.keep_last, summary=summary.elements)
                is_shorter = True
        head = await self.load() if is_shorter else None
        return state if head is None else head.state

    @overload
    async def once(self, once_key: str, fn: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs) -> R: ...

    @overload
    async def once(self, once_key: str, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...

    async def once(self, once_key: str, fn: Callable[P, Awaitable[R] | R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call ``fn`` unless a call of this name finished before in this thread and namespace.

        The result is kept in the thread's ledger of effects, outlives later saves and pruning, is the same on every
        branch of the thread, and is found by a resumed process even if nothing was saved after the call. It is
        returned as a plain tree, converted to ``fn``'s annotated return type, in the first call just as in later ones.

        A crash after the effect and before its result is kept stays ambiguous: it cannot be told whether the effect
        happened, and the next call repeats it, under the same provider key (``current_effect()`` has it in ``fn``; or
        give ``once_key`` to the service that is called). ``effect(mode="once")`` refuses to repeat it instead. A call
        whose name another process is calling waits until that is done, for at most five seconds; then it may be dead,
        and ``fn`` runs here, too. The result kept first wins and both return it.

        A gateway that keeps no effects yet keeps the result as a pending write, as releases before did; what they kept
        is seen.

        Args:
            once_key: The call's name, unique in this thread and namespace: another call needs another name.
            fn: What to call; a function or a coroutine function.
            args: Its positional arguments.
            kwargs: Its keyword arguments.

        Returns:
            The result, or the one kept earlier.

        Raises:
            OnceKeyReused: A call of this name finished with other arguments. Nothing was called, unless both ran at the
                same time.
            InvalidRequest: The result has no plain form (the effect happened, and is not kept).
            ResultMissing: It finished, and the gateway did not take its result.
        """
        called = ToolCall(fn, args, kwargs)
        kept = await async_call_once(self._client, self._client.pin(), self._place_of(once_key), once_key, called)
        return cast(R, self._typed_result(kept, fn))

    def claim(
        self,
        *,
        run_id: str | None = None,
        if_fence: int | None = None,
        **options: Unpack[ClaimOptions],
    ) -> AsyncClaim:
        """Go on with the thread, and nobody else meanwhile: within ``with``, this object's writes name the claim.

            async with thread.claim(run_id="run-1") as claim:
                ...
                await claim.note("2 of 5 booked")

        The claim is renewed in the background each third of its lease, and released at the end. If this process dies,
        the lease runs out and another worker may claim the thread (``client.recover``). Another one that claims it
        all the same makes this one's writes fail with ``ClaimLost``.

        Args:
            run_id: The id of this run; its checkpoints have it where they name none. The same holder and run may
                claim again, and go on with the claim that they have, which is released when the last block of this
                process is left. Left out, it is a run of its own: another block does not share it.
            if_fence: The fence of another run's claim, as ``silent_threads`` told it: only in the place of that one.
            options: What ``ClaimOptions`` lists.

        Raises:
            ClaimHeld: Another run holds the thread. Raised, as the others, when the block is entered.
            ClaimSuperseded: The claim that ``if_fence`` names was released, or another run has the thread since.
            ThreadStuck: One run after the other died with it.
        """
        refuse_unknown("claim", options, ClaimOptions)
        wanted = ledgers.wanted_claim(options, run_id, if_fence)
        seconds = options.get("run_seconds_max", RUN_SECONDS_MAX)
        return AsyncClaim(self._client, self._client.pin(), self.thread_id, wanted, self._held, seconds)

    async def claim_info(self) -> ClaimInfo:
        """The newest claim of the thread: who holds it, until when, and what was noted.

        Raises:
            ClaimNotFound: Nobody ever claimed it.
        """
        return await self._client.drive(ledgers.show_claim(self.thread_id))

    async def require_claims(self, *, required: bool = True) -> None:
        """Say whether the thread takes no write without a claim; lifting that is in the audit log.

        Args:
            required: Whether it does.
        """
        await self._client.drive(ledgers.require_claims(self.thread_id, required=required))

    def effect(
        self,
        *,
        name: str | Callable[..., str],
        **options: Unpack[EffectOptions],
    ) -> Callable[[Callable[P, Awaitable[R] | R]], Callable[P, Awaitable[R]]]:
        """Keep the calls of a function in the thread's ledger of effects, so that a run that is repeated repeats none.

            @thread.effect(name=lambda invoice, amount: f"pay-{invoice}")
            async def pay(invoice: str, amount: int) -> dict: ...

        A call that was done before is not done again: its result is returned. Where it is not certain whether it
        happened, because the process died or an exception left it open, ``once`` raises ``EffectUnknown`` until
        somebody says what became of it (``resolve_effect``, or ``check``); ``read`` and ``idempotent`` are done again,
        the latter under the same provider key, which a parameter ``provider_key`` or ``current_effect()`` has.

        Args:
            name: The call's name, or what makes it of the arguments: the same name is the same call.
            options: What ``EffectOptions`` lists.
        """
        refuse_unknown("effect", options, EffectOptions)
        policy = EffectPolicy(**options)

        def decorate(fn: Callable[P, Awaitable[R] | R]) -> Callable[P, Awaitable[R]]:
            @functools.wraps(fn)
            async def kept(*args: P.args, **kwargs: P.kwargs) -> R:
                called = name(*args, **kwargs) if callable(name) else name
                place = self._place_of(called)
                pinned = self._client.pin()
                result = await async_run_effect(self._client, pinned, place, policy, ToolCall(fn, args, kwargs))
                return cast(R, result)

            return kept

        return decorate

    async def start_effect(
        self,
        name: str,
        tool: str,
        args: Any,
        **options: Unpack[StartOptions],
    ) -> EffectStarted:
        """Ask whether a tool is to run now; that it was started is stored before this returns.

        Args:
            name: The call's name.
            tool: The tool's name.
            args: Its arguments.
            options: What ``StartOptions`` lists.

        Raises:
            EffectUnknown: It may have happened.
            EffectInProgress: Somebody does it now.
            EffectRepeats: The same was done before under another name.
            EffectMismatch: The name was used for something else.
            EffectsExceeded: The thread has as many as it may.
        """
        refuse_unknown("start_effect", options, StartOptions)
        place = self._place_of(name)
        wanted = EffectStart(
            tool=tool,
            args=to_plain(args),
            mode=options.get("mode", "once"),
            namespace=place.namespace,
            identity=tuple(options.get("identity", ALL_ARGUMENTS)),
            checkpoint_id=place.checkpoint_id,
            run_id=place.run_id,
            fence=place.fence,
            lease_seconds=options.get("lease_seconds", EFFECT_LEASE_SECONDS),
            approval_id=options.get("approval_id"),
            approval_position=options.get("approval_position", 0),
            tool_digest=options.get("tool_digest"),
            repeat=options.get("repeat", False),
        )
        return await self._client.drive(starting(place, wanted))

    async def finish_effect(
        self, effect: Effect, status: FinishStatus = "done", *, result: Any = None, error: str | None = None
    ) -> Effect:
        """Say how an effect ended that ``start_effect`` began.

        Args:
            effect: The effect, as the start gave it.
            status: How it ended: ``failed`` says that it certainly did not happen.
            result: What it gave; at most 1 MiB as MessagePack.
            error: The short name of the error's class.

        Raises:
            EffectSuperseded: Another attempt was begun since.
        """
        if status == "done":
            ended = Result.of(result).finish(effect)
        else:
            ended = EffectFinish(
                execution=effect.execution, attempt=effect.attempt, status=status, namespace=effect.namespace,
                error=error,
            )  # fmt: skip
        return await self._client.drive(ledgers.finish(self.thread_id, effect.name, ended))

    async def resolve_effect(
        self, effect: Effect | str, *, happened: bool, result: Any = None, by_check: bool = False
    ) -> Effect:
        """Say of an effect of unknown outcome whether it happened. It is in the audit log.

        Args:
            effect: The effect, as it was looked at; by its name alone, the newest execution as it is now.
            happened: Whether it did; if not, the next start runs.
            result: What it gave, if that is known.
            by_check: Whether a program looked. Else a person says so, with a key that has ``approval:decide`` and is
                not the one that started it.

        Raises:
            EffectNotUnknown: It is known.
            EffectSuperseded: Another attempt was begun since it was looked at.
            EffectInProgress: A program found nothing, and whoever started it may still be at it.
            EffectOwnKey: This key started it.
        """
        of = await self.get_effect(effect) if isinstance(effect, str) else effect
        found = EffectResolve(
            execution=of.execution, attempt=of.attempt, happened=happened, namespace=self.namespace, by_check=by_check
        )
        if result is not None:
            found.result = to_plain(result)
        return await self._client.drive(ledgers.resolve(self.thread_id, of.name, found))

    async def get_effect(self, name: str, *, execution: int | None = None) -> Effect:
        """One execution of an effect, with its result.

        Args:
            name: The effect's name.
            execution: The number of the execution; the newest when left out.

        Raises:
            EffectNotFound: There is none.
        """
        return await self._client.drive(ledgers.show(self.thread_id, name, self.namespace, execution))

    def effects(
        self, *, status: EffectStatus | None = None, checkpoint_id: str | None = None, limit: int | None = None
    ) -> AsyncIterator[Effect]:
        """The thread's effects, of all namespaces, without their results, page by page.

        Args:
            status: Only this status.
            checkpoint_id: Only those that were started at this checkpoint.
            limit: At most so many.
        """
        return self._client.paged(
            lambda size, cursor: ledgers.effects(
                self.thread_id, size, cursor, status=status, checkpoint_id=checkpoint_id
            ),
            limit,
        )

    def history(
        self,
        *,
        limit: int | None = None,
        before: str | None = None,
        status: Status | None = None,
        step: int | None = None,
        run_id: str | None = None,
        source: str | None = None,
        matching: Mapping[str, Any] | None = None,
    ) -> AsyncIterator[CheckpointInfo]:
        """The namespace's checkpoints, newest first, page by page, without their states (see ``at``).

        Args:
            limit: At most so many.
            before: Only checkpoints with smaller ids.
            status: Only this status.
            step: Only this step.
            run_id: Only this run.
            source: Only this source.
            matching: Metadata that must be contained.
        """
        selection = calls.Selection(
            thread_id=self.thread_id,
            namespace=self.namespace,
            before=before,
            status=status,
            step=step,
            run_id=run_id,
            source=source,
            matching=matching,
        )
        return self._client.infos(selection, limit)

    def trajectory(
        self, *, checkpoint_id: str | None = None, after: str | None = None, all_namespaces: bool = False
    ) -> AsyncIterator[TrajectoryStep]:
        """The steps that led to a checkpoint, oldest first, as plain data: changes, messages, writes, model, usage.

        They come as they are read, whatever their number, and go on where a connection broke. Needs a key with
        ``state:export`` and ``state:read``; the tenant's audit log says who read it. A tenant reads one at a time.

        Args:
            checkpoint_id: The checkpoint they lead to; the newest when left out.
            after: A step that is there already: only those after it.
            all_namespaces: The whole thread: one namespace after the other, each up to its newest checkpoint that is
                not newer than ``checkpoint_id``.

        Raises:
            PermissionDenied: The key may not export.
            CheckpointNotFound: There is no such checkpoint, or ``after`` is no step before it.
            InvalidRequest: ``after`` is of one namespace, and all are asked for.
        """
        if after is not None and all_namespaces:
            raise InvalidRequest("after is a step of one namespace: leave it out, or all_namespaces")
        wanted = Wanted(
            namespace=self.namespace, checkpoint_id=checkpoint_id, after=after, all_namespaces=all_namespaces
        )
        return self._client.steps_of(step_lines(wanted), self._lines_call, self._client.pin())

    async def fixture(self, *, checkpoint_id: str | None = None, all_namespaces: bool = False) -> Fixture:
        """The steps that led to a checkpoint, byte by byte as they are stored, to be loaded into a thread of a test.

        Needs a key with ``state:export`` and ``state:read``; the tenant's audit log says who read it.

        Args:
            checkpoint_id: The checkpoint they lead to; the newest when left out.
            all_namespaces: The whole thread: all of its namespaces, each up to its newest checkpoint that is not newer
                than ``checkpoint_id``.

        Raises:
            PermissionDenied: The key may not export.
            CheckpointNotFound: There is no such checkpoint.
        """
        lines = fixture_lines(
            Wanted(namespace=self.namespace, checkpoint_id=checkpoint_id, all_namespaces=all_namespaces)
        )
        steps = [step async for step in self._client.steps_of(lines, self._lines_call, self._client.pin())]
        if lines.begun is None or not steps:
            raise GatewayUnavailable("the trajectory has no steps", code="unexpected-answer")
        return Fixture(lines.begun, steps)

    async def load_fixture(self, fixture: Fixture) -> int:
        """Save all steps of a fixture, with their own ids; as ``fixture.load_into(thread)``.

        Args:
            fixture: The steps to save.

        Returns:
            How many steps were new here.

        Raises:
            ThreadExists: The thread has other checkpoints.
            CheckpointExists: It has one of these, but with another content.
            InvalidRequest: It is a fixture of a whole thread, and this is a sub-agent's namespace of one.
        """
        pinned = self._client.pin()
        steps = loading(fixture, self.thread_id, self.namespace, self._pieces, pinned)
        return await self._client.drive(steps, pinned)

    def workspace(self, folder: str | os.PathLike[str], *, name: str = "workspace") -> AsyncWorkspace:
        """A folder that is stored with this thread, and comes back: on another machine, after a crash, in a fork.

        Args:
            folder: Its path.
            name: What its snapshots are called among the thread's artifacts; a thread may have several.
        """
        return AsyncWorkspace(AsyncArtifacts(self._client), self.thread_id, folder, name)

    async def fork(self, checkpoint_id: str) -> "AsyncThread[StateT]":
        """A new object of the same thread, whose next save continues from an old checkpoint.

        Nothing is removed: the fork's first save becomes the head, and the branch it leaves stays in the
        history. That save raises ``HeadMoved`` if another writer saved after the fork was made.

        Args:
            checkpoint_id: Where to continue from.

        Raises:
            CheckpointNotFound: There is no such checkpoint.
        """
        forked: AsyncThread[StateT] = AsyncThread(self._client, self.thread_id, **self._options())
        forked._held = self._held
        pinned = self._client.pin()
        await self._client.drive(forked._fork_from(pinned, checkpoint_id), pinned)
        return forked

    async def info(self) -> ThreadInfo | None:
        """The thread's settings and status; ``None`` when it does not exist."""
        return await self._client.drive(calls.show_thread(self.thread_id))

    async def change(self, *, strict: bool | None = None, agent: str | None = None) -> ThreadInfo:
        """Change settings; creates the thread when it does not exist.

        Args:
            strict: Refuse saves that do not name the head they follow.
            agent: The program's name.
        """
        return await self._client.drive(self._change(strict=strict, agent=agent))

    async def link(self, parent_thread_id: str, *, namespace: str = "", checkpoint_id: str | None = None) -> ThreadInfo:
        """Say which thread this one was begun from, and where in it; creates the thread when it does not exist.

        Another parent is replaced. It is a name: the parent need not exist.

        Args:
            parent_thread_id: The parent, a thread of the same subject.
            namespace: Where in it; empty is the root.
            checkpoint_id: Which checkpoint; ``None``: none in particular.

        Raises:
            Conflict: The thread would be its own ancestor (``link-circular``), or an older gateway may still run
                (``feature-off``).
            LegalHold: The thread is held, and has another parent.
            LimitExceeded: It would have too many ancestors.
        """
        parent = ParentRequest(thread_id=parent_thread_id, namespace=namespace, checkpoint_id=checkpoint_id)
        return await self._client.drive(calls.link_thread(self.thread_id, parent))

    async def unlink(self) -> None:
        """Say that the thread was begun from no other; both stay.

        Raises:
            LegalHold: The thread is held, and has a parent.
            ThreadNotFound: There is none.
        """
        await self._client.drive(calls.unlink_thread(self.thread_id))

    def children(self, *, limit: int | None = None) -> AsyncIterator[ThreadInfo]:
        """The threads that were begun from this one, newest first, page by page. It need not exist itself.

        Args:
            limit: At most so many.
        """
        return self._client.paged(lambda size, cursor: calls.list_children(self.thread_id, size, cursor), limit)

    async def copy(self, target_thread_id: str) -> CopyReceipt:
        """Copy the whole thread, history and pending writes included.

        Args:
            target_thread_id: A thread that does not exist yet.

        Raises:
            ThreadExists: It exists.
            ThreadNotFound: This thread does not exist.
        """
        return await self._client.drive(calls.copy_thread(self.thread_id, target_thread_id))

    async def archive(self, *, storage_class: str | None = None) -> ThreadMove:
        """Ask for the thread to be moved to the archive: one sealed object instead of rows. A job does it.

        It stays listed and, unless its storage class is a frozen one, readable; a save brings it back.

        Args:
            storage_class: S3's name, such as ``GLACIER``; the archive's own when left out.

        Returns:
            Where the thread is now, and the job that moves it.

        Raises:
            ThreadNotFound: There is none.
            ArchiveUnavailable: The deployment has no archive.
        """
        return await self._client.drive(calls.archive_thread(self.thread_id, storage_class))

    async def archive_old(
        self, older_than_seconds: float, *, keep_last: int = 0, storage_class: str | None = None
    ) -> ThreadMove:
        """Ask for the thread's older checkpoints to be moved to the archive, while it stays hot. A job does it.

        They stay readable, unless their storage class is a frozen one; ``info().segments`` says how many there are.
        Heads stay, interrupts that were not answered, and what a checkpoint that stays is rebuilt from.

        Args:
            older_than_seconds: For how long a checkpoint was neither made nor written to.
            keep_last: How many of the newest of each namespace stay all the same.
            storage_class: S3's name, such as ``GLACIER``; the archive's own when left out.

        Returns:
            Where the thread is, and the job that moves its checkpoints.

        Raises:
            ThreadNotFound: There is none.
            ArchiveUnavailable: The deployment has no archive.
            Conflict: An older gateway may still run (``feature-off``).
        """
        return await self._client.drive(calls.archive_old(self.thread_id, older_than_seconds, keep_last, storage_class))

    async def restore(self, wait_seconds: float | None = None, *, segment: int | None = None) -> ThreadMove:
        """Ask for the thread to be brought back from the archive with all segments, thawing them if need be.

        A job does it.

        Args:
            wait_seconds: Wait for it for so long at most; ``None``: do not wait. A thaw takes hours.
            segment: Only the segment of this number (``info().segments.ranges``) of a thread that is hot, with those
                that its volume got later; ``None``: all of the thread.

        Returns:
            Where the thread is now, and the job that moves it.

        Raises:
            ThreadNotFound: There is none.
            ThreadArchived: It is not back after so long (the restore goes on), or cannot be brought back; or a segment
                is asked for of a thread that is archived as a whole.
            InvalidRequest: The thread has no segment of this number: it came back, or never was.
        """
        return await self._client.drive(calls.restore_thread(self.thread_id, wait_seconds, segment))

    async def delete(self, *, family: bool = False) -> bool:
        """Delete the whole thread, all namespaces included.

        Args:
            family: Delete the threads that were begun from it, too, and so on.

        Returns:
            Whether there was one.

        Raises:
            LegalHold: The thread, or one of its family, is held; nothing was deleted.
            LimitExceeded: The family is too large; nothing was deleted.
        """
        return await self._client.drive(self._delete(family=family))
