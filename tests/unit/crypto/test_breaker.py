import asyncio
from uuid import UUID

import pytest

from crypto import KeyDenied, KeyUnavailable, MemoryRootKey, SecretKey
from crypto.roots import GuardedRootKey, create_root_key
from crypto.roots.breaker import FAILURES_MAX, OPEN_SECONDS
from tests.support.root_keys import UnsteadyRootKey

CONTEXT = {"deployment": str(UUID(int=1)), "tenant": str(UUID(int=2)), "purpose": "tenant", "version": "1"}


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def service():
    return UnsteadyRootKey()


@pytest.fixture
def guarded(service, clock):
    return GuardedRootKey(service, clock)


async def refused(guarded):
    with pytest.raises(KeyUnavailable) as raised:
        await guarded.wrap(SecretKey.generate(), CONTEXT)
    return raised.value


async def opened_breaker(guarded, service):
    service.reachable = False
    for _ in range(FAILURES_MAX):
        await refused(guarded)


async def test_ten_thousand_calls_in_an_outage_ask_the_service_a_few_times(guarded, service):
    service.reachable = False
    for _ in range(10_000):
        await refused(guarded)
    assert service.calls == FAILURES_MAX


async def test_the_refusal_says_when_to_come_again(guarded, service, clock):
    await opened_breaker(guarded, service)
    clock.now += 1.5
    assert (await refused(guarded)).retry_after_seconds == OPEN_SECONDS - 1.5


async def test_failures_that_do_not_follow_each_other_open_nothing(guarded, service):
    for _ in range(3):
        service.reachable = False
        for _ in range(FAILURES_MAX - 1):
            await refused(guarded)
        service.reachable = True
        await guarded.wrap(SecretKey.generate(), CONTEXT)
    assert service.calls == 3 * FAILURES_MAX


async def test_after_a_while_one_call_is_let_through_and_its_answer_lets_all_through(guarded, service, clock):
    await opened_breaker(guarded, service)
    service.reachable = True
    await refused(guarded)
    clock.now += OPEN_SECONDS
    for number in range(3):
        await guarded.wrap(SecretKey.generate(), CONTEXT)
        assert service.calls == FAILURES_MAX + 1 + number


async def test_a_probe_that_fails_begins_the_time_again(guarded, service, clock):
    await opened_breaker(guarded, service)
    for number in range(3):
        clock.now += OPEN_SECONDS
        for _ in range(10):
            await refused(guarded)
        assert service.calls == FAILURES_MAX + 1 + number


class SlowRootKey(UnsteadyRootKey):
    """A root key that answers when it is told to."""

    def __init__(self):
        super().__init__()
        self.asked, self.answers = asyncio.Event(), asyncio.Event()
        self.answers.set()

    async def wrap(self, key, context):
        self.asked.set()
        await self.answers.wait()
        return await super().wrap(key, context)


async def test_only_one_probe_is_under_way_and_a_cancelled_one_makes_room(clock):
    service = SlowRootKey()
    guarded = GuardedRootKey(service, clock)
    await opened_breaker(guarded, service)
    clock.now += OPEN_SECONDS
    service.answers.clear()
    service.asked.clear()
    service.reachable = True
    probe = asyncio.create_task(guarded.wrap(SecretKey.generate(), CONTEXT))
    await service.asked.wait()
    async with asyncio.timeout(5):
        assert (await refused(guarded)).retry_after_seconds > 0
    probe.cancel()
    with pytest.raises(asyncio.CancelledError):
        await probe
    service.answers.set()
    await guarded.wrap(SecretKey.generate(), CONTEXT)


async def test_a_refusal_is_an_answer(guarded, service):
    foreign = await MemoryRootKey().wrap(SecretKey.generate(), CONTEXT)
    for _ in range(3):
        service.reachable = False
        for _ in range(FAILURES_MAX - 1):
            await refused(guarded)
        service.reachable = True
        with pytest.raises(KeyDenied):
            await guarded.unwrap(foreign, CONTEXT)
    await guarded.wrap(SecretKey.generate(), CONTEXT)


async def test_health_asks_the_service_itself(guarded, service):
    await opened_breaker(guarded, service)
    service.reachable = True
    await guarded.health()
    await refused(guarded)


async def test_services_are_guarded_and_files_are_not(tmp_path):
    token = tmp_path / "token"
    token.write_text("t")
    made = create_root_key(f"vault:http://127.0.0.1:1/transit/key?token_file={token}")
    assert isinstance(made, GuardedRootKey)
    await made.aclose()


async def test_a_guarded_service_is_the_service_itself(guarded, service):
    key = SecretKey.generate()
    wrapped = await guarded.rewrap(await guarded.wrap(key, CONTEXT), CONTEXT)
    assert guarded.provider == service.provider
    assert guarded.recognises(wrapped)
    assert (await guarded.unwrap(wrapped, CONTEXT)).kcv() == key.kcv()
