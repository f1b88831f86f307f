"""Whatever a thread holds and is asked: hot, archived, in segments or restored, it answers the same."""

import asyncio
from copy import copy
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.archive.choosing import SegmentBounds
from storage.blobs.memory import MemoryBlobStore
from storage.checkpoints.verbs import Checkpoints
from storage.clock import ManualClock
from storage.control.features import COLD_NAMESPACES, SEGMENTS
from storage.errors import RestoreNeeded, StorageError
from storage.model import (
    ChannelHistoryQuery,
    ChannelValue,
    FullState,
    HistoryQuery,
    Load,
    Page,
    Parent,
    Precondition,
    Save,
    TaskWrites,
    TaskWritesQuery,
)
from storage.schemas.versions import OtherVersionError
from storage.scope import ClientShare, Scope
from storage.service import Store, StoreOptions
from storage.threads.thinning import ThinningRule
from storage.tiers.views import ArchiveViews
from tests.support.features import switch_on
from tests.support.segments import segmenting_of
from tests.support.states import document, packed, patch, write
from tests.support.stores import DEPLOYMENT_ID

START = datetime(2026, 1, 1, tzinfo=UTC)
UNKNOWN_ID = "1f0c0000-0000-6000-8000-000000000001"  # is never saved
SHARES = [None, ClientShare(b"s" * 32), ClientShare(b"w" * 32)]
# The last two are of calls of sub-agents, of which one was made by the other.
NAMESPACES = st.sampled_from(["", "sub", "\uffff", "\U0001f600", "node:1", "node:1|é:2"])
CHANNELS = ["a", "log", "é"]
STATUSES = st.sampled_from(["active", "waiting", "failed", "done"])
WORDS = st.sampled_from(["x", "y"])
VALUES = st.one_of(
    st.integers(0, 2),
    st.sampled_from("pq").map(lambda name: document(name, 9000)),
    st.lists(st.one_of(st.just(1), st.sampled_from("rs").map(lambda name: name * 1500)), max_size=8),
    st.just(bytes(range(256)) * 40),
)
NUMBERS = st.integers(0, 7)


def optional(strategy):
    return st.one_of(st.none(), strategy)


SAVE = st.fixed_dictionaries(
    {
        "verb": st.just("save"), "namespace": NAMESPACES, "on": optional(NUMBERS),
        "state": st.dictionaries(st.sampled_from(CHANNELS), VALUES, max_size=3), "patch": st.booleans(),
        "status": STATUSES, "step": optional(st.integers(0, 2)), "source": optional(WORDS), "agent": optional(WORDS),
        "run_id": optional(WORDS), "delta_channels": st.sampled_from([(), ("log",), ("log", "é")]),
        "metadata": st.dictionaries(st.just("k"), st.integers(0, 1)),
        "version": st.sampled_from([None, None, 1, 2]),
    }
)  # fmt: skip
WRITE = st.fixed_dictionaries(
    {
        "verb": st.just("write"), "namespace": NAMESPACES, "on": NUMBERS, "task": st.sampled_from(["k1", "é"]),
        "path": st.sampled_from(["", "~1", "~2"]), "idx": st.sampled_from([-4, -3, -2, -1, 0, 1, 2]),
        "channel": st.sampled_from([*CHANNELS, "__interrupt__", "__resume__"]),
        "value": VALUES, "status": optional(STATUSES),
    }
)  # fmt: skip
HISTORY = st.fixed_dictionaries(
    {
        "verb": st.just("history"), "namespace": optional(NAMESPACES), "before": optional(NUMBERS),
        "status": optional(STATUSES), "step": optional(st.integers(0, 2)), "run_id": optional(WORDS),
        "source": optional(WORDS), "agent": optional(WORDS), "since": optional(NUMBERS), "until": optional(NUMBERS),
        "metadata": st.dictionaries(st.just("k"), st.integers(0, 1)), "limit": st.integers(1, 4),
        "with_state": st.booleans(), "refs": st.booleans(),
    }
)  # fmt: skip
WHOLE = st.builds(
    lambda limit, namespace, with_state: {
        "verb": "history", "limit": limit, "namespace": namespace, "with_state": with_state,
    },
    st.integers(1, 4), optional(NAMESPACES), st.booleans(),
)  # fmt: skip
POINT = st.fixed_dictionaries(
    {
        "verb": st.sampled_from(["load", "channels", "writes"]), "namespace": NAMESPACES, "on": optional(NUMBERS),
        "with_state": st.booleans(), "refs": st.booleans(), "task": st.sampled_from(["k1", "é"]),
        "token": st.booleans(),
    }
)  # fmt: skip


