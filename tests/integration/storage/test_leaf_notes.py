"""What is said of large leaves comes with every load, and goes with the leaves wherever their values go."""

from dataclasses import replace
from uuid import uuid4

import msgpack
import msgspec
import pytest

from storage.blobs.memory import MemoryBlobStore
from storage.errors import CheckpointExists
from storage.format.cold.archive import row_of
from storage.format.leaves import placeholder
from storage.format.manifest import ChannelRecord
from storage.format.record import CheckpointRow, open_checkpoint
from storage.model import (
    ChannelHistoryQuery,
    ChannelValue,
    Compaction,
    FullState,
    HistoryQuery,
    LargeLeaf,
    Load,
    NewWrite,
    Precondition,
    TaskWritesQuery,
    Value,
)
from storage.scope import Scope
from tests.support.archive_rows import opened
from tests.support.states import packed, patch, put, save, state
from tests.support.transfers import deployment, exported, imported

ID_1 = "1f0c0000-0000-6000-8000-000000000001"


@pytest.fixture
async def store(database, root_key):
    async with opened(database, root_key) as made:
        yield made


def screen(number):
    return f"data:image/png;base64,{number:08}" + "A" * 70_000


def shot(number):
    return {"role": "tool", "content": [{"type": "image", "url": screen(number)}]}


def said(path, preview=b"preview", media_type="image/png"):
    return LargeLeaf(path=path, media_type=media_type, preview=preview)


def described(content, *leaves):
    return Value("msgpack", msgpack.packb(content), leaves=leaves)


def full(**channels):
    return FullState({name: ChannelValue(None, value) for name, value in channels.items()})


def notes(value):
    return [(each.path, each.media_type, each.preview) for each in value.leaves]


async def loaded(store, scope, *, refs=True, thread_id="t1", checkpoint_id=None):
    wanted = Load(thread_id, "", checkpoint_id, with_state=True, refs=refs)
    return (await store.checkpoints.load(scope, wanted)).checkpoint


async def noted(store, scope, channel="messages", **where):
    return notes((await loaded(store, scope, **where)).channels[channel].value)


# --- one value -------------------------------------------------------------------------------------------------------


async def test_a_leaf_that_travelled_whole_says_where_it_is_and_what(store, scope):
    content = {"a/b": {"text": "t" * 70_000, 7: b"b" * 80_000}, "x": [1, msgpack.ExtType(5, b"e" * 90_000)]}
    await save(store, scope, content=full(doc=packed(content)))
    expected = [
        ("/a~1b/text", "text/plain", None),
        ("/a~1b/7", "application/octet-stream", None),
        ("/x/1", "application/msgpack", None),
    ]
    for refs in (True, False):
        value = (await loaded(store, scope, refs=refs)).channels["doc"].value
        assert notes(value) == expected
        for each in value.leaves:
            stand_in = placeholder(each.piece_id, each.size_bytes)
            there = value.data[each.at : each.at + (len(stand_in) if refs else each.size_bytes)]
            assert (there == stand_in) == refs
            content = await store.pieces.get(scope, "t1", each.piece_id)
            assert len(content) == each.size_bytes
            assert refs or there == content
    assert [each.path for each in value.leaves if value.data[each.at] == 0xDB]


async def test_a_preview_is_named_by_path_or_by_offset_and_what_is_no_large_leaf_keeps_none(store, scope):
    content = {"one": screen(1), "two": screen(2), "small": "s"}
    data = msgpack.packb(content)
    at = data.index(msgpack.packb(screen(2)))
    value = described(
        content, said("/one"), LargeLeaf(at=at, media_type="image/webp", preview=b"w"), said("/small"), said("/none")
    )
    await save(store, scope, content=full(doc=value))
    assert await noted(store, scope, "doc") == [("/one", "image/png", b"preview"), ("/two", "image/webp", b"w")]


async def test_an_uploaded_leaf_is_what_the_client_says(store, scope):
    data = msgpack.packb(screen(1))
    piece_id = (await store.pieces.put(scope, "t1", data)).piece_id
    at = len(b"\x92\xa1a")
    value = Value("msgpack", b"\x92\xa1a" + placeholder(piece_id, len(data)), (at,))
    await save(store, scope, content=full(doc=value))
    assert await noted(store, scope, "doc") == [("/1", None, None)]
    value = replace(value, leaves=(LargeLeaf(at=at, media_type="text/html"), said("/1", media_type=None)))
    await save(store, scope, content=full(doc=value))
    assert await noted(store, scope, "doc") == [("/1", "text/html", b"preview")]


