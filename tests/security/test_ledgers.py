"""Whoever holds the database edits, moves, removes or puts back claims and effects: who asks next, notices.

That an effect is asked for again as if it had not happened is what an attacker, or a restored row, could gain. A ledger
that was put back as a whole is authentic; anchors tell.
"""

# ruff: noqa: S608  table and column names are constants of these tests

from uuid import uuid4

import pytest

from storage.blobs.memory import MemoryBlobStore
from storage.control.features import DECISIONS
from storage.errors import IntegrityFailure
from storage.format.thread_ledgers.names import effect_name_mac
from storage.format.thread_ledgers.seal import effect_part
from storage.model import Save
from storage.scope import Scope
from tests.support.archive_rows import opened
from tests.support.features import switch_on
from tests.support.ledgers import SHARE, TABLES, claim, effect_over, finish, put_back, resolve, rows, start
from tests.support.states import save, state

OURS = "tenant_id = $1 AND subject_id = $2"


@pytest.fixture(scope="module")
async def store(database, root_key):
    async with opened(database, root_key, blobs=MemoryBlobStore()) as made:
        await switch_on(made, DECISIONS)
        yield made


@pytest.fixture
def attack(admin, scope):
    async def execute(sql, *arguments):
        done = await admin.execute(sql, scope.tenant_id, scope.subject_id, *arguments)
        assert not done.endswith(" 0"), done

    return execute


async def copied(admin, scope):
    return {table: await rows(admin, scope, table) for table in TABLES}


async def findings(store, scope, thread_id="t1"):
    """What verifying finds; the same for the thread alone as for all of its subject."""
    alone = {each.code for each in (await store.verification.thread(scope, thread_id)).findings}
    of_subject = {each.code for each in (await store.verification.subject(scope)).findings}
    assert alone <= of_subject
    return alone


async def refused(*calls):
    for each in calls:
        with pytest.raises(IntegrityFailure):
            await each


async def noticed(store, scope, effect, *, code="ledger", **parts):
    """Everybody who asks for the effect is told, and so is who verifies."""
    before = {table: await _stored(store, scope, table) for table in TABLES}
    await refused(
        start(store, scope, effect.name, namespace=effect.namespace, **parts),
        finish(store, scope, effect),
        resolve(store, scope, effect, happened=False),
        store.effects.get(scope, effect.thread_id, effect.namespace, effect.name),
    )
    assert code in await findings(store, scope)
    assert {table: await _stored(store, scope, table) for table in TABLES} == before


async def _stored(store, scope, table):
    async with store.unit_of_work.begin(scope) as transaction:
        return sorted(str(each) for each in await transaction._connection.fetch(f"SELECT * FROM stateroom.{table}"))


async def clean(store, scope):
    assert await findings(store, scope) == set()


@pytest.mark.parametrize("mode", ["read", "idempotent", "once"])
@pytest.mark.parametrize("older", ["started", "unknown"])
async def test_an_effect_that_did_not_end_yet_is_not_put_back_over_its_end(store, admin, scope, mode, older):
    await save(store, scope)
    started = await start(store, scope, mode=mode)
    if older == "unknown":
        await finish(store, scope, started, "unknown")
    before = await rows(admin, scope, "effects")
    done = await finish(store, scope, started, result={"id": 7})
    await clean(store, scope)
    after = await rows(admin, scope, "effects")
    await put_back(admin, scope, "effects", before)
    await noticed(store, scope, done, mode=mode)
    await put_back(admin, scope, "effects", after)
    assert not (await start(store, scope, mode=mode)).must_run
    await clean(store, scope)


@pytest.mark.parametrize("mode", ["read", "idempotent", "once"])
async def test_an_effect_that_was_removed_is_missed(store, admin, scope, attack, mode):
    await save(store, scope)
    done = await finish(store, scope, await start(store, scope, mode=mode))
    await attack(f"DELETE FROM stateroom.effects WHERE {OURS}")
    await noticed(store, scope, done, mode=mode)