class World:
    """A loop, and a store with buckets in memory."""

    def __init__(self, database, root_key):
        self.clock = ManualClock(START)
        self.runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self.store = self.runner.run(
            Store.open(
                database.app_url,
                root_key=root_key,
                deployment_id=DEPLOYMENT_ID,
                connections_max=2,
                durable=False,
                options=StoreOptions(
                    clock=self.clock, blobs=MemoryBlobStore(), archive=MemoryBlobStore(), offload_bytes_min=4096
                ),
            )
        )

    def close(self):
        self.runner.run(self.store.close())
        self.runner.close()


@pytest.fixture(scope="module")
def world(database, root_key):
    made = World(database, root_key)
    yield made
    made.close()


class Thread:
    """One thread: what was done to it, and what it answers."""

    def __init__(self, world, share):
        self.world = world
        self.scope = Scope(uuid4(), "user-1")
        self.share = share
        self.ids: list[str] = [UNKNOWN_ID]
        self.newest: dict[str, str] = {}
        self.reader = world.store.checkpoints
        self.token: str | None = None

    def at(self, number):
        return self.ids[number % len(self.ids)]

    async def change(self, verb, namespace, **parts):
        checkpoints = self.world.store.checkpoints
        self.world.clock.set(self.world.clock.now() + timedelta(seconds=1))
        try:
            if verb == "write":
                new = [write(parts["idx"], parts["channel"], parts["value"])]
                await checkpoints.put_writes(
                    self.scope,
                    TaskWrites(
                        "t1", namespace, self.at(parts["on"]), parts["task"], parts["path"], new, parts["status"]
                    ),
                    self.share,
                )
                return
            on, state, patched = parts.pop("on"), parts.pop("state"), parts.pop("patch")
            if (version := parts.pop("version", None)) is not None:
                parts |= {"state_schema": "travel", "state_version": version}
            if patched:
                head = await checkpoints.load(self.scope, Load("t1", namespace, None, with_state=False), self.share)
                parts |= {"content": patch(put=state), "precondition": Precondition(head_id=head.head_id)}
            else:
                content = {name: ChannelValue(None, packed(value)) for name, value in state.items()}
                parts["content"] = FullState(content)
                if on is not None:
                    parts["parent"] = Parent(self.at(on))
            if ":" in namespace:  # as LangGraph says what a call began at
                parents = {name: each for name, each in self.newest.items() if namespace.startswith(name)}
                parts["metadata"] = parts.get("metadata", {}) | {"parents": parents}
            saved = await checkpoints.save(self.scope, Save(thread_id="t1", namespace=namespace, **parts), self.share)
            self.ids.append(saved.checkpoint_id)
            self.newest[namespace] = saved.head_id
            self.token = saved.token
        except (StorageError, OtherVersionError):
            pass  # what cannot be done to a thread is not the question here

    async def ask(self, share, verb, **parts):
        """What it answers, page by page, or how it refuses."""
        checkpoints = self.reader
        read = []
        try:
            if verb == "history":
                for name in ("since", "until"):
                    if parts.get(name) is not None:
                        parts[name] = START + timedelta(seconds=parts[name])
                if parts.get("before") is not None:
                    parts["before"] = self.at(parts["before"])
                query = HistoryQuery(thread_id="t1", **parts)
                while True:
                    page = await checkpoints.history(self.scope, query, share)
                    read.append(page)
                    if page.after is None:
                        return read
                    query = replace(query, after=page.after)
            place = ("t1", parts["namespace"], None if parts["on"] is None else self.at(parts["on"]))
            token = self.token if parts["token"] else None
            options = {"refs": parts["refs"]}
            if verb == "writes":
                read.append(
                    await checkpoints.task_writes(
                        self.scope, TaskWritesQuery(*place[:2], place[2] or "", parts["task"], **options), share
                    )
                )
            elif verb == "channels":
                wanted = [*CHANNELS, "never"]
                read.append(
                    await checkpoints.channel_history(
                        self.scope, ChannelHistoryQuery(*place, wanted, known_token=token, **options), share
                    )
                )
            else:
                options["with_state"] = parts["with_state"]
                read.append(await checkpoints.load(self.scope, Load(*place, known_token=token, **options), share))
        except StorageError as error:
            read.append((type(error), str(error)))
        return read


