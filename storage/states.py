"""State as agents see it: the one way through which it is saved and read by whoever has a version in mind.

On the way in, a save that names a schema and a version needs it registered, loses its ephemeral channels and is checked
against the JSON Schema (`storage.state_checks`). On the way out, whatever returns state gives it at the version that
the reader knows, converted in memory (`storage.versions`); nothing is written back. `storage.checkpoints` below it
stores and reads what it is given, as it is.

It promises nothing about how long an operator's Python step takes: state is converted in a thread, so that other
requests go on meanwhile.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from migrations.state.chain import Chain
from storage.checkpoints import Checkpoints
from storage.errors import ChannelUnchangedUnknown, CheckpointNotFound, InvalidState
from storage.model import (
    ChannelHistories,
    ChannelHistory,
    Checkpoint,
    FullState,
    HistoryQuery,
    Loaded,
    NewWrite,
    Page,
    Patch,
    PendingWrite,
    Save,
    Saved,
    Status,
    WritesReceipt,
)
from storage.postgres.unit_of_work import Observer
from storage.scope import ClientShare, Scope
from storage.state_checks import (
    check_content,
    check_pair,
    size_of,
    without_ephemeral,
    writes_without_ephemeral,
)
from storage.state_schemas import StateSchemas
from storage.versions import (
    AS_SAVED,
    OtherVersionError,
    SchemaNotRead,
    Versioned,
    WantedNames,
    WantedVersions,
    convert_checkpoint,
    convert_write,
    is_control,
    patched,
)

# A state above this is checked beside the event loop: about 2 ms of work, measured. What is converted always is:
# steps may make much of little.
THREAD_BYTES_MIN = 256 * 1024

T = TypeVar("T")


class States:
    """The verbs on state, by version."""

    def __init__(self, checkpoints: Checkpoints, schemas: StateSchemas, observer: Observer) -> None:
        self._checkpoints = checkpoints
        self._schemas = schemas
        self._observer = observer

    # --- in ------------------------------------------------------------------------------------------------------

    async def save(self, scope: Scope, save: Save, share: ClientShare | None = None) -> Saved:
        """Save a checkpoint; see `Checkpoints.save`.

        A patch that names another version than its parent's applies to what the parent is at that version.

        Args:
            scope: Whose.
            save: What to save.
            share: The client's share of the thread's keys.

        Raises:
            StateTooNewToSave: the save names a version that nobody registered.
            InvalidState: it names half a version, or its JSON Schema does not allow the state.
            StateTooNew, UpcastFailed: a patch's parent cannot be brought to the patch's version.
            StorageError: as `Checkpoints.save`.
        """
        save = await self.checked(scope, save)
        try:
            return await self._checkpoints.save(scope, save, share)
        except OtherVersionError as other:
            if save.state_schema is None:
                at = replace(save, state_schema=other.state_schema, state_version=other.state_version)
                ready = await self.checked(scope, at)
            else:
                ready = await self._on_converted(scope, save, other.base_id, share)
        return await self._checkpoints.save(scope, ready, share)

    async def checked(self, scope: Scope, save: Save) -> Save:
        """The save as its schema lets it be stored: without ephemeral channels.

        Raises:
            StateTooNewToSave, InvalidState: as `save`.
            ChannelUnchangedUnknown: elements are to be appended, and its JSON Schema can only check the whole list.
        """
        check_pair(save.state_schema, save.state_version)
        if save.state_schema is None or save.state_version is None:
            return save
        number = save.state_version
        known = await self._schemas.known(scope, save.state_schema, number)
        save = replace(without_ephemeral(save, known.ephemeral(number)), searchable=known.searchable(number))
        if known.has_json_schema(number):
            content = save.content
            for name, each in content.channels.items() if isinstance(content, FullState) else ():
                if each.append_to is not None and not is_control(name):
                    raise ChannelUnchangedUnknown(name)
            await self._beside(scope, size_of(content), lambda: check_content(known, number, content))
        return save

    async def tagged(self, scope: Scope, save: Save) -> Save:
        """The save with what its state version declares searchable, and otherwise as it is.

        Raises:
            StateTooNewToSave: as `save`.
        """
        if save.state_schema is None or save.state_version is None:
            return save
        known = await self._schemas.known(scope, save.state_schema, save.state_version)
        return replace(save, searchable=known.searchable(save.state_version))

    async def _on_converted(self, scope: Scope, save: Save, base_id: str, share: ClientShare | None) -> Save:
        """A patch as the complete state that it makes of its parent at the patch's version."""
        patch, schema, number = save.content, save.state_schema, save.state_version
        assert isinstance(patch, Patch)  # noqa: S101  for the type checker: only a patch is refused like this
        assert schema is not None  # noqa: S101  likewise: without one there is no other version
        assert number is not None  # noqa: S101  likewise
        place = (save.thread_id, save.namespace, base_id)
        base = (await self._checkpoints.load(scope, *place, with_state=True, share=share)).checkpoint
        if base.state_schema != schema:
            raise InvalidState("the changes apply to state of another schema", "/state_schema")
        [base] = await self._at(scope, WantedVersions(by_schema={schema: number}), [base])
        known = await self._schemas.known(scope, schema, number)
        # The parent may hold what is not stored any more at this version.
        return without_ephemeral(replace(save, content=patched(base, patch)), known.ephemeral(number))

    async def put_writes(
        self,
        scope: Scope,
        thread_id: str,
        namespace: str,
        checkpoint_id: str,
        task_id: str,
        task_path: str,
        writes: Sequence[NewWrite],
        status: Status | None,
        share: ClientShare | None = None,
        known_token: str | None = None,
        *,
        state_schema: str | None = None,
        state_version: int | None = None,
    ) -> WritesReceipt:
        """Store a task's writes; see `Checkpoints.put_writes`. They may be at another version than their checkpoint.

        Writes without a version are at their checkpoint's; where that is not saved yet, nothing is known of them.

        Raises:
            StateTooNewToSave: they name a version that nobody registered.
            StorageError: as `Checkpoints.put_writes`.
        """
        check_pair(state_schema, state_version)

        async def put(schema: str | None, number: int | None) -> WritesReceipt:
            kept = writes
            if schema is not None and number is not None:
                known = await self._schemas.known(scope, schema, number)
                kept = writes_without_ephemeral(writes, known.ephemeral(number))
            return await self._checkpoints.put_writes(
                scope,
                thread_id,
                namespace,
                checkpoint_id,
                task_id,
                task_path,
                kept,
                status,
                share,
                known_token,
                state_schema=schema,
                state_version=number,
            )

        try:
            return await put(state_schema, state_version)
        except OtherVersionError as other:
            return await put(other.state_schema, other.state_version)

    # --- out -----------------------------------------------------------------------------------------------------

    async def load(
        self,
        scope: Scope,
        wanted: WantedVersions,
        thread_id: str,
        namespace: str,
        checkpoint_id: str | None,
        *,
        with_state: bool,
        known_token: str | None = None,
        share: ClientShare | None = None,
        refs: bool = False,
    ) -> Loaded:
        """Load a checkpoint at the version its reader knows; see `Checkpoints.load`.

        What has to be converted comes with its large parts in place, also where references were asked for.

        Raises:
            StateTooNew: no steps lead to that version.
            StateTooNewToSave: nobody registered it.
            UpcastFailed: a step cannot be applied.
            StorageError: as `Checkpoints.load`.
        """

        async def load(refs: bool) -> Loaded:
            return await self._checkpoints.load(
                scope,
                thread_id,
                namespace,
                checkpoint_id,
                with_state=with_state,
                known_token=known_token,
                share=share,
                refs=refs,
            )

        loaded = await load(refs)
        if refs and self._differs(wanted, loaded.checkpoint):
            loaded = await load(refs=False)
        [shown] = await self._at(scope, wanted, [loaded.checkpoint])
        return loaded if shown is loaded.checkpoint else replace(loaded, checkpoint=shown)

    async def history(
        self,
        scope: Scope,
        wanted: WantedVersions,
        query: HistoryQuery,
        share: ClientShare | None = None,
    ) -> Page[Checkpoint]:
        """Checkpoints, newest first, at the version their reader knows; see `Checkpoints.history`.

        Without state, versions are as saved.

        Raises:
            StateTooNew, StateTooNewToSave, UpcastFailed: as `load`, for the first one that cannot be shown.
            StorageError: as `Checkpoints.history`.
        """
        page = await self._checkpoints.history(scope, query, share)
        if query.refs and any(self._differs(wanted, each) for each in page.items):
            page = await self._checkpoints.history(scope, replace(query, refs=False), share)
        return Page(await self._at(scope, wanted, page.items), page.after)

    async def task_writes(
        self,
        scope: Scope,
        wanted: WantedVersions,
        thread_id: str,
        namespace: str,
        checkpoint_id: str,
        task_id: str,
        share: ClientShare | None = None,
        *,
        refs: bool = False,
    ) -> list[PendingWrite]:
        """What one task wrote, at the version its reader knows; see `Checkpoints.task_writes`.

        Writes without a version of their own, to a checkpoint that was not saved yet, are as they were stored.

        Raises:
            StateTooNew, StateTooNewToSave, UpcastFailed: as `load`.
            StorageError: as `Checkpoints.task_writes`.
        """

        async def read(refs: bool) -> list[PendingWrite]:
            return await self._checkpoints.task_writes(
                scope, thread_id, namespace, checkpoint_id, task_id, share, refs=refs
            )

        writes = await read(refs and wanted is AS_SAVED)
        if wanted is AS_SAVED or not writes:
            return writes
        base: Versioned | None = None
        if any(each.state_version is None for each in writes):
            try:
                loaded = await self._checkpoints.load(
                    scope, thread_id, namespace, checkpoint_id, with_state=False, share=share
                )
                base = loaded.checkpoint
            except CheckpointNotFound:
                base = None
        return await self._writes_at(scope, wanted, base, writes)

    async def channel_history(
        self,
        scope: Scope,
        wanted: WantedVersions,
        thread_id: str,
        namespace: str,
        checkpoint_id: str | None,
        channels: Sequence[str],
        *,
        known_token: str | None = None,
        share: ClientShare | None = None,
        refs: bool = False,
        mark: str | None = None,
    ) -> ChannelHistories:
        """Channels' histories, by the reader's names of them, at its version; see `Checkpoints.channel_history`.

        Ancestors that were saved at other versions may hold a channel under other names, and so may writes. At a
        version everything is given, whatever the ``mark``.

        Raises:
            StateTooNew, StateTooNewToSave, UpcastFailed: as `load`.
            StorageError: as `Checkpoints.channel_history`.
        """
        if wanted is AS_SAVED:
            return await self._checkpoints.channel_history(
                scope, thread_id, namespace, checkpoint_id, channels, known_token=known_token, share=share, refs=refs,
                mark=mark,
            )  # fmt: skip
        found = await self._reading_schemas(
            scope,
            lambda: self._checkpoints.channel_history(
                scope,
                thread_id,
                namespace,
                checkpoint_id,
                channels,
                known_token=known_token,
                share=share,
                refs=False,
                names=self._names(scope, wanted),
            ),
        )
        result: dict[str, ChannelHistory] = {}
        seeds: dict[str, Checkpoint] = {}
        for name, history in found.channels.items():
            converted = await self._writes_at(scope, wanted, None, history.writes)
            seed = history.seed
            if history.seed_at is not None:
                if history.seed_at not in seeds:
                    loaded = await self.load(
                        scope, wanted, thread_id, namespace, history.seed_at, with_state=True, share=share
                    )
                    seeds[history.seed_at] = loaded.checkpoint
                seed = (seeds[history.seed_at].channels or {}).get(name)
            result[name] = ChannelHistory(writes=[each for each in converted if each.channel == name], seed=seed)
        return ChannelHistories(channels=result, mark=None)

    async def at(self, scope: Scope, wanted: WantedVersions, checkpoint: Checkpoint) -> Checkpoint:
        """A checkpoint that was loaded with its state, at another version.

        Raises:
            StateTooNew, StateTooNewToSave, UpcastFailed: as `load`.
        """
        return await self._converted(scope, wanted, checkpoint) if self._differs(wanted, checkpoint) else checkpoint

    # --- conversion ----------------------------------------------------------------------------------------------

    def _differs(self, wanted: WantedVersions, checkpoint: Checkpoint) -> bool:
        if wanted is AS_SAVED or checkpoint.channels is None:
            return False
        return wanted.differs(checkpoint) or any(
            wanted.differs(each) for each in checkpoint.writes or () if each.state_version is not None
        )

    async def _at(self, scope: Scope, wanted: WantedVersions, checkpoints: list[Checkpoint]) -> list[Checkpoint]:
        """The checkpoints at the reader's version; those that are there already are the same objects."""
        shown = []
        for each in checkpoints:
            differs = self._differs(wanted, each)
            shown.append(await self._converted(scope, wanted, each) if differs else each)
            if each.state_version is not None and each.channels is not None:
                self._observer.state_read(each.state_version, shown[-1].state_version or each.state_version)
        return shown

    async def _converted(self, scope: Scope, wanted: WantedVersions, saved: Checkpoint) -> Checkpoint:
        shown = saved
        if wanted.differs(saved):
            chain, _, after = await self._chain(scope, wanted, saved)
            shown = await self._schemas.beside(scope, partial(convert_checkpoint, chain, saved, after))
        return replace(shown, writes=await self._writes_at(scope, wanted, saved, saved.writes or []))

    async def _writes_at(
        self, scope: Scope, wanted: WantedVersions, base: Versioned | None, writes: list[PendingWrite]
    ) -> list[PendingWrite]:
        """Pending writes at the reader's version; ``base`` is what those without a version of their own go by."""
        shown: list[PendingWrite] = []
        read: set[tuple[int, int]] = set()
        for each in writes:
            own: Versioned | None = base if each.state_version is None else each
            if own is None or is_control(each.channel) or not wanted.differs(own):
                shown.append(each)
                continue
            chain, before, after = await self._chain(scope, wanted, own)
            shown += await self._schemas.beside(scope, partial(convert_write, chain, each, before, after))
            read.add((before, after))
        for before, after in read:
            self._observer.state_read(before, after)
        return shown

    async def _chain(self, scope: Scope, wanted: WantedVersions, saved: Versioned) -> tuple[Chain, int, int]:
        schema, before, after = saved.state_schema, saved.state_version, wanted.of(saved)
        assert schema is not None  # noqa: S101  for the type checker: `differs` said so
        assert before is not None  # noqa: S101  likewise
        assert after is not None  # noqa: S101  likewise
        known = await self._schemas.known(scope, schema, max(before, after))
        return known.chain, before, after

    def _names(self, scope: Scope, wanted: WantedVersions) -> WantedNames:
        def chain_of(schema: str, before: int, after: int) -> Chain:
            known = self._schemas.cached(scope, schema, (max(before, after),))
            if known is None:
                raise SchemaNotRead(schema, max(before, after))
            return known.chain

        return WantedNames(wanted, chain_of)

    async def _reading_schemas(self, scope: Scope, work: Callable[[], Awaitable[T]]) -> T:
        """Do ``work``, which needs schemas inside a transaction: they are read outside, and it begins again."""
        while True:
            try:
                return await work()
            except SchemaNotRead as missing:
                await self._schemas.known(scope, missing.schema, missing.number)

    async def _beside(self, scope: Scope, size: int, work: Callable[[], T]) -> T:
        """Do ``work`` on so many bytes: at once, or in a thread."""
        return work() if size < THREAD_BYTES_MIN else await self._schemas.beside(scope, work)
