"""Who dies, or is cancelled, anywhere in starting or ending an effect: one is told to run, and nothing is half said.

Death is what SIGKILL is to everybody else (`tests.crash.test_archive_dies_anywhere`): its points are the statements and
the COMMITs of a verb. A cancellation is at each of its awaits.
"""

from itertools import count
from uuid import uuid4

import pytest

from storage.access.access import Access
from storage.claims.verbs import Claims
from storage.control.features import DECISIONS
from storage.effects.verbs import Effects
from storage.errors import EffectInProgress, EffectNotFound, EffectUnknown
from storage.scope import Scope
from tests.support.archive_rows import opened
from tests.support.death import Death, Died
from tests.support.features import switch_on
from tests.support.interleaving import CancelAtAwait, SteeredUnitOfWork, parts_of, settled
from tests.support.ledgers import TABLES, claim, effect_over, finish, resolve, rows, start
from tests.support.states import save

POINTS_MIN = 5
MODES = pytest.mark.parametrize("mode", ["idempotent", "once"])


@pytest.fixture(scope="module")
async def store(database, root_key):
    async with opened(database, root_key) as made:
        await switch_on(made, DECISIONS)
        yield made


@pytest.fixture
def death():
    return Death()


class Mortal:
    """Claims and effects whose process dies where its death says."""

    def __init__(self, store, death):
        async def before(_statement):
            death.pass_by()

        access = Access(parts_of(store, SteeredUnitOfWork(store._engine, {}, before)))
        self.claims = Claims(access, store.features, store.audit)
        self.effects = Effects(access, store.features, store.audit, store.consuming)


@pytest.fixture
def mortal(store, death):
    return Mortal(store, death)


async def kept(admin, scope):
    return {table: await rows(admin, scope, table) for table in TABLES}


async def clean(store, scope):
    assert (await store.verification.subject(scope)).findings == []


async def begun(store):
    scope = Scope(uuid4(), "user-1")
    await save(store, scope)
    return scope


async def dies(death, point, call):
    """Whether the process died at that point of a call, and the answer if not."""
    death.at(point)
    try:
        return False, await call
    except Died:
        return True, None
    finally:
        death.at(0)


@MODES
async def test_who_dies_at_any_statement_of_a_start_has_started_it_or_not(store, mortal, death, admin, mode):
    for point in count(1):
        scope = await begun(store)
        before = await kept(admin, scope)
        died, answer = await dies(death, point, start(mortal, scope, mode=mode))
        after = await kept(admin, scope)
        await clean(store, scope)
        if died:
            assert after == before  # its COMMIT was not sent, and its tool did not run
            assert (await start(store, scope, mode=mode)).must_run
        else:
            assert answer.must_run
        with pytest.raises(EffectInProgress):
            await start(store, scope, mode=mode)
        (row,) = await rows(admin, scope, "effects")
        assert (row["status"], row["attempt"], row["execution"]) == ("started", 1, 1)
        await clean(store, scope)
        if not died:
            break
    assert point > POINTS_MIN


async def test_who_dies_at_any_statement_of_an_end_said_all_of_it_or_nothing(store, mortal, death, admin):
    for point in count(1):
        scope = await begun(store)
        started = await start(store, scope)
        before = await kept(admin, scope)
        died, _ = await dies(death, point, finish(mortal, scope, started, result={"id": 7}))
        if died:
            assert await kept(admin, scope) == before
            await effect_over(store, scope)
            with pytest.raises(EffectUnknown):  # nobody runs it again, before it is said what happened
                await start(store, scope)
            with pytest.raises(EffectUnknown):
                await start(store, scope)
            await finish(store, scope, started, result={"id": 7})
        again = await start(store, scope)
        assert not again.must_run
        assert (again.effect.status, again.effect.attempt, again.effect.result_bytes) == ("done", 1, 5)
        await clean(store, scope)
        if not died:
            break
    assert point > POINTS_MIN


