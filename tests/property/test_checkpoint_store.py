"""A dictionary and the store agree after any sequence of verbs, and no chunk dangles or is left behind."""

# ruff: noqa: S608  table and column names are constants of these tests

import asyncio
from datetime import UTC, datetime
from typing import Any, NamedTuple
from uuid import uuid4

import asyncpg
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

from storage.errors import CheckpointExists, CheckpointNotFound, HeadMoved, ThreadExists, ThreadNotFound
from storage.format.ids import mint_checkpoint_id
from storage.format.pieces import unpack_ids
from storage.model import ChannelValue, FullState, Load, Parent, Precondition
from storage.scope import Scope
from storage.service import Store
from tests.support.states import contents, document, history, load, packed, patch, put, save, write, writes_of
from tests.support.stores import DEPLOYMENT_ID


def long_text(name):
    return document(name, 9000)


def long_element(name):
    return name * 1500


THREADS = st.sampled_from(["t1", "t2", "t3"])
NAMESPACES = st.sampled_from(["", "sub"])
CHANNELS = st.sampled_from(["a", "b", "log"])
# Few values, some of them long: so that pieces are shared, dropped and come back.
SCALARS = st.one_of(st.integers(0, 3), st.sampled_from("xyz").map(long_text))
LISTS = st.lists(st.one_of(st.just(1), st.sampled_from("pqr").map(long_element)), max_size=12)
STATES = st.fixed_dictionaries({}, optional={"a": SCALARS, "b": SCALARS, "log": LISTS})


class Kept(NamedTuple):
    """What the model knows of a checkpoint."""

    parent_id: str | None
    step: int
    state: dict[str, Any]


class World:
    """A loop, a store in it, and a superuser who counts chunks."""

    def __init__(self, database, root_key):
        self.runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self.store = self.runner.run(
            Store.open(
                database.app_url, root_key=root_key, deployment_id=DEPLOYMENT_ID, connections_max=2, durable=False
            )
        )
        self.admin = self.runner.run(asyncpg.connect(database.dsn(database.superuser_url)))

    def close(self):
        self.runner.run(self.store.close())
        self.runner.run(self.admin.close())
        self.runner.close()


