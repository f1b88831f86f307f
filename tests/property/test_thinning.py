"""After any sequence of saves, forks, deltas, writes and removals, all that is kept is as it was, and so are the seals.

The model keeps what every checkpoint was answered to hold. What a removal may take is judged without the code that
chose it: what is left must load byte for byte, be rebuilt from the same deltas, and be what the issue of thinning says
must never go. Between two batches of a removal somebody else saves or writes.
"""

from copy import copy
from dataclasses import replace
from datetime import timedelta
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from storage.blobs.memory import MemoryBlobStore
from storage.errors import CheckpointNotFound, ParentUnknown
from storage.format.pieces import unpack_ids
from storage.model import ChannelHistoryQuery, HistoryQuery, Load, Parent
from storage.scope import Scope
from storage.service import Store, StoreOptions
from storage.statements.threads import threads as threads_sql
from storage.threads.plans import Plans
from storage.threads.pruning import Pruning
from storage.threads.thinning import ThinningRule
from tests.property.test_checkpoint_store import World
from tests.support.interleaving import SteeredUnitOfWork
from tests.support.passing_time import PassingTime
from tests.support.states import document, put, save, state, write
from tests.support.stores import DEPLOYMENT_ID

CONTENTS = st.sampled_from([1, "x", document("one"), document("two"), document("large", 90_000), ["e" * 700] * 30])
DAY = 86_400
RULES = st.builds(
    ThinningRule,
    every=st.none() | st.integers(1, 4),
    keep_first=st.integers(0, 1),
    keep_last=st.integers(0, 2),
    keep_statuses=st.sampled_from([frozenset(), frozenset({"done"})]),
    checkpoints_max=st.none() | st.integers(1, 6),
)


class Between:
    """Before the n-th lock of the thread, something else is done."""

    def __init__(self):
        self.at = 0
        self.work = None

    async def __call__(self, statement):
        if statement == threads_sql.LOCK.text and self.work is not None:
            self.at -= 1
            if self.at <= 0:
                work, self.work = self.work, None
                await work()


