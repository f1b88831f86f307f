# Generated from async_client.py by `make generate`: change that, not this.
"""The client of callers that block.

This module owns calls and their retries. A ``Client`` may be shared between threads. It promises
that nothing is acknowledged that the gateway did not acknowledge.
"""

import copy
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, ParamSpec, Protocol, Self, TypedDict, TypeVar, Unpack, cast, overload

import httpx2

from stateroom._approvals.approvals import Approvals
from stateroom._artifacts.transfers import Reception
from stateroom._events import requests as event_requests
from stateroom._events.listening import listen
from stateroom._events.shapes import Event, Wanted
from stateroom._io.blocking import open_transport, together
from stateroom._io.transport import NoAnswer
from stateroom._items.items import Items
from stateroom._options import refuse_unknown
from stateroom._protocol import calls
from stateroom._protocol.core import Answer, Attempts, Call, Endpoint, Pinned, Steps, Timeouts
from stateroom._protocol.wire import Page
from stateroom._remembered.pieces import PieceCache
from stateroom._thread_ledgers import requests as ledgers
from stateroom._thread_ledgers.claims import RUN_SECONDS_MAX
from stateroom._thread_ledgers.recovering import Recovered, Recovering, recover
from stateroom._thread_ledgers.shapes import CLAIM_LEASE_SECONDS, RecoverOptions, SilentThread, UnknownEffect
from stateroom._threads.thread import Thread
from stateroom._threads.trajectories import Lines, StepT
from stateroom.artifacts import Artifacts
from stateroom.errors import GatewayUnavailable, ThreadNotFound
from stateroom.schema import StateVersion
from stateroom.share import ClientShare
from stateroom.subject import Subject
from stateroom.tokens import Owner, TokenStore, forget_missing, remember, with_known
from stateroom.types import (
    CheckpointFilter,
    CheckpointInfo,
    RemovalReceipt,
    StateT,
    Status,
    ThreadInfo,
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
        """Wait for so many seconds."""


class SystemClock:
    """The machine's clock."""

    def monotonic(self) -> float:
        """Seconds since some fixed moment."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait for so many seconds."""
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
            made with it open only with it: not without it, and not for the operator of the gateway and its database.
            Lost share, lost data. ``request`` does not send it.
        state_version: The state version that this program writes and understands, such as ``travel@2``: what its
            threads save says so, and what they load arrives at it, whatever it was saved at. Left out: as saved.
        strict: Make every thread that is saved to strict, for other writers, too, and say with every save what it
            stands on: a save beside what another writer saved is ``HeadMoved``, also of a thread that was never loaded.
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
    """A connection pool to one gateway, acting for one subject or for the one that ``subject`` names at the time.

    Args:
        url: The gateway's URL.
        api_key: The API key that authenticates each request.
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
            SubjectRequired: No subject to act for was given.
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
            pinned: The subject to act for.

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
    def items(self) -> Items:
        """What the subject remembers across threads: values under paths."""
        return Items(self)

    @property
    def approvals(self) -> Approvals:
        """What people are asked before agents go on, and what they decide."""
        return Approvals(self)

    def monotonic(self) -> float:
        """Seconds since some fixed moment, by the client's clock."""
        return self._clock.monotonic()

    @property
    def artifacts(self) -> Artifacts:
        """Files that belong to threads."""
        return Artifacts(self)

    def events(
        self,
        *,
        since: str | None = None,
        types: Sequence[str] = (),
        thread: str | None = None,
        follow: bool = True,
        whole_tenant: bool = False,
    ) -> Iterator[Event]:
        """What happens, as it happens: of the subject, or of the whole tenant. The subject is decided here.

        The iterator ends when the caller stops taking. It goes on by itself where a connection broke or a gateway
        went away, behind the last event that it handed out: none is skipped. Events are kept for
        days, so that ``since=event.cursor`` goes on in another process; they wake, the audit log is the record.

        Args:
            since: The ``cursor`` of an event; left out, what happens from the iterator's first step on.
            types: Only these types, such as ``thread.status``.
            thread: Only what is about the thread of this id.
            follow: Whether to wait for what is to come; else the iterator ends with what has happened.
            whole_tenant: All subjects' events, and those of jobs and keys, whatever subject the client acts for; takes
                a service key with ``event:read`` or ``tenant:admin``. Of a client without a subject the key
                decides, whatever is said here: a subject's key hears its own subject, such a service key all of them.

        Raises:
            EventsOff: The tenant has no events.
            EventsExpired: What is behind ``since`` is not kept any more: list what there is, and listen from now on.
            EventsRewound: The database was restored to before ``since``; likewise.
            GatewayUnavailable: No gateway was reached at first.
        """
        return listen(
            self, Wanted(tuple(types), thread, follow), since, self._hearing(whole_tenant), self._clock.monotonic
        )

    def event_cursor(self, *, types: Sequence[str] = (), thread: str | None = None, whole_tenant: bool = False) -> str:
        """The cursor of this moment: what ``events(since=...)`` with the same arguments begins behind.

        Take it before you look at what there is, and nothing that happens meanwhile is missed.

        Args:
            types: As for ``events``.
            thread: As for ``events``.
            whole_tenant: As for ``events``.

        Raises:
            EventsOff: The tenant has no events.
        """
        wanted = Wanted(tuple(types), thread)
        return (self.drive(event_requests.page(wanted, None, 0.0), self._hearing(whole_tenant))).cursor

    def _hearing(self, whole_tenant: bool) -> Pinned:
        """Whose events are heard; a share opens nothing there."""
        return Pinned(None) if whole_tenant else Pinned(self.pin().subject)

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
    ) -> Thread[StateT]: ...

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
    ) -> Thread[dict[str, Any]]: ...

    def thread(
        self,
        thread_id: str,
        *,
        agent: str | None = None,
        state_type: Any = None,
        namespace: str = "",
        state_version: StateVersion | str | None = None,
        strict: bool | None = None,
    ) -> Thread[Any]:
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
        return self.paged(
            lambda size, cursor: calls.list_threads(size, cursor, status=status, agent=agent, tier=tier), limit
        )

    def paged(self, page_of: Callable[[int, str | None], Steps[Page[R]]], limit: int | None) -> Iterator[R]:
        """The items of a list, page by page. The subject is decided here, not at each page.

        Args:
            page_of: The steps to a page of so many items at most, from a cursor on.
            limit: At most so many.
        """
        return self._paged(self.pin(), page_of, limit)

    def _paged(
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

    def silent_threads(
        self,
        *,
        silent_seconds: int = 0,
        agent: str | None = None,
        whole_tenant: bool = False,
        limit: int | None = None,
    ) -> Iterator[SilentThread]:
        """Threads whose claim is over although nobody released it: their runs are taken for dead.

        Args:
            silent_seconds: Only those that are silent for so long.
            agent: Only threads of this agent.
            whole_tenant: Of all subjects; takes a service key with ``tenant:admin``.
            limit: At most so many.
        """
        return self._paged(
            self._hearing(whole_tenant),
            lambda size, cursor: ledgers.silent_threads(size, cursor, silent_seconds=silent_seconds, agent=agent),
            limit,
        )

    def unknown_effects(self, *, whole_tenant: bool = False, limit: int | None = None) -> Iterator[UnknownEffect]:
        """Effects of which nobody knows whether they happened, until somebody says so.

        Args:
            whole_tenant: Of all subjects; takes a service key with ``tenant:admin``.
            limit: At most so many.
        """
        return self._paged(self._hearing(whole_tenant), ledgers.unknown_effects, limit)

    def recover(self, **options: Unpack[RecoverOptions]) -> Iterator[Recovered[Thread[Any]]]:
        """Threads whose run died, claimed for this worker one by one: the loop of a worker that goes on with them.

            for run in client.recover(agent="travel"):
                with run as thread:
                    ...

        Each is handed to one worker. A run that fails, or dies, is handed out again later, each time twice as late;
        after five times without a write in between the thread is ``stuck``, and is handed to nobody.

        Args:
            options: What ``RecoverOptions`` lists.

        Raises:
            StateroomError: What no other attempt can mend.
        """
        refuse_unknown("recover", options, RecoverOptions)

        def recovered_of(silent: SilentThread) -> Recovered[Thread[Any]]:
            client = self._bound_to(silent.subject_id)
            thread: Thread[Any] = client.thread(
                silent.thread_id, agent=silent.agent, state_type=options.get("state_type")
            )
            claim = thread.claim(
                holder=options.get("holder"),
                run_id=silent.run_id,
                if_fence=silent.fence,
                lease_seconds=options.get("lease_seconds", CLAIM_LEASE_SECONDS),
                run_seconds_max=options.get("run_seconds_max", RUN_SECONDS_MAX),
            )
            return Recovered(silent, thread, claim)

        pinned = self._hearing(options.get("whole_tenant", False))
        return recover(self, pinned, Recovering.of(options), recovered_of)

    def _bound_to(self, subject: str) -> Self:
        """This client for one subject; it shares the connections, and is not to be closed."""
        bound = copy.copy(self)
        bound._endpoint = self._endpoint.bound_to(subject)  # noqa: SLF001  it is a client, too
        return bound

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
        return self.paged(lambda size, cursor: calls.list_infos(selection, size, cursor), limit)

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
