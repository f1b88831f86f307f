"""What a load, a save and pending writes read, write and send, in rows and bytes: exactly, however they are cut.

What PostgreSQL looks at and what passes between it and the gateway is what is needed, once. A statement that reads a
row twice, asks for one more column or sends something that nobody uses is found here, and not by a benchmark: the
numbers follow from what is stored, whichever key cut it.
"""

from random import Random  # noqa: TID251  seeded
from typing import NamedTuple

import pytest

from storage.control.features import DECISIONS
from storage.format.pieces import DIRECT_PIECES_MAX
from storage.model import ChannelValue, FullState
from tests.support.features import switch_on
from tests.support.ledgers import claim
from tests.support.states import contents, document, load, packed, put, save, state, write

# Of the answer to a load: its row without what is sealed, and for each array of pieces or writes that has any, and for
# each of their elements, what is not sealed and no list of ids. Every further column is four bytes at least.
ROW_BYTES = 412  # its parent's id and its own among them, whether that is there, and whether any is newer than the head
PIECES_BYTES, PIECE_BYTES = 100, 41
WRITES_BYTES, WRITE_BYTES = 320, 137
# Of what asks for it: names and ids; those of statements grow as a connection goes on.
LOAD_ASKS_BYTES = 121
# To a load of a checkpoint that is not the head: each pending write of the thread is named, to count them.
MEMBERS_BYTES, MEMBER_BYTES = 100, 78
SAVE_ASKS_BYTES, NEW_PIECE_BYTES = 534, 29  # six of them say that the tenant has no events, and six that no claim is
PUT_ASKS_BYTES, NEW_WRITE_BYTES = 474, 41  # held; as of those before
NAMES_BYTES = 8
FENCE_BYTES = 8
# A function that returns nothing: that it was called, and that the next call may come.
DONE_BYTES = 36

# PostgreSQL's rows for long values (heaptoast.h, TOAST_MAX_CHUNK_SIZE).
TOAST_BYTES = 1996
TURNS = 200
# One for each purpose, and the tenant's.
KEYS = {"subject_keys": 2, "tenant_keys": 1}
LOOKED_UP = {"threads": 1, "heads": 1, "checkpoints": 1} | KEYS
# A load looks at the newest checkpoint, too: nothing is newer than the head. And at the parent: it may be removed.
LOADED = LOOKED_UP | {"checkpoints": 3}
FIRST_LOADED = LOOKED_UP | {"checkpoints": 2}


class Stored(NamedTuple):
    """Sealed bytes and lists of ids, as the rows have them.

    ``toasted`` are the rows that long pieces are in, ``manifest_toasted`` those of a long manifest: where the subject's
    key cuts decides how much of a list's end is in it.
    """

    thread: int
    head: int
    checkpoint: int
    pieces: tuple[int, ...]
    writes: tuple[int, ...]
    toasted: int
    manifest_toasted: int

    @property
    def answer(self) -> int:
        """How long the answer to a load is."""
        return (
            ROW_BYTES
            + self.thread + self.head + self.checkpoint
            + (PIECES_BYTES if self.pieces else 0) + sum(PIECE_BYTES + each for each in self.pieces)
            + (WRITES_BYTES if self.writes else 0) + sum(WRITE_BYTES + each for each in self.writes)
        )  # fmt: skip


@pytest.fixture
def admin(own_database):
    return own_database.admin


async def stored(admin, scope, checkpoint_id):
    """What is stored of thread t1 that belongs to a checkpoint."""
    place = "tenant_id = $1 AND thread_id = 't1'"
    of_it = f"{place} AND checkpoint_id = $2"
    sizes = [
        await admin.fetchval(f"SELECT length(seal) FROM stateroom.{table} WHERE {place}", scope.tenant_id)  # noqa: S608
        for table in ("threads", "heads")
    ]
    parameters = (scope.tenant_id, checkpoint_id)
    manifest = f"SELECT length(manifest) + length(piece_ids) FROM stateroom.checkpoints WHERE {of_it}"  # noqa: S608
    values = f"SELECT length(value) + length(piece_ids) FROM stateroom.pending_writes WHERE {of_it}"  # noqa: S608
    named = (
        f"SELECT piece_ids FROM stateroom.checkpoints WHERE {of_it}"  # noqa: S608
        f" UNION ALL SELECT piece_ids FROM stateroom.pending_writes WHERE {of_it}"
    )
    pieces = (
        "SELECT length(envelope) + coalesce(length(children), 0),"  # noqa: S608
        " CASE WHEN pg_column_toast_chunk_id(envelope) IS NULL THEN 0 ELSE 1 + (length(envelope) - 1) / $3 END"
        f" FROM stateroom.chunks WHERE {place} AND piece_id IN (SELECT substring(piece_ids FROM 1 + 17 * n FOR 17)"
        f" FROM ({named}) named, generate_series(0, length(piece_ids) / 17 - 1) n)"
    )
    found = await admin.fetch(pieces, *parameters, TOAST_BYTES)
    toasted = (
        "SELECT CASE WHEN pg_column_toast_chunk_id(manifest) IS NULL THEN 0 ELSE 1 + (length(manifest) - 1) / $3 END"  # noqa: S608
        f" FROM stateroom.checkpoints WHERE {of_it}"
    )
    return Stored(
        *sizes,
        await admin.fetchval(manifest, *parameters),
        tuple(row[0] for row in found),
        tuple(row[0] for row in await admin.fetch(values, *parameters)),
        sum(row[1] for row in found),
        await admin.fetchval(toasted, *parameters, TOAST_BYTES),
    )


