"""What callers cost who present keys that nobody gave them, and that nobody else pays for it."""

import asyncio
from random import Random  # noqa: TID251  seeded

import httpx
import pytest

from gateway.admission import refusals
from gateway.admission.limits import TooManyFailures
from gateway.authentication import api_keys, strangers
from gateway.authentication.api_keys import PresentedKey
from gateway.authentication.principals import Authenticator
from gateway.problems import Unauthenticated
from storage.clock import SystemClock
from storage.keys.key_seals import Pepper, Peppers
from storage.model import ApiKeyRecord
from tests.support.operations import Tenancy, assert_problem

PEPPERS = Peppers(Pepper(1, bytes(range(32))))
OTHER = Peppers(Pepper(1, bytes(32)))
BASE62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
FLOOD = 500


def forged(number: int) -> str:
    """A well-formed key that nobody was given."""
    source = Random(number)  # noqa: S311  guesses, not secrets
    return PresentedKey("".join(source.choices(BASE62, k=12)), "".join(source.choices(BASE62, k=43))).reveal()


class Database:
    """Stored keys; counts what it is asked, and how much at once. A look-up ends when it is let."""

    def __init__(self) -> None:
        self.records: dict[str, ApiKeyRecord] = {}
        self.asked: list[str] = []
        self.at_once = 0
        self.most_at_once = 0
        self.open = asyncio.Event()
        self.open.set()

    async def look_up(self, wanted: str) -> ApiKeyRecord | None:
        self.asked.append(wanted)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await self.open.wait()
        finally:
            self.at_once -= 1
        return self.records.get(wanted)

    def mint(self, key: PresentedKey | None = None, peppers: Peppers = PEPPERS) -> str:
        record, text = api_keys.mint(
            peppers, api_keys.NewKey(kind="operator", permissions=("operator",), now=SystemClock().now()), key
        )
        self.records[record.key_id] = record
        return text


class Seconds:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def database() -> Database:
    return Database()


@pytest.fixture
def seconds() -> Seconds:
    return Seconds()


async def _sealed() -> bool:
    return True


@pytest.fixture
def authenticator(database: Database, seconds: Seconds) -> Authenticator:
    return Authenticator(PEPPERS, database.look_up, SystemClock(), _sealed, monotonic=seconds)


async def _outcome(authenticator: Authenticator, text: str) -> str:
    try:
        await authenticator.verify(b"Bearer " + text.encode())
    except Unauthenticated:
        return "unauthenticated"
    except TooManyFailures:
        return "too-many-failures"
    return "open"


async def test_a_flood_of_made_up_keys_asks_the_database_for_as_many_as_may_fail(
    database: Database, authenticator: Authenticator, seconds: Seconds
) -> None:
    outcomes = [await _outcome(authenticator, forged(number)) for number in range(FLOOD)]
    assert len(database.asked) == strangers.FAILURES_MAX
    assert outcomes[-1] == "too-many-failures"
    seconds.now += 1
    for number in range(FLOOD, 2 * FLOOD):
        await _outcome(authenticator, forged(number))
    assert len(database.asked) == strangers.FAILURES_MAX + strangers.FAILURES_PER_SECOND


async def test_made_up_keys_are_looked_up_two_at_once_and_a_bounded_line_of_them_waits(
    database: Database, authenticator: Authenticator
) -> None:
    database.open.clear()
    tried = [asyncio.create_task(_outcome(authenticator, forged(number))) for number in range(FLOOD)]
    await asyncio.sleep(0)
    waiting = sum(not each.done() for each in tried)
    own = database.mint()
    opened = asyncio.create_task(_outcome(authenticator, own))
    await asyncio.sleep(0)
    assert database.at_once == strangers.LOOK_UPS_AT_ONCE + 1
    database.open.set()
    assert await opened == "open"
    outcomes = await asyncio.gather(*tried)
    assert waiting == strangers.LOOK_UPS_AT_ONCE + strangers.LOOK_UPS_WAITING_MAX
    assert outcomes.count("too-many-failures") >= FLOOD - waiting


async def test_a_right_key_opens_at_its_first_use_whatever_others_tried(
    database: Database, authenticator: Authenticator
) -> None:
    for number in range(FLOOD):
        await _outcome(authenticator, forged(number))
    assert await _outcome(authenticator, forged(FLOOD)) == "too-many-failures"
    assert await _outcome(authenticator, database.mint()) == "open"