async def changes(store, scope, verb, effect, held):
    match verb:
        case "found unknown":
            with pytest.raises(EffectUnknown):
                await start(store, scope)
        case "resolved":
            await resolve(store, scope, effect, happened=True, result=b"\x01")
        case "claimed":
            await claim(store, scope, note="begun")
        case "taken over":
            await claim(store, scope, "two", take_over=True, note="begun")
        case "renewed":
            await store.claims.renew(scope, "t1", held.fence, note="nearly there", lease_seconds=300)
        case "released":
            await store.claims.release(scope, "t1", held.fence)


@pytest.mark.parametrize("verb", ["found unknown", "resolved", "claimed", "taken over", "renewed", "released"])
async def test_who_dies_at_any_statement_of_another_change_made_all_of_it_or_nothing(store, mortal, death, admin, verb):
    for point in count(1):
        scope = await begun(store)
        started = await start(store, scope)
        held = await claim(store, scope, note="half way") if verb != "claimed" else None
        if verb == "found unknown":
            await effect_over(store, scope)
        if verb == "resolved":
            await finish(store, scope, started, "unknown")
        before = await kept(admin, scope)
        died, _ = await dies(death, point, changes(mortal, scope, verb, started.effect, held))
        assert (await kept(admin, scope) == before) == died
        await clean(store, scope)
        if not died:
            break
    assert point >= POINTS_MIN


@MODES
async def test_a_start_that_is_cancelled_at_any_await_is_started_at_most_once(store, admin, mode):
    seen = set()
    for number in count(1):
        scope = await begun(store)
        told = []

        async def work(scope=scope, told=told):
            told.append(await start(store, scope, mode=mode))

        cancelling = CancelAtAwait(work(), number)
        await cancelling.run()
        await settled(admin)
        stored = await rows(admin, scope, "effects")
        assert len(stored) <= 1
        await clean(store, scope)
        seen.add((bool(told), len(stored)))
        if stored:
            # Whether its caller was told or not: nobody else runs it now, and what may not be repeated never again.
            with pytest.raises(EffectInProgress):
                await start(store, scope, mode=mode)
            await effect_over(store, scope)
            if mode == "once":
                with pytest.raises(EffectUnknown):
                    await start(store, scope, mode=mode)
            else:
                again = await start(store, scope, mode=mode)
                assert (again.must_run, again.effect.attempt) == (True, 2)
                assert again.effect.provider_key == stored[0]["provider_key"]
        else:
            assert told == []
            with pytest.raises(EffectNotFound):
                await store.effects.get(scope, "t1", "", "call-1")
            assert (await start(store, scope, mode=mode)).must_run
        await clean(store, scope)
        if not cancelling.cancelled:
            break
    assert number > POINTS_MIN
    assert {(False, 0), (True, 1)} <= seen


async def test_an_end_that_is_cancelled_at_any_await_is_said_whole_or_not_at_all(store, admin):
    seen = set()
    for number in count(1):
        scope = await begun(store)
        started = await start(store, scope)
        before = await kept(admin, scope)

        async def work(scope=scope, started=started):
            await finish(store, scope, started, result={"id": 7}, result_digest=b"d" * 32)

        cancelling = CancelAtAwait(work(), number)
        await cancelling.run()
        await settled(admin)
        await clean(store, scope)
        (row,) = await rows(admin, scope, "effects")
        seen.add(row["status"])
        if row["status"] == "started":
            assert await kept(admin, scope) == before
            with pytest.raises(EffectInProgress):
                await start(store, scope)
        await finish(store, scope, started, result={"id": 7}, result_digest=b"d" * 32)  # said again, it is the same
        again = await start(store, scope)
        assert (again.must_run, again.effect.status, again.effect.attempt) == (False, "done", 1)
        assert (again.effect.result_digest, again.effect.result_bytes) == (b"d" * 32, 5)
        await clean(store, scope)
        if not cancelling.cancelled:
            break
    assert number > POINTS_MIN
    assert seen == {"started", "done"}