class StoreAndModel(RuleBasedStateMachine):
    world: World
    saved = Bundle("saved")
    coming = Bundle("coming")  # has writes, and is not saved yet

    def __init__(self):
        super().__init__()
        self.scope = Scope(uuid4(), "user-1")
        self.checkpoints: dict[tuple[str, str], dict[str, Kept]] = {}
        self.writes: dict[tuple[str, str, str], dict[tuple[str, int], Any]] = {}
        self.threads: set[str] = set()

    def run(self, work):
        return self.world.runner.run(work)

    def head(self, thread_id, namespace):
        return max(self.checkpoints.get((thread_id, namespace), {}), default=None)

    def refuses(self, error, work):
        with pytest.raises(error):
            self.run(work)

    def remember(self, answer, thread_id, namespace, state):
        place = self.checkpoints.setdefault((thread_id, namespace), {})
        place[answer.checkpoint_id] = Kept(answer.parent_id, answer.step, state)
        self.threads.add(thread_id)
        return thread_id, namespace, answer.checkpoint_id

    def full(self, state):
        return FullState({name: ChannelValue(None, packed(content)) for name, content in state.items()})

    @initialize()
    def begin(self):
        self.run(self.world.store.keys.sealer(self.scope))

    @rule(target=saved, thread_id=THREADS, namespace=NAMESPACES, state=STATES)
    def save_on_the_head(self, thread_id, namespace, state):
        head = self.head(thread_id, namespace)
        place = self.checkpoints.get((thread_id, namespace), {})
        answer = self.run(save(self.world.store, self.scope, thread_id, namespace=namespace, content=self.full(state)))
        assert answer.parent_id == head
        assert answer.step == (place[head].step + 1 if head else 0)
        assert answer.checkpoint_id == answer.head_id > (head or "")
        return self.remember(answer, thread_id, namespace, state)

    @rule(target=saved, place=saved, state=STATES, keep=st.sets(CHANNELS))
    def fork(self, place, state, keep):
        thread_id, namespace, parent_id = place
        parent = self.checkpoints.get((thread_id, namespace), {}).get(parent_id)
        unchanged = {name: parent.state[name] for name in keep if parent and name in parent.state}
        content = FullState(
            {
                **self.full(state).channels,
                **{name: ChannelValue(None, None) for name in unchanged},
            }
        )
        answer = self.run(
            save(
                self.world.store,
                self.scope,
                thread_id,
                namespace=namespace,
                content=content,
                parent=Parent(parent_id),
            )
        )
        assert (answer.parent_id, answer.step) == (parent_id, parent.step + 1 if parent else 0)
        return self.remember(answer, thread_id, namespace, {**state, **unchanged})

    @rule(target=saved, thread_id=THREADS, namespace=NAMESPACES, put_in=STATES, more=LISTS, drop=st.booleans())
    def patch_the_head(self, thread_id, namespace, put_in, more, drop):
        head = self.head(thread_id, namespace)
        old = self.checkpoints[thread_id, namespace][head].state if head else {}
        put_in = {name: content for name, content in put_in.items() if name != "log"}
        remove = ["a"] if drop and "a" in old and "a" not in put_in else []
        answer = self.run(
            save(
                self.world.store,
                self.scope,
                thread_id,
                namespace=namespace,
                content=patch(put=put_in, append={"log": more}, remove=remove),
                precondition=Precondition(head_id=head, absent=head is None),
            )
        )
        state = {**old, **put_in, "log": [*old.get("log", []), *more]}
        for name in remove:
            del state[name]
        return self.remember(answer, thread_id, namespace, state)

    @rule(place=saved, state=STATES)
    def save_a_stored_id_again(self, place, state):
        thread_id, namespace, checkpoint_id = place
        kept = self.checkpoints.get((thread_id, namespace), {}).get(checkpoint_id)
        if kept is None:
            return
        again = {"namespace": namespace, "checkpoint_id": checkpoint_id, "parent": Parent(kept.parent_id)}
        answer = (
            self.run(
                save(self.world.store, self.scope, thread_id, content=self.full(kept.state), step=kept.step, **again)
            )
            if list(kept.state) == list(self.loaded(place))
            else None
        )
        assert answer is None or answer.created is False
        if state != kept.state:
            self.refuses(
                CheckpointExists,
                save(self.world.store, self.scope, thread_id, content=self.full(state), step=kept.step, **again),
            )

    def loaded(self, place):
        thread_id, namespace, checkpoint_id = place
        return contents(self.run(load(self.world.store, self.scope, thread_id, checkpoint_id, namespace)))

    @rule(place=saved)
    def save_on_a_head_that_moved(self, place):
        thread_id, namespace, checkpoint_id = place
        if self.head(thread_id, namespace) == checkpoint_id:
            return
        self.refuses(
            HeadMoved,
            save(
                self.world.store,
                self.scope,
                thread_id,
                namespace=namespace,
                precondition=Precondition(head_id=checkpoint_id),
            ),
        )

    @rule(place=saved, task_id=st.sampled_from(["k1", "k2"]), idx=st.integers(-2, 2), content=SCALARS)
    def write_against_a_checkpoint(self, place, task_id, idx, content):
        thread_id, namespace, checkpoint_id = place
        self.run(
            put(
                self.world.store,
                self.scope,
                checkpoint_id,
                write(idx, "a", content),
                task_id=task_id,
                thread_id=thread_id,
                namespace=namespace,
            )
        )
        kept = self.writes.setdefault((thread_id, namespace, checkpoint_id), {})
        if idx < 0 or (task_id, idx) not in kept:
            kept[task_id, idx] = content
        self.threads.add(thread_id)

    @rule(target=coming, thread_id=THREADS, namespace=NAMESPACES, content=SCALARS)
    def write_before_its_checkpoint(self, thread_id, namespace, content):
        place = thread_id, namespace, mint_checkpoint_id(datetime.now(UTC), self.head(thread_id, namespace))
        self.write_against_a_checkpoint(place, "k1", 0, content)
        return place

    @rule(place=coming, task_id=st.sampled_from(["k1", "k2"]), idx=st.integers(-2, 2), content=SCALARS)
    def write_once_more_before_it(self, place, task_id, idx, content):
        self.write_against_a_checkpoint(place, task_id, idx, content)

    @rule(target=saved, place=consumes(coming), state=STATES)
    def save_what_has_writes_already(self, place, state):
        thread_id, namespace, checkpoint_id = place
        head = self.head(thread_id, namespace)
        if head and checkpoint_id < head:
            return multiple()
        answer = self.run(
            save(
                self.world.store,
                self.scope,
                thread_id,
                namespace=namespace,
                content=self.full(state),
                checkpoint_id=checkpoint_id,
            )
        )
        assert (answer.parent_id, answer.head_id, answer.created) == (head, checkpoint_id, True)
        return self.remember(answer, thread_id, namespace, state)

    @rule(source=THREADS, into=THREADS)
    def copy(self, source, into):
        work = self.world.store.threads.copy(self.scope, source, into)
        if source not in self.threads:
            self.refuses(ThreadNotFound, work)
        elif into in self.threads:
            self.refuses(ThreadExists, work)
        else:
            self.run(work)
            self.threads.add(into)
            for (thread_id, namespace), kept in list(self.checkpoints.items()):
                if thread_id == source:
                    self.checkpoints[into, namespace] = dict(kept)
            for (thread_id, *rest), kept in list(self.writes.items()):
                if thread_id == source:
                    self.writes[into, *rest] = dict(kept)

    @rule(thread_id=THREADS)
    def delete(self, thread_id):
        work = self.world.store.threads.delete(self.scope, thread_id)
        if thread_id not in self.threads:
            self.refuses(ThreadNotFound, work)
            return
        self.run(work)
        self.threads.discard(thread_id)
        for known in (self.checkpoints, self.writes):
            for place in [place for place in known if place[0] == thread_id]:
                del known[place]

    @precondition(lambda self: self.threads)
    @rule(thread_id=THREADS)
    def prune(self, thread_id):
        self.run(self.world.store.threads.prune(self.scope, [thread_id], "keep_latest"))
        for (where, namespace), kept in self.checkpoints.items():
            if where == thread_id and kept:
                for checkpoint_id in set(kept) - {max(kept)}:
                    del kept[checkpoint_id]
                    self.writes.pop((where, namespace, checkpoint_id), None)
        live, stored = self.chunks(thread_id)
        assert stored == live

    def chunks(self, thread_id):
        """The pieces that are referred to, through index pieces too, and the chunks that are stored."""
        where = f"tenant_id = '{self.scope.tenant_id}' AND thread_id = '{thread_id}'"
        stored = {
            row["piece_id"]: row["children"]
            for row in self.run(
                self.world.admin.fetch(f"SELECT piece_id, children FROM stateroom.chunks WHERE {where}")
            )
        }
        roots = self.run(
            self.world.admin.fetch(
                f"SELECT piece_ids FROM stateroom.checkpoints WHERE {where}"
                f" UNION ALL SELECT piece_ids FROM stateroom.pending_writes WHERE {where}"
            )
        )
        live: set[bytes] = set()
        waiting = [piece_id for row in roots for piece_id in unpack_ids(row["piece_ids"])]
        while waiting:
            piece_id = waiting.pop()
            if piece_id not in live:
                live.add(piece_id)
                waiting += unpack_ids(stored.get(piece_id) or b"")
        return live, stored.keys()

    @invariant()
    def no_chunk_dangles(self):
        for thread_id in self.threads:
            live, stored = self.chunks(thread_id)
            assert live <= stored

    @invariant()
    def histories_agree(self):
        found = self.run(history(self.world.store, self.scope, limit=1000, with_state=True))
        expected = {
            (thread_id, namespace, checkpoint_id): kept
            for (thread_id, namespace), place in self.checkpoints.items()
            for checkpoint_id, kept in place.items()
        }
        assert {(each.thread_id, each.namespace, each.checkpoint_id) for each in found} == set(expected)
        assert [each.checkpoint_id for each in found] == sorted((place[2] for place in expected), reverse=True)
        for each in found:
            place = (each.thread_id, each.namespace, each.checkpoint_id)
            kept = expected[place]
            parent_id = kept.parent_id if (*place[:2], kept.parent_id) in expected else None  # it was removed
            assert (each.parent_id, each.step, contents(each)) == (parent_id, kept.step, kept.state)
            assert {(task, idx): content for task, idx, _, content in writes_of(each)} == self.writes.get(place, {})

    @invariant()
    def heads_agree(self):
        for thread_id, namespace in ((thread, name) for thread in ("t1", "t2", "t3") for name in ("", "sub")):
            head = self.head(thread_id, namespace)
            work = self.world.store.checkpoints.load(self.scope, Load(thread_id, namespace, None, with_state=True))
            if head is None:
                self.refuses(CheckpointNotFound, work)
            else:
                loaded = self.run(work)
                assert loaded.head_id == loaded.checkpoint.checkpoint_id == head

    @invariant()
    def threads_agree(self):
        found = self.run(self.world.store.threads.list(self.scope)).items
        assert {each.thread_id for each in found} == self.threads


@pytest.mark.parametrize("times", [1, pytest.param(25, marks=pytest.mark.soak)], ids=["short", "long"])
def test_any_sequence_of_verbs_agrees_with_a_dictionary(database, root_key, times):
    world = World(database, root_key)
    try:
        machine = type("Machine", (StoreAndModel,), {"world": world})
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=10 * times,
                stateful_step_count=20,
                deadline=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
    finally:
        world.close()
