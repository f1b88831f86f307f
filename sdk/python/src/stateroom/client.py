# Generated from async_client.py by `make generate`: change that, not this.
"""The client of callers that block.

This module owns calls and their retries. A ``Client`` may be shared between threads; a
``Thread`` object belongs to one thread at a time. It promises that nothing is acknowledged that the gateway did not
acknowledge.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Generic, ParamSpec, Protocol, Self, TypedDict, TypeVar, Unpack, cast, overload

import httpx2

from stateroom._artifacts.transfers import Reception
from stateroom._io.blocking import finished, open_transport, together
from stateroom._io.transport import NoAnswer
from stateroom._options import refuse_unknown
from stateroom._protocol import calls
from stateroom._protocol.core import Answer, Attempts, Call, Endpoint, Pinned, Steps, Timeouts
from stateroom._protocol.wire import Page, ParentRequest
from stateroom._remembered.pieces import PieceCache
from stateroom._threads.fixtures import Fixture, fixture_lines, loading
from stateroom._threads.intents import intent_of
from stateroom._threads.steps import ThreadOptions, ThreadSteps
from stateroom._threads.trajectories import Lines, StepT, TrajectoryStep, step_lines
from stateroom.artifacts import Artifacts
from stateroom.errors import GatewayUnavailable, ThreadNotFound
from stateroom.schema import StateVersion
from stateroom.share import ClientShare
from stateroom.subject import Subject
from stateroom.tokens import Owner, TokenStore, forget_missing, remember, with_known
from stateroom.types import (
    CheckpointFilter,
    CheckpointInfo,
    CheckpointOptions,
    CopyReceipt,
    Head,
    LargeValue,
    LongList,
    MaybeSummary,
    RemovalReceipt,
    ResolveArtifacts,
    SaveOptions,
    SaveReceipt,
    StateT,
    Status,
    ThreadInfo,
    ThreadMove,
    WhoAmI,
)

P = ParamSpec("P")
R = TypeVar("R")
_OK = 200


class Clock(Protocol):
    """What a client knows of time."""

    def monotonic(self) -> float:
        """Seconds since some fixed moment."""

    def sleep(self, seconds: float) -> None:
        """Wait."""


class SystemClock:
    """The machine's clock."""

    def monotonic(self) -> float:
        """Seconds since some fixed moment."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)


class ClientOptions(TypedDict, total=False):
    """How a client acts; each may be left out.

    Attributes:
        subject: The subject's id, a callable that returns it (such as ``current_subject``), or ``None`` to
            act for the subject the key is bound to.
        timeouts: Time budgets of a call.
        transport: Another transport than a network connection, for tests and embedding.
        clock: Another clock.
        token_store: Where to remember how far threads were, so that their rollback is noticed
            (``RollbackDetected``); without one it is not.
        client_share: 32 bytes of ``new_client_share`` that only you keep, or a callable that returns them. Threads
            made with it open only with it: not without it, and not for whoever has the gateway and its database.
            Lost share, lost data. ``request`` does not send it.
        state_version: The state version that this program writes and understands, such as ``travel@2``: what its
            threads save says so, and what they load arrives at it, whatever it was saved at. Left out: as saved.
        strict: Make every thread that is saved to strict, for other writers, too, and say with every save what it
            stands on: a save beside what somebody else saved is ``HeadMoved``, also of a thread that was never loaded.
    """

    subject: Subject
    timeouts: Timeouts | None
    transport: httpx2.BaseTransport | None
    clock: Clock | None
    token_store: TokenStore | None
    client_share: ClientShare
    state_version: StateVersion | str | None
    strict: bool


class Client:
    """A connection pool to one gateway, acting for one subject or for whoever ``subject`` names at the time.

    Args:
        url: The gateway's URL.
        api_key: The API key.
        options: The options that ``ClientOptions`` lists.

    Raises:
        NotConfigured: The URL, the key or the state version cannot be used.
    """

    def __init__(self, url: str, api_key: str, **options: Unpack[ClientOptions]) -> None:
        refuse_unknown(type(self).__name__, options, ClientOptions)
        self._endpoint = Endpoint(url, api_key, options.get("subject"), options.get("client_share"))
        version = options.get("state_version")
        self.state_version = None if version is None else StateVersion.of(version)
        self.strict = options.get("strict", False)
        self._timeouts = options.get("timeouts") or Timeouts()
        self._clock: Clock = options.get("clock") or SystemClock()
        self._token_store = options.get("token_store")
        self._me: WhoAmI | None = None
        self.pieces = PieceCache()
        self._transport = open_transport(self._endpoint.url, options.get("transport"))

    @classmethod
    def from_env(cls, **options: Unpack[ClientOptions]) -> Self:
        """A client configured by ``STATEROOM_URL`` and ``STATEROOM_API_KEY``.

        Args:
            options: The options that ``ClientOptions`` lists.

        Raises:
            NotConfigured: A variable is missing or unusable.
        """
        return cls(*Endpoint.read_env(), **options)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._endpoint.url!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. The client cannot be used afterwards."""
        self._transport.close()

    def pin(self) -> Pinned:
        """Decide the subject now, for several calls of ``drive``.

        Raises:
            SubjectRequired: Nobody said for which subject to act.
        """
        return self._endpoint.pin()

    def drive(self, steps: Steps[R], pinned: Pinned | None = None) -> R:
        """Carry out a procedure of calls.

        Args:
            steps: Yields calls and is sent their answers or thrown their errors.
            pinned: A subject decided earlier by ``pin``.

        Returns:
            What the procedure returns.

        Raises:
            StateroomError: What the procedure did not catch.
        """
        try:
            call = next(steps)
            while True:
                try:
                    answer = self._send(call, pinned)
                except Exception as error:  # noqa: BLE001 - the procedure decides about every failure
                    call = steps.throw(error)
                else:
                    call = steps.send(answer)
        except StopIteration as finished:
            return cast(R, finished.value)
        finally:
            steps.close()

    def _send(self, call: Call, pinned: Pinned | None = None) -> Answer:
        if call.together:
            everyone = pinned or self.pin()  # decided here: a worker thread does not see the caller's `acting_for`
            answers = together(lambda each: self._send(each, everyone), call.together)
            return Answer(status=200, headers={}, body=b"", answers=answers)
        if call.after_seconds:
            self._clock.sleep(call.after_seconds)
        store = self._token_store
        if store is None or not (call.seen or call.forgets):
            return self._exchange(call, pinned)
        pinned = pinned or self.pin()
        owner = self._owner(pinned)
        if call.seen is not None:
            call = with_known(call, store.get(owner.place(*call.seen)))
        try:
            answer = self._exchange(call, pinned)
        except ThreadNotFound:
            forget_missing(store, owner, call)
            raise
        remember(store, owner, call, answer)
        return answer

    def _owner(self, pinned: Pinned) -> Owner:
        """Whose threads: the gateway is asked once which tenant, and which subject, the credential is bound to."""
        if self._me is None:
            self._me = self.whoami()
        return Owner(self._me.tenant_id or "", pinned.subject or self._me.subject_id or "")

    def _exchange(self, call: Call, pinned: Pinned | None = None) -> Answer:
        target, headers = self._endpoint.target(call), self._endpoint.headers(call, pinned)
        attempts = Attempts(call, self._timeouts, monotonic=self._clock.monotonic)
        while True:
            try:
                reply = self._transport.send(call.method, target, headers, call.body, attempts.begin())
            except NoAnswer as error:
                reason, received = str(error), error.received
            else:
                answer = attempts.answered(*reply)
                if isinstance(answer, Answer):
                    return answer
                self._clock.sleep(answer)
                continue
            self._clock.sleep(attempts.failed(reason, received=received))

    def receive(self, reception: Reception, write: Callable[[bytes], object], pinned: Pinned | None = None) -> None:
        """Bring content home, going on where a connection broke.

        Args:
            reception: What is wanted, and what has arrived.
            write: Takes each new piece, in order.
            pinned: A subject decided earlier by ``pin``.

        Raises:
            StateroomError: The gateway refused, or nothing more arrived within the time budget.
        """
        attempts = Attempts(reception.call(), self._timeouts, monotonic=self._clock.monotonic)
        while not reception.is_complete:
            call, before = reception.call(), reception.position
            target, headers = self._endpoint.target(call), self._endpoint.headers(call, pinned)
            reason, received = "the content ended early", True
            try:
                with self._transport.stream(call.method, target, headers, attempts.begin()) as response:
                    status, lowered = response.status, response.headers
                    if reception.begins(status, lowered):
                        for piece in response.pieces():
                            write(reception.accept(piece))
                            if reception.is_complete:
                                return
                        refused = None
                    else:
                        refused = response.read()
            except NoAnswer as error:
                reason, received, refused = str(error), error.received, None
            if refused is None:
                if reception.position > before:
                    attempts.renew()
                self._clock.sleep(attempts.failed(reason, received=received))
                continue
            answer = attempts.answered(status, lowered, refused)
            if isinstance(answer, Answer):
                raise GatewayUnavailable("the answer is no content", code="unexpected-answer", status=status)
            self._clock.sleep(answer)

    def steps_of(self, lines: Lines[StepT], call_of: Callable[[Lines[StepT]], Call], pinned: Pinned) -> Iterator[StepT]:
        """The steps of a trajectory as they arrive, going on where a connection broke.

        Args:
            lines: Which trajectory, and how far it has come.
            call_of: Asks for what has not come.
            pinned: The subject.

        Raises:
            StateroomError: The gateway refused, or nothing more arrived within the time budget.
        """
        attempts = Attempts(call_of(lines), self._timeouts, monotonic=self._clock.monotonic)
        while not lines.is_complete:
            call, before = call_of(lines), lines.after
            target, headers = self._endpoint.target(call), self._endpoint.headers(call, pinned)
            reason, received, refused = "the trajectory ended early", True, None
            lines.begin()
            try:
                with self._transport.stream(call.method, target, headers, attempts.begin()) as response:
                    status, lowered = response.status, response.headers
                    if status == _OK:
                        for piece in response.pieces():
                            yield from lines.accept(piece)
                    else:
                        refused = response.read()
            except NoAnswer as error:
                reason, received = str(error), error.received
            if lines.is_complete:
                return
            if refused is None:
                if lines.after != before:
                    attempts.renew()
                self._clock.sleep(attempts.failed(reason, received=received))
                continue
            answer = attempts.answered(status, lowered, refused)
            if isinstance(answer, Answer):
                raise GatewayUnavailable("the answer is no trajectory", code="unexpected-answer", status=status)
            self._clock.sleep(answer)

    def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str | int | None] | None = None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
    ) -> Answer:
        """Call any path of the API, with the client's retries and time budgets.

        Args:
            method: HTTP method.
            path: Path below ``/v1``; encode ids with ``stateroom.encode_id``.
            params: Query parameters; ``None`` values are left out.
            body: Anything MessagePack can say.
            headers: Additional headers.
            idempotency_key: Makes a POST repeatable where the path supports it.

        Returns:
            The answer; ``answer.decode()`` gives its value.

        Raises:
            StateroomError: The gateway refused or could not be reached.
        """
        call = calls.plain_call(
            method, path, params=params, body=body, headers=headers, idempotency_key=idempotency_key
        )
        return self._send(call)

    @property
    def artifacts(self) -> Artifacts:
        """Files that belong to threads."""
        return Artifacts(self)

    def whoami(self) -> WhoAmI:
        """Who the credential is.

        Raises:
            Unauthenticated: The API key is not accepted.
        """
        return self.drive(calls.whoami())

    @overload
    def thread(
        self,
        thread_id: str,
        *,
        agent: str | None = ...,
        state_type: type[StateT],
        namespace: str = ...,
        state_version: StateVersion | str | None = ...,
        strict: bool | None = ...,
    ) -> "Thread[StateT]": ...

    @overload
    def thread(
        self,
        thread_id: str,
        *,
        agent: str | None = ...,
        state_type: None = ...,
        namespace: str = ...,
        state_version: StateVersion | str | None = ...,
        strict: bool | None = ...,
    ) -> "Thread[dict[str, Any]]": ...

    def thread(
        self,
        thread_id: str,
        *,
        agent: str | None = None,
        state_type: Any = None,
        namespace: str = "",
        state_version: StateVersion | str | None = None,
        strict: bool | None = None,
    ) -> "Thread[Any]":
        """A thread to load from and save to. Makes no request; the first save creates the thread.

        Args:
            thread_id: The thread's id, unique within the subject.
            agent: The program's name, saved with every checkpoint.
            state_type: What ``load`` converts states to; ``dict`` when left out.
            namespace: A sub-agent's namespace.
            state_version: The state version that the program writes and understands; the client's when left out.
            strict: Whether to make the thread strict; as the client says when left out. A thread that is strict stays
                so until ``change(strict=False)``.

        Raises:
            NotConfigured: The state version is not written like ``travel@2``.
        """
        return Thread(
            self,
            thread_id,
            agent=agent,
            state_type=state_type,
            namespace=namespace,
            state_version=self.state_version if state_version is None else StateVersion.of(state_version),
            strict=self.strict if strict is None else strict,
        )

    def threads(
        self,
        *,
        status: Status | None = None,
        agent: str | None = None,
        tier: str | None = None,
        limit: int | None = None,
    ) -> Iterator[ThreadInfo]:
        """The subject's threads, newest first, page by page.

        Args:
            status: Only this status.
            agent: Only this agent.
            tier: ``hot`` or ``archive``.
            limit: At most so many.
        """
        return self.items(
            lambda size, cursor: calls.list_threads(size, cursor, status=status, agent=agent, tier=tier), limit
        )

    def items(self, page_of: Callable[[int, str | None], Steps[Page[R]]], limit: int | None) -> Iterator[R]:
        """The items of a list, page by page. The subject is decided here, not at each page.

        Args:
            page_of: The steps to a page of so many items at most, from a cursor on.
            limit: At most so many.
        """
        return self._items(self.pin(), page_of, limit)

    def _items(
        self, pinned: Pinned, page_of: Callable[[int, str | None], Steps[Page[R]]], limit: int | None
    ) -> Iterator[R]:
        cursor: str | None = None
        left = limit
        while left is None or left > 0:
            size = calls.PAGE_DEFAULT if left is None else min(left, calls.PAGE_MAX)
            page = self.drive(page_of(size, cursor), pinned)
            yield from page.items[:left]
            left = None if left is None else left - len(page.items)
            cursor = page.next_cursor
            if cursor is None:
                return

    def checkpoints(
        self, *, limit: int | None = None, **selected: Unpack[CheckpointFilter]
    ) -> Iterator[CheckpointInfo]:
        """Checkpoints of all of the subject's threads, newest first, page by page.

        Args:
            limit: At most so many.
            selected: What ``CheckpointFilter`` lists.
        """
        refuse_unknown("checkpoints", selected, CheckpointFilter)
        return self.infos(calls.Selection(**selected), limit)

    def infos(self, selection: calls.Selection, limit: int | None) -> Iterator[CheckpointInfo]:
        """Selected checkpoints, newest first, page by page. The subject is decided here, not at each page.

        Args:
            selection: The checkpoints to list.
            limit: At most so many.
        """
        return self.items(lambda size, cursor: calls.list_infos(selection, size, cursor), limit)

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> RemovalReceipt:
        """Remove old checkpoints of threads.

        Args:
            thread_ids: The threads; unknown ones are passed over.
            strategy: ``keep_latest`` keeps each namespace's head and what it needs; ``delete`` removes
                everything.
        """
        return self.drive(calls.prune(thread_ids, strategy))

    def delete_runs(self, run_ids: Sequence[str]) -> RemovalReceipt:
        """Remove all checkpoints of runs, and their pending writes.

        Args:
            run_ids: The runs; unknown ones are passed over.

        Raises:
            DeltaChainNeeded: A surviving checkpoint is rebuilt from what would be removed.
        """
        return self.drive(calls.delete_runs(run_ids))


