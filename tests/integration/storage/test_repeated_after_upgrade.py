"""A save that comes again after an upgrade that cuts values in another way is the save that is stored."""

import os
from itertools import pairwise
from random import Random  # noqa: TID251  seeded

import msgpack
import msgspec
import pytest

from storage.errors import CheckpointExists
from storage.format.cold.archive import row_of
from storage.format.leaves import OFFLOAD_BYTES_MIN
from storage.format.pieces import ELEMENTS, SEGMENT, Piece, PieceList, list_bounds
from storage.format.record import (
    CheckpointRow,
    open_checkpoint,
    open_head,
    open_thread,
    seal_checkpoint,
    seal_head,
    seal_piece,
)
from storage.model import ChannelValue, FullState, Idempotency, Precondition, Value
from tests.support.archive_rows import opened
from tests.support.states import contents, history, load, packed, patch, save, state

ID_1 = "1f0c0000-0000-6000-8000-000000000001"
ID_2 = "1f0c0000-0000-6000-8000-000000000002"


@pytest.fixture
async def store(database, root_key):
    async with opened(database, root_key) as made:
        yield made


def older_cut(sealer, value, listed):
    """A value as another release could have cut it: a piece for every element, or for every 5,000 bytes."""
    bounds = list_bounds(value.data) if value.encoding == "msgpack" else None
    kind, name, header = (ELEMENTS, "elements", bounds[0]) if bounds else (SEGMENT, "segment", 0)
    bounds = bounds or [*range(0, len(value.data), 5000), len(value.data)]
    pieces = []
    for start, end in pairwise(bounds):
        data = value.data[start:end]
        pieces.append(Piece(sealer.content_id(name, "", data), bytes((kind,)) + data, None))
    return (value.data[:header], [listed.number(each.piece_id) for each in pieces], 0), pieces


async def as_an_older_release_stored_it(store, admin, scope):
    """Rewrite the only checkpoint of thread t1, its head's seal and its chunks; what is in blobs stays there."""
    sealer = await store.keys.sealer(scope)
    row = await admin.fetchrow("SELECT * FROM stateroom.checkpoints WHERE tenant_id = $1", scope.tenant_id)
    opened = open_checkpoint(sealer, row_of(CheckpointRow, row))
    loaded = await load(store, scope)
    listed, pieces, channels = PieceList(), {}, []
    for each in opened.manifest.channels:
        body, own = older_cut(sealer, loaded.channels[each.name].value, listed)
        channels.append(msgspec.structs.replace(each, body=body))
        pieces.update({piece.piece_id: piece for piece in own})
    columns = msgspec.structs.replace(opened.columns, piece_ids=listed.pack())
    assert columns.piece_ids != opened.columns.piece_ids
    sealed = seal_checkpoint(sealer, columns, msgspec.structs.replace(opened.manifest, channels=channels))
    head_row = await admin.fetchrow("SELECT * FROM stateroom.heads WHERE tenant_id = $1", scope.tenant_id)
    place = ("t1", "", columns.checkpoint_id)
    thread_row = await admin.fetchrow("SELECT * FROM stateroom.threads WHERE tenant_id = $1", scope.tenant_id)
    thread = open_thread(sealer, "t1", thread_row["created_at"], thread_row["seal"])
    head = open_head(sealer, "t1", thread, *place[1:], head_row["sequence"], head_row["seal"])
    head = msgspec.structs.replace(head, live=head.live.subtract(opened.member).add(sealed.member))
    head_seal = seal_head(sealer, *place, head)
    async with admin.transaction():
        await admin.execute(
            "UPDATE stateroom.checkpoints SET piece_ids = $2, manifest = $3 WHERE tenant_id = $1",
            scope.tenant_id, columns.piece_ids, sealed.envelope,
        )  # fmt: skip
        await admin.execute(
            "UPDATE stateroom.heads SET seal = $2 WHERE tenant_id = $1",
            scope.tenant_id,
            head_seal,
        )
        await admin.execute(
            "DELETE FROM stateroom.chunks WHERE tenant_id = $1 AND NOT piece_id = ANY($2::bytea[])",
            scope.tenant_id, listed.ids,
        )  # fmt: skip
        await admin.executemany(
            "INSERT INTO stateroom.chunks (tenant_id, subject_id, thread_id, piece_id, key_version, envelope)"
            " VALUES ($1, $2, 't1', $3, $4, $5) ON CONFLICT DO NOTHING",
            [
                (scope.tenant_id, scope.subject_id, each.piece_id, sealer.active_key_version, seal_piece(sealer, each))
                for each in pieces.values()
            ],
        )
    store.checkpoints._access.remembered_heads.forget(scope)  # as a process that did not acknowledge what was rewritten
    assert (await load(store, scope)).channels == loaded.channels


