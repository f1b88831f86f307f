import inspect
from uuid import uuid4

import pytest

import storage.access.completeness
import storage.checkpoints.loading
import storage.checkpoints.reading
import storage.checkpoints.single_pieces
import storage.checkpoints.verbs
import storage.schemas.tags
from storage.access.archived import (
    ANSWERS,
    ArchivedThread,
    ArchivedTransaction,
    UnansweredStatement,
    touches_moved_rows,
)
from storage.errors import IntegrityFailure
from storage.format.archive import ThreadRows
from storage.postgres import archives as archives_sql
from storage.postgres import checkpoints as checkpoints_sql
from storage.postgres import threads as threads_sql
from storage.postgres.statement import PlacedStatement, Statement
from storage.scope import Scope

SCOPE = Scope(uuid4(), "user-1")
PLACE = (SCOPE.tenant_id, SCOPE.subject_id)

# Statements on moved rows that no verb runs to read one thread, and why not. A new one belongs here or in ANSWERS.
OTHERS = {
    # they write, or read what a write stands on: the thread is restored first
    "checkpoints.OPEN", "checkpoints.WRITE", "checkpoints.WRITE_TAGGED", "checkpoints.OPEN_WRITES",
    "checkpoints.PUT_WRITES", "checkpoints.PRESENT", "pieces.OPEN", "pieces.PUT", "tags.COPY", "threads.COPY_CHUNKS",
    "threads.ADD_CHECKPOINT", "threads.ADD_WRITE", "threads.COPY_CHECKPOINT", "threads.DELETE_ALL",
    "checkpoints.HEAD_AND_NEWEST", "checkpoints.UNVERSIONED_CHANNELS",
    # it locks tables, and reads nothing
    "checkpoints.WAIT_AS_SAVES",
    # answered by name: together with the rows that stay, or with the thread in another place of the arguments
    "checkpoints.LOAD", "checkpoints.STORED_OF", "tags.STANDING_OF_THREAD",
    # over many threads: only hot ones are in them
    "checkpoints.TENANT_LISTING", "checkpoints.TENANT_LISTING_TROUBLED", "completeness.TRACES",
    "tags.STANDING",
    # whether anything is left of what is gone, hot or archived
    "checkpoints.LEFT_OVER",
}  # fmt: skip
# Whose statements run while one thread is read.
READERS = (
    storage.checkpoints.verbs,
    storage.checkpoints.loading,
    storage.checkpoints.reading,
    storage.access.completeness,
    storage.checkpoints.single_pieces,
    storage.schemas.tags,
)


def texts(content):
    if isinstance(content, str | PlacedStatement | Statement):
        return [getattr(content, "text", content)]
    several = content.values() if isinstance(content, dict) else content if isinstance(content, tuple | list) else ()
    return [each for each in several if isinstance(each, str)]


def statements():
    used = {module for reader in READERS for module in vars(reader).values() if inspect.ismodule(module)}
    for module in used:
        package, _, short = module.__name__.rpartition(".")
        if package != "storage.postgres":
            continue
        for name, content in inspect.getmembers(module):
            for each in () if name.startswith("_") else texts(content):
                if touches_moved_rows(each):
                    yield short, name, each


def test_every_statement_on_moved_rows_is_answered_or_known_not_to_be_a_readers():
    found = {*statements()}
    assert {module for module, *_ in found} == {"checkpoints", "completeness", "pieces", "tags", "threads"}
    unknown = {f"{module}.{name}" for module, name, sql in found if sql not in ANSWERS} - OTHERS
    assert not unknown
    assert {sql for *_, sql in found} >= ANSWERS.keys()
    assert {f"{module}.{name}" for module, name, _ in found} >= OTHERS


class Untouched:
    """A transaction that must not be asked."""

    async def fetch(self, sql, *args):
        raise AssertionError((sql, args))


class Counted(Untouched):
    def __init__(self):
        self.asked = []

    async def fetch(self, sql, *args):
        self.asked.append((sql, args))
        return [(7,)]


def archived(transaction=None):
    return ArchivedTransaction(transaction or Untouched(), SCOPE, ArchivedThread("t1", ThreadRows.empty()))


@pytest.mark.parametrize(
    "sql",
    [
        checkpoints_sql.PRESENT,
        checkpoints_sql.TENANT_LISTING,
        archives_sql.PAGE["checkpoint_tags"],
        "SELECT 1 FROM  stateroom.chunks",
        next(iter(ANSWERS)) + " ",
    ],
)
async def test_a_statement_on_moved_rows_that_nobody_knows_is_refused(sql):
    for run in (archived().fetch, archived().fetchrow, archived().fetchval):
        with pytest.raises(UnansweredStatement):
            await run(sql, *PLACE, "t1", [b"x"], 1)


async def test_nothing_is_written_in_an_archived_thread():
    for sql in (checkpoints_sql.SEAL_THREAD, checkpoints_sql.WRITE.text, threads_sql.HEADS):
        with pytest.raises(UnansweredStatement):
            await archived().execute(sql, *PLACE, "t1")
        with pytest.raises(UnansweredStatement):
            await archived().executemany(sql, [(*PLACE, "t1")])


@pytest.mark.parametrize("sql", [*ANSWERS, checkpoints_sql.LOAD])
async def test_another_thread_or_subject_than_the_archives_is_not_answered(sql):
    for place in ((*PLACE, "t2"), (SCOPE.tenant_id, "user-2", "t1"), (uuid4(), SCOPE.subject_id, "t1")):
        with pytest.raises(UnansweredStatement):
            await archived().fetch(sql, *place, *[None] * 4)


async def test_what_stays_in_the_database_is_asked_there():
    transaction = Counted()
    assert await archived(transaction).fetchval(threads_sql.READ, *PLACE, "t1") == 7
    assert await archived(transaction).fetchrow(threads_sql.HEADS, *PLACE, "t1") == (7,)
    assert transaction.asked == [(threads_sql.READ, (*PLACE, "t1")), (threads_sql.HEADS, (*PLACE, "t1"))]


def test_rows_of_another_thread_or_twice_the_same_are_no_archive():
    chunk = {"thread_id": "t1", "piece_id": b"x"}
    with pytest.raises(IntegrityFailure):
        ArchivedThread("t1", ThreadRows([], [], [chunk, dict(chunk)]))
    with pytest.raises(IntegrityFailure):
        ArchivedThread("t2", ThreadRows([], [], [chunk]))