class Thread(ThreadSteps[StateT], Generic[StateT]):
    """One thread, and the head this object last saw of it. Not to be shared between threads of execution."""

    def __init__(self, client: Client, thread_id: str, **options: Unpack[ThreadOptions]) -> None:
        super().__init__(thread_id, client.pieces, options)
        self._client = client

    def load(self, *, resolve_artifacts: ResolveArtifacts = False) -> Head[StateT] | None:
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
        return self._client.drive(self._load(pinned, resolve_artifacts=resolve_artifacts), pinned)

    def at(self, checkpoint_id: str, *, resolve_artifacts: ResolveArtifacts = False) -> Head[StateT]:
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
        return self._client.drive(steps, pinned)

    def large_values(self, checkpoint_id: str | None = None) -> dict[str, LargeValue]:
        """What the large values of a state are, by their paths in it, without fetching any of them.

        Args:
            checkpoint_id: Of which checkpoint; the newest, or the one a fork starts from, when left out.

        Returns:
            Those whose paths are known; none when the thread is new. ``load`` has the same as ``Head.large_values``.

        Raises:
            CheckpointNotFound: There is no such checkpoint.
        """
        return self._client.drive(self._large_values(checkpoint_id))

    def save(self, state: StateT, **options: Unpack[SaveOptions]) -> SaveReceipt:
        """Save a checkpoint; when this returns, it is durable.

        Args:
            state: The whole state; only what changed is stored.
            options: What ``SaveOptions`` lists.

        Returns:
            The receipt.

        Raises:
            HeadMoved: Somebody saved since this object last loaded or saved. Load and try again.
            CheckpointExists: ``checkpoint_id`` is taken by other content.
            StateTooNew: Nobody registered the state's schema at this version.
            GatewayUnavailable: No answer in time. Saving the same again is safe.
        """
        refuse_unknown("save", options, SaveOptions)
        request = self._save_request(options, options.get("state_schema"), options.get("state_version"))
        pinned = self._client.pin()
        return self._client.drive(self._save(pinned, state, request, options), pinned)

    def patch(
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
            HeadMoved: Somebody saved since this object last loaded or saved.
        """
        refuse_unknown("patch", options, CheckpointOptions)
        pinned = self._client.pin()
        return self._client.drive(self._patch(pinned, set, append, remove, options), pinned)

    def compact(
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
            HeadMoved: Somebody saved since this object last loaded or saved. Without either, the newest head is taken.
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
        return self._client.drive(steps, pinned)

    def compact_if_needed(
        self,
        state: StateT,
        needs_compaction: Callable[[LongList, list[Any]], MaybeSummary],
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
            needs_compaction: Called with a list and its elements; a function. It returns what
                stands for the list from now on, or ``None`` to leave it as it is.
            every: At which steps to ask about all lists: those that are a multiple of it.

        Returns:
            The state to go on with: ``state``, if nothing was compacted.

        Raises:
            HeadMoved: Somebody saved since.
            WritesPending: Tasks have written to the head, and no checkpoint has taken up what they wrote.
        """
        is_shorter = False
        for long, elements in self._lists_to_compact(state, every):
            summary = finished(needs_compaction(long, elements))
            if summary is not None:
                self.compact(long.channel, keep_last=summary.keep_last, summary=summary.elements)
                is_shorter = True
        head = self.load() if is_shorter else None
        return state if head is None else head.state

    def once(self, once_key: str, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call ``fn`` unless a call of this name finished before in this thread and namespace.

        The result is kept in the gateway as a pending write, outlives later saves and pruning, and is found
        by a resumed process even if nothing was saved after the call. It is returned as a plain tree,
        converted to ``fn``'s annotated return type, in the first call just as in later ones.

        A crash after the effect and before its result is kept stays ambiguous: nobody can tell whether the
        effect happened, and the next call repeats it. Give ``once_key`` to the service that is called, as its
        idempotency key, where that matters. Two processes calling at the same time may both run ``fn``; the
        result kept first wins and both return it.

        Args:
            once_key: The call's name, unique in this thread and namespace: another call needs another name.
            fn: What to call; a function.
            args: Its positional arguments.
            kwargs: Its keyword arguments.

        Returns:
            The result, or the one kept earlier.

        Raises:
            OnceKeyReused: A call of this name finished with other arguments. Nothing was called, unless both ran at the
                same time.
            InvalidRequest: The result has no plain form (the effect happened, and is not kept).
        """
        intent = intent_of(once_key, args, kwargs)
        was_kept, kept = self._client.drive(self._recall(once_key, intent))
        if not was_kept:
            result = finished(fn(*args, **kwargs))
            kept = self._client.drive(self._record(once_key, intent, result))
        return cast(R, self._typed_result(kept, fn))

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
    ) -> Iterator[CheckpointInfo]:
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

    def trajectory(self, *, checkpoint_id: str | None = None, after: str | None = None) -> Iterator[TrajectoryStep]:
        """The steps that led to a checkpoint, oldest first, as plain data: changes, messages, writes, model, usage.

        They come as they are read, whatever their number, and go on where a connection broke. Needs a key with
        ``state:export`` and ``state:read``; the tenant's audit log says who read it. A tenant reads one at a time.

        Args:
            checkpoint_id: The checkpoint they lead to; the newest when left out.
            after: A step that is there already: only those after it.

        Raises:
            PermissionDenied: The key may not export.
            CheckpointNotFound: There is no such checkpoint, or ``after`` is no step before it.
        """
        lines = step_lines(checkpoint_id, after)
        return self._client.steps_of(lines, self._trajectory_call, self._client.pin())

    def fixture(self, *, checkpoint_id: str | None = None) -> Fixture:
        """The steps that led to a checkpoint, byte by byte as they are stored, to be loaded into a thread of a test.

        Needs a key with ``state:export`` and ``state:read``; the tenant's audit log says who read it.

        Args:
            checkpoint_id: The checkpoint they lead to; the newest when left out.

        Raises:
            PermissionDenied: The key may not export.
            CheckpointNotFound: There is no such checkpoint.
        """
        lines = fixture_lines(checkpoint_id)
        steps = list(self._client.steps_of(lines, self._fixture_call, self._client.pin()))
        if lines.begun is None or not steps:
            raise GatewayUnavailable("the trajectory has no steps", code="unexpected-answer")
        return Fixture(lines.begun, steps)

    def load_fixture(self, fixture: Fixture) -> int:
        """Save all steps of a fixture, with their own ids; as ``fixture.load_into(thread)``.

        Args:
            fixture: The fixture.

        Returns:
            How many steps were new here.

        Raises:
            ThreadExists: The thread has other checkpoints.
            CheckpointExists: It has one of these, but with another content.
        """
        pinned = self._client.pin()
        steps = loading(fixture, self.thread_id, self.namespace, self._pieces, pinned)
        return self._client.drive(steps, pinned)

    def fork(self, checkpoint_id: str) -> "Thread[StateT]":
        """A new object of the same thread, whose next save continues from an old checkpoint.

        Nothing is removed: the fork's first save becomes the head, and the branch it leaves stays in the
        history. That save raises ``HeadMoved`` if somebody saved after the fork was made.

        Args:
            checkpoint_id: Where to continue from.

        Raises:
            CheckpointNotFound: There is no such checkpoint.
        """
        forked: Thread[StateT] = Thread(self._client, self.thread_id, **self._options())
        pinned = self._client.pin()
        self._client.drive(forked._fork_from(pinned, checkpoint_id), pinned)
        return forked

    def info(self) -> ThreadInfo | None:
        """The thread's settings and status; ``None`` when it does not exist."""
        return self._client.drive(calls.show_thread(self.thread_id))

    def change(self, *, strict: bool | None = None, agent: str | None = None) -> ThreadInfo:
        """Change settings; creates the thread when it does not exist.

        Args:
            strict: Refuse saves that do not name the head they follow.
            agent: The program's name.
        """
        return self._client.drive(self._change(strict=strict, agent=agent))

    def link(self, parent_thread_id: str, *, namespace: str = "", checkpoint_id: str | None = None) -> ThreadInfo:
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
        return self._client.drive(calls.link_thread(self.thread_id, parent))

    def unlink(self) -> None:
        """Say that the thread was begun from no other; both stay.

        Raises:
            LegalHold: The thread is held, and has a parent.
            ThreadNotFound: There is none.
        """
        self._client.drive(calls.unlink_thread(self.thread_id))

    def children(self, *, limit: int | None = None) -> Iterator[ThreadInfo]:
        """The threads that were begun from this one, newest first, page by page. It need not exist itself.

        Args:
            limit: At most so many.
        """
        return self._client.items(lambda size, cursor: calls.list_children(self.thread_id, size, cursor), limit)

    def copy(self, target_thread_id: str) -> CopyReceipt:
        """Copy the whole thread, history and pending writes included.

        Args:
            target_thread_id: A thread that does not exist yet.

        Raises:
            ThreadExists: It exists.
            ThreadNotFound: This thread does not exist.
        """
        return self._client.drive(calls.copy_thread(self.thread_id, target_thread_id))

    def archive(self, *, storage_class: str | None = None) -> ThreadMove:
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
        return self._client.drive(calls.archive_thread(self.thread_id, storage_class))

    def archive_old(
        self, older_than_seconds: float, *, keep_last: int = 0, storage_class: str | None = None
    ) -> ThreadMove:
        """Ask for the thread's older checkpoints to be moved to the archive, while it stays hot. A job does it.

        They stay readable, unless their storage class is a frozen one; ``info().segments`` says how many there are.
        Heads stay, interrupts that nobody answered, and what a checkpoint that stays is rebuilt from.

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
        return self._client.drive(calls.archive_old(self.thread_id, older_than_seconds, keep_last, storage_class))

    def restore(self, wait_seconds: float | None = None) -> ThreadMove:
        """Ask for the thread to be brought back from the archive with all segments, thawing them if need be.

        A job does it.

        Args:
            wait_seconds: Wait for it for so long at most; ``None``: do not wait. A thaw takes hours.

        Returns:
            Where the thread is now, and the job that moves it.

        Raises:
            ThreadNotFound: There is none.
            ThreadArchived: It is not back after so long (the restore goes on), or cannot be brought back.
        """
        return self._client.drive(calls.restore_thread(self.thread_id, wait_seconds))

    def delete(self, *, family: bool = False) -> bool:
        """Delete the whole thread, all namespaces included.

        Args:
            family: Delete the threads that were begun from it, too, and so on.

        Returns:
            Whether there was one.

        Raises:
            LegalHold: The thread, or one of its family, is held; nothing was deleted.
            LimitExceeded: The family is too large; nothing was deleted.
        """
        return self._client.drive(self._delete(family=family))
