import asyncio
import copy
import gc
import hmac
import pickle  # noqa: TID251  the claim is that it refuses
import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from crypto.context import HEADER_BYTES
from crypto.envelope import seal_body
from crypto.errors import CryptoError, KeyDenied, KeyDestroyed, KeyUnavailable, OpenError
from crypto.keyring import (
    _SUBJECT_KEK,
    KeyCache,
    SecretKey,
    SubjectKeyPlace,
    WrappingKey,
    _Material,
    unwrap_subject_key,
    wrap_subject_key,
)

DEPLOYMENT = UUID(int=1)
TENANT = UUID(int=2)
MATERIAL = bytes(range(200, 232))


class Clock:
    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


def make_cache(clock: Clock, entries_max: int = 8) -> KeyCache[str, str]:
    return KeyCache(entries_max, soft_ttl_seconds=300, hard_ttl_seconds=3600, clock=clock, jitter=lambda: 0.5)


def returning(value: str, calls: list[str]) -> Callable[[], Awaitable[str]]:
    async def load() -> str:
        calls.append(value)
        return value

    return load


def failing(error: Exception) -> Callable[[], Awaitable[str]]:
    async def load() -> str:
        raise error

    return load


def test_a_key_shows_nothing_and_cannot_be_copied() -> None:
    key = SecretKey(MATERIAL)
    for text in (repr(key), str(key), f"{key}", f"{key!a}"):
        assert text == "SecretKey(...)"
    for leave in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError):
            leave(key)
    assert not hasattr(key, "__dict__")
    assert key != SecretKey(MATERIAL)
    assert key.kcv() == SecretKey(MATERIAL).kcv()


@pytest.mark.parametrize("size", [0, 16, 31, 33, 64])
def test_a_key_of_another_length_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        SecretKey(bytes(size))


def test_generated_keys_differ() -> None:
    assert len({SecretKey.generate().kcv() for _ in range(100)}) == 100


def test_material_is_zeroed_when_the_last_view_is_gone_and_not_before() -> None:
    wiped: list[bytes] = []

    class Watched(_Material):
        def __del__(self) -> None:
            super().__del__()
            wiped.append(bytes(self))

    view = memoryview(Watched(MATERIAL)).toreadonly()
    gc.collect()
    assert bytes(view) == MATERIAL
    assert wiped == []
    del view
    gc.collect()
    assert wiped == [bytes(32)]


def test_a_borrowed_view_outlives_its_key_unwiped() -> None:
    view = SecretKey(MATERIAL).borrow()
    gc.collect()
    assert bytes(view) == MATERIAL
    with pytest.raises(TypeError):
        view[0] = 0


def test_the_check_value_is_eight_fixed_bytes_of_the_key() -> None:
    assert len(SecretKey(MATERIAL).kcv()) == 8
    assert SecretKey(MATERIAL).kcv() != SecretKey(bytes(32)).kcv()


def test_derived_keys_depend_on_purpose_and_fields() -> None:
    key = SecretKey(MATERIAL)
    derived = [
        key.derive(b"a"),
        key.derive(b"b"),
        key.derive(b"a", ""),
        key.derive(b"a", b""),
        key.derive(b"a", None),
        key.derive(b"a", 0),
        key.derive(b"a", "x", "y"),
        key.derive(b"a", "xy"),
        key,
    ]
    assert len({each.kcv() for each in derived}) == len(derived)
    assert key.derive(b"a", 1).kcv() == SecretKey(MATERIAL).derive(b"a", 1).kcv()


@pytest.mark.parametrize("purpose", [b"", b"a\0b"])
def test_a_purpose_that_could_run_into_its_fields_is_refused(purpose: bytes) -> None:
    with pytest.raises(ValueError, match="purpose"):
        SecretKey(MATERIAL).derive(purpose)


WRAPPING = WrappingKey(SecretKey(MATERIAL), 3)
PLACE = SubjectKeyPlace(DEPLOYMENT, TENANT, "user-42", "data", 7)


