"""The contract of `storage.tiers.rows.WholeRows`: the database, archived rows and any union of both answer the same."""

import asyncio
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import asyncpg
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.errors import IntegrityFailure
from storage.format.cold.archive import CHECKPOINTS, CHUNKS, PENDING_WRITES, TAGS, ThreadRows
from storage.model import HistoryQuery
from storage.scope import Scope
from storage.service import Store
from storage.statements.threads import archives as archives_sql
from storage.statements.threads import threads as threads_sql
from storage.statements.threads.checkpoints import LOAD
from storage.tiers.cold import ColdRows
from storage.tiers.hot import HotRows
from storage.tiers.rows import Search, WholeRows
from storage.tiers.snapshots import Snapshot
from storage.tiers.union import UnionRows
from tests.support.stores import DEPLOYMENT_ID

START = datetime(2026, 1, 1, tzinfo=UTC)
# Texts whose order differs between languages, UTF-16 and bytes.
TEXTS = ["", "a", "B", "b", "~", "é", "e\u0301", "ß", "\uffff", "\U0001f600"]
IDS = st.sampled_from(TEXTS[1:])
NAMESPACES = st.sampled_from(["", "a", "B", "\uffff", "\U0001f600"])
# Of writes: so that some are of one checkpoint, and some of one that is there.
FEW_NAMESPACES, FEW_IDS = st.sampled_from(["", "a"]), st.sampled_from(["a", "é"])
NAMES = st.sampled_from(["ä", "z", "Z"])
TAG = [bytes([1, number] * 8 + [9]) for number in range(3)]
PIECES = [bytes([2, number] * 8 + [number]) for number in range(4)]
MOMENTS = st.integers(0, 3).map(lambda number: START + timedelta(microseconds=number))
STATUSES = st.sampled_from(["active", "waiting", "failed", "done"])
PACKED = st.lists(st.sampled_from(PIECES), max_size=3).map(b"".join)
NUMBERS = st.integers(0, 2)


def optional(strategy):
    return st.one_of(st.none(), strategy)


CHECKPOINT = st.fixed_dictionaries(
    {
        "namespace": st.one_of(FEW_NAMESPACES, NAMESPACES), "checkpoint_id": st.one_of(FEW_IDS, IDS),
        "parent_id": optional(IDS), "step": NUMBERS, "status": STATUSES,
        "outcome": optional(STATUSES), "source": optional(NAMES), "agent": optional(NAMES), "run_id": optional(NAMES),
        "model": optional(NAMES), "state_schema": optional(NAMES), "state_version": optional(NUMBERS),
        "input_tokens": optional(NUMBERS), "output_tokens": st.none(), "cost_micros": st.none(), "created_at": MOMENTS,
        "key_version": st.just(1), "piece_ids": PACKED, "manifest": st.binary(max_size=3),
        "named_ids": optional(st.binary(max_size=3)), "searchable": optional(st.lists(NAMES, unique=True)),
    }
)  # fmt: skip
WRITE = st.fixed_dictionaries(
    {
        "namespace": FEW_NAMESPACES, "checkpoint_id": FEW_IDS, "task_id": IDS, "idx": st.integers(-2, 2),
        "task_path": st.sampled_from(TEXTS), "channel": NAMES, "status": optional(STATUSES), "created_at": MOMENTS,
        "key_version": st.just(1), "piece_ids": PACKED, "value": st.binary(max_size=3),
        "member": st.binary(min_size=16, max_size=16),
        "named_ids": st.none(), "state_schema": optional(NAMES), "state_version": optional(NUMBERS),
    }
)  # fmt: skip
CHUNK = st.fixed_dictionaries(
    {
        "piece_id": st.sampled_from(PIECES), "key_version": st.integers(1, 2), "children": optional(PACKED),
        "envelope": st.binary(max_size=3), "named_ids": st.none(),
    }
)  # fmt: skip


def rows_of(row, *place, size=8):
    return st.lists(row, max_size=size, unique_by=lambda each: tuple(each[name] for name in place))


