"""A reader that keeps what it was given, and asks for what came since, has what a new reader is given whole."""

import random  # noqa: TID251  seeded
from contextlib import suppress
from uuid import uuid4

import msgpack
import pytest

from storage.errors import CheckpointNotFound, IntegrityFailure, ParentUnknown
from storage.model import ChannelHistories, ChannelHistory, ChannelHistoryQuery, Parent, Save, TaskWrites
from storage.scope import ClientShare, Scope
from tests.support.states import document, put, save, state, write


class Reader:
    """Keeps the last answer, and joins the next one to it as the API says."""

    def __init__(self, store, scope, channels=("d",), share=None):
        self.store, self.scope, self.channels, self.share = store, scope, list(channels), share
        self.kept = None

    async def whole(self, checkpoint_id=None, namespace=""):
        place = ("t1", namespace, checkpoint_id, self.channels)
        return await self.store.checkpoints.channel_history(self.scope, ChannelHistoryQuery(*place), self.share)

    async def given(self, checkpoint_id=None, namespace=""):
        """What is given to it, after checking that it then has what a new reader has."""
        mark = None if self.kept is None else self.kept.mark
        place = ("t1", namespace, checkpoint_id, self.channels)
        found = await self.store.checkpoints.channel_history(
            self.scope, ChannelHistoryQuery(*place, mark=mark), self.share
        )
        before = {} if self.kept is None else self.kept.channels
        joined = {
            name: ChannelHistory(writes=before[name].writes + each.writes, seed=before[name].seed)
            if each.continues
            else each
            for name, each in found.channels.items()
        }
        self.kept = ChannelHistories(channels=joined, mark=found.mark)
        assert self.kept == await self.whole(checkpoint_id, namespace)
        return found.channels

    async def has(self, checkpoint_id=None):
        """What it has after asking again: of the first channel, and whether it was told only what is new."""
        found = await self.given(checkpoint_id)
        return values(self.kept.channels[self.channels[0]]), found[self.channels[0]].continues


def values(history):
    return [msgpack.unpackb(each.value.data) for each in history.writes]


async def step(store, scope, name, *, task_id="task", **parts):
    """A checkpoint, and a write to it."""
    saved = await save(store, scope, content=state(x=name), **parts)
    await put(store, scope, saved.checkpoint_id, write(0, "d", name), write(1, "other", name), task_id=task_id)
    return saved


@pytest.fixture
async def reader(store, scope):
    """One that was given the writes of three checkpoints."""
    opened = Reader(store, scope)
    opened.steps = [await step(store, scope, str(number)) for number in range(4)]
    assert await opened.has() == (["0", "1", "2"], False)
    return opened


async def test_only_what_came_since_is_given(store, scope, reader):
    await step(store, scope, "4")
    await step(store, scope, document("5"))
    assert values((await reader.given())["d"]) == ["3", "4"]
    assert await reader.has() == (["0", "1", "2", "3", "4"], True)
    await save(store, scope)
    assert await reader.has() == (["0", "1", "2", "3", "4", document("5")], True)


async def test_writes_to_the_checkpoint_that_was_asked_about_come_with_its_descendants(store, scope, reader):
    await put(store, scope, reader.steps[3].checkpoint_id, write(0, "d", "late"), task_id="late")
    assert await reader.has() == (["0", "1", "2"], True)
    await save(store, scope)
    assert await reader.has() == (["0", "1", "2", "late", "3"], True)


async def test_a_mark_is_of_the_channels_that_were_asked_for(store, scope, reader):
    await step(store, scope, "4")
    place = ("t1", "", None)
    for channels in (["e"], ["d", "e"]):
        found = await store.checkpoints.channel_history(
            scope, ChannelHistoryQuery(*place, channels, mark=reader.kept.mark)
        )
        assert not any(each.continues for each in found.channels.values())
    both = await store.checkpoints.channel_history(scope, ChannelHistoryQuery(*place, ["d", "e"]))
    await step(store, scope, "5")
    found = await store.checkpoints.channel_history(
        scope, ChannelHistoryQuery(*place, ["e", "d", "d"], mark=both.mark)
    )  # in any order
    assert {name: each.continues for name, each in found.channels.items()} == {"d": True, "e": True}
    found = await store.checkpoints.channel_history(scope, ChannelHistoryQuery(*place, ["d"], mark=both.mark))
    assert (values(found.channels["d"]), found.channels["d"].continues) == (["0", "1", "2", "3", "4"], False)