def test_a_wrapped_subject_key_unwraps_to_the_same_key() -> None:
    key = SecretKey.generate()
    wrapped = wrap_subject_key(WRAPPING, PLACE, key)
    assert bytes(key.borrow()) not in wrapped
    assert unwrap_subject_key(WRAPPING, PLACE, wrapped, key.kcv()).kcv() == key.kcv()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("wrapping", WrappingKey(SecretKey(bytes(32)), 3)),
        ("wrapping", WrappingKey(WRAPPING.key, 4)),
        ("place", replace(PLACE, deployment_id=UUID(int=9))),
        ("place", replace(PLACE, tenant_id=UUID(int=9))),
        ("place", replace(PLACE, subject_id="user-43")),
        ("place", replace(PLACE, purpose="id")),
        ("place", replace(PLACE, key_version=8)),
        ("kcv", bytes(8)),
        ("kcv", b""),
    ],
)
def test_a_wrapped_subject_key_moved_elsewhere_is_refused(name: str, value: object) -> None:
    key = SecretKey.generate()
    stored: dict[str, Any] = {
        "wrapping": WRAPPING,
        "place": PLACE,
        "wrapped": wrap_subject_key(WRAPPING, PLACE, key),
        "kcv": key.kcv(),
    }
    with pytest.raises(OpenError) as caught:
        unwrap_subject_key(**{**stored, name: value})
    assert caught.value.code == "authentication"


def test_every_bit_flip_of_a_wrapped_subject_key_is_refused() -> None:
    key = SecretKey.generate()
    wrapped = wrap_subject_key(WRAPPING, PLACE, key)
    for bit in range(len(wrapped) * 8):
        damaged = bytearray(wrapped)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(OpenError):
            unwrap_subject_key(WRAPPING, PLACE, bytes(damaged), key.kcv())


def test_a_cache_forgets_the_least_recently_used_entry_first() -> None:
    cache = make_cache(Clock(), entries_max=2)
    cache.put("a", "1")
    cache.put("b", "2")
    assert cache.get("a") == "1"
    cache.put("c", "3")
    assert (cache.get("a"), cache.get("b"), cache.get("c"), len(cache)) == ("1", None, "3", 2)


def test_an_entry_is_gone_at_its_hard_age() -> None:
    clock = Clock()
    cache = make_cache(clock)
    cache.put("a", "1")
    clock.seconds += 3599.9
    assert cache.get("a") == "1"
    clock.seconds += 0.1
    assert cache.get("a") is None
    assert len(cache) == 0


def test_evict_and_clear_forget() -> None:
    cache = make_cache(Clock())
    cache.put("a", "1")
    cache.put("b", "2")
    cache.evict("a")
    cache.evict("never there")
    assert (cache.get("a"), cache.get("b")) == (None, "2")
    cache.clear()
    assert len(cache) == 0


@pytest.mark.parametrize(
    ("entries_max", "soft", "hard"), [(0, 1, 2), (1, 3, 2), (1, -1, 2)], ids=["room", "order", "negative"]
)
def test_a_cache_with_impossible_limits_is_refused(entries_max: int, soft: float, hard: float) -> None:
    with pytest.raises(ValueError, match=r"entries_max|ttl"):
        KeyCache(entries_max, soft, hard, Clock(), jitter=lambda: 0.0)


async def test_500_concurrent_misses_make_one_load() -> None:
    cache = make_cache(Clock())
    gate = asyncio.Event()
    started = asyncio.Event()
    calls: list[str] = []

    async def load() -> str:
        calls.append("load")
        started.set()
        await gate.wait()
        return "1"

    waiters = [asyncio.create_task(cache.get_or_load("a", load)) for _ in range(500)]
    await started.wait()
    gate.set()
    assert set(await asyncio.gather(*waiters)) == {"1"}
    assert calls == ["load"]
    assert cache.get("a") == "1"


def counting(error: Exception, calls: list[str]) -> Callable[[], Awaitable[str]]:
    async def load() -> str:
        calls.append(type(error).__name__)
        raise error

    return load