@st.composite
def threads(draw):
    """A thread's rows by table, and its heads; nothing in them is sealed."""
    checkpoints = draw(rows_of(CHECKPOINT, "namespace", "checkpoint_id"))
    tags = [
        {"namespace": each["namespace"], "checkpoint_id": each["checkpoint_id"], "tag": tag}
        for each in checkpoints
        for tag in draw(st.sets(st.sampled_from(TAG)))
    ]
    writes = draw(rows_of(WRITE, "namespace", "checkpoint_id", "task_id", "idx", size=10))
    return {
        CHECKPOINTS: checkpoints, TAGS: tags, PENDING_WRITES: writes, CHUNKS: draw(rows_of(CHUNK, "piece_id")),
        "heads": draw(st.fixed_dictionaries({"": FEW_IDS, "a": FEW_IDS}, optional={"\uffff": IDS})),
    }  # fmt: skip


def calls(*strategies):
    return st.tuples(*strategies)


LIMIT = st.integers(0, 6)
CURSOR = optional(st.tuples(IDS, st.sampled_from(["s", "t1", "t2", "\U0001f600"]), NAMESPACES))
FILTERED = st.builds(
    HistoryQuery, namespace=optional(NAMESPACES), before=optional(IDS), status=optional(STATUSES),
    step=optional(NUMBERS), run_id=optional(NAMES), source=optional(NAMES), agent=optional(NAMES),
    since=optional(MOMENTS), until=optional(MOMENTS),
)  # fmt: skip
EVERY = HistoryQuery()
# Of each key a tag; a listing that a test should find something with filters little.
SOUGHT = st.dictionaries(NAMES, st.sampled_from(TAG), min_size=1).map(lambda found: ([*found], [*found.values()]))
SEARCH = st.one_of(
    st.just(Search()),
    st.builds(
        lambda sought, untagged: Search(*sought, untagged),
        SOUGHT, st.sampled_from([None, [], ["t1"], ["t0", "t1"], ["t2"]]),
    ),
)  # fmt: skip
REFERENCES = st.lists(st.tuples(st.sampled_from(["t1", "t3"]), NAMESPACES, IDS), unique=True)
WRITE_PLACE = st.tuples(NAMESPACES, st.sampled_from(TEXTS), st.sampled_from(TEXTS), NUMBERS)
ASKED = {
    "history": calls(st.one_of(FILTERED, st.just(EVERY)), SEARCH, CURSOR, LIMIT),
    "stored": calls(REFERENCES),
    "checkpoint": calls(NAMESPACES, optional(IDS)),
    "checkpoints_after": calls(NAMESPACES, st.sampled_from(TEXTS), LIMIT),
    "next_checkpoint": calls(NAMESPACES, st.sampled_from(TEXTS)),
    "ancestors": calls(NAMESPACES, IDS, st.integers(1, 6)),
    "count": calls(NAMESPACES),
    "namespaces": calls(),
    "pieces": calls(st.lists(st.sampled_from([*PIECES, b"none"]))),
    "pieces_after": calls(st.sampled_from([b"", *PIECES]), LIMIT),
    "writes_of": calls(NAMESPACES, st.lists(IDS), optional(IDS)),
    "writes_after": calls(WRITE_PLACE, LIMIT),
    "members": calls(),
}
LOADS = calls(NAMESPACES, optional(IDS), st.booleans())
# Asked of every thread: all there is, in its order.
EVERYTHING = [
    ("history", (EVERY, Search(), None, 100)),
    *(("writes_of", (namespace, TEXTS, None)) for namespace in ("", "a")),
    *(("history", (EVERY, Search(["z", "Z"], [TAG[0], tag], ["t1"]), None, 100)) for tag in TAG),
    *(("history", (EVERY, Search([name], [TAG[1]]), None, 100)) for name in ("ä", "z")),
]
UNORDERED = {"members", "pieces"}


def test_every_method_of_the_protocol_is_compared():
    methods = {name for kind in WholeRows.__mro__ for name in vars(kind) if not name.startswith("_")}
    # How tags are used is compared apart: of a thread without checkpoints it says nothing. None is in segments.
    assert methods == ASKED.keys() | {"tag_uses", "cold_writes"}