@settings(max_examples=8)
@given(
    share=st.sampled_from(SHARES[:2]),
    changes=st.lists(st.one_of(SAVE, SAVE, WRITE), min_size=1, max_size=14),
    questions=st.lists(
        st.tuples(st.sampled_from(["own", "own", "own", 0, 1, 2]), st.one_of(WHOLE, HISTORY, POINT, POINT)),
        min_size=4, max_size=14,
    ),
)  # fmt: skip
def test_a_thread_answers_the_same_wherever_its_rows_are(world, share, changes, questions):
    thread = Thread(world, share)
    store, scope = world.store, thread.scope

    async def answers():
        return [
            await thread.ask(share if which == "own" else SHARES[which], **dict(question))
            for which, question in questions
        ]

    async def compare():
        await thread.change("save", "", state={"a": 0}, on=None, patch=False)
        for each in changes:
            await thread.change(**dict(each))
        hot = await answers()
        assert (await store.archives.archive(scope, "t1")).created
        assert await answers() == hot
        assert (await store.threads.get(scope, "t1")).tier == "archive"
        assert await store.archives.restore(scope, "t1")
        assert await answers() == hot

    world.runner.run(compare())


RULE = st.builds(
    ThinningRule,
    keep_first=st.sampled_from([0, 0, 0, 1, 2]), keep_last=st.sampled_from([0, 0, 0, 1, 2, 3]),
    every=st.sampled_from([None, None, None, 2]),
    keep_statuses=st.sampled_from([frozenset(), frozenset({"failed"})]), made_since=st.just(START + timedelta(days=9)),
)  # fmt: skip


QUESTIONS = st.lists(
    st.tuples(st.sampled_from(["own", "own", "own", 0, 1, 2]), st.one_of(WHOLE, HISTORY, POINT, POINT)),
    min_size=4, max_size=12,
)  # fmt: skip


@settings(max_examples=10)
@given(
    share=st.sampled_from(SHARES[:2]),
    lives=st.lists(
        st.tuples(st.lists(st.one_of(SAVE, SAVE, WRITE), min_size=1, max_size=10), RULE, st.booleans()),
        min_size=1, max_size=3,
    ),
    segment_checkpoints=st.integers(1, 5),
    questions=QUESTIONS,
)  # fmt: skip
def test_a_thread_of_which_parts_are_in_segments_answers_the_same(world, share, lives, segment_checkpoints, questions):
    world.runner.run(_compare_lives(world, share, lives, segment_checkpoints, questions))


# What sub-agents save, and others whose namespaces end: nobody asks anything, and forks are few.
APART = ["sub", "node:1", "node:1|é:2", "node:3"]
PASSING = st.fixed_dictionaries(
    {
        "verb": st.just("save"), "namespace": st.sampled_from(APART), "on": st.sampled_from([None, None, None, 1, 3]),
        "state": st.dictionaries(st.sampled_from(CHANNELS), VALUES, max_size=2), "patch": st.booleans(),
        "status": st.sampled_from(["active", "done"]), "delta_channels": st.sampled_from([(), (), ("log",)]),
    }
)  # fmt: skip
NOTHING_KEPT = st.sampled_from([ThinningRule(made_since=START + timedelta(days=9)), ThinningRule(keep_last=1)])