@pytest.mark.parametrize("error", [KeyDenied(), KeyDestroyed()], ids=["denied", "destroyed"])
async def test_100_refused_uses_make_one_load_in_30_seconds(error: CryptoError) -> None:
    clock = Clock()
    cache = make_cache(clock)
    calls: list[str] = []
    waiters = [cache.get_or_load("a", counting(error, calls)) for _ in range(50)]
    results = await asyncio.gather(*waiters, return_exceptions=True)
    assert {type(result) for result in results} == {type(error)}
    for _ in range(50):
        with pytest.raises(type(error)):
            await cache.get_or_load("a", counting(error, calls))
    assert len(calls) == 1
    clock.seconds += 29.9
    with pytest.raises(type(error)):
        await cache.get_or_load("a", returning("2", calls))
    clock.seconds += 0.1
    assert await cache.get_or_load("a", returning("2", calls)) == "2"


async def test_an_outage_without_a_value_is_asked_about_again_after_a_second_and_the_jitter() -> None:
    clock = Clock()
    cache = make_cache(clock)
    calls: list[str] = []
    with pytest.raises(KeyUnavailable):
        await cache.get_or_load("a", failing(KeyUnavailable(7)))
    clock.seconds += 1.4
    with pytest.raises(KeyUnavailable) as caught:
        await cache.get_or_load("a", returning("1", calls))
    assert (caught.value.retry_after_seconds, calls) == (7, [])
    clock.seconds += 0.1
    assert await cache.get_or_load("a", returning("1", calls)) == "1"


async def test_no_other_failure_is_remembered() -> None:
    cache = make_cache(Clock())
    cache.put("a", "0")
    cache.evict("a")
    with pytest.raises(OpenError):
        await cache.get_or_load("a", failing(OpenError("format")))
    calls: list[str] = []
    assert await cache.get_or_load("a", returning("2", calls)) == "2"


@pytest.mark.parametrize("forget", ["evict", "clear", "put"])
async def test_a_refusal_can_be_forgotten(forget: str) -> None:
    cache = make_cache(Clock())
    with pytest.raises(KeyDenied):
        await cache.get_or_load("a", failing(KeyDenied()))
    {"evict": lambda: cache.evict("a"), "clear": cache.clear, "put": lambda: cache.put("a", "2")}[forget]()
    assert await cache.get_or_load("a", returning("2", [])) == "2"


async def test_refusals_are_bounded() -> None:
    cache = make_cache(Clock(), entries_max=2)
    calls: list[str] = []
    for name in ("a", "b", "c", "a"):
        with pytest.raises(KeyDenied):
            await cache.get_or_load(name, counting(KeyDenied(), calls))
    assert len(calls) == 4
    with pytest.raises(KeyDenied):
        await cache.get_or_load("c", counting(KeyDenied(), calls))
    assert len(calls) == 4


async def test_loads_of_many_entries_run_20_at_a_time() -> None:
    cache = make_cache(Clock(), entries_max=100)
    running, most, gate = 0, 0, asyncio.Event()

    async def load() -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await gate.wait()
        running -= 1
        return "1"

    waiters = [asyncio.create_task(cache.get_or_load(str(each), load)) for each in range(100)]
    for _ in range(5):
        await asyncio.sleep(0)
    assert running == 20
    gate.set()
    await asyncio.gather(*waiters)
    assert (most, len(cache)) == (20, 100)


async def test_a_load_that_finds_no_place_in_time_is_unavailable() -> None:
    class Impatient(KeyCache[str, str]):
        QUEUED_SECONDS_MAX = 0.01  # type: ignore[misc]

    cache = Impatient(100, 300, 3600, Clock(), jitter=lambda: 0.0)
    gate = asyncio.Event()

    async def load() -> str:
        await gate.wait()
        return "1"

    waiters = [asyncio.create_task(cache.get_or_load(str(each), load)) for each in range(20)]
    await asyncio.sleep(0)
    with pytest.raises(KeyUnavailable):
        await cache.get_or_load("one more", load)
    gate.set()
    assert await asyncio.gather(*waiters) == ["1"] * 20