async def test_an_end_is_not_put_back_over_another_attempt(store, admin, scope):
    await save(store, scope)
    failed = await finish(store, scope, await start(store, scope), "failed")
    before = await rows(admin, scope, "effects")
    again = await start(store, scope)
    await finish(store, scope, again, "unknown")
    await put_back(admin, scope, "effects", before)
    assert failed.attempt < again.effect.attempt
    await noticed(store, scope, again.effect)


async def test_what_was_found_out_is_not_taken_back(store, admin, scope):
    await save(store, scope)
    started = await start(store, scope)
    await effect_over(store, scope)
    unknown = await finish(store, scope, started, "unknown")
    before = await rows(admin, scope, "effects")
    await resolve(store, scope, unknown, happened=True)
    await put_back(admin, scope, "effects", before)
    await noticed(store, scope, unknown)


def _other_name(name_mac):
    """The tag of another name that is counted in the same part."""
    return name_mac[:8] + bytes(8)


@pytest.mark.parametrize("mode", ["read", "idempotent", "once"])
@pytest.mark.parametrize("intent", ["", ", intent_mac = decode(repeat('00', 16), 'hex')"], ids=["", "and intent"])
@pytest.mark.parametrize("place", ["thread_id", "namespace", "name_mac", "name in part", "execution"])
async def test_an_effect_that_was_moved_is_missed_where_it_was_and_refused_where_it_is(
    store, scope, attack, admin, mode, intent, place
):
    await save(store, scope)
    await save(store, scope, "t2")
    done = await finish(store, scope, await start(store, scope, mode=mode))
    sealer = await store.keys.sealer(scope)
    own = effect_name_mac(sealer, "t1", "", "call-1")
    other = effect_name_mac(sealer, "t1", "", next(
        name for name in map(str, range(1000))
        if effect_part(effect_name_mac(sealer, "t1", "", name)) != effect_part(own)
    ))  # fmt: skip
    column, value = {
        "thread_id": ("thread_id", "t2"),
        "namespace": ("namespace", "elsewhere"),
        "name_mac": ("name_mac", other),
        "name in part": ("name_mac", _other_name(own)),
        "execution": ("execution", 2),
    }[place]
    await attack(f"UPDATE stateroom.effects SET {column} = $3{intent} WHERE {OURS}", value)
    await noticed(store, scope, done, mode=mode)
    if place == "thread_id":
        assert "ledger" in await findings(store, scope, "t2")
        await refused(store.effects.list(scope, "t2"))


EDITS = {
    "attempt": "attempt = attempt + 1",
    "mode": "mode = 'idempotent'",
    "status": "status = 'failed'",
    "intent": "intent_mac = decode(repeat('00', 16), 'hex')",
    "provider key": "provider_key = gen_random_uuid()",
    "anchor": "anchor_checkpoint_id = NULL",
    "run": "run_id = 'other'",
    "fence": "fence = fence + 1",
    "created": "created_at = created_at - interval '1 d'",
    "started": "started_at = started_at - interval '1 d'",
    "lease": "leased_until = leased_until - interval '1 d'",
    "finished": "finished_at = finished_at - interval '1 d'",
    "who started": "started_by = 'other'",
    "who resolved": "resolved_by = 'other'",
    "state of the result": "result_state = 'missing'",
    "size": "result_bytes = 1",
    "artifact": "artifact_id = gen_random_uuid()",
    "approval": "approval_id = gen_random_uuid()",
    "action": "approval_position = 1",
    "copy": "copied = true",
    "share": "client_share = NOT client_share",
    "tag of what was asked": "asked_member = decode(repeat('00', 16), 'hex')",
    "tag of arguments": "args_member = decode(repeat('00', 16), 'hex')",
    "tag of the outcome": "outcome_member = decode(repeat('00', 16), 'hex')",
    "tag of the result": "result_member = decode(repeat('00', 16), 'hex')",
    "no outcome": "outcome = NULL, outcome_member = NULL",
    "no result": "result = NULL, result_member = NULL, result_state = 'none', result_bytes = NULL",
}


@pytest.mark.parametrize("edit", EDITS)
async def test_an_edited_column_of_an_effect_is_refused_to_everybody(store, scope, attack, edit):
    await save(store, scope)
    done = await finish(store, scope, await start(store, scope, run_id="run"), result={"id": 7}, error="Late")
    await attack(f"UPDATE stateroom.effects SET {EDITS[edit]} WHERE {OURS}")
    await noticed(store, scope, done, code="effect")
    await refused(store.effects.list(scope, "t1"))


