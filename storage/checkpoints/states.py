"""State as agents see it: the one way through which it is saved and read by a caller that has a version in mind.

On the way in, a save that names a schema and a version needs it registered, loses its ephemeral channels and is checked
against the JSON Schema (`storage.schemas.checks`). On the way out, whatever returns state gives it at the version that
the reader knows, converted in memory (`storage.schemas.versions`); nothing is written back. `storage.checkpoints.verbs`
below it stores and reads what it is given, as it is.

What is checked and converted runs where it can be stopped (`storage.schemas.work`): it promises that no other request
waits for it, and nothing about how much a tenant may do at once.
"""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import TypeVar

from storage.access.storing import Beside
from storage.checkpoints.verbs import Checkpoints
from storage.errors import (
    ChannelUnchangedUnknown,
    CheckpointNotFound,
    InvalidState,
    StorageError,
    WorkersBusy,
)
from storage.model import (
    ChannelHistories,
    ChannelHistory,
    ChannelHistoryQuery,
    Checkpoint,
    FullState,
    HistoryQuery,
    Load,
    Loaded,
    Page,
    Patch,
    PendingWrite,
    Save,
    Saved,
    TaskWrites,
    TaskWritesQuery,
    WritesReceipt,
)
from storage.postgres.unit_of_work import Observer
from storage.schemas.adoptions import Adopted, Adoptions
from storage.schemas.checks import (
    INPUT_SOURCE,
    check_pair,
    checkables,
    refuse,
    without_ephemeral,
    writes_without_ephemeral,
)
from storage.schemas.registry import NAMES_MAX, Schema, StateSchemas
from storage.schemas.versions import (
    AS_SAVED,
    OtherVersionError,
    Versioned,
    WantedNames,
    WantedVersions,
    converted_checkpoint,
    converted_write,
    convertible,
    is_control,
    patched,
    versions_of,
)
from storage.schemas.work import StateWork
from storage.scope import ClientShare, Scope

# How often a reader's names are learned for one request: each time, a history is walked further with what is known.
NAMES_ROUNDS_MAX = 20

T = TypeVar("T")


