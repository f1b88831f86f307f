"""LangGraph's checkpointer on Stateroom, and beside it its store and its cache (``_langgraph.store``, ``.cache``).

This module owns the saver and its requests: only what LangGraph says has changed is sent. Values are serialised on
this side, channel by channel (``_langgraph.values``), and the gateway never instantiates them. It does not decide who
may see what: tenant and subject come from the API key and from ``subject``, never from a graph's config.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from secrets import randbelow
from typing import Any, Concatenate, ParamSpec, Self, TypedDict, TypeVar, Unpack

import httpx2
import msgspec

try:
    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.base import (
        WRITES_IDX_MAP,
        BaseCheckpointSaver,
        ChannelVersions,
        Checkpoint,
        CheckpointMetadata,
        CheckpointTuple,
        DeltaChannelHistory,
    )
except ModuleNotFoundError as error:
    message = "stateroom.langgraph needs LangGraph: pip install 'stateroom[langgraph]'"
    raise ModuleNotFoundError(message, name=error.name) from error
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.types import ERROR, INTERRUPT
from msgspec import UNSET

from stateroom._io.on_loop import finished
from stateroom._langgraph.answers import Answers, model_of, usage_of
from stateroom._langgraph.cache import CacheOptions, StateroomCache
from stateroom._langgraph.columns import ConfigIds, graph_name, is_step, name_of, word_of
from stateroom._langgraph.connections import Connected
from stateroom._langgraph.decisions.acting import InLedger
from stateroom._langgraph.decisions.asking import DecisionRules
from stateroom._langgraph.decisions.deciding import Asked, Deciding
from stateroom._langgraph.field_types import serialiser
from stateroom._langgraph.listing import Listing
from stateroom._langgraph.runs import held_by, pin
from stateroom._langgraph.store import StateroomStore, StoreOptions
from stateroom._langgraph.values import SKELETON, Values
from stateroom._options import refuse_unknown
from stateroom._protocol import calls
from stateroom._protocol.core import Endpoint, Pinned, Steps, Timeouts
from stateroom._protocol.wire import (
    ChannelHistories,
    ChannelIn,
    ChannelOut,
    ChannelsPage,
    CheckpointWithChannels,
    CompactRequest,
    SaveRequest,
    SerialisedWrite,
    ThreadSettings,
    WriteIn,
    WritesRequest,
    unset_if_none,
)
from stateroom._remembered.growth import Growth, Sent, grown, namespace_key
from stateroom._remembered.histories import Histories, joined
from stateroom._remembered.pieces import PieceCache, owner_tag, receiving, sending
from stateroom._remembered.recent import Recent
from stateroom._threads.long_lists import asked_about, is_due
from stateroom.errors import (
    ChannelUnchangedUnknown,
    CheckpointNotFound,
    InvalidRequest,
    StateTooLarge,
    ThreadArchived,
)
from stateroom.langgraph.effect_tools import effect_tool, retry_on
from stateroom.langgraph.running import ClaimedGraph, RunOptions, run
from stateroom.schema import StateVersion, accepted
from stateroom.share import ClientShare
from stateroom.subject import Subject
from stateroom.tokens import TokenStore
from stateroom.types import CopyReceipt, LongList, MaybeSummary, RemovalReceipt, SaveReceipt, Status, Summary

_FORKING_SOURCES = frozenset({"fork", "update"})

P = ParamSpec("P")
R = TypeVar("R")

__all__ = [
    "SKELETON",
    "CacheOptions",
    "ClaimedGraph",
    "RunOptions",
    "SaverOptions",
    "StateroomCache",
    "StateroomSaver",
    "StateroomStore",
    "StoreOptions",
    "effect_tool",
    "retry_on",
    "run",
]


def _thawing(
    steps: Callable[Concatenate["StateroomSaver", RunnableConfig, P], Steps[R]],
) -> Callable[Concatenate["StateroomSaver", RunnableConfig, P], Steps[R]]:
    """Steps on the thread of a config, which is restored first if it has to be thawed and the saver may wait."""

    def thawed(self: "StateroomSaver", config: RunnableConfig, /, *args: P.args, **kwargs: P.kwargs) -> Steps[R]:
        return self._restoring(ConfigIds.of(config).thread_id, lambda: steps(self, config, *args, **kwargs))

    return thawed


class SaverOptions(TypedDict, total=False):
    """How a saver acts; each may be left out.

    Attributes:
        subject: The subject whose state it is: its id, a callable that returns it (``current_subject`` by
            default, set by ``with acting_for(...)``), or ``None`` for the subject the key is bound to. A run of a
            graph acts for the subject that it was when the run began, with its subgraphs in the same thread, wherever
            LangGraph calls back. What a caller writes into a graph's config names no subject.
        agent: The program's name; the graph's own name when left out.
        serde: Another serialiser. The default writes msgpack and instantiates only the types LangGraph calls
            safe plus ``allowed_msgpack_modules``; nothing stored can run code. Bytes are sealed by the
            gateway, so encryption here is needed only against the gateway itself.
        allowed_msgpack_modules: Your own types that may be rebuilt on load, as classes or as ``(module, name)``. A
            class brings along the types of its fields, so the class of the graph's state is mostly enough. Others come
            back as plain trees, and LangGraph's logger says once for each what to name here. With
            ``LANGGRAPH_STRICT_MSGPACK=true`` LangGraph derives them from the graph.
        metadata_exclude: Names of config entries that must not become metadata. LangGraph copies every plain
            value of ``configurable`` and ``metadata`` there; names that look like a credential are always
            left out.
        timeouts: Time budgets of a request.
        transport: Makes another transport for the blocking methods, for tests and embedding.
        async_transport: Makes another transport for each event loop.
        token_store: Where to remember how far threads were, so that their rollback is noticed
            (``RollbackDetected``); without one it is not.
        client_share: 32 bytes of ``stateroom.new_client_share`` that only you keep, or a callable that returns them:
            what is stored opens only with them. Lost share, lost data. ``list(None)`` passes over what is stored under
            another share.
        state_version: The state version that the graph writes and understands, such as ``travel@2``: what it saves says
            so, and what it loads arrives at it, whatever it was saved at. It is the root graph's; a mapping such as
            ``{"": "travel@2", "billing": "billing@1"}`` names subgraphs' as well, by the nodes that lead to them
            (``outer|inner``). What is left out is loaded as it was saved.
        restore_seconds_max: How long a call waits for a thread that must be thawed before it can be read or written to
            (a cold storage class of the archive): the restore is asked for, and the call taken again when the thread is
            back. A thaw takes hours. Left out: ``ThreadArchived`` is raised at once. Archives that need no thaw are
            read, and brought back by a write, without any of this.
        strict: Make every thread that is saved to strict, so that of two runs at once in one thread the second is told
            (``HeadMoved``) instead of one's steps being left out. It costs a request when a thread is first saved to.
        decisions: How interrupts become approvals, which people find and decide in the gateway
            (``stateroom.langgraph.decisions``). Left out: they do not.
    """

    subject: Subject
    agent: str | None
    serde: SerializerProtocol | None
    allowed_msgpack_modules: Sequence[type | tuple[str, ...]] | None
    metadata_exclude: Sequence[str]
    timeouts: Timeouts | None
    transport: Callable[[], httpx2.BaseTransport] | None
    async_transport: Callable[[], httpx2.AsyncBaseTransport] | None
    token_store: TokenStore | None
    client_share: ClientShare
    state_version: StateVersion | str | Mapping[str, StateVersion | str] | None
    restore_seconds_max: float | None
    strict: bool
    decisions: DecisionRules | None


class StateroomSaver(Connected, BaseCheckpointSaver[str]):
    """A LangGraph checkpointer whose state lives in a Stateroom gateway.

    One saver serves any number of users, threads of execution and event loops at once; nothing is locked
    around a request. A put, a write and a load are one request each. Blocking methods may be called from
    worker threads while loops run. A put sends the channels that changed, and of a long list that only grew
    since the put before the new elements; where the gateway cannot append them, everything is sent. What delta
    channels were rebuilt from last stays in memory, 32 MiB of it at most, and only what came since is asked for, along
    with the head.

    A step's model and usage are what the messages of models say that it adds to lists and delta channels:
    ``response_metadata`` names the model and may say its parameters (else ``ls_temperature``, ``ls_top_p`` and
    ``ls_seed`` of the config's metadata), ``usage_metadata`` counts tokens, which are summed. Nothing is said where
    messages name several models, or where it is not certain what is new.

    Status is derived: an ``__error__`` write marks the checkpoint ``failed``, an ``__interrupt__`` write
    ``waiting``.

    Args:
        url: The gateway's URL.
        api_key: The API key that authenticates each request.
        options: The options that ``SaverOptions`` lists.

    Raises:
        NotConfigured: The URL, the key or a state version cannot be used.
    """

    def __init__(self, url: str, api_key: str, **options: Unpack[SaverOptions]) -> None:
        refuse_unknown(type(self).__name__, options, SaverOptions)
        self._own_serde = options.get("serde") is None
        super().__init__(serde=serialiser(options.get("serde"), options.get("allowed_msgpack_modules")))
        self._connect(url, api_key, options, token_store=options.get("token_store"))
        self._agent = options.get("agent")
        self._metadata_exclude = frozenset(options.get("metadata_exclude", ()))
        self._state_versions = _by_subgraph(options.get("state_version"))
        self._accepts = accepted(self._state_versions.values())
        self._restore_seconds_max = options.get("restore_seconds_max")
        self._strict = options.get("strict", False)
        self._made_strict = Recent[bool]()
        self._last_receipts = Recent[SaveReceipt]()
        self._pieces = PieceCache()
        self._growth = Growth()
        self._histories = Histories()
        self._answers = Answers()
        rules = options.get("decisions")
        self.decisions = None
        if rules is not None:
            acting = InLedger(self._connections)
            self.decisions = Deciding(rules, self._endpoint, self._drive, self._adrive, acting)

    @classmethod
    def from_env(cls, **options: Unpack[SaverOptions]) -> Self:
        """A saver configured by ``STATEROOM_URL`` and ``STATEROOM_API_KEY``.

        Args:
            options: The options that ``SaverOptions`` lists.

        Raises:
            NotConfigured: A variable is missing or unusable.
        """
        return cls(*Endpoint.read_env(), **options)

    def _drive(self, steps: Steps[R], pinned: Pinned | None = None) -> R:
        return self._connections.blocking().drive(steps, pinned)

    async def _adrive(self, steps: Steps[R], pinned: Pinned | None = None) -> R:
        client = await self._connections.on_loop()
        return await client.drive(steps, pinned)

    # Reading

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """The addressed checkpoint, or the newest of its namespace; ``None`` when there is none."""
        pinned = pin(self._endpoint, config)
        return self._drive(self._get(config, pinned), pinned)

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """The addressed checkpoint, or the newest of its namespace; ``None`` when there is none."""
        pinned = pin(self._endpoint, config)
        return await self._adrive(self._get(config, pinned), pinned)

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - LangGraph's word
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Checkpoints, newest first, fetched page by page.

        Args:
            config: Thread and, if given, namespace and checkpoint; ``None`` for all of the subject's threads.
            filter: Metadata that must be equal, by any key.
            before: Only checkpoints with smaller ids than this one's.
            limit: At most so many.
        """
        # The subject is decided now: the caller may take later pages outside of its `acting_for` block.
        pinned = pin(self._endpoint, config)
        client = self._connections.blocking()
        listing = Listing(config, filter, before, limit, self._accepts)

        def pages() -> Iterator[CheckpointTuple]:
            while listing.wants_more:
                page = client.drive(self._page(listing), pinned)
                for checkpoint in listing.take(page):
                    yield client.drive(self._completed(checkpoint, pinned), pinned)

        return pages()

    def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - LangGraph's word
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Checkpoints, newest first, fetched page by page; arguments as for ``list``."""
        pinned = pin(self._endpoint, config)
        listing = Listing(config, filter, before, limit, self._accepts)

        async def pages() -> AsyncIterator[CheckpointTuple]:
            client = await self._connections.on_loop()
            while listing.wants_more:
                page = await client.drive(self._page(listing), pinned)
                for checkpoint in listing.take(page):
                    yield await client.drive(self._completed(checkpoint, pinned), pinned)

        return pages()

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """What ancestors of a checkpoint wrote to channels since their last stored value, in one request.

        None is made for what came along with the head, which was loaded just before; it is of the moment of the load.

        Args:
            config: The checkpoint; the newest of its namespace when none is addressed.
            channels: The channels; none, no request.
        """
        pinned = pin(self._endpoint, config)
        return self._drive(self._delta_history(config, channels, pinned), pinned)

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """What ancestors wrote to channels; arguments as for ``get_delta_channel_history``."""
        pinned = pin(self._endpoint, config)
        return await self._adrive(self._delta_history(config, channels, pinned), pinned)

    # Writing

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint; durable when this returns.

        Args:
            config: Thread, namespace and, as ``checkpoint_id``, the parent.
            checkpoint: The checkpoint to store.
            metadata: Its metadata.
            new_versions: The channels that changed since the parent.
        """
        pinned = pin(self._endpoint, config)
        return self._drive(self._put(config, checkpoint, metadata, new_versions, pinned), pinned)

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint; arguments as for ``put``."""
        pinned = pin(self._endpoint, config)
        return await self._adrive(self._put(config, checkpoint, metadata, new_versions, pinned), pinned)

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Store a task's pending writes; durable when this returns. The checkpoint need not exist yet.

        Args:
            config: Thread, namespace and checkpoint.
            writes: Channels and values.
            task_id: The id of the task that wrote.
            task_path: Where the task stands in the graph.
        """
        pinned = pin(self._endpoint, config)
        self._drive(self._put_writes(config, writes, task_id, task_path, pinned), pinned)

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Store a task's pending writes; arguments as for ``put_writes``."""
        pinned = pin(self._endpoint, config)
        await self._adrive(self._put_writes(config, writes, task_id, task_path, pinned), pinned)

    def compact(
        self, config: RunnableConfig, channel: str, *, keep_last: int, summary: Sequence[Any] = ()
    ) -> RunnableConfig:
        """Put a summary in the place of a list channel's older values, as a new checkpoint of the thread's head.

        The list does not travel, and nothing is removed: older checkpoints hold all of it. The graph goes on from the
        new checkpoint as it would have from the one before. Values are put into the channel as they are: no reducer
        sees them, so give messages ids of their own.

        Args:
            config: Thread and namespace; with a ``checkpoint_id``, only if that is the head.
            channel: The channel; one that is kept whole, no ``DeltaChannel``.
            keep_last: How many of its newest values stay.
            summary: Values to put in front of them.

        Returns:
            The new checkpoint's config.

        Raises:
            CheckpointNotFound: The thread has none.
            HeadMoved: A run saved meanwhile, or the config names an older checkpoint.
            WritesPending: A run is under way, was interrupted or failed: let it end first.
            InvalidRequest: The channel is not there, is no list, or is a ``DeltaChannel``.
        """
        pinned, fence = pin(self._endpoint, config), held_by(self._endpoint, config).fence
        return self._drive(self._compact(config, channel, Summary(summary, keep_last=keep_last), fence), pinned)

    async def acompact(
        self, config: RunnableConfig, channel: str, *, keep_last: int, summary: Sequence[Any] = ()
    ) -> RunnableConfig:
        """Put a summary in the place of a list channel's older values; arguments as for ``compact``."""
        pinned, fence = pin(self._endpoint, config), held_by(self._endpoint, config).fence
        return await self._adrive(self._compact(config, channel, Summary(summary, keep_last=keep_last), fence), pinned)

    def compact_if_needed(
        self,
        config: RunnableConfig,
        needs_compaction: Callable[[LongList, Sequence[Any]], MaybeSummary],
        *,
        every: int | None = None,
    ) -> RunnableConfig:
        """Compact the lists that have become too long, by summaries that the program makes.

        Call it after a run. A save policy says which lists are long: the last save of this saver was told so. With
        ``every`` the program is asked about each list at every so-many-th step, too. While a run waits for somebody,
        nothing is compacted.

        Args:
            config: Thread and namespace.
            needs_compaction: Called with a list and its values; returns what stands for it, or ``None`` to leave it.
            every: At which steps of the graph to ask about all lists: those that are a multiple of it.

        Returns:
            The config of the newest checkpoint it made; ``config``, if it made none.

        Raises:
            HeadMoved: A run saved meanwhile.
        """
        # Of the run that the config is of; those of its checkpoints say nothing of it.
        pinned, held = pin(self._endpoint, config), held_by(self._endpoint, config)
        config, lists = self._drive(self._lists_to_compact(config, every, pinned), pinned)
        for long, values in lists:
            summary = needs_compaction(long, values)
            if summary is not None:
                config = self._drive(self._compact(config, long.channel, summary, held.fence), pinned)
        return config

    async def acompact_if_needed(
        self,
        config: RunnableConfig,
        needs_compaction: Callable[[LongList, Sequence[Any]], Awaitable[MaybeSummary] | MaybeSummary],
        *,
        every: int | None = None,
    ) -> RunnableConfig:
        """Compact the lists that have become too long; arguments as for ``compact_if_needed``."""
        pinned, held = pin(self._endpoint, config), held_by(self._endpoint, config)
        config, lists = await self._adrive(self._lists_to_compact(config, every, pinned), pinned)
        for long, values in lists:
            summary = await finished(needs_compaction(long, values))
            if summary is not None:
                config = await self._adrive(self._compact(config, long.channel, summary, held.fence), pinned)
        return config

    # Removing and copying

    def delete_thread(self, thread_id: str) -> None:
        """Delete a thread with all of its namespaces; one that does not exist is passed over."""
        self._drive(calls.delete_thread(str(thread_id)))

    async def adelete_thread(self, thread_id: str) -> None:
        """Delete a thread with all of its namespaces; one that does not exist is passed over."""
        await self._adrive(calls.delete_thread(str(thread_id)))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints of runs and their writes.

        Args:
            run_ids: The runs; unknown ones are passed over.

        Raises:
            DeltaChainNeeded: A surviving checkpoint's delta channel is rebuilt from what would be deleted.
            TypeError: One text was given instead of a sequence of them. Nothing is removed.
        """
        self._drive(calls.delete_runs(run_ids))

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints of runs and their writes; arguments as for ``delete_for_runs``."""
        await self._adrive(calls.delete_runs(run_ids))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a whole thread, writes included, to one that does not exist yet.

        Args:
            source_thread_id: The thread to copy.
            target_thread_id: The new thread.

        Raises:
            ThreadNotFound: The source does not exist.
            ThreadExists: The target does.
        """
        self._drive(self._copy(str(source_thread_id), str(target_thread_id)))

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a whole thread; arguments as for ``copy_thread``."""
        await self._adrive(self._copy(str(source_thread_id), str(target_thread_id)))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Remove old checkpoints.

        Args:
            thread_ids: The threads; unknown ones are passed over.
            strategy: ``keep_latest`` keeps each namespace's newest checkpoint and whatever its delta channels
                are rebuilt from, but nothing of subgraph calls that are finished; ``delete`` (or ``delete_all``, as
                LangGraph's server says) removes everything.

        Raises:
            ValueError: The strategy is none of these.
            TypeError: One text was given instead of a sequence of them. Nothing is removed.
        """
        self._drive(self._prune(thread_ids, strategy))

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Remove old checkpoints; arguments as for ``prune``."""
        await self._adrive(self._prune(thread_ids, strategy))

    def get_next_version(self, current: str | float | None, channel: None) -> str:
        """A version greater than ``current``, as texts compare; random, so that two forks never share one.

        Args:
            current: The version so far, of this saver or of one with integer versions.
            channel: Not used.
        """
        del channel
        number = int(current.partition(".")[0]) if isinstance(current, str) else int(current or 0)
        return f"{number + 1:032}.{randbelow(10**16):016}"

    @property
    def _values(self) -> Values:
        # Not kept: a copy with an allow list has another serialiser.
        return Values(self.serde, is_own=self._own_serde)

    # Steps without I/O, driven by either client

    def _restoring(self, thread_id: str, make: Callable[[], Steps[R]]) -> Steps[R]:
        """Steps on one thread, which is restored first if it has to be thawed and the saver may wait for that."""
        return calls.restoring(make, thread_id, self._restore_seconds_max)

    def _page(self, listing: Listing) -> Steps[ChannelsPage]:
        if listing.thread_id is None:
            return listing.page()
        return self._restoring(listing.thread_id, listing.page)

    @_thawing
    def _get(self, config: RunnableConfig, pinned: Pinned) -> Steps[CheckpointTuple | None]:
        ids = ConfigIds.of(config)
        remembered = namespace_key(pinned, ids.thread_id, ids.namespace)
        before = None if ids.checkpoint_id is not None else self._histories.for_load(remembered)
        loaded = yield from self._loaded(ids, before)
        if loaded is None:
            return None
        completed = yield from self._completed(loaded, pinned)
        source = completed.metadata.get("source")
        self._answers.note(remembered, loaded.checkpoint_id, completed.checkpoint["channel_values"], source)
        if isinstance(loaded.history, ChannelHistories):
            self._histories.keep(remembered, joined(before, loaded.history), loaded.checkpoint_id)
        return completed

    def _loaded(self, ids: ConfigIds, before: ChannelHistories | None) -> Steps[CheckpointWithChannels | None]:
        """A checkpoint as it came; with what came since ``before`` of histories, where the gateway gives both."""

        def load(history: Sequence[str] = (), mark: str | None = None) -> Steps[CheckpointWithChannels | None]:
            return calls.load_channels(
                ids.thread_id, ids.namespace, ids.checkpoint_id, accepts=self._accepts, history=history, mark=mark
            )

        if before is not None:
            try:
                return (yield from load([*before.channels], before.mark))
            except StateTooLarge:  # each of them may fit an answer
                pass
            except InvalidRequest as refused:
                if all(each.parameter != "history" for each in refused.errors):
                    raise
                self._histories.refuse_loads()
        return (yield from load())

    def _completed(self, loaded: CheckpointWithChannels, pinned: Pinned) -> Steps[CheckpointTuple]:
        """A checkpoint with the large parts of its values, which came as references; those of histories, too."""
        values: list[ChannelOut | SerialisedWrite] = [*loaded.channels.values(), *loaded.pending_writes]
        values += _values_of(loaded.history) if isinstance(loaded.history, ChannelHistories) else []
        yield from receiving(self._pieces, pinned, loaded.thread_id, values)
        return self._values.tuple_of(loaded)

    @_thawing
    def _put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
        pinned: Pinned,
    ) -> Steps[RunnableConfig]:
        ids = ConfigIds.of(config)
        if self._strict:
            yield from self._make_strict(ids, pinned)
        kept, rich = self._values.metadata(config, metadata, self._metadata_exclude)
        step = kept.get("step")
        source = kept.get("source")
        counters = kept.get("counters_since_delta_snapshot")
        # Without a parent there is nothing that a channel could be unchanged from.
        changed = None if ids.checkpoint_id is None else new_versions
        version = self._state_versions.get(_subgraph(ids.namespace))
        channels = self._values.channels(checkpoint, changed, rich)
        remembered = namespace_key(pinned, ids.thread_id, ids.namespace)
        before = self._growth.at(remembered, ids.checkpoint_id)
        lists = _leave_out(channels, before)
        # Of what a caller hands in or corrects, no model answered anything in this step.
        is_made = source == "loop"
        answers = self._answers.added(remembered, ids.checkpoint_id, checkpoint, new_versions) if is_made else []
        self._answers.note(remembered, checkpoint["id"], checkpoint["channel_values"], source)
        request = SaveRequest(
            channels=channels,
            checkpoint_id=checkpoint["id"],
            parent_id=ids.checkpoint_id,
            namespace=ids.namespace,
            step=unset_if_none(step if is_step(step) else None),
            source=word_of(source),
            run_id=name_of(kept.get("run_id")),
            agent=name_of(self._agent) or graph_name(config),
            model=model_of(answers, config.get("metadata") or {}),
            usage=usage_of(answers),
            metadata=kept,
            state_schema=None if version is None else version.schema,
            state_version=None if version is None else version.number,
            delta_channels=sorted(counters) if isinstance(counters, dict) else [],
            fork=isinstance(source, str) and source in _FORKING_SOURCES,
            fence=held_by(self._endpoint, config).fence,
        )
        try:
            receipt = yield from self._save(ids, request, pinned)
        except ChannelUnchangedUnknown:
            appended = any(each.append_to is not UNSET for each in channels.values())
            request.channels = channels = self._values.channels(checkpoint, None, rich)
            lists = _leave_out(channels, {})
            receipt = yield from self._save(ids, request, pinned)
            if appended:
                self._growth.refuse(remembered, checkpoint["id"])
        # A list that went with placeholders goes whole the next time, too.
        lists = {name: each for name, each in lists.items() if not channels[name].holes}
        self._growth.note(remembered, checkpoint["id"], lists, first=ids.checkpoint_id is None)
        self._last_receipts.note(remembered, receipt)
        return ids.config(checkpoint["id"])

    def _make_strict(self, ids: ConfigIds, pinned: Pinned) -> Steps[None]:
        """Make a thread strict: where it begins, since it may have been deleted, and when it is first seen."""
        thread = owner_tag(pinned), ids.thread_id
        if ids.checkpoint_id is None or thread not in self._made_strict:
            yield from calls.change_thread(ids.thread_id, ThreadSettings(strict=True))
            self._made_strict.note(thread, True)

    def _compact(
        self, config: RunnableConfig, channel: str, summary: Summary, fence: int | None
    ) -> Steps[RunnableConfig]:
        ids = ConfigIds.of(config)
        head = yield from calls.show_head(ids.thread_id, ids.namespace)
        if head is None:
            raise CheckpointNotFound("the namespace has no checkpoint to compact")
        encoding, data = self.serde.dumps_typed(calls.listed(summary.elements))
        if encoding != "msgpack":
            raise InvalidRequest("a summary must be MessagePack, and this serialiser writes something else")
        counted = head.metadata.get("step")
        step = counted if isinstance(counted, int) and is_step(counted) else head.step
        version = self._state_versions.get(_subgraph(ids.namespace))
        request = CompactRequest(
            channel=channel,
            keep_last=summary.keep_last,
            summary=msgspec.Raw(bytes(data)),
            namespace=ids.namespace,
            agent=name_of(self._agent),
            # LangGraph counts on from here; what else it keeps in metadata still holds.
            metadata={**head.metadata, "source": "update", "step": step + 1},
            state_schema=None if version is None else version.schema,
            state_version=None if version is None else version.number,
            fence=fence,
        )
        receipt = yield from calls.compact(ids.thread_id, request, if_match=ids.checkpoint_id or head.checkpoint_id)
        return ids.config(receipt.checkpoint_id)

    def _lists_to_compact(
        self, config: RunnableConfig, every: int | None, pinned: Pinned
    ) -> Steps[tuple[RunnableConfig, Sequence[tuple[LongList, Sequence[Any]]]]]:
        """The lists to be asked about, and the checkpoint that has them; none while tasks have written to it."""
        ids = ConfigIds.of(config)
        remembered = namespace_key(pinned, ids.thread_id, ids.namespace)
        saved = self._last_receipts.get(remembered)
        all_lists = is_due(None if saved is None else saved.step, every)
        if saved is None or not (saved.needs_compaction or all_lists):
            return config, ()
        found = yield from self._get(config, pinned)
        if found is None or found.pending_writes or found.checkpoint["id"] != saved.checkpoint_id:
            return config, ()
        self._last_receipts.forget(remembered)
        lists = asked_about(saved.needs_compaction, found.checkpoint["channel_values"], all_lists=all_lists)
        return (found.config if lists else config), lists

    def _save(self, ids: ConfigIds, request: SaveRequest, pinned: Pinned) -> Steps[SaveReceipt]:
        values = list(request.channels.values()) if isinstance(request.channels, dict) else []
        # Otherwise the parent says what the save stands on.
        if_new = self._strict and ids.checkpoint_id is None
        return (
            yield from sending(
                self._pieces,
                pinned,
                ids.thread_id,
                values,
                lambda: calls.save(ids.thread_id, request, if_new=if_new),
            )
        )

    @_thawing
    def _put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str,
        pinned: Pinned,
    ) -> Steps[None]:
        ids = ConfigIds.of(config)
        if ids.checkpoint_id is None:
            raise ValueError("pending writes need a checkpoint_id in the config")
        remembered = namespace_key(pinned, ids.thread_id, ids.namespace)
        self._answers.note_writes(remembered, ids.checkpoint_id, task_id, writes)
        # By index, because of two special writes in one call the later one counts.
        by_idx: dict[int, WriteIn] = {}
        for position, (channel, value) in enumerate(writes):
            encoding, data = self.serde.dumps_typed(value)
            idx = WRITES_IDX_MAP.get(channel, position)
            by_idx[idx] = WriteIn(channel=channel, idx=idx, encoding=encoding, data=bytes(data))
        values = [*by_idx.values()]
        checkpoint_id = ids.checkpoint_id
        version = self._state_versions.get(_subgraph(ids.namespace))
        agent = name_of(self._agent) or graph_name(config)
        asked = Asked() if self.decisions is None else self.decisions.asked(ids, writes, agent, pinned)
        request = WritesRequest(
            writes=values,
            namespace=ids.namespace,
            task_path=task_path,
            status=_status_of({channel for channel, _ in writes}),
            state_schema=None if version is None else version.schema,
            state_version=None if version is None else version.number,
            fence=held_by(self._endpoint, config).fence,
            approvals=asked.approvals,
            approval_refs=asked.refs,
        )
        yield from sending(
            self._pieces,
            pinned,
            ids.thread_id,
            values,
            lambda: calls.write(ids.thread_id, checkpoint_id, task_id, request),
        )

    def _prune(self, thread_ids: Sequence[str], strategy: str) -> Steps[None]:
        strategies = {"keep_latest": "keep_latest", "delete": "delete", "delete_all": "delete"}
        if strategy not in strategies:
            raise ValueError(f"unknown strategy: {strategy}")
        wanted = [str(each) for each in calls.listed(thread_ids)]
        try:
            yield from calls.prune(wanted, strategies[strategy])
        except ThreadArchived:
            if self._restore_seconds_max is None:
                raise
        else:
            return
        # One of them has to be thawed, and which is not said; what was pruned already loses nothing more.
        for thread_id in wanted:
            yield from self._prune_one(thread_id, strategies[strategy])

    def _prune_one(self, thread_id: str, strategy: str) -> Steps[RemovalReceipt]:
        return self._restoring(thread_id, lambda: calls.prune([thread_id], strategy))

    def _copy(self, source_thread_id: str, target_thread_id: str) -> Steps[CopyReceipt]:
        return self._restoring(source_thread_id, lambda: calls.copy_thread(source_thread_id, target_thread_id))

    @_thawing
    def _delta_history(
        self, config: RunnableConfig, channels: Sequence[str], pinned: Pinned
    ) -> Steps[Mapping[str, DeltaChannelHistory]]:
        if not channels:
            return {}
        ids = ConfigIds.of(config)
        remembered = namespace_key(pinned, ids.thread_id, ids.namespace)
        answer = self._histories.take(remembered, channels, ids.checkpoint_id)
        if answer is None:
            before = self._histories.at(remembered, channels)
            answer = yield from calls.channel_history(
                ids.thread_id,
                ids.namespace,
                ids.checkpoint_id,
                [*dict.fromkeys(channels)],
                accepts=self._accepts,
                mark=None if before is None else before.mark,
            )
            yield from receiving(self._pieces, pinned, ids.thread_id, _values_of(answer))
            answer = joined(before, answer)
            self._histories.keep(remembered, answer)
        histories: dict[str, DeltaChannelHistory] = {}
        for name in channels:
            history = answer.channels.get(name)
            if history is None:
                histories[name] = {"writes": []}
                continue
            entry: DeltaChannelHistory = {"writes": [self._values.write(kept) for kept in history.writes]}
            if isinstance(history.seed, ChannelOut):
                entry["seed"] = self._values.value(history.seed)
            histories[name] = entry
        return histories


