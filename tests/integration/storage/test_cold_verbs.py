"""What every verb answers to an old checkpoint: in the database, in a segment, and in a segment that must be thawed."""

import msgspec
import pytest

from storage.blobs.memory import MemoryBlobStore
from storage.control.features import COLD_NAMESPACES, SEGMENTS
from storage.errors import CheckpointExists, ClientShareWrong, RowQuotaExceeded, ThreadArchived
from storage.model import Idempotency, Parent, Precondition, Save
from storage.scope import ClientShare
from storage.statements.threads import archives as archives_sql
from storage.threads.thinning import ThinningRule
from storage.tiers.segments import open_list
from tests.support.archive_rows import fsck, opened, rows
from tests.support.features import switch_on
from tests.support.states import contents, document, history, load, patch, put, save, state, write

OLD = ThinningRule(keep_last=2)
TURNS = 5
HOT, COLD, FROZEN = "hot", "cold", "frozen"
# What is answered where it is refused, and why it is looked for elsewhere otherwise.
EXISTS, ARCHIVED = "checkpoint-exists", "thread-archived"


@pytest.fixture
async def store(database, root_key):
    archive = MemoryBlobStore(storage_class="STANDARD", thaw_seconds=3600)
    async with opened(database, root_key, archive=archive) as made:
        for feature in (SEGMENTS, COLD_NAMESPACES):
            await switch_on(made, feature)
        yield made


def said(number):
    """What turn ``number`` of the chat says."""
    return state(messages=[document(f"turn {each}", 700) for each in range(number + 1)], note=number)


async def chat(store, scope, where=HOT):
    """A chat whose checkpoints but the last two are ``where``; returns the ids."""
    ids = []
    for number in range(TURNS):
        ids.append((await save(store, scope, content=said(number), step=number, run_id=f"run-{number}")).checkpoint_id)
        await put(store, scope, ids[-1], write(0, "messages", f"w{number}"))
    if where != HOT:
        await store.archives.segmenting.move(
            scope, "t1", OLD, actor="test", storage_class="GLACIER" if where == FROZEN else None
        )
    return ids


async def segments(admin, scope):
    return len(await rows(admin, scope, "t1", "archives"))


async def answer(asked):
    """What a verb answers, in a word."""
    try:
        return await asked
    except CheckpointExists:
        return EXISTS
    except ThreadArchived:
        return ARCHIVED


async def equal_put(store, scope, ids):
    receipt = await put(store, scope, ids[1], write(0, "messages", "w1"))
    return receipt.stored, receipt.unchanged


async def new_put(store, scope, ids):
    receipt = await put(store, scope, ids[1], write(1, "messages", "later"))
    return receipt.stored, receipt.unchanged


async def interrupt(store, scope, ids):
    receipt = await put(store, scope, ids[1], write(-3, "__interrupt__", "which?"))
    return receipt.stored, receipt.unchanged


async def equal_save(store, scope, ids):
    saved = await save(
        store, scope, checkpoint_id=ids[1], content=said(1), step=1, run_id="run-1", parent=Parent(ids[0])
    )
    return saved.created, saved.parent_id == ids[0], saved.head_id == ids[-1]


async def other_save(store, scope, ids):
    return (await save(store, scope, checkpoint_id=ids[1], content=state(note="other"), run_id="run-1")).created


async def other_parent(store, scope, ids):
    saved = await save(
        store, scope, checkpoint_id=ids[1], content=said(1), step=1, run_id="run-1", parent=Parent(ids[2])
    )
    return saved.created


async def equal_patch(store, scope, ids):
    changes = patch(put={"note": 1}, append={"messages": [document("turn 1", 700)]})
    believed = Precondition(head_id=ids[-1])
    saved = await save(
        store, scope, checkpoint_id=ids[1], content=changes, step=1, run_id="run-1", precondition=believed
    )
    return saved.created


async def load_of_a_hot_one(store, scope, ids):
    return contents(await load(store, scope, checkpoint_id=ids[-2]))["note"]


async def load_of_it(store, scope, ids):
    return contents(await load(store, scope, checkpoint_id=ids[1]))["note"]


async def all_history(store, scope, ids):
    return [each.checkpoint_id for each in await history(store, scope, thread_id="t1")] == ids[::-1]


async def prune(store, scope, ids):
    return (await store.threads.prune(scope, ["t1"], "keep_latest")).checkpoints


async def copy(store, scope, ids):
    return (await store.threads.copy(scope, "t1", "t2")).checkpoints


async def delete_of_a_run(store, scope, ids):
    return (await store.pruning.delete_runs(scope, ["run-1"])).checkpoints


async def fork(store, scope, ids):
    saved = await save(store, scope, parent=Parent(ids[1]), fork=True, content=state(note="fork"), source="fork")
    return saved.parent_id == ids[1]


# A verb, what it answers where the checkpoint is hot, cold and frozen, and whether its segment comes back for it.
TABLE = [
    (equal_put, (0, 1), (0, 1), ARCHIVED, True),
    (new_put, (1, 0), (1, 0), ARCHIVED, True),
    (interrupt, (1, 0), (1, 0), ARCHIVED, True),
    (equal_save, (False, True, True), (False, True, True), (False, True, True), False),
    (other_save, EXISTS, EXISTS, EXISTS, False),
    (other_parent, EXISTS, EXISTS, EXISTS, False),
    (equal_patch, False, False, ARCHIVED, True),
    (load_of_a_hot_one, 3, 3, 3, False),
    (load_of_it, 1, 1, ARCHIVED, False),
    (all_history, True, True, ARCHIVED, False),
    (prune, 4, 4, ARCHIVED, True),
    (copy, 5, 5, ARCHIVED, True),
    (delete_of_a_run, 1, 1, ARCHIVED, True),
    (fork, True, True, ARCHIVED, True),
]