class States:
    """The verbs on state, by version."""

    def __init__(
        self,
        checkpoints: Checkpoints,
        schemas: StateSchemas,
        adoptions: Adoptions,
        work: StateWork,
        observer: Observer,
    ) -> None:
        self._checkpoints = checkpoints
        self.adoptions = adoptions
        self._schemas = schemas
        self._work = work
        self._observer = observer

    # --- in ------------------------------------------------------------------------------------------------------

    async def save(
        self, scope: Scope, save: Save, share: ClientShare | None = None, beside: Beside | None = None
    ) -> Saved:
        """Save a checkpoint; see `Checkpoints.save`. What is ``beside`` it is written with it, or neither is.

        A patch that names another version than its parent's applies to what the parent is at that version.

        Raises:
            StateTooNewToSave: the save names a version that is not registered.
            StateVersionRequired: it names none, and the agent's state was adopted at one.
            InvalidState: it names half a version, or its JSON Schema does not allow the state.
            StateTooNew, UpcastFailed: a patch's parent cannot be brought to the patch's version.
            StateSchemaMismatch: nothing says what a patch's parent is, or what pending writes are that came before it.
            StorageError: as `Checkpoints.save`.
        """
        save = await self.checked(scope, save)
        if save.state_schema is None:
            await self._require_version(scope, save, share)
        async with self._checkpoints.saving(scope, save, partial(self._at_version, scope, share), beside) as saving:
            return await saving.stored(share)

    async def _at_version(self, scope: Scope, share: ClientShare | None, save: Save, other: OtherVersionError) -> Save:
        """The save as it can be stored on a parent of another version."""
        if save.state_schema is None and other.state_schema is not None:
            at = replace(save, state_schema=other.state_schema, state_version=other.state_version)
            return await self.checked(scope, at)
        return await self._on_converted(scope, save, other.base_id, share)

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
            for checkable in checkables(content, complete=save.source != INPUT_SOURCE):
                misfit = await self._work.misfit(scope, known, number, checkable)
                if misfit is not None:
                    raise refuse(misfit, number, checkable.prefix)
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
        base = (await self._checkpoints.load(scope, Load(*place, with_state=True), share)).checkpoint
        base = await self.adopted(scope, base)
        # What was not adopted is taken as it is: a patch of it at a version says what it is.
        if base.state_schema is not None:
            if base.state_schema != schema:
                raise InvalidState("the changes apply to state of another schema", "/state_schema")
            [base] = await self._at(scope, WantedVersions(by_schema={schema: number}), [base])
        known = await self._schemas.known(scope, schema, number)
        # The parent may hold what is not stored any more at this version.
        return without_ephemeral(replace(save, content=patched(base, patch)), known.ephemeral(number))

    async def put_writes(self, scope: Scope, new: TaskWrites, share: ClientShare | None = None) -> WritesReceipt:
        """Store a task's writes; see `Checkpoints.put_writes`. They may be at another version than their checkpoint.

        Writes without a version are at their checkpoint's; where that is not saved yet, nothing is known of them.

        Raises:
            StateTooNewToSave: they name a version that is not registered.
            StateVersionRequired: they name none, and their checkpoint is of an agent whose state was adopted at one.
            StorageError: as `Checkpoints.put_writes`.
        """
        check_pair(new.state_schema, new.state_version)
        if new.state_schema is None:
            adopted = await self.adoptions.known(scope)
            if adopted.may_cover(new.namespace) and not all(is_control(each.channel) for each in new.writes):
                place = (new.thread_id, new.namespace, new.checkpoint_id)
                await self._require_version_on(scope, adopted, place, share)
        given, new = new.writes, await self._without_ephemeral(scope, new)

        async def at_version(new: TaskWrites, other: OtherVersionError) -> TaskWrites:
            at = replace(new, writes=given, state_schema=other.state_schema, state_version=other.state_version)
            return await self._without_ephemeral(scope, at)

        async with self._checkpoints.writing(scope, new, at_version) as writing:
            return await writing.stored(share)

    async def _without_ephemeral(self, scope: Scope, new: TaskWrites) -> TaskWrites:
        """The writes as their version lets them be stored."""
        if new.state_schema is None or new.state_version is None:
            return new
        known = await self._schemas.known(scope, new.state_schema, new.state_version)
        return replace(new, writes=writes_without_ephemeral(new.writes, known.ephemeral(new.state_version)))

    async def _require_version(self, scope: Scope, save: Save, share: ClientShare | None) -> None:
        """Refuse a save without a version where its agent's state, or what a patch applies to, was adopted at one."""
        adopted = await self.adoptions.known(scope)
        adopted.require_version(save.agent, save.namespace)
        believed = save.precondition.head_id if save.precondition is not None else None
        base_id = believed if save.parent is None else save.parent.checkpoint_id
        if isinstance(save.content, Patch) and base_id is not None and adopted.may_cover(save.namespace):
            await self._require_version_on(scope, adopted, (save.thread_id, save.namespace, base_id), share)

    async def _require_version_on(
        self, scope: Scope, adopted: Adopted, place: tuple[str, str, str], share: ClientShare | None
    ) -> None:
        try:
            base = (await self._checkpoints.load(scope, Load(*place, with_state=False), share)).checkpoint
        except CheckpointNotFound:
            return
        adopted.require_version(base.agent, base.namespace)

    # --- out -----------------------------------------------------------------------------------------------------

    async def load(self, scope: Scope, wanted: WantedVersions, load: Load, share: ClientShare | None = None) -> Loaded:
        """Load a checkpoint at the version its reader knows; see `Checkpoints.load`.

        What has to be converted comes with its large parts in place, also where references were asked for. Histories
        are as in `channel_history`, so at a version they are read after the checkpoint.

        Raises:
            StateTooNew: no steps lead to that version.
            StateTooNewToSave: it is not registered.
            StateSchemaMismatch: it is state of a schema that its reader does not know.
            UpcastFailed: a step cannot be applied.
            StorageError: as `Checkpoints.load`.
        """
        channels = load.history
        if channels is not None and wanted is not AS_SAVED:
            loaded = await self.load(scope, wanted, replace(load, history=None), share)
            place = (load.thread_id, load.namespace, loaded.checkpoint.checkpoint_id)
            query = ChannelHistoryQuery(*place, channels, known_token=load.known_token, refs=load.refs)
            return replace(loaded, histories=await self.channel_history(scope, wanted, query, share))
        loaded = await self._checkpoints.load(scope, load, share)
        if load.refs and self._differs(wanted, await self._as_adopted(scope, wanted, loaded.checkpoint)):
            loaded = await self._checkpoints.load(scope, replace(load, refs=False), share)
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
            StateTooNew, StateTooNewToSave, StateSchemaMismatch, UpcastFailed: as `load`, for the first that cannot be
                shown.
            StorageError: as `Checkpoints.history`.
        """
        page = await self._checkpoints.history(scope, query, share)
        differ = [self._differs(wanted, await self._as_adopted(scope, wanted, each)) for each in page.items]
        if query.refs and any(differ):
            page = await self._checkpoints.history(scope, replace(query, refs=False), share)
        return Page(await self._at(scope, wanted, page.items), page.after)

    async def task_writes(
        self, scope: Scope, wanted: WantedVersions, query: TaskWritesQuery, share: ClientShare | None = None
    ) -> list[PendingWrite]:
        """What one task wrote, at the version its reader knows; see `Checkpoints.task_writes`.

        Writes without a version of their own, to a checkpoint that was not saved yet, are as they were stored.

        Raises:
            StateTooNew, StateTooNewToSave, StateSchemaMismatch, UpcastFailed: as `load`.
            StorageError: as `Checkpoints.task_writes`.
        """
        refs = query.refs and wanted is AS_SAVED
        writes = await self._checkpoints.task_writes(scope, replace(query, refs=refs), share)
        if wanted is AS_SAVED or not writes:
            return writes
        base: Versioned | None = None
        if any(each.state_version is None for each in writes):
            try:
                place = (query.thread_id, query.namespace, query.checkpoint_id)
                loaded = await self._checkpoints.load(scope, Load(*place, with_state=False), share)
                base = await self.adopted(scope, loaded.checkpoint)
            except CheckpointNotFound:
                base = None
        return await self._writes_at(scope, wanted, base, writes)

    async def channel_history(
        self, scope: Scope, wanted: WantedVersions, query: ChannelHistoryQuery, share: ClientShare | None = None
    ) -> ChannelHistories:
        """Channels' histories, by the reader's names of them, at its version; see `Checkpoints.channel_history`.

        Ancestors that were saved at other versions may hold a channel under other names, and so may writes. At a
        version everything is given, whatever the ``mark``.

        Raises:
            StateTooNew, StateTooNewToSave, StateSchemaMismatch, UpcastFailed: as `load`.
            StorageError: as `Checkpoints.channel_history`.
        """
        if wanted is AS_SAVED:
            return await self._checkpoints.channel_history(scope, query, share)
        in_full = replace(query, refs=False, mark=None)
        found = await self._with_names(
            scope, wanted, lambda names: self._checkpoints.channel_history(scope, in_full, share, names)
        )
        result: dict[str, ChannelHistory] = {}
        seeds: dict[str, Checkpoint] = {}
        for name, history in found.channels.items():
            converted = await self._writes_at(scope, wanted, None, history.writes)
            seed = history.seed
            if history.seed_at is not None:
                if history.seed_at not in seeds:
                    at = Load(query.thread_id, query.namespace, history.seed_at, with_state=True)
                    loaded = await self.load(scope, wanted, at, share)
                    seeds[history.seed_at] = loaded.checkpoint
                seed = (seeds[history.seed_at].channels or {}).get(name)
            result[name] = ChannelHistory(writes=[each for each in converted if each.channel == name], seed=seed)
        return ChannelHistories(channels=result, mark=None)

    async def at(self, scope: Scope, wanted: WantedVersions, checkpoint: Checkpoint) -> Checkpoint:
        """A checkpoint that was loaded with its state, at another version.

        Raises:
            StateTooNew, StateTooNewToSave, StateSchemaMismatch, UpcastFailed: as `load`.
        """
        saved = await self._as_adopted(scope, wanted, checkpoint)
        return await self._converted(scope, wanted, saved) if self._differs(wanted, saved) else saved

    async def adopted(self, scope: Scope, checkpoint: Checkpoint) -> Checkpoint:
        """A checkpoint as what its agent's unversioned state was adopted as; unchanged, if it was not.

        Raises:
            StateSchemaMismatch: it was saved without a version after that.
            IntegrityFailure: what it would be was written or edited outside the gateway.
        """
        if checkpoint.state_schema is not None:
            return checkpoint
        found = (await self.adoptions.known(scope)).of(checkpoint)
        if found is None:
            return checkpoint
        return replace(checkpoint, state_schema=found.state_schema, state_version=found.state_version)

    # --- conversion ----------------------------------------------------------------------------------------------

    async def _as_adopted(self, scope: Scope, wanted: WantedVersions, checkpoint: Checkpoint) -> Checkpoint:
        """Apply `adopted` where a reader has a version in mind and gets state; leave all else as it was saved."""
        if wanted is AS_SAVED or checkpoint.channels is None:
            return checkpoint
        return await self.adopted(scope, checkpoint)

    def _differs(self, wanted: WantedVersions, checkpoint: Checkpoint) -> bool:
        if wanted is AS_SAVED or checkpoint.channels is None:
            return False
        writes = [each for each in checkpoint.writes or () if not is_control(each.channel)]
        # Of each, also where one differs already: another one's schema may be unknown.
        found: list[Versioned] = [checkpoint, *(each for each in writes if each.state_version is not None)]
        differing = [each for each in found if wanted.differs(each)]
        return bool(differing)

    async def _at(self, scope: Scope, wanted: WantedVersions, checkpoints: list[Checkpoint]) -> list[Checkpoint]:
        """The checkpoints at the reader's version; those that are there already are the same objects."""
        shown = []
        for one in checkpoints:
            each = await self._as_adopted(scope, wanted, one)
            differs = self._differs(wanted, each)
            shown.append(await self._converted(scope, wanted, each) if differs else each)
            if each.state_version is not None and each.channels is not None:
                self._observer.state_read(each.state_version, shown[-1].state_version or each.state_version)
        return shown

    async def _converted(self, scope: Scope, wanted: WantedVersions, saved: Checkpoint) -> Checkpoint:
        shown = saved
        if wanted.differs(saved):
            known, before, after = await self._schema_of(scope, wanted, saved)
            deltas = [name for name in saved.delta_channels if not is_control(name)]
            made, names = await self._work.converted(scope, known, before, after, convertible(saved), names=deltas)
            of = dict(zip(deltas, names, strict=True))
            renamed = [each for name in saved.delta_channels for each in of.get(name, [name])]
            shown = converted_checkpoint(saved, made, renamed, after)
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
            known, before, after = await self._schema_of(scope, wanted, own)
            channel = {each.channel: each.value}
            made, _ = await self._work.converted(scope, known, before, after, channel, partial=True)
            shown += converted_write(each, made, after)
            read.add((before, after))
        for before, after in read:
            self._observer.state_read(before, after)
        return shown

    async def _schema_of(self, scope: Scope, wanted: WantedVersions, saved: Versioned) -> tuple[Schema, int, int]:
        schema, before, after = versions_of(wanted, saved)
        return await self._schemas.known(scope, schema, max(before, after)), before, after

    async def _with_names(self, scope: Scope, wanted: WantedVersions, work: Callable[[WantedNames], Awaitable[T]]) -> T:
        """Do ``work``, which asks for names in a transaction: what is missing is learned outside, and it repeats."""
        learned: dict[tuple[str, int, int, str], tuple[str, ...]] = {}
        adopted = await self.adoptions.known(scope)

        def known(schema: str, before: int, after: int, name: str) -> tuple[str, ...] | None:
            found = self._schemas.cached(scope, schema, (max(before, after),))
            before_now = None if found is None else found.names.get((before, after, name))
            return learned.get((schema, before, after, name), before_now)

        for _ in range(NAMES_ROUNDS_MAX):
            names = WantedNames(wanted, known, adopted.at)
            try:
                done = await work(names)
            except StorageError:
                if not names.missing:
                    raise
            else:
                if not names.missing:
                    return done
            learned |= await self._learned_names(scope, names.missing)
        raise WorkersBusy

    async def _learned_names(
        self, scope: Scope, missing: Iterable[tuple[str, int, int, str]]
    ) -> dict[tuple[str, int, int, str], tuple[str, ...]]:
        learned: dict[tuple[str, int, int, str], tuple[str, ...]] = {}
        by_versions: dict[tuple[str, int, int], list[str]] = {}
        for schema, before, after, name in missing:
            by_versions.setdefault((schema, before, after), []).append(name)
        for (schema, before, after), names in by_versions.items():
            known = await self._schemas.known(scope, schema, max(before, after))
            found = await self._work.names(scope, known, before, after, names)
            if len(known.names) + len(names) > NAMES_MAX:
                known.names.clear()
            for name, became in zip(names, map(tuple, found), strict=True):
                learned[schema, before, after, name] = became
                if len(known.names) < NAMES_MAX:
                    known.names[before, after, name] = became
        return learned
