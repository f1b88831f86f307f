"""The worst that each limit allows leaves the event loop to others: it is done in many slices, none of them long.

Time is the own time of the loop's thread, so that a busy machine changes nothing, and compared within one request: what
blocks the loop in one piece makes one turn of it nearly all of the request.
"""

import asyncio
import time
import tracemalloc
from typing import Self

import msgpack
import pytest

from gateway import wire
from gateway.admission import limits
from gateway.bodies import codec
from storage.errors import LimitExceeded

pytestmark = pytest.mark.slow

SAVE = "/v1/threads/t/checkpoints"
JSON, MSGPACK = "application/json", "application/msgpack"
MANY = limits.VALUES_MAX - 10
ONE_TURN_MAX = 0.35  # of all time that a request takes; what was done in one piece took nearly all of it

# The worst legal bodies of VALUES_MAX: what costs most to scan, to decode, to read words in, and to show.
DENSE = {
    "lists": (JSON, b'{"state":{"a":[' + b"[]," * (MANY - 1) + b"[]]}}"),
    "objects": (JSON, b'{"state":{"a":[' + b'{"a":0},' * (MANY // 3 - 1) + b"[]]}}"),
    "words": (JSON, b'{"state":{"a":[' + b'{"$bytes":""},' * (MANY // 3 - 1) + b"[]]}}"),
    "pairs": (JSON, b'{"state":{"a":{"$map":[' + b",".join(b"[%d,[]]" % n for n in range(MANY // 3)) + b"]}}}"),
    "packed lists": (MSGPACK, msgpack.packb({"state": {"a": [[]] * MANY}})),
    "packed maps": (MSGPACK, msgpack.packb({"state": {"a": [{"a": 0}] * (MANY // 3)}})),
}


class Turns:
    """What each turn of the loop took of its thread's time, while it is entered."""

    async def __aenter__(self) -> Self:
        self.seconds: list[float] = []
        self._ticker = asyncio.create_task(self._tick())
        await asyncio.sleep(0)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._ticker.cancel()

    async def _tick(self) -> None:
        before = time.thread_time()
        while True:
            await asyncio.sleep(0)
            now = time.thread_time()
            self.seconds.append(now - before)
            before = now

    def check(self) -> None:
        """None of them is more than a part of all."""
        assert max(self.seconds) < ONE_TURN_MAX * sum(self.seconds)


@pytest.mark.parametrize(("media_type", "body"), DENSE.values(), ids=DENSE)
async def test_as_many_values_as_allowed_are_saved_and_shown_beside_others(call, media_type, body):
    async with call() as client:
        async with Turns() as saving:
            answer = await client.post(SAVE, content=body, headers={"Content-Type": media_type})
        assert answer.status_code == 201
        async with Turns() as showing:
            answer = await client.get(f"{SAVE}/latest", headers={"Accept": JSON, "Accept-Encoding": "identity"})
        assert answer.status_code == 200
    saving.check()
    showing.check()


async def test_a_state_of_more_values_than_are_allowed_now_is_shown_beside_others(call, store):
    """Lists grow by many saves, and were saved whole before the limit."""
    async with call() as client:
        await client.post(SAVE, json={"state": {"a": []}})
        [(_, save)] = store.checkpoints.saves
        grown = msgpack.packb([[]] * (3 * limits.VALUES_MAX))
        save.content.channels["a"] = type(save.content.channels["a"])(None, codec.Value("msgpack", grown))
        async with Turns() as showing:
            answer = await client.get(f"{SAVE}/latest", headers={"Accept-Encoding": "identity"})
        assert len(answer.json()["state"]["a"]) == 3 * limits.VALUES_MAX
    showing.check()


@pytest.mark.parametrize(
    ("media_type", "body"),
    [
        (JSON, b'{"state":{"a":[' + b'{"a":0},' * (31 * 1024 * 1024 // 8) + b"[]]}}"),
        (JSON, b'{"state":{"a":[' + b"[]," * (31 * 1024 * 1024 // 3) + b"[]]}}"),
        (MSGPACK, b"\x81\xa5state\x81\xa1a\xdd" + (2**24).to_bytes(4) + b"\x80" * 2**24),
    ],
    ids=["objects", "lists", "packed maps"],
)
def test_what_has_too_many_values_is_refused_before_anything_is_made_of_it(media_type, body):
    name = "json" if media_type == JSON else "msgpack"
    tracemalloc.start()
    try:
        with pytest.raises(LimitExceeded, match="VALUES_MAX"):
            codec.decode_body(name, body, wire.checkpoints.SaveRequest)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 1024 * 1024


async def test_values_in_the_data_of_channels_count_with_the_rest(call):
    many = msgpack.packb([{}] * (limits.VALUES_MAX // 2))
    one, two = ({name: {"data": many} for name in names} for names in ("a", "ab"))
    headers = {"Content-Type": MSGPACK}
    async with call() as client:
        assert (await client.post(SAVE, content=msgpack.packb({"channels": one}), headers=headers)).status_code == 201
        refused = await client.post(SAVE, content=msgpack.packb({"channels": two}), headers=headers)
    assert (refused.status_code, refused.json()["limit"]) == (422, "VALUES_MAX")