class World:
    """A loop, a store in it, and a superuser who writes rows."""

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

    async def store_thread(self, scope, thread_id, thread):
        place = (scope.tenant_id, scope.subject_id)
        await self.admin.execute(
            "INSERT INTO stateroom.threads (tenant_id, subject_id, thread_id, status, tier, strict, activity,"
            " created_at, updated_at, seal, searchable) VALUES ($1, $2, $3, 'active', 'hot', false, 1, $4, $4, '', $5)",
            *place, thread_id, START, tagged_by_all(thread[CHECKPOINTS]),
        )  # fmt: skip
        for namespace, head_id in thread["heads"].items():
            head = {"thread_id": thread_id, "namespace": namespace, "head_id": head_id, "sequence": 1, "seal": b""}
            await self.run(threads_sql.ADD_HEAD, scope, head)
        for table in (CHECKPOINTS, TAGS, PENDING_WRITES, CHUNKS):
            for row in thread[table]:
                await self.run(archives_sql.ADD[table], scope, {**row, "thread_id": thread_id})

    async def run(self, statement, scope, values):
        bound = {"tenant_id": scope.tenant_id, "subject_id": scope.subject_id}
        await self.admin.execute(statement.text, *statement.arguments(bound, values))

    async def rows(self, scope, thread_id):
        place = (scope.tenant_id, scope.subject_id, thread_id)
        found = {}
        for table, columns in archives_sql.COLUMNS.items():
            select = f"SELECT {', '.join(columns)} FROM stateroom.{table}"  # noqa: S608  constants
            where = "WHERE tenant_id = $1 AND subject_id = $2 AND thread_id = $3"
            found[table] = [dict(row) for row in await self.admin.fetch(f"{select} {where}", *place)]
        return ThreadRows(found[CHECKPOINTS], found[PENDING_WRITES], found[CHUNKS], found[TAGS])

    async def remove(self, scope, rows):
        """Take rows of thread t1 out of the database; tags go with their checkpoints."""
        place = (scope.tenant_id, scope.subject_id)
        for row in rows.checkpoints:
            await self.admin.execute(
                "DELETE FROM stateroom.checkpoints WHERE tenant_id = $1 AND subject_id = $2 AND thread_id = 't1'"
                " AND namespace = $3 AND checkpoint_id = $4", *place, row["namespace"], row["checkpoint_id"],
            )  # fmt: skip
        for row in rows.writes:
            await self.admin.execute(
                "DELETE FROM stateroom.pending_writes WHERE tenant_id = $1 AND subject_id = $2 AND thread_id = 't1'"
                " AND namespace = $3 AND checkpoint_id = $4 AND task_id = $5 AND idx = $6",
                *place, row["namespace"], row["checkpoint_id"], row["task_id"], row["idx"],
            )  # fmt: skip
        for row in rows.chunks:
            await self.admin.execute(
                "DELETE FROM stateroom.chunks WHERE tenant_id = $1 AND subject_id = $2 AND thread_id = 't1'"
                " AND piece_id = $3", *place, row["piece_id"],
            )  # fmt: skip


def tagged_by_all(checkpoints):
    if any(row["searchable"] is None for row in checkpoints):
        return None
    return sorted(set.intersection(*({*row["searchable"]} for row in checkpoints))) if checkpoints else []


@pytest.fixture(scope="module")
def world(database, root_key):
    made = World(database, root_key)
    yield made
    made.close()


def comparable(name, found):
    return sorted(found, key=repr) if name in UNORDERED else found


async def answers(rows, asked):
    return [comparable(name, await getattr(rows, name)(*each)) for name, each in asked]


def loaded(found):
    """What a load found; pieces and members have no order."""
    if found is None:
        return None
    unordered = {name: sorted(getattr(found, name), key=repr) for name in ("pieces", "members")}
    return msgspec.structs.replace(found, **unordered)


def chosen(data, rows):
    return [each for each in rows if data.draw(st.booleans())]