class Thinned(RuleBasedStateMachine):
    world: World
    known = Bundle("known")

    def __init__(self):
        super().__init__()
        self.scope = Scope(uuid4(), "user-1")
        self.time = PassingTime(self.world.admin, self.scope.tenant_id)
        self.shown = {}
        self.deltas = {}
        self.saves = 0
        store = self.world.store
        self.between = Between()
        access = copy(store.pruning._access)
        access.unit_of_work = SteeredUnitOfWork(store._engine, {}, self.between)
        self.pruning = Pruning(access, Plans(access, batch_chunks=2), batch_rows=2)

    def run(self, work):
        return self.world.runner.run(work)

    async def _snapshot(self, checkpoint_id):
        loaded = await self.world.store.checkpoints.load(self.scope, Load("t1", "", checkpoint_id, with_state=True))
        return loaded.checkpoint

    async def _delta(self, checkpoint_id):
        found = await self.world.store.checkpoints.channel_history(
            self.scope, ChannelHistoryQuery("t1", "", checkpoint_id, ["d"])
        )
        return found.channels["d"]

    async def _save(self, content, parent, **parts):
        if parent is not None:
            parts["parent"] = Parent(parent)
        saved = await save(self.world.store, self.scope, content=state(**content), **parts)
        self.saves += 1
        made = self.shown[saved.checkpoint_id] = await self._snapshot(saved.checkpoint_id)
        if "d" in made.delta_channels and "d" not in made.channels:
            self.deltas[saved.checkpoint_id] = await self._delta(saved.checkpoint_id)
        return saved.checkpoint_id

    async def _write(self, checkpoint_id, idx, content, channel, status=None):
        await put(self.world.store, self.scope, checkpoint_id, write(idx, channel, content), status=status)
        if checkpoint_id in self.shown:
            self.shown[checkpoint_id] = await self._snapshot(checkpoint_id)
        self.deltas = {each: await self._delta(each) for each in self.deltas}

    @initialize(target=known)
    def begin(self):
        return self.run(self._save({"d": "seed"}, None))

    @rule(target=known, content=CONTENTS, status=st.sampled_from(["active", "done"]))
    def save_on_the_head(self, content, status):
        return self.run(self._save({"a": content}, None, status=status, step=self.saves))

    @rule(target=known, content=CONTENTS)
    def save_a_delta(self, content):
        return self.run(self._save({"x": content}, None, delta_channels=("d",), step=self.saves))

    @rule(target=known, content=CONTENTS)
    def save_a_snapshot(self, content):
        return self.run(self._save({"d": content}, None, delta_channels=("d",), step=self.saves))

    @rule(target=known, parent=known, content=CONTENTS, source=st.sampled_from([None, "fork", "update"]))
    def fork(self, parent, content, source):
        try:
            return self.run(self._save({"a": content}, parent, source=source, step=self.saves))
        except ParentUnknown:
            assert parent not in self.shown
            return parent

    @rule(place=known, idx=st.integers(-1, 2), content=CONTENTS, channel=st.sampled_from("ad"))
    def write(self, place, idx, content, channel):
        if place in self.shown:
            self.run(self._write(place, idx, content, channel))

    @rule(place=known)
    def interrupt(self, place):
        if place in self.shown:
            self.run(self._write(place, -3, "?", "__interrupt__", "waiting"))

    @rule(days=st.integers(1, 5))
    def time_passes(self, days):
        self.run(self.time.go_on(days * DAY))

    def _meanwhile(self, at, work):
        """What somebody does while a removal is at work; what they did, afterwards."""
        self.between.at, self.between.work = at, work

    def _left(self):
        found = self.run(self.world.store.checkpoints.history(self.scope, HistoryQuery(thread_id="t1", limit=1000)))
        return {each.checkpoint_id for each in found.items}

    def _forget(self, left, *, forks):
        before = self.shown
        self.shown = {each: shown for each, shown in before.items() if each in left}
        assert left == set(self.shown)
        self.deltas = {each: found for each, found in self.deltas.items() if each in left}
        if forks:
            children = {}
            for each in before.values():
                children.setdefault(each.parent_id, []).append(each)
            for parent_id in before.keys() - left:
                stayed = [each for each in children.get(parent_id, ()) if each.checkpoint_id in left]
                assert not any(each.source in {"fork", "update"} for each in stayed)
                assert not stayed or len(children[parent_id]) == 1
                assert before[parent_id].status != "waiting" or children.get(parent_id)

    @rule(
        wanted=RULES,
        at=st.integers(1, 4),
        place=known,
        act=st.sampled_from(["nothing", "save", "fork", "write", "delta"]),
    )
    def thin(self, wanted, at, place, act):
        head = max(self.shown)
        forks = []

        async def work():
            if act == "save":
                await self._save({"a": document("one")}, None)
            elif act in {"fork", "delta"} and await self._is_there(place):
                of_deltas = {"delta_channels": ("d",)} if act == "delta" else {}
                forks.append(await self._save({"x": document("two")}, place, source="fork", **of_deltas))
            elif act == "write" and await self._is_there(place):
                await self._write_now(place)

        self._meanwhile(at, work)
        before = dict(self.shown)
        self.run(self.pruning.thin(self.scope, "t1", wanted))
        self.between.work = None
        left = self._left()
        assert head in left
        came = {each: self.shown[each] for each in self.shown.keys() - before.keys()}
        assert came.keys() <= left
        assert not forks or place in left
        self._forget(left, forks=act in {"nothing", "write"})

    async def _is_there(self, place):
        try:
            await self._snapshot(place)
        except CheckpointNotFound:
            return False
        return True

    async def _write_now(self, place):
        await put(self.world.store, self.scope, place, write(5, "a", document("late")), task_id=f"late{self.saves}")
        self.shown[place] = await self._snapshot(place)

    @rule()
    def keep_the_latest(self):
        head = max(self.shown)
        self.run(self.pruning.keep_latest(self.scope, "t1"))
        left = self._left()
        assert head in left
        self._forget(left, forks=False)

    @rule(days=st.integers(0, 4))
    def drop_writes(self, days):
        self.run(self.pruning.drop_writes(self.scope, "t1", self.time.now() - timedelta(days=days)))
        head = max(self.shown)
        for each, shown in self.shown.items():
            now = self.run(self._snapshot(each))
            if each == head:
                assert now == self._as_left(shown)
            self.shown[each] = replace(now, parent_id=shown.parent_id)

    def _as_left(self, shown):
        """What a checkpoint is shown as now: without a parent that was removed."""
        return shown if shown.parent_id in self.shown else replace(shown, parent_id=None)

    @invariant()
    def everything_kept_is_as_it_was(self):
        listed = self.run(self.world.store.checkpoints.history(self.scope, HistoryQuery(thread_id="t1", limit=3)))
        parents = {each.checkpoint_id: each.parent_id for each in listed.items}
        for each, shown in self.shown.items():
            now = self.run(self._snapshot(each))
            assert now == self._as_left(shown)
            assert parents.get(each, now.parent_id) == now.parent_id

    @invariant()
    def everything_kept_is_rebuilt_from_the_same(self):
        for each, found in self.deltas.items():
            assert self.run(self._delta(each)) == found

    @invariant()
    def verification_finds_nothing(self):
        if self.shown:
            assert self.run(self.world.store.verification.thread(self.scope, "t1")).findings == []

    def teardown(self):
        if not self.shown:
            return
        self.run(self.world.store.pruning.keep_latest(self.scope, "t1"))
        where = f"tenant_id = '{self.scope.tenant_id}'"
        stored = self.run(self.world.admin.fetch(f"SELECT piece_id, children FROM stateroom.chunks WHERE {where}"))  # noqa: S608
        children = {row["piece_id"]: unpack_ids(row["children"] or b"") for row in stored}
        roots = self.run(
            self.world.admin.fetch(
                f"SELECT piece_ids FROM stateroom.checkpoints WHERE {where}"  # noqa: S608
                f" UNION ALL SELECT piece_ids FROM stateroom.pending_writes WHERE {where}"
            )
        )
        live, waiting = set(), [each for row in roots for each in unpack_ids(row["piece_ids"])]
        while waiting:
            each = waiting.pop()
            if each not in live:
                live.add(each)
                waiting += children[each]
        assert live == children.keys()
        assert self.run(self.world.store.fsck.run(self.scope.tenant_id)).faults == {}


class Thinning(World):
    """A store with an object store."""

    def __init__(self, database, root_key):
        super().__init__(database, root_key)
        self.runner.run(self.store.close())
        self.store = self.runner.run(
            Store.open(
                database.app_url,
                root_key=root_key,
                deployment_id=DEPLOYMENT_ID,
                connections_max=3,
                durable=False,
                options=StoreOptions(blobs=MemoryBlobStore()),
            )
        )


@pytest.mark.parametrize("times", [1, pytest.param(25, marks=pytest.mark.soak)], ids=["short", "long"])
def test_any_sequence_of_removals_leaves_what_is_kept_as_it_was(database, root_key, times):
    world = Thinning(database, root_key)
    try:
        machine = type("Machine", (Thinned,), {"world": world})
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=6 * times, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
            ),
        )
    finally:
        world.close()
