"""What a thread object remembers, and its procedures without I/O.

This module owns the position of a thread object: the head it last saw, the step it reached, the checkpoint a
fork starts from. It is not safe to use one thread object from several threads or tasks at once; make one
each, a race between them is then reported as ``HeadMoved``.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Generic, TypedDict

from msgspec import UNSET

from stateroom._approvals.shapes import NewApproval
from stateroom._items.shapes import ItemVectors
from stateroom._protocol import calls
from stateroom._protocol.core import Call, Pinned, Steps
from stateroom._protocol.wire import (
    Changes,
    CheckpointWithState,
    CompactRequest,
    HoledCheckpoint,
    SaveRequest,
    ThreadSettings,
    unset_if_none,
)
from stateroom._remembered.leaf_notes import large_values, notes_by_channel
from stateroom._remembered.pieces import PieceCache, receiving_state, sending_state
from stateroom._resuming.context import ResumeContext
from stateroom._resuming.gathering import ContextWanted, gather
from stateroom._resuming.state import facts_of, remembered
from stateroom._thread_ledgers.held import Held
from stateroom._threads.effect_calls import EffectPlace
from stateroom._threads.long_lists import asked_about, is_due
from stateroom._threads.plain import from_plain, result_type, state_from_plain, state_to_plain, to_plain
from stateroom._threads.trajectories import Lines
from stateroom.errors import CheckpointNotFound, InvalidRequest, NotFound
from stateroom.schema import StateVersion, accepted
from stateroom.types import (
    CheckpointOptions,
    Head,
    LargeValue,
    LongList,
    ResolveArtifacts,
    SaveOptions,
    SaveReceipt,
    StateT,
    Status,
    ThreadInfo,
)


class ThreadOptions(TypedDict):
    """What a thread object was made with; ``Client.thread`` says what each means."""

    agent: str | None
    state_type: Any
    namespace: str
    state_version: StateVersion | None
    strict: bool


class ThreadSteps(Generic[StateT]):
    """A thread's procedures, which ``Thread`` and ``AsyncThread`` drive."""

    def __init__(self, thread_id: str, pieces: PieceCache, options: ThreadOptions) -> None:
        self.thread_id = thread_id
        self.agent = options["agent"]
        self.namespace = options["namespace"]
        self.state_version = options["state_version"]
        self._accepts = None if self.state_version is None else accepted([self.state_version])
        self._state_type = options["state_type"]
        self._pieces = pieces
        self._strict = options["strict"]
        self._is_made_strict = False
        # Three positions: never looked (known is false), looked and found nothing (None), a head.
        self._known = False
        self._head_id: str | None = None
        self._step: int | None = None
        self._fork_of: str | None = None
        self._long: Sequence[LongList] = ()
        self._held = Held()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.thread_id!r}, namespace={self.namespace!r})"

    def _options(self) -> ThreadOptions:
        """What makes another object of the same thread."""
        return ThreadOptions(
            agent=self.agent,
            state_type=self._state_type,
            namespace=self.namespace,
            state_version=self.state_version,
            strict=self._strict,
        )

    @property
    def head_id(self) -> str | None:
        """The head this object last loaded or saved; ``None`` when it found none or never looked."""
        return self._head_id

    def _lines_call(self, lines: Lines[Any]) -> Call:
        """The call for what has not come of a trajectory or a fixture."""
        return calls.trajectory(self.thread_id, lines.query(), accepts=self._accepts)

    def _take_position(self, head_id: str | None, step: int | None) -> None:
        self._known = True
        self._head_id = head_id
        self._step = step

    def _as_head(self, checkpoint: CheckpointWithState) -> Head[StateT]:
        fields = {name: getattr(checkpoint, name) for name in checkpoint.__struct_fields__}
        fields["state"] = state_from_plain(checkpoint.state, self._state_type)
        fields["large_values"] = large_values(fields.pop("state_leaves"))
        return Head(**fields)

    def _found(
        self, pinned: Pinned, checkpoint_id: str | None, *, resolve_artifacts: ResolveArtifacts
    ) -> Steps[tuple[CheckpointWithState, str | None] | None]:
        for is_last in (False, True):
            loaded = yield from calls.load_state(
                self.thread_id,
                self.namespace,
                checkpoint_id,
                accepts=self._accepts,
                resolve_artifacts=resolve_artifacts,
            )
            if loaded is None:
                return None
            checkpoint, head_id = loaded
            if not isinstance(checkpoint, HoledCheckpoint):
                return checkpoint, head_id
            try:
                return (yield from receiving_state(self._pieces, pinned, checkpoint)), head_id
            except NotFound as error:
                # Removed since it was referred to: what is there now refers to other pieces, or is gone, too.
                if is_last or error.code != "piece-not-found":
                    raise
        raise AssertionError  # the last round returns or raises

    def _load(self, pinned: Pinned, *, resolve_artifacts: ResolveArtifacts = False) -> Steps[Head[StateT] | None]:
        loaded = yield from self._found(pinned, self._fork_of, resolve_artifacts=resolve_artifacts)
        if loaded is None:
            if self._fork_of is not None:
                raise CheckpointNotFound("the checkpoint to fork from is gone")
            self._take_position(None, None)
            return None
        checkpoint, head_id = loaded
        self._take_position(head_id or checkpoint.checkpoint_id, checkpoint.step)
        return self._as_head(checkpoint)

    def _at(
        self, pinned: Pinned, checkpoint_id: str, *, resolve_artifacts: ResolveArtifacts = False
    ) -> Steps[Head[StateT]]:
        loaded = yield from self._found(pinned, checkpoint_id, resolve_artifacts=resolve_artifacts)
        if loaded is None:
            raise CheckpointNotFound("the namespace has no such checkpoint")
        return self._as_head(loaded[0])

    def _large_values(self, checkpoint_id: str | None) -> Steps[dict[str, LargeValue]]:
        wanted = checkpoint_id or self._fork_of
        loaded = yield from calls.load_state(self.thread_id, self.namespace, wanted, accepts=self._accepts)
        if loaded is None and wanted is not None:
            raise CheckpointNotFound("the namespace has no such checkpoint")
        return {} if loaded is None else large_values(loaded[0].state_leaves)

    def _fork_from(self, pinned: Pinned, checkpoint_id: str) -> Steps[None]:
        """Position this fresh object at an old checkpoint."""
        self._fork_of = checkpoint_id
        yield from self._load(pinned)

    def _save_request(
        self, options: CheckpointOptions, state_schema: str | None = None, state_version: int | None = None
    ) -> SaveRequest:
        if state_schema is None and state_version is None and self.state_version is not None:
            state_schema, state_version = self.state_version.schema, self.state_version.number
        step, metadata = options.get("step"), options.get("metadata")
        if step is None and self._step is not None:
            step = self._step + 1
        return SaveRequest(
            checkpoint_id=unset_if_none(options.get("checkpoint_id")),
            parent_id=unset_if_none(self._fork_of),
            fork=self._fork_of is not None,
            namespace=self.namespace,
            status=options.get("status", "active"),
            step=unset_if_none(step),
            source=options.get("source") or ("fork" if self._fork_of is not None else None),
            agent=self.agent,
            run_id=options.get("run_id") or self._held.run_id,
            model=options.get("model"),
            usage=options.get("usage"),
            metadata=to_plain(dict(metadata)) if metadata else {},
            state_schema=state_schema,
            state_version=state_version,
            items=[*options.get("items", ())],
            fence=self._held.fence,
            approvals=[*options.get("approvals", ())],
        )

    def _make_strict(self) -> Steps[None]:
        """Make the thread strict before this object first saves to it, if that is wanted."""
        if self._strict and not self._is_made_strict:
            yield from self._change(strict=True, agent=None)
            self._is_made_strict = True

    def _save(
        self, pinned: Pinned, state: StateT, request: SaveRequest, options: CheckpointOptions
    ) -> Steps[SaveReceipt]:
        notes = notes_by_channel(options.get("previews"))
        yield from self._make_strict()
        # A strict object that never looked says so: the namespace shall have no head.
        if_new = self._head_id is None and (self._known or self._strict)
        receipt = yield from sending_state(
            self._pieces,
            pinned,
            self.thread_id,
            state_to_plain(state),
            request,
            lambda: calls.save(
                self.thread_id,
                request,
                if_match=self._head_id,
                if_new=if_new,
            ),
            notes,
        )
        self._follow(receipt)
        return receipt

    def _patch(
        self,
        pinned: Pinned,
        set_: Mapping[str, Any] | None,
        append: Mapping[str, Sequence[Any]] | None,
        remove: Sequence[str],
        options: CheckpointOptions,
    ) -> Steps[SaveReceipt]:
        notes = notes_by_channel(options.get("previews"))
        if self._fork_of is not None:
            raise InvalidRequest("a patch changes the head; save the fork first")
        if self._head_id is None and (yield from self._load(pinned)) is None:
            raise CheckpointNotFound("there is no head to patch")
        yield from self._make_strict()
        request = self._save_request(options)
        request.changes = Changes(
            set=state_to_plain(dict(set_ or {})),
            append={name: to_plain(calls.listed(elements)) for name, elements in (append or {}).items()},
            remove=calls.listed(remove),
            leaves=notes,
        )
        receipt = yield from calls.save(self.thread_id, request, if_match=self._head_id)
        self._follow(receipt)
        return receipt

    def _compact(
        self,
        channel: str,
        keep_last: int,
        summary: Sequence[Any],
        *,
        status: Status | None,
        metadata: Mapping[str, Any] | None,
        run_id: str | None,
        checkpoint_id: str | None,
    ) -> Steps[SaveReceipt]:
        if self._fork_of is not None:
            raise InvalidRequest("a compaction changes the head; save the fork first")
        yield from self._make_strict()
        version = self.state_version
        request = CompactRequest(
            channel=channel,
            keep_last=keep_last,
            summary=to_plain(calls.listed(summary)) if summary else UNSET,
            namespace=self.namespace,
            checkpoint_id=unset_if_none(checkpoint_id),
            status=status,
            agent=self.agent,
            run_id=run_id,
            metadata=None if metadata is None else to_plain(dict(metadata)),
            state_schema=None if version is None else version.schema,
            state_version=None if version is None else version.number,
            fence=self._held.fence,
        )
        receipt = yield from calls.compact(self.thread_id, request, if_match=self._head_id)
        self._follow(receipt)
        return receipt

    def _lists_to_compact(self, state: StateT, every: int | None) -> list[tuple[LongList, list[Any]]]:
        """The lists of the state that was saved last to be asked about, each once."""
        all_lists = is_due(self._step, every)
        long, self._long = self._long, ()
        return asked_about(long, state_to_plain(state), all_lists=all_lists) if long or all_lists else []

    def _resume_context(self, pinned: Pinned, wanted: ContextWanted) -> Steps[ResumeContext]:
        head = yield from self._load(pinned)
        plain = {} if head is None else state_to_plain(head.state)
        return (yield from gather(self.thread_id, head, plain, wanted))

    def _asking(self, approval: NewApproval, options: SaveOptions) -> SaveOptions:
        """The options of the save that asks.

        Raises:
            InvalidRequest: It asks about several actions, or about others, too.
        """
        if len(approval.actions) != 1 or options.get("approvals"):
            raise InvalidRequest("ask is about one action; save(..., approvals=[...]) takes several")
        return {"status": "waiting", **options, "approvals": [approval]}

    def _completing(
        self, state: StateT, options: SaveOptions, vectors: Mapping[str, ItemVectors], now: datetime
    ) -> SaveOptions:
        """The options of the save that completes a thread: it is done, and facts to keep become items."""
        facts = facts_of(state_to_plain(state).get("facts"))
        items = remembered(facts, self.thread_id, self.agent, [*vectors.items()], now)
        return {"status": "done", **options, "items": [*options.get("items", ()), *items]}

    def _follow(self, receipt: SaveReceipt) -> None:
        self._long = receipt.needs_compaction
        self._fork_of = None
        self._take_position(receipt.checkpoint_id, receipt.step)

    @staticmethod
    def _typed_result(plain: Any, fn: Callable[..., Any]) -> Any:
        return from_plain(plain, result_type(fn))

    def _place_of(self, name: str) -> EffectPlace:
        """Where an effect of this object's thread stands: behind the head that it knows, or what it forked from."""
        return EffectPlace(
            thread_id=self.thread_id,
            name=name,
            namespace=self.namespace,
            checkpoint_id=self._fork_of or self._head_id,
            run_id=self._held.run_id,
            fence=self._held.fence,
        )

    def _change(self, *, strict: bool | None, agent: str | None) -> Steps[ThreadInfo]:
        settings = ThreadSettings(strict=UNSET if strict is None else strict, agent=UNSET if agent is None else agent)
        return (yield from calls.change_thread(self.thread_id, settings))

    def _delete(self, *, family: bool) -> Steps[bool]:
        deleted = yield from calls.delete_thread(self.thread_id, family=family)
        self._fork_of = None
        self._known, self._head_id, self._step = False, None, None
        self._is_made_strict = False
        return deleted