async def test_a_key_of_an_earlier_release_opens_while_others_fail_once_it_was_right_here(
    database: Database, authenticator: Authenticator, seconds: Seconds
) -> None:
    old = database.mint(api_keys.parse(forged(-1)))
    assert await _outcome(authenticator, old) == "open"
    for number in range(FLOOD):
        await _outcome(authenticator, forged(number))
    asked = len(database.asked)
    seconds.now += 60
    for number in range(FLOOD):
        await _outcome(authenticator, forged(FLOOD + number))
    assert await _outcome(authenticator, old) == "open"
    assert len(database.asked) == asked + strangers.FAILURES_MAX + 1


async def test_right_keys_count_for_no_failure(database: Database, authenticator: Authenticator) -> None:
    old = [database.mint(api_keys.parse(forged(number))) for number in range(FLOOD)]
    assert {await _outcome(authenticator, text) for text in old} == {"open"}


async def test_what_was_refused_is_not_looked_up_again_for_a_second_and_then_it_is(
    database: Database, authenticator: Authenticator, seconds: Seconds
) -> None:
    record, text = api_keys.mint(PEPPERS, api_keys.NewKey(kind="operator", permissions=(), now=SystemClock().now()))
    assert [await _outcome(authenticator, text) for _ in range(3)] == ["unauthenticated"] * 3
    assert len(database.asked) == 1
    database.records[record.key_id] = record  # another process made it
    seconds.now += strangers.REFUSED_SECONDS
    assert await _outcome(authenticator, text) == "open"


async def test_an_id_that_is_not_there_is_asked_for_once_whatever_the_secret(
    database: Database, authenticator: Authenticator
) -> None:
    for number in range(FLOOD):
        secret = forged(number)[21:64]
        await _outcome(authenticator, PresentedKey("0" * 12, secret).reveal())
    assert database.asked == ["0" * 12]


async def test_wrong_secrets_for_an_id_do_not_shut_its_right_key_out(
    database: Database, authenticator: Authenticator
) -> None:
    right = database.mint()
    for number in range(FLOOD):
        await _outcome(authenticator, PresentedKey(right[8:20], forged(number)[21:64]).reveal())
    assert len(database.asked) == strangers.FAILURES_MAX
    assert await _outcome(authenticator, right) == "open"


async def test_what_is_remembered_of_refused_keys_is_bounded(seconds: Seconds) -> None:
    met = strangers.Strangers(seconds)
    for number in range(strangers.REFUSED_MAX + 1):
        met.refuse(number.to_bytes(4))
    assert not met.was_refused((0).to_bytes(4))
    assert met.was_refused((1).to_bytes(4))


async def test_only_who_has_the_pepper_makes_keys_that_vouch_for_themselves() -> None:
    own = api_keys.generate(PEPPERS)
    assert api_keys.was_made_here(PEPPERS, own)
    assert api_keys.was_made_here(Peppers(Pepper(2, bytes(32)), [PEPPERS.active]), own)
    assert not api_keys.was_made_here(OTHER, own)
    assert not api_keys.was_made_here(PEPPERS, PresentedKey("0" * 12, own.secret))
    other_character = "1" if own.secret[0] == "0" else "0"
    assert not api_keys.was_made_here(PEPPERS, PresentedKey(own.key_id, other_character + own.secret[1:]))


def test_a_gateway_that_is_flooded_with_made_up_keys_serves_whoever_has_one(running_gateway) -> None:
    tenancy = Tenancy(running_gateway)
    service_key = tenancy.tenant()
    with httpx.Client(base_url=running_gateway.url) as stranger:
        answers = [
            stranger.get("/v1/whoami", headers={"Authorization": f"Bearer {forged(number)}"})
            for number in range(strangers.FAILURES_MAX * 4)
        ]
        refused = next(each for each in answers if each.status_code == 429)
        assert_problem(refused, 429, "too-many-failures")
        assert refused.headers["retry-after"] == "1"
        assert {each.status_code for each in answers} == {401, 429}
        fresh = tenancy.key(service_key, "user-1")
        with tenancy.client(fresh) as victim:
            saved = victim.post("/v1/threads/t/checkpoints", json={"state": {"note": 1}})
            assert saved.status_code == 201


async def test_refusals_beyond_what_is_usual_are_answered_later(seconds: Seconds) -> None:
    met = strangers.Strangers(seconds).refusals
    delays = [met.delay_seconds() for _ in range(refusals.REFUSALS_MAX + 2)]
    assert delays == [0.0] * refusals.REFUSALS_MAX + [refusals.DELAY_SECONDS] * 2
    seconds.now += 1
    assert [met.delay_seconds() for _ in range(51)] == [0.0] * 50 + [refusals.DELAY_SECONDS]