async def test_pending_writes_and_histories_have_them(store, scope):
    first = await save(store, scope, content=full(doc=described([screen(1)], said("/0"))))
    value = described([screen(2)], said("/0", b"two"))
    await put(store, scope, first.checkpoint_id, NewWrite(idx=0, channel="doc", value=value))
    wanted = [("/0", "image/png", b"two")]
    checkpoint = await loaded(store, scope)
    assert [notes(each.value) for each in checkpoint.writes] == [wanted]
    query = TaskWritesQuery("t1", "", first.checkpoint_id, "task", refs=True)
    assert [notes(each.value) for each in await store.checkpoints.task_writes(scope, query)] == [wanted]
    second = await save(store, scope, content=state(note="x"))
    query = ChannelHistoryQuery("t1", "", second.checkpoint_id, ["doc"], refs=True)
    history = (await store.checkpoints.channel_history(scope, query)).channels["doc"]
    assert notes(history.seed.value) == [("/0", "image/png", b"preview")]
    assert [notes(each.value) for each in history.writes] == [wanted]
    page = await store.checkpoints.history(scope, HistoryQuery(thread_id="t1", with_state=True, refs=True))
    assert notes(page.items[1].channels["doc"].value) == [("/0", "image/png", b"preview")]


# --- values that change ----------------------------------------------------------------------------------------------


def all_shots(count):
    return [(f"/{number}/content/0/url", "text/plain", None) for number in range(count)]


async def test_a_list_that_grows_keeps_its_notes_and_stores_each_once(store, scope, admin):
    count = 60
    saved = await save(store, scope, content=full(messages=described([shot(0)], said("/0/content/0/url", b"p" * 4000))))
    sizes = []
    for number in range(1, count):
        preview = f"{number:05}".encode() * 800
        content = replace(
            patch(append={"messages": ["text", shot(number)]}),
            leaves={"messages": (said("/1/content/0/url", preview),)},
        )
        believed = Precondition(saved.checkpoint_id)
        saved = await save(store, scope, content=content, precondition=believed)
        rows = "SELECT sum(length(envelope)) FROM stateroom.chunks WHERE tenant_id = $1"
        sizes.append(await admin.fetchval(rows, scope.tenant_id))
    found = await noted(store, scope)
    assert [each[0] for each in found] == ["/0/content/0/url", *(f"/{2 * n}/content/0/url" for n in range(1, count))]
    assert [each[2][:5] for each in found] == [b"ppppp", *(f"{number:05}".encode() for number in range(1, count))]
    assert sizes[-1] < count * 2 * 6_000  # a preview is stored about twice in its life, however long the list gets


async def test_elements_of_an_adapter_keep_them_too(store, scope):
    first = FullState({"messages": ChannelValue("1", described([shot(0)], said("/0/content/0/url")))})
    await save(store, scope, content=first)
    for number in range(1, 4):
        elements = described([number, shot(number)], said("/1/content/0/url", b"%d" % number))
        grown = FullState({"messages": ChannelValue(str(number + 1), elements, str(number))})
        await save(store, scope, content=grown)
    unchanged = FullState({"messages": ChannelValue("4", None), "n": ChannelValue(None, packed(1))})
    await save(store, scope, content=unchanged)
    paths = [f"/{number * 2}/content/0/url" for number in range(4)]
    assert await noted(store, scope) == [
        (path, "image/png", preview) for path, preview in zip(paths, (b"preview", b"1", b"2", b"3"), strict=True)
    ]


async def test_a_patch_keeps_what_it_does_not_touch_and_drops_what_is_gone(store, scope):
    first = await save(store, scope, content=full(a=described(screen(1), said("")), b=packed(screen(2))))
    content = replace(patch(remove=["b"]), set={"c": described({"x": screen(3)}, said("/x", b"c"))})
    await save(store, scope, content=content, precondition=Precondition(first.checkpoint_id))
    checkpoint = await loaded(store, scope)
    assert {name: notes(each.value) for name, each in checkpoint.channels.items()} == {
        "a": [("", "image/png", b"preview")],
        "c": [("/x", "image/png", b"c")],
    }


