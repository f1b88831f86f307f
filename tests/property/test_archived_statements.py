"""What an archived thread answers from memory is what PostgreSQL answers from rows, for every statement."""

import asyncio
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import asyncpg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.access.archived import ANSWERS, ArchivedThread, ArchivedTransaction
from storage.format.archive import CHECKPOINTS, CHUNKS, PENDING_WRITES, TAGS, ThreadRows
from storage.postgres import archives as archives_sql
from storage.postgres import checkpoints as checkpoints_sql
from storage.postgres import completeness as completeness_sql
from storage.postgres import pieces as pieces_sql
from storage.postgres import tags as tags_sql
from storage.postgres import threads as threads_sql
from storage.scope import Scope
from storage.service import Store
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


def arguments(*strategies):
    return st.tuples(*strategies)


LIMIT = st.integers(0, 6)
CURSOR = st.one_of(
    st.just((None, None, None)), st.tuples(IDS, st.sampled_from(["s", "t1", "t2", "\U0001f600"]), NAMESPACES)
)
LISTED = st.tuples(
    optional(NAMESPACES), optional(IDS), optional(STATUSES), optional(NUMBERS), optional(NAMES), optional(NAMES),
    optional(NAMES), optional(MOMENTS), optional(MOMENTS),
)  # fmt: skip
# Of each key a tag; a listing that a test should find something with filters little.
SOUGHT = st.dictionaries(NAMES, st.sampled_from(TAG), min_size=1).map(lambda found: ([*found], [*found.values()]))
WIDE = st.one_of(LISTED, st.just((None,) * 9))
ARGUMENTS = {
    checkpoints_sql.ONE: arguments(NAMESPACES, optional(IDS)),
    checkpoints_sql.HISTORY: st.builds(lambda *parts: (*parts[0], *parts[1], parts[2]), WIDE, CURSOR, LIMIT),
    tags_sql.HISTORY_UNLESS_EXCLUDED: st.builds(
        lambda *parts: (*parts[0], *parts[1], parts[2], *parts[3]), WIDE, CURSOR, LIMIT, SOUGHT
    ),
    tags_sql.HISTORY_BY_TAG: st.builds(
        lambda *parts: (*parts[0], *parts[1], parts[2], *parts[3], parts[4]),
        WIDE, CURSOR, LIMIT, SOUGHT, st.sampled_from([[], ["t1"], ["t0", "t1"], ["t2"]]),
    ),
    checkpoints_sql.ANCESTORS: arguments(NAMESPACES, optional(IDS), st.integers(1, 6)),
    checkpoints_sql.CHUNKS: arguments(st.lists(st.sampled_from([*PIECES, b"none"]))),
    checkpoints_sql.WRITES_OF: arguments(NAMESPACES, st.lists(IDS), optional(st.lists(NAMES)), optional(IDS)),
    completeness_sql.HAS_CHECKPOINTS: arguments(NAMESPACES),
    completeness_sql.COUNT_CHECKPOINTS: arguments(NAMESPACES),
    completeness_sql.MEMBERS: arguments(),
    completeness_sql.NAMESPACES: arguments(),
    completeness_sql.CHUNKS_AFTER: arguments(st.sampled_from([b"", *PIECES]), LIMIT),
    completeness_sql.NEXT_CHECKPOINT: arguments(NAMESPACES, st.sampled_from(TEXTS)),
    threads_sql.STRETCH: arguments(NAMESPACES, st.sampled_from(TEXTS), LIMIT),
    threads_sql.ALL_WRITES: arguments(NAMESPACES, st.sampled_from(TEXTS), st.sampled_from(TEXTS), NUMBERS, LIMIT),
    pieces_sql.EXISTS: arguments(st.sampled_from([*PIECES, b"none"])),
}  # fmt: skip
LOADS = arguments(NAMESPACES, optional(IDS), st.booleans())
# Asked of every thread: all there is, in its order.
NOTHING_ELSE = (None,) * 12
EVERYTHING = [
    (checkpoints_sql.HISTORY, (*NOTHING_ELSE, 100)),
    *((checkpoints_sql.WRITES_OF, (namespace, TEXTS, None, None)) for namespace in ("", "a")),
    *((tags_sql.HISTORY_BY_TAG, (*NOTHING_ELSE, 100, ["z", "Z"], [TAG[0], tag], ["t1"])) for tag in TAG),
    *((tags_sql.HISTORY_UNLESS_EXCLUDED, (*NOTHING_ELSE, 100, [name], [TAG[1]])) for name in ("ä", "z")),
]
UNORDERED = {completeness_sql.MEMBERS, checkpoints_sql.CHUNKS}