async def test_what_was_given_is_not_read_again(store, scope, reader, admin):
    await step(store, scope, "4")
    for table in ("checkpoints", "pending_writes"):
        await admin.execute(
            f"DELETE FROM stateroom.{table} WHERE tenant_id = $1 AND checkpoint_id = ANY($2::text[])",  # noqa: S608
            scope.tenant_id, [each.checkpoint_id for each in reader.steps[:3]],
        )  # fmt: skip
    place = ("t1", "", None, ["d"])
    found = await store.checkpoints.channel_history(scope, ChannelHistoryQuery(*place, mark=reader.kept.mark))
    assert (values(found.channels["d"]), found.channels["d"].continues) == (["3"], True)
    with pytest.raises(IntegrityFailure):
        await store.checkpoints.channel_history(scope, ChannelHistoryQuery(*place))


async def test_a_checkpoint_above_a_head_that_was_put_back_is_noticed(store, scope, admin):
    await step(store, scope, "1")
    columns = "head_id, sequence, seal"
    before = await admin.fetchrow(f"SELECT {columns} FROM stateroom.heads WHERE tenant_id = $1", scope.tenant_id)  # noqa: S608
    newest = await save(store, scope)
    await admin.execute(
        f"UPDATE stateroom.heads SET ({columns}) = ($2, $3, $4) WHERE tenant_id = $1",  # noqa: S608
        scope.tenant_id,
        *before,
    )
    with pytest.raises(IntegrityFailure):
        await store.checkpoints.channel_history(scope, ChannelHistoryQuery("t1", "", newest.checkpoint_id, ["d"]))


@pytest.mark.parametrize("table", ["checkpoints", "pending_writes"])
async def test_whoever_takes_away_what_is_new_is_noticed(store, scope, reader, admin, table):
    await step(store, scope, "4")
    await step(store, scope, "5")
    await admin.execute(
        f"DELETE FROM stateroom.{table} WHERE tenant_id = $1 AND checkpoint_id = $2",  # noqa: S608
        scope.tenant_id, reader.steps[3].checkpoint_id,
    )  # fmt: skip
    with pytest.raises(IntegrityFailure):
        await reader.given()


async def test_writes_that_were_put_back_are_noticed(store, scope, reader, admin):
    tip = reader.steps[3].checkpoint_id
    await put(store, scope, tip, write(-1, "d", "first"))
    where = "tenant_id = $1 AND checkpoint_id = $2 AND idx = -1"
    [row] = await admin.fetch(f"SELECT * FROM stateroom.pending_writes WHERE {where}", scope.tenant_id, tip)  # noqa: S608
    await put(store, scope, tip, write(-1, "d", "second"))
    await save(store, scope)
    await admin.execute(
        f"UPDATE stateroom.pending_writes SET value = $3, member = $4, created_at = $5 WHERE {where}",  # noqa: S608
        scope.tenant_id, tip, row["value"], row["member"], row["created_at"],
    )  # fmt: skip
    with pytest.raises(IntegrityFailure):
        await reader.given()