@pytest.mark.parametrize("cancelled", [0, 1, 2])
async def test_a_cancelled_waiter_does_not_cancel_the_others_load(cancelled: int) -> None:
    cache = make_cache(Clock())
    gate = asyncio.Event()

    async def load() -> str:
        await gate.wait()
        return "1"

    waiters = [asyncio.create_task(cache.get_or_load("a", load)) for _ in range(3)]
    await asyncio.sleep(0)
    waiters[cancelled].cancel()
    await asyncio.sleep(0)
    gate.set()
    results = await asyncio.gather(*waiters, return_exceptions=True)
    assert isinstance(results.pop(cancelled), asyncio.CancelledError)
    assert results == ["1", "1"]


async def test_a_load_all_waiters_left_still_fills_the_cache() -> None:
    cache = make_cache(Clock())
    gate, done = asyncio.Event(), asyncio.Event()

    async def load() -> str:
        await gate.wait()
        done.set()
        return "1"

    waiter = asyncio.create_task(cache.get_or_load("a", load))
    await asyncio.sleep(0)
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    gate.set()
    await done.wait()
    assert cache.get("a") == "1"


@pytest.mark.parametrize("action", ["evict", "clear"])
async def test_an_eviction_during_a_load_keeps_its_result_out(action: str) -> None:
    cache = make_cache(Clock())
    started, gate = asyncio.Event(), asyncio.Event()

    async def load() -> str:
        started.set()
        await gate.wait()
        return "read before the shred"

    waiter = asyncio.create_task(cache.get_or_load("a", load))
    await started.wait()
    if action == "evict":
        cache.evict("a")
    else:
        cache.clear()
    calls: list[str] = []
    assert await cache.get_or_load("a", returning("new", calls)) == "new"
    gate.set()
    assert await waiter == "read before the shred"
    assert cache.get("a") == "new"


async def test_a_value_put_during_a_load_stays() -> None:
    cache = make_cache(Clock())
    started, gate = asyncio.Event(), asyncio.Event()

    async def load() -> str:
        started.set()
        await gate.wait()
        return "old"

    waiter = asyncio.create_task(cache.get_or_load("a", load))
    await started.wait()
    cache.put("a", "new")
    gate.set()
    assert await waiter == "old"
    assert cache.get("a") == "new"


async def test_an_entry_past_its_soft_age_is_loaded_anew() -> None:
    clock = Clock()
    cache = make_cache(clock)
    calls: list[str] = []
    assert await cache.get_or_load("a", returning("1", calls)) == "1"
    clock.seconds += 269
    assert await cache.get_or_load("a", returning("2", calls)) == "1"
    clock.seconds += 31
    assert await cache.get_or_load("a", returning("3", calls)) == "3"
    assert calls == ["1", "3"]


async def test_shortly_before_its_soft_age_an_entry_is_loaded_ahead_once_and_nobody_waits() -> None:
    clock = Clock()
    cache = make_cache(clock)
    cache.put("a", "1")
    clock.seconds += 270
    gate, done = asyncio.Event(), asyncio.Event()
    calls: list[str] = []

    async def load() -> str:
        calls.append("load")
        await gate.wait()
        done.set()
        return "2"

    assert [await cache.get_or_load("a", load) for _ in range(10)] == ["1"] * 10
    gate.set()
    await done.wait()
    clock.seconds += 200
    assert await cache.get_or_load("a", load) == "2"
    assert calls == ["load"]


async def test_a_denial_met_ahead_evicts_the_entry() -> None:
    clock = Clock()
    cache = make_cache(clock)
    cache.put("a", "1")
    clock.seconds += 280
    assert await cache.get_or_load("a", failing(KeyDenied())) == "1"
    await asyncio.sleep(0)
    with pytest.raises(KeyDenied):
        await cache.get_or_load("a", returning("2", []))