@settings(max_examples=10)
@given(
    share=st.sampled_from(SHARES[:2]),
    lives=st.lists(
        st.tuples(st.lists(st.one_of(PASSING, PASSING, WRITE), min_size=1, max_size=8), NOTHING_KEPT, st.booleans()),
        min_size=1, max_size=4,
    ),
    segment_checkpoints=st.integers(1, 5),
    questions=QUESTIONS,
)  # fmt: skip
def test_a_thread_whose_namespaces_leave_and_come_back_answers_the_same(
    world, share, lives, segment_checkpoints, questions
):
    goes_on = {"verb": "save", "namespace": "", "state": {"a": 1}, "on": None, "patch": False}
    lives = [([*changes, goes_on], rule, archived) for changes, rule, archived in lives]
    world.runner.run(_compare_lives(world, share, lives, segment_checkpoints, questions))


def _flat(answer):
    """What a question was answered with, however it was divided into pages."""
    return [each for part in answer for each in (part.items if isinstance(part, Page) else [part])]


def _agrees(little, answer):
    """Whether a reader with little memory was answered the same, or as far as it goes and then that it needs more."""
    if isinstance(little[-1], tuple) and little[-1][0] is RestoreNeeded:
        before = _flat(little[:-1])
        return before == _flat(answer)[: len(before)]
    return _flat(little) == _flat(answer)


@settings(max_examples=8)
@given(
    lives=st.lists(
        st.tuples(st.lists(st.one_of(SAVE, SAVE, WRITE), min_size=1, max_size=10), RULE), min_size=1, max_size=3
    ),
    bytes_max=st.sampled_from([15_000, 40_000, 100_000]),
    segment_checkpoints=st.integers(1, 3),
    questions=QUESTIONS,
)  # fmt: skip
def test_a_reader_with_little_memory_is_answered_the_same_or_told_so(
    world, lives, bytes_max, segment_checkpoints, questions
):
    thread, store = Thread(world, None), world.store
    segmenting = segmenting_of(store, SegmentBounds(segment_checkpoints))

    async def answers():
        return [await thread.ask(None if which == "own" else SHARES[which], **dict(each)) for which, each in questions]

    async def compare():
        await switch_on(store, SEGMENTS)
        await switch_on(store, COLD_NAMESPACES)
        await thread.change("save", "", state={"a": 0}, on=None, patch=False)
        for changes, rule in lives:
            for each in changes:
                await thread.change(**dict(each))
            before = await answers()
            await segmenting.move(thread.scope, "t1", rule, actor="test")
            views = ArchiveViews(store.unit_of_work, store.archives.objects, bytes_max=bytes_max)
            access = copy(store.pruning._access)
            access._views = views
            thread.reader = Checkpoints(access)
            assert all(map(_agrees, await answers(), before))
            thread.reader = store.checkpoints

    world.runner.run(compare())


async def _compare_lives(world, share, lives, segment_checkpoints, questions):
    thread = Thread(world, share)
    store, scope = world.store, thread.scope
    segmenting = segmenting_of(store, SegmentBounds(segment_checkpoints))

    async def answers():
        return [
            await thread.ask(share if which == "own" else SHARES[which], **dict(question))
            for which, question in questions
        ]

    async def clean():
        assert (await store.verification.thread(scope, "t1")).findings == []

    await switch_on(store, SEGMENTS)
    await switch_on(store, COLD_NAMESPACES)
    await thread.change("save", "", state={"a": 0}, on=None, patch=False)
    for changes, rule, archived in lives:
        if (await store.threads.get(scope, "t1")).tier == "archive":
            await store.archives.bring_back(scope, "t1")
        for each in changes:
            await thread.change(**dict(each))
        before = await answers()
        await segmenting.move(scope, "t1", rule, actor="test", share=share)
        assert await answers() == before
        await clean()
        if archived:
            assert (await store.archives.archive(scope, "t1")).created
            assert await answers() == before
            await clean()
    assert await answers() == before
    await store.archives.restore(scope, "t1")
    assert await answers() == before
    assert not (await store.threads.get(scope, "t1")).segmented
    await clean()