async def everything_stored(admin, scope):
    """All rows of a subject but its thread's, whose time of last use may move."""
    return [
        await admin.fetch(f"SELECT t::text FROM stateroom.{table} t WHERE tenant_id = $1 ORDER BY 1", scope.tenant_id)  # noqa: S608
        for table in ("checkpoints", "heads", "chunks", "blob_refs")
    ]


text = Random(7)  # noqa: S311  incompressible, so that values are pieces
VALUES = {
    "a list that is all tail": packed([text.randbytes(900).hex() for _ in range(6)]),
    "a list of groups and index pieces": packed([text.randbytes(600).hex() for _ in range(3000)]),
    "a list of maps": packed([{"role": "user", "text": text.randbytes(2500)} for _ in range(9)]),
    "opaque bytes": Value("bytes", text.randbytes(70_000)),
    "large opaque bytes": Value("bytes", text.randbytes(3 * OFFLOAD_BYTES_MIN)),
    "a large element that stays in its blob": packed(
        [{str(number): number for number in range(20_000)}, *(text.randbytes(900) for _ in range(6))]
    ),
}


def changed(value):
    """Another value of the same length: one byte is another one, in the middle of a string or of bytes."""
    at = len(value.data) - 300
    data = value.data[:at] + bytes((value.data[at] ^ 1,)) + value.data[at + 1 :]
    return Value(value.encoding, data)


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
async def test_the_same_save_is_a_replay_and_another_one_a_conflict(store, scope, admin, value):
    parts = {
        "content": FullState({"a": ChannelValue("1", value), "n": ChannelValue(None, packed(1))}),
        "checkpoint_id": ID_1,
        "metadata": {"k": [1]},
    }
    first = await save(store, scope, **parts)
    await as_an_older_release_stored_it(store, admin, scope)
    before = await everything_stored(admin, scope)
    for again in (parts, parts | {"idempotency": Idempotency("once", b"d" * 32)}):
        replayed = await save(store, scope, **again)
        assert (replayed.created, replayed.sequence, replayed.created_at) == (False, first.sequence, first.created_at)
    for other in (
        {"content": FullState({"a": ChannelValue("1", changed(value)), "n": ChannelValue(None, packed(1))})},
        {"content": FullState({"a": ChannelValue("1", value), "n": ChannelValue(None, packed(2))})},
        {"content": FullState({"a": ChannelValue("2", value), "n": ChannelValue(None, packed(1))})},
        {"content": FullState({"a": ChannelValue("1", value)})},
        {"metadata": {"k": [2]}},
        {"status": "done"},
    ):
        with pytest.raises(CheckpointExists):
            await save(store, scope, **{**parts, **other})
    assert await everything_stored(admin, scope) == before
    assert (await save(store, scope, content=state(a=2))).sequence == first.sequence + 1
    assert (await save(store, scope, **parts)).created is False
    assert len(await history(store, scope)) == 2


async def test_what_was_appended_to_a_list_that_an_older_release_cut_is_the_whole_list(store, scope, admin):
    elements = [os.urandom(700) for _ in range(9)]
    await save(store, scope, content=FullState({"m": ChannelValue("1", packed(elements[:7]))}), checkpoint_id=ID_1)
    await as_an_older_release_stored_it(store, admin, scope)
    added = FullState({"m": ChannelValue("2", packed(elements[7:]), "1")})
    assert (await save(store, scope, content=added, checkpoint_id=ID_2)).created is True
    whole = FullState({"m": ChannelValue("2", packed(elements))})
    for again in (added, whole):
        assert (await save(store, scope, content=again, checkpoint_id=ID_2)).created is False
    other = FullState({"m": ChannelValue("2", packed([*elements[:8], os.urandom(700)]))})
    with pytest.raises(CheckpointExists):
        await save(store, scope, content=other, checkpoint_id=ID_2)
    assert contents(await load(store, scope)) == {"m": elements}


async def test_a_patch_of_a_list_that_an_older_release_cut_is_applied_once(store, scope, admin):
    elements = [os.urandom(700) for _ in range(9)]
    await save(store, scope, content=state(m=elements, n=1), checkpoint_id=ID_1)
    await as_an_older_release_stored_it(store, admin, scope)
    parts = {
        "content": patch(append={"m": [os.urandom(5000)]}, put={"n": 2}),
        "precondition": Precondition(head_id=ID_1),
        "checkpoint_id": ID_2,
    }
    assert [(await save(store, scope, **parts)).created for _ in range(2)] == [True, False]
    assert len(msgpack.unpackb((await load(store, scope)).channels["m"].value.data)) == 10