@pytest.mark.parametrize("part", ["asked", "args", "outcome", "result"])
async def test_an_edited_or_swapped_envelope_of_an_effect_is_refused(store, admin, scope, attack, part):
    await save(store, scope)
    for name in ("one", "two"):
        await finish(store, scope, await start(store, scope, name, args=name), result={"id": name}, error="Late")
    stored = await rows(admin, scope, "effects")
    for edit in (f"set_byte({part}, 60, 255 - get_byte({part}, 60))", "''"):
        await attack(f"UPDATE stateroom.effects SET {part} = {edit} WHERE {OURS}")
        for name in ("one", "two"):
            await refused(store.effects.get(scope, "t1", "", name))
        assert await findings(store, scope) == {"effect"}
        await put_back(admin, scope, "effects", stored)
    swapped = [{**one, part: two[part]} for one, two in zip(stored, reversed(stored), strict=True)]
    await put_back(admin, scope, "effects", swapped)
    await refused(store.effects.get(scope, "t1", "", "one"), start(store, scope, "two", args="two"))
    assert await findings(store, scope) == {"effect"}


async def test_an_outcome_of_an_earlier_end_does_not_open_in_a_later_one(store, admin, scope, attack):
    await save(store, scope)
    await finish(store, scope, await start(store, scope), "failed", error="Early")
    (before,) = await rows(admin, scope, "effects")
    await finish(store, scope, await start(store, scope), "failed", error="Late")
    await attack(f"UPDATE stateroom.effects SET outcome = $3 WHERE {OURS}", before["outcome"])
    await refused(store.effects.get(scope, "t1", "", "call-1"), store.effects.list(scope, "t1"))
    assert await findings(store, scope) == {"effect"}


@pytest.mark.parametrize("with_claim", [False, True])
@pytest.mark.parametrize("back_to", ["nothing", "older"])
async def test_a_seal_that_was_removed_or_put_back_is_noticed(store, admin, scope, with_claim, back_to):
    await save(store, scope)
    if with_claim:
        await claim(store, scope)
    started = await start(store, scope)
    before = await rows(admin, scope, "ledger_seals") if back_to == "older" else []
    done = await finish(store, scope, started)
    await put_back(admin, scope, "ledger_seals", before)
    await noticed(store, scope, done)


async def test_an_edited_seal_does_not_authenticate(store, scope, attack):
    await save(store, scope)
    await claim(store, scope)
    done = await finish(store, scope, await start(store, scope))
    for edit in ("sequence = sequence + 1", "seal = set_byte(seal, 5, 255 - get_byte(seal, 5))", "seal = ''"):
        await attack(f"UPDATE stateroom.ledger_seals SET {edit} WHERE {OURS}")
        await noticed(store, scope, done)
        await refused(claim(store, scope), store.claims.get(scope, "t1"))


CLAIMS = (
    f"UPDATE stateroom.threads SET fence = $3, claimed_until = now() + interval '1 h', claim_seconds = 60 WHERE {OURS}"
)


@pytest.mark.parametrize("with_thread", [False, True])
async def test_a_claim_of_an_earlier_fence_is_not_put_back(store, admin, scope, attack, with_thread):
    await save(store, scope)
    first = await claim(store, scope)
    before = await rows(admin, scope, "claims")
    second = await claim(store, scope, "two", take_over=True)
    assert second.fence > first.fence
    await clean(store, scope)
    await put_back(admin, scope, "claims", before)
    if with_thread:
        await attack(CLAIMS, first.fence)
    await no_claim(store, scope, first.fence)


async def no_claim(store, scope, fence):
    await refused(
        claim(store, scope), claim(store, scope, take_over=True), store.claims.renew(scope, "t1", fence),
        store.claims.release(scope, "t1", fence), store.claims.get(scope, "t1"),
        store.claims.set_required(scope, "t1", required=True, actor="api-key:worker"),
    )  # fmt: skip
    assert await findings(store, scope) & {"claim", "ledger"}