async def warm(meter, scope):
    """Until neither the driver nor the database prepares or plans anything any more."""
    for _ in range(7):
        await load(meter.store, scope)


async def fill(store, scope, pieces, writes):
    """Three threads of three steps; returns the checkpoints of t1."""
    saved = {}
    for thread_id in ("t0", "t1", "t2"):
        saved[thread_id] = []
        for step in range(3):
            content = {f"a{number}": document(f"{thread_id} {step} {number}") for number in range(pieces)}
            made = await save(store, scope, thread_id, content=state(n=step, **content))
            saved[thread_id].append(made.checkpoint_id)
            for number in range(writes):
                value = write(0, "m", document(f"w{number}", 5000 * (number % 2)))
                await put(store, scope, made.checkpoint_id, value, task_id=f"t{number}", thread_id=thread_id)
    return saved["t1"]


@pytest.mark.parametrize("pieces", [0, 1, 3])
@pytest.mark.parametrize("writes", [0, 1, 2])
async def test_a_load_reads_what_it_needs_once_and_gets_no_byte_more(meter, scope, admin, pieces, writes):
    store = meter.store
    ids = await fill(store, scope, pieces, writes)
    await warm(meter, scope)
    for step, checkpoint_id in enumerate(ids):
        expected = await stored(admin, scope, checkpoint_id)
        assert (len(expected.pieces), len(expected.writes)) == (pieces + writes // 2, writes)
        others = 0 if step == 2 else 3 * writes
        wanted = {"chunks": len(expected.pieces), "pending_writes": writes + others}
        members = MEMBERS_BYTES + others * MEMBER_BYTES if others else 0
        cost = await meter.cost(load(store, scope, checkpoint_id=checkpoint_id))
        assert contents(cost.result)["n"] == step
        looked_up = LOADED if step else FIRST_LOADED
        assert (cost.read, cost.written) == (looked_up | {name: count for name, count in wanted.items() if count}, {})
        assert cost.answered <= expected.answer + members
        assert cost.asked <= LOAD_ASKS_BYTES + len(checkpoint_id) + NAMES_BYTES
        if step == 2:
            latest = await meter.cost(load(store, scope))
            assert (latest.rows, latest.answered) == (cost.rows, cost.answered)


@pytest.mark.parametrize("pieces", [0, 1, 3])
async def test_a_save_on_the_head_writes_its_own_rows_and_sends_them_once(meter, scope, admin, pieces):
    store = meter.store
    await fill(store, scope, pieces, 1)
    for step in range(3):
        content = {f"a{number}": document(f"more {step} {number}") for number in range(pieces)}
        cost = await meter.cost(save(store, scope, content=state(n=step, kept=document("kept"), **content)))
    expected = await stored(admin, scope, cost.result.checkpoint_id)
    assert cost.read == LOOKED_UP
    own = {"threads": (0, 1, 0), "heads": (0, 1, 0), "checkpoints": (1, 0, 0)}
    assert cost.written == own | ({"chunks": (pieces, 0, 0)} if pieces else {})
    assert len(expected.pieces) == pieces + 1
    sealed = expected.checkpoint + expected.thread + 2 * expected.head  # the seals that it stands on, and the new one
    new = pieces * (NEW_PIECE_BYTES + max(expected.pieces))  # they are alike; the piece that is kept is not sent
    assert cost.asked <= SAVE_ASKS_BYTES + sealed + new + NAMES_BYTES
    assert cost.answered <= DONE_BYTES


async def test_a_save_under_a_claim_takes_no_statement_and_no_row_more_and_sends_its_fence(meter, scope, admin):
    store = meter.store
    await switch_on(store, DECISIONS)
    for step in range(7):  # until nothing is prepared or planned any more
        await save(store, scope, content=state(n=step))
    without = await meter.cost(save(store, scope, content=state(n=7)))
    held = await claim(store, scope)
    under = await meter.cost(save(store, scope, content=state(n=8), fence=held.fence))
    assert (under.read, under.written, under.answered) == (without.read, without.written, without.answered)
    assert under.answered <= DONE_BYTES  # of one statement
    assert under.asked - without.asked == FENCE_BYTES
    until = await admin.fetchval("SELECT claimed_until FROM stateroom.threads WHERE tenant_id = $1", scope.tenant_id)
    assert until > held.claimed_until


@pytest.mark.parametrize("long", [False, True], ids=["inline", "pieces"])
@pytest.mark.parametrize("writes", [1, 3])
async def test_pending_writes_of_the_head_write_their_own_rows_and_send_them_once(meter, scope, admin, long, writes):
    store = meter.store
    await fill(store, scope, 1, 0)
    for step in range(3):
        saved = await save(store, scope, content=state(n=step))
        values = [write(number, "m", document(f"{step} {number}", 5000 if long else 100)) for number in range(writes)]
        cost = await meter.cost(put(store, scope, saved.checkpoint_id, *values))
    expected = await stored(admin, scope, saved.checkpoint_id)
    assert cost.read == {"threads": 1, "heads": 1} | KEYS
    own = {"threads": (0, 1, 0), "heads": (0, 1, 0), "pending_writes": (writes, 0, 0)}
    assert cost.written == own | ({"chunks": (writes, 0, 0)} if long else {})
    sealed = 2 * expected.thread + 2 * expected.head + sum(expected.writes)
    sent = sum(NEW_PIECE_BYTES + each for each in expected.pieces) + NEW_WRITE_BYTES * writes
    assert cost.asked <= PUT_ASKS_BYTES + sealed + sent + NAMES_BYTES
    assert cost.answered <= DONE_BYTES


async def test_pending_writes_before_their_checkpoint_leave_the_head_alone_and_its_save_counts_them(
    meter, scope, admin
):
    store = meter.store
    ids = [f"1f0c0000-0000-6000-8000-00000000000{number}" for number in range(5)]
    await save(store, scope, checkpoint_id=ids[0])
    for each in ids[1:]:
        cost = await meter.cost(put(store, scope, each, write(0, "m", document("a", 100)), write(1, "m", "b")))
        expected = await stored(admin, scope, each)
        saved = await meter.cost(save(store, scope, checkpoint_id=each, content=state(n=each)))
    assert cost.read == {"threads": 1, "heads": 1} | KEYS
    assert cost.written == {"threads": (0, 1, 0), "pending_writes": (2, 0, 0)}
    sealed = 2 * expected.thread + expected.head + sum(expected.writes)
    assert cost.asked <= PUT_ASKS_BYTES + sealed + 2 * NEW_WRITE_BYTES + NAMES_BYTES
    assert cost.answered <= DONE_BYTES
    assert saved.read == LOOKED_UP | {"pending_writes": 2}
    assert saved.written == {"threads": (0, 1, 0), "heads": (0, 1, 0), "checkpoints": (1, 0, 0)}


async def test_a_load_of_a_long_chat_reads_each_of_its_few_pieces_once(meter, scope, admin):
    store, text = meter.store, Random(7)  # noqa: S311  incompressible text, so that bytes are bytes
    messages = []
    for turn in range(TURNS):
        added = [{"id": f"{turn}-{role}", "text": text.randbytes(500).hex()} for role in "ab"]
        messages += added
        value = ChannelValue(turn, packed(added), turn - 1) if turn else ChannelValue(0, packed(added))
        saved = await save(store, scope, content=FullState({"messages": value}))
    await warm(meter, scope)
    expected = await stored(admin, scope, saved.checkpoint_id)
    # Groups of 32 messages in the mean, and of two in the tail: 8 to 41 for 6,000 keys.
    assert len(expected.pieces) <= DIRECT_PIECES_MAX
    cost = await meter.cost(load(store, scope))
    assert contents(cost.result) == {"messages": messages}
    toasted = {"toast of checkpoints": expected.manifest_toasted} if expected.manifest_toasted else {}
    assert cost.read == LOADED | toasted | {"chunks": len(expected.pieces), "toast of chunks": expected.toasted}
    assert cost.answered <= expected.answer
    assert cost.answered <= 0.55 * len(packed(messages).data)  # hexadecimal halves; seals, ids and what is packed