def test_every_answer_is_compared():
    assert ARGUMENTS.keys() == ANSWERS.keys()


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
            await self.admin.execute(threads_sql.ADD_HEAD, *place, thread_id, namespace, head_id, 1, b"")
        for table in (CHECKPOINTS, TAGS, PENDING_WRITES, CHUNKS):
            rows = [{**row, "thread_id": thread_id} for row in thread[table]]
            columns = archives_sql.COLUMNS[table]
            await self.admin.executemany(
                archives_sql.ADD[table], [(*place, *(row[name] for name in columns)) for row in rows]
            )

    async def rows(self, scope, thread_id):
        place = (scope.tenant_id, scope.subject_id, thread_id)
        found = {}
        for table, columns in archives_sql.COLUMNS.items():
            select = f"SELECT {', '.join(columns)} FROM stateroom.{table}"  # noqa: S608  constants
            where = "WHERE tenant_id = $1 AND subject_id = $2 AND thread_id = $3"
            found[table] = [dict(row) for row in await self.admin.fetch(f"{select} {where}", *place)]
        return ThreadRows(found[CHECKPOINTS], found[PENDING_WRITES], found[CHUNKS], found[TAGS])

    async def remove_rows(self, scope, thread_id):
        for statement in archives_sql.REMOVE.values():
            await self.admin.execute(statement, scope.tenant_id, scope.subject_id, thread_id)


def tagged_by_all(checkpoints):
    if any(row["searchable"] is None for row in checkpoints):
        return None
    return sorted(set.intersection(*({*row["searchable"]} for row in checkpoints))) if checkpoints else []


@pytest.fixture(scope="module")
def world(database, root_key):
    made = World(database, root_key)
    yield made
    made.close()


def plain(sql, rows):
    found = [list(row.items()) for row in rows]
    return sorted(found) if sql in UNORDERED else found


def members_of(load):
    names = ("m_namespace", "m_checkpoint_id", "m_task_id", "m_idx", "m_member")
    return sorted(zip(*(load[name] or () for name in names), strict=True))


def without_order(load, names=None):
    """The row of a load, or only its columns of these names; its pieces have no order."""
    wanted = {*(load.keys() if names is None else names)}
    columns = {name: value for name, value in load.items() if name in wanted}
    pieces = [columns.pop(name) for name in ("p_piece_id", "p_children", "p_named_ids", "p_envelope", "p_key_version")]
    named = None if pieces[0] is None else sorted(zip(*pieces, strict=True), key=lambda piece: piece[0])
    return columns, named


@settings(max_examples=20)
@given(data=st.data(), thread=threads(), other=threads())
def test_rows_in_memory_are_found_as_in_the_database(world, data, thread, other):
    scope = Scope(uuid4(), "user-1")
    place = (scope.tenant_id, scope.subject_id, "t1")
    asked = [(sql, each) for sql, some in ARGUMENTS.items() for each in data.draw(st.lists(some, max_size=3))]
    asked += EVERYTHING
    loads = data.draw(st.lists(LOADS, max_size=5))
    loads += [(namespace, each, True) for namespace in ("", "a") for each in ("a", "é")]
    sought = data.draw(SOUGHT)
    standing = (tags_sql.STANDING_OF_THREAD, scope.tenant_id, scope.subject_id, *sought, "t1")

    async def compare():
        async with world.admin.transaction():
            await world.store_thread(scope, "t1", thread)
            await world.store_thread(scope, "t2", other)
            await world.store_thread(Scope(scope.tenant_id, "user-2"), "t1", other)
        archived = ArchivedThread("t1", await world.rows(scope, "t1"))
        async with world.store.unit_of_work.snapshot(scope) as transaction:
            view = ArchivedTransaction(transaction, scope, archived)
            for sql, each in asked:
                expected = await transaction.fetch(sql, *place, *each)
                found = await view.fetch(sql, *place, *each)
                assert plain(sql, found) == plain(sql, expected), (sql, each)
                if expected and sql not in UNORDERED:
                    assert [*map(tuple, found)] == [*map(tuple, expected)]
                    assert await view.fetchval(sql, *place, *each) == expected[0][0]
            if thread[CHECKPOINTS]:
                assert plain("", await view.fetch(*standing)) == plain("", await transaction.fetch(*standing))
            hot = [await transaction.fetchrow(checkpoints_sql.LOAD, *place, *each) for each in loads]
            members = [tuple(row) for row in await transaction.fetch(completeness_sql.MEMBERS, *place)]
        for each, expected in zip(loads, hot, strict=True):
            found = await world.store.unit_of_work.ask(checkpoints_sql.LOAD_AT_ONCE, scope, "t1", *each)
            assert (found is None) == (expected is None)
            if found is not None:
                assert without_order(found, expected.keys()) == without_order(expected), each
                _, _, with_state = each
                is_other = expected["checkpoint_id"] not in {None, expected["at_head_id"]}
                assert members_of(found) == (sorted(members) if with_state and is_other else [])
        await world.remove_rows(scope, "t1")
        async with world.store.unit_of_work.snapshot(scope) as transaction:
            view = ArchivedTransaction(transaction, scope, archived)
            for each, expected in zip(loads, hot, strict=True):
                found = await view.fetchrow(checkpoints_sql.LOAD, *place, *each)
                assert (found is None) == (expected is None)
                if found is not None:
                    assert [*found.keys()] == [*expected.keys()]
                    assert without_order(found) == without_order(expected), each

    world.runner.run(compare())