async def test_a_fence_without_its_claim_proves_nothing(store, scope, attack):
    await save(store, scope)
    first = await claim(store, scope)
    second = await claim(store, scope, "two", take_over=True)
    await attack(CLAIMS, first.fence)
    await no_claim(store, scope, second.fence)
    await refused(start(store, scope, fence=first.fence))


async def test_an_exclusion_is_not_lifted_in_the_threads_row(store, scope, attack):
    await save(store, scope)
    held = await claim(store, scope, exclusive=True)
    await attack(f"UPDATE stateroom.threads SET claims_required = false WHERE {OURS}")
    await no_claim(store, scope, held.fence)


async def test_a_claim_that_was_removed_is_missed(store, scope, attack):
    await save(store, scope)
    held = await claim(store, scope)
    await attack(f"DELETE FROM stateroom.claims WHERE {OURS}")
    await no_claim(store, scope, held.fence)
    await attack(f"UPDATE stateroom.threads SET fence = 0, claimed_until = NULL WHERE {OURS}")
    await no_claim(store, scope, held.fence)


CLAIM_EDITS = {
    "fence": "fence = fence + 1",
    "holder": "holder = 'other'",
    "run": "run_id = 'other'",
    "lease": "lease_seconds = 300",
    "claimed": "claimed_at = claimed_at - interval '1 d'",
    "takeovers": "takeovers = 5",
    "activity": "activity = activity + 1",
    "released": "status = 'released'",
    "stuck": "status = 'stuck'",
    "required": "required = NOT required",
    "share": "client_share = NOT client_share",
    "tag": "note_member = decode(repeat('00', 16), 'hex')",
    "no note": "note = NULL, note_member = NULL",
}


@pytest.mark.parametrize("edit", CLAIM_EDITS)
async def test_an_edited_column_of_a_claim_is_refused_to_everybody(store, scope, attack, edit):
    await save(store, scope)
    held = await claim(store, scope, note="half way")
    await attack(f"UPDATE stateroom.claims SET {CLAIM_EDITS[edit]} WHERE {OURS}")
    await no_claim(store, scope, held.fence)


async def test_a_note_of_another_thread_or_an_earlier_claim_does_not_open(store, admin, scope, attack):
    for thread_id in ("t1", "t2"):
        await save(store, scope, thread_id)
        await claim(store, scope, thread_id=thread_id, note="same")
    one, two = sorted(await rows(admin, scope, "claims"), key=lambda row: row["thread_id"])
    await attack(f"UPDATE stateroom.claims SET note = $3 WHERE {OURS} AND thread_id = 't1'", two["note"])
    await refused(store.claims.get(scope, "t1"))
    assert await findings(store, scope) == {"claim"}
    await attack(f"UPDATE stateroom.claims SET note = $3 WHERE {OURS} AND thread_id = 't1'", one["note"])
    await clean(store, scope)
    await claim(store, scope, "two", take_over=True, note="same")
    await attack(f"UPDATE stateroom.claims SET note = $3 WHERE {OURS} AND thread_id = 't1'", one["note"])
    await refused(store.claims.get(scope, "t1"))


@pytest.mark.parametrize("back_to", ["older", "nothing"])
async def test_a_ledger_that_was_put_back_whole_is_older_than_its_anchor(store, admin, scope, attack, back_to):
    await save(store, scope)
    started = await start(store, scope)
    before = await copied(admin, scope) if back_to == "older" else {table: [] for table in TABLES}
    await finish(store, scope, started)
    await store.head_anchors.flush()
    await clean(store, scope)
    for table in TABLES:
        await put_back(admin, scope, table, before[table])
    assert await findings(store, scope) == {"older-than-anchor"}


async def test_a_ledger_whose_claim_was_put_back_with_it_is_older_than_its_anchor(store, admin, scope, attack):
    await save(store, scope)
    first = await claim(store, scope)
    before = await copied(admin, scope)
    await claim(store, scope, "two", take_over=True)
    await store.head_anchors.flush()
    await clean(store, scope)
    for table in TABLES:
        await put_back(admin, scope, table, before[table])
    await attack(CLAIMS, first.fence)
    assert await findings(store, scope) == {"older-than-anchor"}