def _values_of(histories: ChannelHistories) -> list[ChannelOut | SerialisedWrite]:
    values: list[ChannelOut | SerialisedWrite] = []
    for each in histories.channels.values():
        values += each.writes
        values += [each.seed] if isinstance(each.seed, ChannelOut) else []
    return values


def _leave_out(channels: Mapping[str, ChannelIn], before: Mapping[str, Sent]) -> dict[str, Sent]:
    """Leave out what the gateway has of lists that grew; returns what to remember of lists once it has the rest.

    Args:
        channels: Of a save; changed in place.
        before: What is remembered of its parent.
    """
    lists: dict[str, Sent] = {}
    for name, each in channels.items():
        held = before.get(name)
        if each.data is not UNSET:
            held = grown(each, held)
        elif held is not None and held.version != each.version:
            held = None
        if held is not None:
            lists[name] = held
    return lists


def _by_subgraph(
    versions: StateVersion | str | Mapping[str, StateVersion | str] | None,
) -> dict[str, StateVersion]:
    """State versions by subgraph; the root graph is the empty text."""
    if versions is None:
        return {}
    by_subgraph = versions if isinstance(versions, Mapping) else {"": versions}
    return {subgraph: StateVersion.of(each) for subgraph, each in by_subgraph.items()}


def _subgraph(namespace: str) -> str:
    """The nodes that lead to a subgraph, without the ids of their tasks: ``outer:0c1e...|inner:77ab...``."""
    return "|".join(part.partition(":")[0] for part in namespace.split("|") if not part.isdecimal())


def _status_of(channels: set[str]) -> Status | None:
    if ERROR in channels:
        return "failed"
    return "waiting" if INTERRUPT in channels else None