@pytest.mark.parametrize("count", [4, 60])
async def test_a_compaction_keeps_those_of_the_elements_that_stay(store, scope, count):
    leaves = [said(f"/{number}/content/0/url", b"%d" % number) for number in range(count)]
    await save(store, scope, content=full(messages=described([shot(number) for number in range(count)], *leaves)))
    summary = tuple(msgpack.packb(each) for each in ("so far", screen(99)))
    await store.compacting.compact(scope, Compaction(thread_id="t1", channel="messages", keep_last=3, summary=summary))
    assert await noted(store, scope) == [
        ("/1", "text/plain", None),
        *((f"/{2 + kept}/content/0/url", "image/png", b"%d" % (count - 3 + kept)) for kept in range(3)),
    ]


# --- threads that go elsewhere ---------------------------------------------------------------------------------------


async def with_everything(store, scope):
    shots = [shot(number) for number in range(60)]
    leaves = [said(f"/{number}/content/0/url", b"%05d" % number * 500) for number in range(60)]
    saved = await save(store, scope, content=full(messages=described(shots, *leaves), doc=packed({"x": screen(100)})))
    value = described([screen(2)], said("/0", b"two"))
    await put(store, scope, saved.checkpoint_id, NewWrite(idx=0, channel="doc", value=value))
    return saved


def everything(checkpoint):
    return {name: notes(each.value) for name, each in checkpoint.channels.items()}, [
        notes(each.value) for each in checkpoint.writes
    ]


async def test_a_copy_and_an_archive_have_them(database, root_key, scope):
    async with opened(database, root_key, archive=MemoryBlobStore()) as store:
        await with_everything(store, scope)
        before = everything(await loaded(store, scope))
        await store.threads.copy(scope, "t1", "t2")
        assert everything(await loaded(store, scope, thread_id="t2")) == before
        assert not (await store.verification.thread(scope, "t2")).findings
        await store.threads.delete(scope, "t1")
        await store.archives.archive(scope, "t2")
        assert everything(await loaded(store, scope, thread_id="t2")) == before
        assert await store.archives.restore(scope, "t2")
        assert everything(await loaded(store, scope, thread_id="t2")) == before


async def test_an_export_brings_them_over(postgres, migrated_template, scope):
    target = Scope(uuid4(), scope.subject_id)
    async with (
        deployment(postgres, migrated_template) as here,
        deployment(postgres, migrated_template) as there,
    ):
        await with_everything(here, scope)
        before = everything(await loaded(here, scope))
        await imported(there, target.tenant_id, await exported(here, there, scope, target.tenant_id))
        assert everything(await loaded(there, target)) == before
        assert not (await there.verification.thread(target, "t1")).findings
        again = await exported(there, here, target, scope.tenant_id)
        assert again


# --- repeats, and other builds ---------------------------------------------------------------------------------------


async def test_the_same_save_with_another_preview_is_the_same_and_the_first_stays(store, scope):
    content = {"x": screen(1)}
    first = await save(store, scope, checkpoint_id=ID_1, content=full(doc=described(content, said("/x"))))
    for again in (described(content, said("/x")), described(content, said("/x", b"other")), packed(content)):
        assert not (await save(store, scope, checkpoint_id=ID_1, content=full(doc=again))).created
    assert await noted(store, scope, "doc", checkpoint_id=first.checkpoint_id) == [("/x", "image/png", b"preview")]
    other = full(doc=described({"x": screen(2)}, said("/x")))
    with pytest.raises(CheckpointExists):
        await save(store, scope, checkpoint_id=ID_1, content=other)


class OlderChannel(msgspec.Struct, array_like=True, frozen=True):
    """A channel as the build before this one knows it."""

    name: str
    version: str | int | float | None
    encoding: str
    body: bytes | tuple[bytes, list[bytes | int], int]
    artifacts: bytes | None = None


async def test_an_older_build_passes_over_them(store, scope, admin):
    await save(store, scope, content=full(doc=described({"x": screen(1)}, said("/x"))))
    row = await admin.fetchrow("SELECT * FROM stateroom.checkpoints WHERE tenant_id = $1", scope.tenant_id)
    sealer = await store.keys.sealer(scope)
    [record] = open_checkpoint(sealer, row_of(CheckpointRow, row)).manifest.channels
    assert record.leaves is not None
    encoded = msgspec.msgpack.encode(record)
    older = msgspec.msgpack.decode(encoded, type=OlderChannel)
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(older), type=ChannelRecord)
    assert again == msgspec.structs.replace(record, size=None, leaves=None)