@pytest.mark.parametrize(
    "change",
    [
        lambda store, scope, steps: put(
            store, scope, steps[1].checkpoint_id, write(2, "d", "more"), task_id="task", task_path=""
        ),
        lambda store, scope, steps: put(store, scope, steps[1].checkpoint_id, write(0, "d", "a"), task_id="a"),
        lambda store, scope, steps: put(store, scope, steps[0].checkpoint_id, write(-1, "d", "special")),
        lambda store, scope, steps: put(store, scope, steps[1].checkpoint_id, write(0, "d", "sub"), namespace="sub"),
        lambda store, scope, steps: save(store, scope, parent=Parent(steps[0].checkpoint_id)),
    ],
    ids=["another index", "another task", "a special write", "another namespace", "a branch"],
)
async def test_after_any_other_change_of_the_thread_everything_is_given(store, scope, reader, change):
    before = reader.kept.mark
    await change(store, scope, reader.steps)
    await save(store, scope, parent=Parent(reader.steps[3].checkpoint_id))
    _, continues = await reader.has()
    assert (continues, reader.kept.mark != before) == (False, True)
    await step(store, scope, "after")
    assert (await reader.has())[1]


async def test_a_special_write_that_is_replaced_is_given_as_it_is_now(store, scope, reader):
    await put(store, scope, reader.steps[1].checkpoint_id, write(-1, "d", "first"))
    assert await reader.has() == (["0", "first", "1", "2"], False)
    await put(store, scope, reader.steps[1].checkpoint_id, write(-1, "d", "second"))
    assert await reader.has() == (["0", "second", "1", "2"], False)


async def test_a_removal_gives_everything_anew(store, scope, reader):
    await save(store, scope, content=state(d="snapshot"))
    for name in ("on", "further"):
        await step(store, scope, name, delta_channels=("d",))
        found = await reader.has()
    assert found == (["on"], True)
    await store.threads.prune(scope, ["t1"], "keep_latest")
    assert await reader.has() == (["on"], False)


async def test_a_value_that_was_removed_with_its_checkpoint_is_not_kept(store, scope):
    reader = Reader(store, scope)
    await save(store, scope, content=state(d="seed"))
    for number in range(3):
        await save(store, scope, content=state(x=number))
        found = await reader.given()
    assert found["d"].continues
    await store.threads.prune(scope, ["t1"], "keep_latest")
    await save(store, scope, content=state(x=4))
    found = await reader.given()
    assert (found["d"].continues, reader.kept.channels["d"].seed) == (False, None)


async def test_a_thread_made_anew_with_the_same_ids_gives_everything(store, scope, reader):
    ids = [each.checkpoint_id for each in reader.steps]
    await store.threads.delete(scope, "t1")
    for number, checkpoint_id in enumerate(ids):
        await step(store, scope, f"new {number}", checkpoint_id=checkpoint_id, step=number)
    assert await reader.has() == (["new 0", "new 1", "new 2"], False)


async def test_a_value_ends_what_is_known_for_its_channel_only(store, scope):
    reader = Reader(store, scope, ["d", "e"])
    await save(store, scope, content=state(e="old", x=1))
    for number in range(2):
        tip = await save(store, scope, content=state(x=number))
        await put(store, scope, tip.checkpoint_id, write(0, "d", number), write(1, "e", number))
    await reader.given()
    await save(store, scope, content=state(d="snapshot"))
    await save(store, scope)
    found = await reader.given()
    assert [found[name].continues for name in ("d", "e")] == [False, True]
    assert (values(found["d"]), msgpack.unpackb(found["d"].seed.value.data)) == ([], "snapshot")
    assert (values(found["e"]), found["e"].seed) == ([1], None)
    assert msgpack.unpackb(reader.kept.channels["e"].seed.value.data) == "old"


async def test_an_older_or_another_branchs_checkpoint_is_given_whole(store, scope, reader):
    assert await reader.has(reader.steps[2].checkpoint_id) == (["0", "1"], False)
    branch = await step(store, scope, "branch", parent=Parent(reader.steps[0].checkpoint_id))
    assert await reader.has(branch.checkpoint_id) == (["0"], False)
    assert await reader.has(reader.steps[3].checkpoint_id) == (["0", "1", "2"], False)
    assert await reader.has(reader.steps[3].checkpoint_id) == (["0", "1", "2"], True)