@pytest.mark.parametrize("where", [HOT, COLD, FROZEN])
@pytest.mark.parametrize(
    ("verb", "hot", "cold", "frozen", "comes_back"), TABLE, ids=[each[0].__name__ for each in TABLE]
)
async def test_a_verb_answers(store, scope, admin, verb, hot, cold, frozen, comes_back, where):
    ids = await chat(store, scope, where)
    before = await segments(admin, scope)
    assert before == (where != HOT)
    assert await answer(verb(store, scope, ids)) == {HOT: hot, COLD: cold, FROZEN: frozen}[where]
    assert await segments(admin, scope) == (0 if where == COLD and comes_back else before)
    if where != FROZEN:
        assert (await store.verification.thread(scope, "t1")).findings == []
        assert (await fsck(store, scope)).faults == {}


async def test_a_repeated_save_is_answered_of_a_namespace_that_left_with_its_head(store, scope, admin):
    at = (await save(store, scope)).checkpoint_id
    parts = {"namespace": "work:1", "content": said(0), "metadata": {"parents": {"": at}}, "step": 0}
    first = await save(store, scope, precondition=Precondition(absent=True), **parts)
    await save(store, scope, **{**parts, "content": said(1), "step": 1})
    await save(store, scope)
    rule = ThinningRule(keep_last=1)
    await store.archives.segmenting.move(scope, "t1", rule, actor="test", storage_class="GLACIER")
    assert {row["namespace"] for row in await rows(admin, scope, "t1", "heads")} == {""}
    again = {**parts, "checkpoint_id": first.checkpoint_id, "precondition": Precondition(absent=True)}
    saved = await save(store, scope, **again)
    assert (saved.created, saved.sequence) == (False, first.sequence + 1)
    assert saved.token
    with pytest.raises(CheckpointExists):
        await save(store, scope, **{**again, "content": said(2)})


async def test_under_a_share_a_repeated_save_is_told_from_another_one(store, scope, admin):
    share = ClientShare(b"s" * 32)

    async def say(number, **parts):
        new = Save(thread_id="t1", content=said(number), step=number, **parts)
        return await store.checkpoints.save(scope, new, share)

    ids = [(await say(number)).checkpoint_id for number in range(TURNS)]
    await store.archives.segmenting.move(scope, "t1", OLD, actor="test", storage_class="GLACIER", share=share)
    assert await segments(admin, scope) == 1
    assert not (await say(1, checkpoint_id=ids[1])).created
    with pytest.raises(CheckpointExists):
        await say(2, checkpoint_id=ids[1])
    again = Save(thread_id="t1", content=said(1), step=1, checkpoint_id=ids[1])
    with pytest.raises(ClientShareWrong):
        await store.checkpoints.save(scope, again, ClientShare(b"w" * 32))


async def test_a_save_repeated_by_its_key_is_answered_from_what_is_remembered_of_it(store, scope, admin):
    ids = await chat(store, scope, FROZEN)
    key = Idempotency("k", b"r" * 32)
    parts = {"checkpoint_id": ids[1], "content": said(1), "step": 1, "run_id": "run-1", "idempotency": key}
    saved = await save(store, scope, **parts)
    assert (await save(store, scope, **parts)).checkpoint_id == saved.checkpoint_id == ids[1]


async def seal_lists_as_before(store, scope):
    """Store the lists of segments as builds did that said nothing of how checkpoints were made."""
    sealer = await store.keys.sealer(scope)
    async with store.unit_of_work.begin(scope) as transaction:
        for stub in await transaction.fetch_all(archives_sql.SEGMENT_STUBS, thread_id="t1"):
            listed = msgspec.structs.replace(await open_list(transaction, sealer, stub), made=None)
            key = {"thread_id": "t1", "segment": stub.segment}
            await transaction.run(archives_sql.SET_LISTED, **key, listed=listed.seal(sealer, stub))


async def test_a_list_that_does_not_say_how_its_checkpoints_were_made_leaves_it_to_their_rows(store, scope, admin):
    ids = await chat(store, scope, COLD)
    await seal_lists_as_before(store, scope)
    assert await equal_save(store, scope, ids) == (False, True, True)
    assert await segments(admin, scope) == 0


# --- at the quota ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "verb",
    [prune, delete_of_a_run, equal_save, equal_patch, equal_put, new_put, interrupt, fork, copy],
    ids=lambda verb: verb.__name__,
)
async def test_a_tenant_at_its_quota_of_rows_removes_and_repeats_what_is_cold(store, scope, admin, verb):
    ids = await chat(store, scope, COLD)
    store.row_quotas._over = frozenset({scope.tenant_id})
    if verb in (new_put, interrupt, fork, copy):
        with pytest.raises(RowQuotaExceeded):
            await verb(store, scope, ids)
    else:
        assert await verb(store, scope, ids) == next(each[1] for each in TABLE if each[0] is verb)
    assert (await store.verification.thread(scope, "t1")).findings == []


@pytest.mark.parametrize("verb", [prune, delete_of_a_run, new_put], ids=lambda verb: verb.__name__)
async def test_a_tenant_at_its_quota_of_rows_removes_what_is_archived(store, scope, verb):
    ids = await chat(store, scope)
    await store.archives.archive(scope, "t1")
    store.row_quotas._over = frozenset({scope.tenant_id})
    if verb is new_put:
        with pytest.raises(RowQuotaExceeded):
            await verb(store, scope, ids)
    else:
        assert await verb(store, scope, ids) == next(each[1] for each in TABLE if each[0] is verb)