async def test_an_outage_serves_the_old_value_until_its_hard_age() -> None:
    clock = Clock()
    cache = make_cache(clock)
    cache.put("a", "1")
    clock.seconds += 1000
    assert await cache.get_or_load("a", failing(KeyUnavailable(1))) == "1"
    clock.seconds += 2600
    with pytest.raises(KeyUnavailable) as caught:
        await cache.get_or_load("a", failing(KeyUnavailable(1.5)))
    assert caught.value.retry_after_seconds == 1.5
    assert re.search(r"1\.5 s", str(caught.value))


async def test_while_an_outage_is_known_nobody_waits_for_it_again() -> None:
    clock = Clock()
    cache = make_cache(clock)
    cache.put("a", "1")
    clock.seconds += 1000
    calls: list[str] = []
    assert await cache.get_or_load("a", counting(KeyUnavailable(1), calls)) == "1"
    assert await cache.get_or_load("a", counting(KeyUnavailable(1), calls)) == "1"
    assert len(calls) == 1
    clock.seconds += 2
    gate = asyncio.Event()

    async def hanging() -> str:
        await gate.wait()
        return "2"

    assert await cache.get_or_load("a", hanging) == "1"
    gate.set()
    clock.seconds += 60
    assert await cache.get_or_load("a", hanging) == "2"


async def test_a_denial_evicts_what_was_cached() -> None:
    clock = Clock()
    cache = make_cache(clock)
    cache.put("a", "1")
    clock.seconds += 1000
    with pytest.raises(KeyDenied):
        await cache.get_or_load("a", failing(KeyDenied()))
    assert cache.get("a") is None


async def test_a_value_made_of_an_older_one_is_as_old_as_that() -> None:
    clock = Clock()
    cache: KeyCache[str, float] = KeyCache(8, 300, 3600, clock, jitter=lambda: 0.0, since=lambda since: since)
    calls: list[float] = []

    async def at(since: float) -> float:
        calls.append(since)
        return since

    started = clock.seconds
    clock.seconds += 200
    assert await cache.get_or_load("a", lambda: at(started)) == started
    clock.seconds += 100
    assert await cache.get_or_load("a", lambda: at(clock.seconds)) == clock.seconds  # due, 100 seconds after its load
    clock.seconds += 3500
    assert await cache.get_or_load("b", lambda: at(started + 300)) == started + 300
    clock.seconds += 100
    assert cache.get("a") is None
    assert cache.get("b") is None  # 100 seconds after its load
    assert len(calls) == 3


async def test_a_load_that_brings_nothing_newer_counts_as_an_outage() -> None:
    clock = Clock()
    cache: KeyCache[str, float] = KeyCache(8, 300, 3600, clock, jitter=lambda: 0.0, since=lambda since: since)
    started = clock.seconds
    loads = 0

    async def stale() -> float:
        nonlocal loads
        loads += 1
        return started

    clock.seconds += 1000
    for _ in range(10):
        assert await cache.get_or_load("a", stale) == started
    assert loads == 1
    clock.seconds += 2
    for _ in range(10):
        assert await cache.get_or_load("a", stale) == started
        await asyncio.sleep(0)
    assert loads == 2
    clock.seconds += 3600
    with pytest.raises(KeyUnavailable):
        await cache.get_or_load("a", failing_number(KeyUnavailable(1)))


def failing_number(error: Exception) -> Callable[[], Awaitable[float]]:
    async def load() -> float:
        raise error

    return load


def test_a_wrapped_subject_key_of_another_length_is_refused() -> None:
    header = wrap_subject_key(WRAPPING, PLACE, SecretKey.generate())[:HEADER_BYTES]
    wrapping_key = WRAPPING.key.derive(_SUBJECT_KEK)
    for raw_bytes, body in ((16, bytes(16)), (32, bytes(16)), (16, bytes(32))):
        other = seal_body(header, wrapping_key.borrow(), PLACE.context(header), raw_bytes, body)
        with pytest.raises(OpenError) as caught:
            unwrap_subject_key(WRAPPING, PLACE, other, bytes(8))
        assert caught.value.code == "format"