@pytest.mark.parametrize("mark", ["", "x", "0" * 32, "\0" * 40, "é" * 40])
async def test_what_is_no_mark_gives_everything(store, scope, reader, mark):
    for text in (mark, mark + reader.kept.mark[32:], reader.kept.mark[:32] + mark):
        found = await store.checkpoints.channel_history(scope, ChannelHistoryQuery("t1", "", None, ["d"], mark=text))
        assert (found == await reader.whole()) is (text != reader.kept.mark)


async def test_a_mark_of_another_thread_namespace_or_subject_gives_everything(store, scope, reader):
    other = Scope(scope.tenant_id, "user-2")
    ids = [each.checkpoint_id for each in reader.steps]
    for number, checkpoint_id in enumerate(ids):
        for place in ((other, "t1", ""), (scope, "t2", ""), (scope, "t1", "sub")):
            parts = {"thread_id": place[1], "namespace": place[2], "checkpoint_id": checkpoint_id}
            await save(store, place[0], content=state(x=number), step=number, **parts)
            await put(store, place[0], checkpoint_id, write(0, "d", "theirs"), thread_id=place[1], namespace=place[2])
    for place in ((other, "t1", ""), (scope, "t2", ""), (scope, "t1", "sub")):
        found = await store.checkpoints.channel_history(
            place[0], ChannelHistoryQuery(*place[1:], None, ["d"], mark=reader.kept.mark)
        )
        assert (values(found.channels["d"]), found.channels["d"].continues) == (["theirs"] * 3, False)


async def test_under_a_clients_share_it_is_the_same(store, scope):
    share = ClientShare(b"s" * 32)
    reader = Reader(store, scope, share=share)
    for number in range(3):
        saved = await store.checkpoints.save(scope, Save(thread_id="t1", content=state(x=number)), share)
        await store.checkpoints.put_writes(
            scope, TaskWrites("t1", "", saved.checkpoint_id, "task", "", [write(0, "d", str(number))], None), share
        )
        found = await reader.given()
    assert (values(found["d"]), found["d"].continues) == (["1"], True)


@pytest.mark.parametrize("seed", range(8))
async def test_two_readers_of_any_history_have_what_a_new_one_is_given(store, seed):
    chance = random.Random(seed)  # noqa: S311
    scope = Scope(uuid4(), "user-1")
    readers = [Reader(store, scope, ["d", "e"]) for _ in range(2)]
    ids = [(await save(store, scope)).checkpoint_id]

    async def on_the_line():
        held = {} if chance.random() < 0.85 else {chance.choice("de"): str(len(ids))}
        ids.append((await save(store, scope, content=state(x=len(ids), **held))).checkpoint_id)

    async def branch():
        parent = Parent(chance.choice(ids))
        with suppress(ParentUnknown):  # it was pruned
            ids.append((await save(store, scope, content=state(x=len(ids)), parent=parent)).checkpoint_id)

    async def written(at=None):
        idx, channel = chance.choice([0, 0, 1, 2, -1]), chance.choice("dde?")
        task = {"task_id": chance.choice("ab"), "task_path": chance.choice(["", "~"])}
        await put(store, scope, at or ids[-1], write(idx, channel, f"{len(ids)}-{chance.random()}"), **task)

    async def written_before():
        await written(chance.choice(ids[-3:]))

    async def pruned():
        await store.threads.prune(scope, ["t1"], "keep_latest")

    async def elsewhere():
        await put(store, scope, ids[-1], write(0, "d", "no"), namespace="sub")

    acts = [on_the_line] * 5 + [written] * 5 + [written_before, branch, elsewhere] + [pruned] * (seed % 2)
    continued = 0
    for _ in range(40):
        await chance.choice(acts)()
        if chance.random() < 0.6:
            at = None if chance.random() < 0.8 else chance.choice(ids)
            try:
                found = await chance.choice(readers).given(at)
            except CheckpointNotFound:  # pruned
                continue
            continued += any(each.continues for each in found.values())
    assert continued