async def test_a_ledger_of_an_earlier_life_of_its_thread_does_not_open_in_a_later_one(store, admin, scope):
    await save(store, scope)
    await finish(store, scope, await start(store, scope, mode="idempotent"))
    before = await copied(admin, scope)
    await store.threads.delete(scope, "t1")
    await save(store, scope)
    for table in TABLES:
        await put_back(admin, scope, table, before[table])
    await refused(
        start(store, scope, mode="idempotent"), store.effects.get(scope, "t1", "", "call-1"), claim(store, scope)
    )
    assert "ledger" in await findings(store, scope)


async def test_a_ledger_whose_threads_row_is_gone_is_found(store, scope, attack):
    await save(store, scope)
    await finish(store, scope, await start(store, scope))
    for table in ("pending_writes", "checkpoints", "chunks", "heads", "threads"):
        await _delete(attack, table)
    assert "thread-missing" in {each.code for each in (await store.verification.thread(scope, "t1")).findings}


async def _delete(attack, table):
    try:
        await attack(f"DELETE FROM stateroom.{table} WHERE {OURS}")
    except AssertionError:
        assert table in {"pending_writes", "chunks"}


@pytest.mark.parametrize("of", ["subject", "tenant"])
async def test_another_subjects_sealer_opens_nothing(store, admin, scope, of):
    other = Scope(scope.tenant_id, "other") if of == "subject" else Scope(uuid4(), "user-1")
    for each in (scope, other):
        await save(store, each)
    await claim(store, scope, note="half way")
    done = await finish(store, scope, await start(store, scope), result={"id": 7})
    for table in TABLES:
        theirs = [
            {**row, "tenant_id": other.tenant_id, "subject_id": other.subject_id}
            for row in await rows(admin, scope, table)
        ]
        await put_back(admin, other, table, theirs)
    await refused(
        start(store, other), store.effects.get(other, "t1", "", "call-1"), finish(store, other, done),
        resolve(store, other, done, happened=True), store.effects.list(other, "t1"), claim(store, other),
        store.claims.get(other, "t1"),
    )  # fmt: skip
    assert "ledger" in await findings(store, other)
    await clean(store, scope)


async def test_no_text_of_a_client_is_in_a_clear_column_of_a_ledger(store, scope, admin):
    words = ["name", "tool", "argument", "result", "error", "note", "pointer", "digest"]
    secrets = {word: f"{word}-of-a-secret" for word in words}
    for thread_id, share in (("t1", None), ("t2", SHARE)):
        await store.checkpoints.save(scope, Save(thread_id=thread_id, content=state(note="x")), share=share)
        await claim(store, scope, thread_id=thread_id, note=secrets["note"], share=share)
        started = await start(
            store, scope, secrets["name"], thread_id=thread_id, share=share, tool=secrets["tool"],
            args={secrets["pointer"]: secrets["argument"]}, identity=(f"/{secrets['pointer']}",),
            tool_digest=secrets["digest"],
        )  # fmt: skip
        await finish(store, scope, started, share=share, result=secrets["result"], error="error_of_a_secret")
    await store.threads.delete(scope, "t1")
    tables = [*TABLES, "effect_tombstones"]
    dump = [str(row) for table in tables for row in await admin.fetch(f"SELECT t::text FROM stateroom.{table} t")]
    assert len(dump) >= 4
    for word in [*secrets.values(), "error_of_a_secret"]:
        for form in (word, word.encode().hex()):
            assert not any(form in row for row in dump)


async def test_tags_of_two_subjects_or_threads_have_nothing_in_common(store, scope, admin):
    other = Scope(scope.tenant_id, "other")
    for each in (scope, other):
        for thread_id in ("t1", "t2"):
            await save(store, each, thread_id)
            await finish(store, each, await start(store, each, thread_id=thread_id), result=1)
    stored = [row for each in (scope, other) for row in await rows(admin, each, "effects")]
    for column in ("name_mac", "mac"):
        assert len({row[column] for row in stored}) == 4
    for column in ("intent_mac", "args_member", "result_member", "asked_member"):
        mine, theirs = (
            {row[column] for row in stored if row["subject_id"] == each.subject_id} for each in (scope, other)
        )
        assert not mine & theirs