async def test_a_failure_after_an_eviction_is_not_remembered() -> None:
    cache = make_cache(Clock())
    gate = asyncio.Event()

    async def load() -> str:
        await gate.wait()
        raise KeyDenied

    waiter = asyncio.create_task(cache.get_or_load("a", load))
    await asyncio.sleep(0)
    cache.evict("a")
    gate.set()
    with pytest.raises(KeyDenied):
        await waiter
    assert await cache.get_or_load("a", returning("1", [])) == "1"


async def test_a_load_that_was_cancelled_is_neither_a_value_nor_a_refusal() -> None:
    cache = make_cache(Clock())

    async def load() -> str:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await cache.get_or_load("a", load)
    assert await cache.get_or_load("a", returning("1", [])) == "1"


def test_a_share_is_mixed_in_as_documented() -> None:
    key, share = bytes(range(32)), bytes(range(32, 64))
    extracted = hmac.digest(share, key, "sha512")  # RFC 5869
    expanded = hmac.digest(extracted, b"stateroom/v1/client-share" + b"\x01", "sha512")[:32]
    assert bytes(SecretKey(key).mix(SecretKey(share)).borrow()) == expanded


@pytest.mark.parametrize(("age", "loads"), [(0.0, 2), (5.0, 2), (8.5, 2), (9.0, 1), (10.0, 1), (10.5, 1), (100.0, 1)])
async def test_a_load_counts_as_an_outage_from_the_age_on_at_which_a_value_is_due(age: float, loads: int) -> None:
    clock = Clock()
    cache: KeyCache[str, float] = KeyCache(8, 10, 3600, clock, jitter=lambda: 30.0, since=lambda since: since)
    made = []

    async def aged() -> float:
        made.append(clock.seconds - age)
        return made[-1]

    await cache.get_or_load("a", aged)
    clock.seconds += 11  # within what an outage is remembered for, and longer than any value is not due
    await cache.get_or_load("a", aged)
    assert len(made) == loads


async def test_without_an_age_at_which_it_is_used_a_value_is_loaded_each_time() -> None:
    calls: list[str] = []
    cache: KeyCache[str, str] = KeyCache(8, 0, 3600, Clock(), jitter=lambda: 0.0)
    for _ in range(3):
        await cache.get_or_load("a", returning("1", calls))
    assert len(calls) == 3


async def test_a_value_that_is_put_ends_a_refusal() -> None:
    clock, calls = Clock(), list[str]()
    cache: KeyCache[str, str] = KeyCache(8, 10, 3600, clock, jitter=lambda: 0.0)
    with pytest.raises(KeyDenied):
        await cache.get_or_load("a", failing(KeyDenied()))
    cache.put("a", "1")
    clock.seconds += 20  # the refusal would count for ten more
    assert await cache.get_or_load("a", returning("2", calls)) == "2"


async def test_the_refusal_that_is_longest_ago_is_forgotten_first() -> None:
    clock, calls = Clock(), list[str]()
    cache = make_cache(clock, entries_max=2)
    for name, seconds in (("a", 0), ("b", 31), ("a", 31), ("c", 1)):
        clock.seconds += seconds
        with pytest.raises(KeyDenied):
            await cache.get_or_load(name, failing(KeyDenied()))
    with pytest.raises(KeyDenied):
        await cache.get_or_load("a", returning("1", calls))
    assert calls == []


async def test_a_failure_that_nobody_waits_for_is_not_logged() -> None:
    clock, told = Clock(), list[object]()
    cache = make_cache(clock)
    cache.put("a", "1")
    clock.seconds += 275  # it is loaded ahead
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: told.append(context))
    try:
        assert await cache.get_or_load("a", failing(KeyUnavailable(1))) == "1"
        await asyncio.wait({*cache._loads.values()})
        await asyncio.sleep(0)
        cache.clear()  # what it remembers of the failure holds the load
        gc.collect()
    finally:
        loop.set_exception_handler(None)
    assert told == []