def part_of(data, rows):
    """Some rows of a thread, with the tags of the checkpoints among them."""
    checkpoints = chosen(data, rows.checkpoints)
    places = {(row["namespace"], row["checkpoint_id"]) for row in checkpoints}
    tags = [row for row in rows.tags if (row["namespace"], row["checkpoint_id"]) in places]
    return ThreadRows(checkpoints, chosen(data, rows.writes), chosen(data, rows.chunks), tags)


@settings(max_examples=20)
@given(data=st.data(), thread=threads(), other=threads())
def test_the_same_rows_are_found_wherever_they_are(world, data, thread, other):
    scope = Scope(uuid4(), "user-1")
    asked = [(name, each) for name, some in ASKED.items() for each in data.draw(st.lists(some, max_size=3))]
    asked += EVERYTHING
    loads = data.draw(st.lists(LOADS, max_size=5))
    loads += [(namespace, each, True) for namespace in ("", "a") for each in ("a", "é")]
    sought = data.draw(SOUGHT)
    expected_loads = []

    async def compare():
        nonlocal expected_loads
        async with world.admin.transaction():
            await world.store_thread(scope, "t1", thread)
            await world.store_thread(scope, "t2", other)
            await world.store_thread(Scope(scope.tenant_id, "user-2"), "t1", other)
        rows = await world.rows(scope, "t1")
        cold = ColdRows("t1", rows)
        async with world.store.unit_of_work.snapshot(scope) as transaction:
            hot = HotRows(transaction, "t1")
            expected = await answers(hot, asked)
            assert await answers(cold, asked) == expected
            uses = await hot.tag_uses(*sought)
            if thread[CHECKPOINTS]:
                assert await cold.tag_uses(*sought) == uses
            snapshot = Snapshot(transaction, "t1", hot, hot)
            expected_loads = [loaded(await snapshot.load(*each[:2], with_state=each[2])) for each in loads]
        for (namespace, checkpoint_id, with_state), found in zip(loads, expected_loads, strict=True):
            row = await world.store.unit_of_work.ask(
                LOAD, scope, thread_id="t1", namespace=namespace, checkpoint_id=checkpoint_id, with_state=with_state
            )
            assert loaded(row) == found  # by itself, too
            if found is not None:
                is_other = found.checkpoint is not None and found.checkpoint.checkpoint_id != found.head_id
                assert len(found.members) == (len(thread[PENDING_WRITES]) if with_state and is_other else 0)
        moved = part_of(data, rows)
        await world.remove(scope, moved)
        async with world.store.unit_of_work.snapshot(scope) as transaction:
            union = UnionRows(HotRows(transaction, "t1"), ColdRows("t1", moved))
            assert await answers(union, asked) == expected
            if thread[CHECKPOINTS]:
                assert await union.tag_uses(*sought) == uses
            await compare_loads(Snapshot(transaction, "t1", union, union, is_archived=True))
        await world.remove(scope, rows)
        async with world.store.unit_of_work.snapshot(scope) as transaction:
            await compare_loads(Snapshot(transaction, "t1", cold, cold, is_archived=True))

    async def compare_loads(snapshot):
        for (namespace, checkpoint_id, with_state), found in zip(loads, expected_loads, strict=True):
            assert loaded(await snapshot.load(namespace, checkpoint_id, with_state=with_state)) == found

    world.runner.run(compare())


def test_rows_of_another_thread_or_twice_the_same_are_no_archive():
    chunk = {
        "thread_id": "t1",
        "piece_id": b"x",
        "children": None,
        "named_ids": None,
        "envelope": b"",
        "key_version": 1,
    }
    with pytest.raises(IntegrityFailure):
        ColdRows("t1", ThreadRows([], [], [chunk, dict(chunk)]))
    with pytest.raises(IntegrityFailure):
        ColdRows("t2", ThreadRows([], [], [chunk]))
    tag = {"thread_id": "t1", "namespace": "", "checkpoint_id": "c", "tag": b"x"}
    with pytest.raises(IntegrityFailure):
        ColdRows("t1", ThreadRows([], [], [], [tag, dict(tag)]))
