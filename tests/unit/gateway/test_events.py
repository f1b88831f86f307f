"""Listening to events by the rules of HTTP, on a store in memory: cursors, waiting, streams, who may and how many."""

import asyncio
import contextlib
import json
from datetime import UTC, datetime
from urllib.parse import quote
from uuid import uuid4

import pytest
from uuid_utils import uuid7

from gateway.admission.limits import WAITER_BYTES_MAX, Drain
from gateway.admission.refusals import DELAY_SECONDS, REFUSALS_MAX
from gateway.admission.waiting import TooManyWaiters, Waiters
from gateway.events.hub import UNCHECKED_SECONDS_MAX, Hub
from gateway.events.listeners import LATE_SECONDS, Listener, Wanted
from gateway.events.positions import CURSOR_CHARACTERS, Positions
from gateway.problems import Unauthenticated
from storage.errors import EventsExpired, EventsRewound, Unavailable
from storage.events.model import Event, EventPosition, Stream
from storage.keys.key_seals import Pepper, Peppers
from storage.scope import Scope

EVENTS = "/v1/events"
SECONDS = 10


def event(sequence, type="checkpoint.saved", subject_id="user-1", thread_id="t", **more):  # noqa: A002  its name
    """An event of a thread."""
    stream = Stream("thread", thread_id, "i")
    return Event(
        sequence, uuid4(), type, datetime(2026, 1, 2, tzinfo=UTC), stream, sequence, subject_id, thread_id, **more
    )


class Listening:
    """One request for a stream, as the server makes it."""

    def __init__(self, app, api_key, path=EVENTS, headers=(), takes=True, method="GET"):
        self.sent = asyncio.Queue()
        self.gone = asyncio.Event()
        self.taken = asyncio.Event()
        if takes:
            self.taken.set()
        where, _, query = path.partition("?")
        lines = [(b"host", b"test"), (b"accept", b"text/event-stream"), *headers]
        if api_key:
            lines.append((b"authorization", f"Bearer {api_key}".encode()))
        scope = {"type": "http", "method": method, "path": where, "raw_path": where.encode(), "headers": lines,
                 "query_string": query.encode()}  # fmt: skip
        self._begun = False
        self.task = asyncio.create_task(app(scope, self._receive, self._send))

    async def _receive(self):
        if not self._begun:
            self._begun = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message):
        if message["type"] == "http.response.body" and message["body"]:
            await self.taken.wait()
        self.sent.put_nowait(message)

    async def head(self):
        message = await asyncio.wait_for(self.sent.get(), SECONDS)
        return message["status"], dict(message["headers"])

    async def part(self):
        message = await asyncio.wait_for(self.sent.get(), SECONDS)
        return message["body"].decode(), message["more_body"]

    async def lines(self):
        """The id and the data of the next event."""
        while True:
            part, more = await self.part()
            assert more, "the stream ended"
            found = [each for each in part.split("\n\n") if "data: " in each]
            if found:
                return [(each.split("\n")[0][4:], json.loads(each.split("\ndata: ")[1])) for each in found]

    async def end(self):
        """What came until it ended."""
        said = ""
        while True:
            part, more = await self.part()
            said += part
            if not more:
                await self.task
                return said

    async def leave(self):
        self.gone.set()
        await asyncio.wait_for(self.task, SECONDS)


@contextlib.asynccontextmanager
async def listening(*arguments, **options):
    made = Listening(*arguments, **options)
    try:
        yield made
    finally:
        made.gone.set()
        made.taken.set()
        await asyncio.wait_for(asyncio.gather(made.task, return_exceptions=True), SECONDS)


async def until(holds):
    async with asyncio.timeout(SECONDS):
        while not holds():  # noqa: ASYNC110  it is said nowhere else
            await asyncio.sleep(0.005)


# --- cursors --------------------------------------------------------------------------------------------------------


def test_a_cursor_opens_for_its_listener_only_and_under_a_pepper_that_is_accepted():
    position = EventPosition(7, uuid4())
    old, new = Pepper(1, b"1" * 32), Pepper(2, b"2" * 32)
    cursor = Positions(Peppers(old)).write(b"who", position)
    assert len(cursor) == CURSOR_CHARACTERS
    assert Positions(Peppers(old)).read(b"who", cursor) == position
    assert Positions(Peppers(new, [old])).read(b"who", cursor) == position
    assert Positions(Peppers(new)).read(b"who", cursor) is None
    assert Positions(Peppers(old)).read(b"other", cursor) is None


def test_a_cursor_before_the_first_event_comes_back():
    positions = Positions(Peppers(Pepper(1, b"1" * 32)))
    assert positions.read(b"", positions.write(b"", EventPosition(0, None))) == EventPosition(0, None)


def test_two_cursors_of_one_position_tell_nothing_of_it():
    positions, position = Positions(Peppers(Pepper(1, b"1" * 32))), EventPosition(7, uuid4())
    first, second = (positions.write(b"", position) for _ in range(2))
    assert first[:32] != second[:32]
    assert first[-32:] != second[-32:]


@pytest.mark.parametrize("damage", ["", "x", "now ", "é" * 86, "A" * 85, "A" * 86, "A" * 87, "=" * 86, "\x01"])
async def test_a_damaged_cursor_is_422(call, damage):
    async with call() as client:
        answer = await client.get(f"{EVENTS}?since={quote(damage)}")
        assert (answer.status_code, answer.json()["errors"][0]["parameter"]) == (422, "since")


async def test_a_changed_cursor_is_422(call):
    async with call() as client:
        cursor = (await client.get(EVENTS)).json()["cursor"]
        changed = ("B" if cursor[40] == "A" else "A").join((cursor[:40], cursor[41:]))
        assert (await client.get(EVENTS, params={"since": cursor})).status_code == 200
        assert (await client.get(EVENTS, params={"since": changed})).status_code == 422


@pytest.mark.parametrize(
    "other", [{"types": "thread.status"}, {"thread": "t"}, {"thread": "t", "types": "thread.status"}]
)
async def test_a_cursor_of_other_filters_is_422(call, other):
    async with call() as client:
        cursor = (await client.get(EVENTS)).json()["cursor"]
        assert (await client.get(EVENTS, params={"since": cursor, **other})).status_code == 422


async def test_a_cursor_of_another_subject_or_of_the_tenant_is_422(call):
    async with call(subject_id="user-1") as one, call(subject_id="user-2") as other, call("service") as service:
        cursor = (await one.get(EVENTS)).json()["cursor"]
        assert (await other.get(EVENTS, params={"since": cursor})).status_code == 422
        assert (await service.get(EVENTS, params={"since": cursor})).status_code == 422
        acting = {"Stateroom-Subject": "user-1"}
        assert (await service.get(EVENTS, params={"since": cursor}, headers=acting)).status_code == 200


async def test_last_event_id_wins_over_since(call, store):
    store.events.told += [event(1), event(2)]
    async with call() as client:
        begin = (await client.get(EVENTS)).json()["cursor"]
        store.events.told += [event(3), event(4)]
        page = (await client.get(EVENTS, params={"since": begin})).json()
        assert [each["stream_sequence"] for each in page["events"]] == [3, 4]
        last = page["events"][0]["cursor"]
        page = (await client.get(EVENTS, params={"since": begin}, headers={"Last-Event-ID": last})).json()
        assert [each["stream_sequence"] for each in page["events"]] == [4]
        refused = await client.get(EVENTS, params={"since": begin}, headers={"Last-Event-ID": "x"})
        assert (refused.status_code, refused.json()["errors"][0]["header"]) == (422, "Last-Event-ID")


# --- pages and waiting ----------------------------------------------------------------------------------------------


async def test_now_is_where_nothing_has_happened_yet(call, store):
    store.events.told.append(event(1))
    async with call() as client:
        for query in ({}, {"since": "now"}):
            page = (await client.get(EVENTS, params=query)).json()
            assert page["events"] == []
            assert page["more"] is False


async def test_the_number_of_an_event_in_its_tenant_is_not_told(call, store):
    async with call() as client:
        cursor = (await client.get(EVENTS)).json()["cursor"]
        store.events.told.append(event(4711))
        (shown,) = (await client.get(EVENTS, params={"since": cursor})).json()["events"]
        assert "sequence" not in shown


async def test_pages_go_on_until_there_is_no_more(call, store):
    async with call() as client:
        cursor = (await client.get(EVENTS)).json()["cursor"]
        store.events.told += [event(number) for number in range(1, 8)]
        found, more = [], True
        while more:
            page = (await client.get(EVENTS, params={"since": cursor, "limit": 3})).json()
            found += [each["stream_sequence"] for each in page["events"]]
            cursor, more = page["cursor"], page["more"]
        assert found == [*range(1, 8)]


async def test_a_wait_ends_with_the_first_event_that_passes_the_filter(call, store):
    async with call() as client:
        query = {"wait_seconds": 30, "types": "thread.status"}
        waiting = asyncio.create_task(client.get(EVENTS, params=query))
        await until(lambda: store.events.reads)
        store.events.happen(event(1))
        store.events.happen(event(2, subject_id="user-2", type="thread.status"))
        await until(lambda: store.events.reads > 1)
        assert not waiting.done()
        store.events.happen(event(3, type="thread.status"))
        page = (await asyncio.wait_for(waiting, SECONDS)).json()
        assert [each["stream_sequence"] for each in page["events"]] == [3]


async def test_a_wait_without_events_ends_with_a_cursor_behind_what_was_not_asked_for(call, store):
    async with call() as client:
        waiting = asyncio.create_task(client.get(EVENTS, params={"wait_seconds": 1, "types": "thread.status"}))
        await until(lambda: store.events.reads)
        store.events.happen(event(1))
        page = (await waiting).json()
        assert page["events"] == []
        store.events.error = None
        again = await client.get(EVENTS, params={"types": "thread.status", "since": page["cursor"]})
        assert again.json()["events"] == []


@pytest.mark.parametrize("seconds", ["31", "-1", "0.5", "nan", "x"])
async def test_other_waits_are_422(call, seconds):
    async with call() as client:
        assert (await client.get(EVENTS, params={"wait_seconds": seconds})).status_code == 422


async def test_an_unknown_type_is_422(call):
    async with call() as client:
        assert (await client.get(EVENTS, params={"types": "thread.exploded"})).status_code == 422


@pytest.mark.parametrize(("error", "code"), [(EventsExpired(), "events-expired"), (EventsRewound(), "events-rewound")])
async def test_410_says_how_to_begin_again(call, store, error, code):
    store.events.error = error
    async with call() as client:
        answer = await client.get(EVENTS)
        assert (answer.status_code, answer.json()["code"]) == (410, code)
        assert "since=now" in answer.json()["detail"]


# --- who may --------------------------------------------------------------------------------------------------------


async def test_who_hears_what(call, store):
    store.events.told.append(event(1))
    mine = {"Stateroom-Subject": "user-1"}
    cases = [
        ("subject", {}, {}, 200),
        ("subject", {"permissions": ("state:write",)}, {}, 403),
        ("service", {"permissions": ("event:read",)}, {}, 200),
        ("service", {"permissions": ("tenant:admin",)}, {}, 200),
        ("service", {"permissions": ("state:read",)}, {}, 403),
        ("service", {"permissions": ("state:read", "subject:act_as")}, {}, 400),
        ("service", {"permissions": ("state:read", "subject:act_as")}, mine, 200),
        ("service", {"permissions": ("event:read", "subject:act_as")}, mine, 403),
        ("operator", {}, {}, 403),
        (None, {}, {}, 401),
    ]
    for kind, more, headers, status in cases:
        async with call(kind, **more) as client:
            assert (await client.get(EVENTS, headers=headers)).status_code == status, (kind, more)


async def test_who_begins_to_listen_is_noted_and_no_question_is(call, store):
    async with call() as client:
        cursor = (await client.get(EVENTS)).json()["cursor"]
        for _ in range(3):
            await client.get(EVENTS, params={"since": cursor})
    assert [(action, target) for _, _, action, target, _ in store.audit.notes] == [("event.read", "subject/user-1")]


async def test_who_goes_on_with_anothers_cursor_is_noted_as_one_who_listens(call, store):
    mine = {"Stateroom-Subject": "user-1"}
    async with call() as first, call("service", permissions=("state:read", "subject:act_as")) as other:
        cursor = (await first.get(EVENTS)).json()["cursor"]
        for _ in range(3):
            await other.get(EVENTS, params={"since": cursor}, headers=mine)
    assert len({actor for _, actor, *_ in store.audit.notes}) == 2
    assert [(action, target) for _, _, action, target, _ in store.audit.notes] == [("event.read", "subject/user-1")] * 2


async def test_a_revoked_key_waits_no_longer(call, store):
    async with call() as client:
        waiting = asyncio.create_task(client.get(EVENTS, params={"wait_seconds": 30}))
        await until(lambda: store.events.reads)
        (key_id,) = store.tenants.api_keys
        await store.tenants.revoke_key(None, key_id, None, "")
        assert (await asyncio.wait_for(waiting, 5)).status_code == 401


async def test_a_tenant_that_cannot_be_looked_at_keeps_no_other_from_it():
    looked = []

    async def subject(scope):
        looked.append(scope)
        if scope.subject_id == "busy":
            raise Unavailable("its own requests use all of its connections")

    class Keys:
        async def verify(self, authorization, *, anew):
            if authorization == b"revoked":
                raise Unauthenticated("revoked")

    hub = Hub(None, Keys(), subject, Drain(1.0))
    busy = [Listener(Scope(uuid4(), "busy"), Wanted(), b"good", None) for _ in range(2)]
    others = [Listener(Scope(uuid4(), "other"), Wanted(), each, None) for each in (b"good", b"revoked")]
    with contextlib.ExitStack() as held:
        for each in [*busy, *others]:
            held.enter_context(hub.listening(each))
        busy[0].checked_at -= 2 * UNCHECKED_SECONDS_MAX
        await hub.check()
        ended = [each.is_ended for each in [*busy, *others]]
    assert ended == [True, False, False, True]  # of the busy ones the one that was looked at too long ago
    assert len(looked) == 4


async def test_a_shredded_subject_hears_nothing_more(app, store):
    async with listening(app, store.mint()) as stream:
        await stream.head()
        store.keys.shredded_ids.add("user-1")
        await asyncio.wait_for(stream.end(), 5)


# --- how many -------------------------------------------------------------------------------------------------------


async def test_waiters_hold_no_place_among_requests(app, call, store):
    admission = app.services.admission
    async with call() as client:
        waiting = []
        for count in (100, 200):  # as many at once as a tenant may send
            waiting += [asyncio.create_task(client.get(EVENTS, params={"wait_seconds": 30})) for _ in range(100)]
            await until(lambda: app.services.waiters.count == count and not admission.requests)  # noqa: B023  # waited
        with admission.tenant(store.tenant_id):  # the tenant's places are free, too
            store.events.happen(event(1))
            assert {(await each).status_code for each in waiting} == {200}
    assert app.services.waiters.count == 0
    assert admission.requests == 0


def test_as_many_wait_as_may_and_no_more():
    waiters, tenant = Waiters(3, 2), uuid4()
    with contextlib.ExitStack() as inside:
        for _ in range(2):
            inside.enter_context(waiters.enter(tenant))
        with pytest.raises(TooManyWaiters, match="of the tenant"), waiters.enter(tenant):
            pass
        inside.enter_context(waiters.enter(uuid4()))
        with pytest.raises(TooManyWaiters, match="in this process"), waiters.enter(uuid4()):
            pass
    assert waiters.count == 0
    with waiters.enter(tenant):
        assert waiters.count == 1


async def test_one_read_is_for_all_who_wait(call, store):
    async with call() as client:
        waiting = [asyncio.create_task(client.get(EVENTS, params={"wait_seconds": 30})) for _ in range(100)]
        await until(lambda: store.events.reads == 100)
        store.events.happen(event(1))
        for each in waiting:
            assert len((await each).json()["events"]) == 1
        assert store.events.reads == 101


async def test_one_more_than_may_is_refused(app, call, store):
    async with call() as client:
        waiting = [asyncio.create_task(client.get(EVENTS, params={"wait_seconds": 30})) for _ in range(128)]
        await until(lambda: app.services.waiters.count == 128 and not app.services.admission.requests)
        waiting += [asyncio.create_task(client.get(EVENTS, params={"wait_seconds": 30})) for _ in range(128)]
        await until(lambda: app.services.waiters.count == 256 and not app.services.admission.requests)
        refused = await client.get(EVENTS, params={"wait_seconds": 30})
        assert (refused.status_code, refused.json()["code"]) == (429, "too-many-waiters")
        assert refused.headers["retry-after"] == "5"
        for _ in range(REFUSALS_MAX // 2):
            assert (await client.get(EVENTS, params={"wait_seconds": 30})).status_code == 429
        delays = [app.services.admission.refusals.delay_seconds() for _ in range(REFUSALS_MAX)]
        assert delays[-1] == DELAY_SECONDS  # they were counted, and further ones are answered later
        assert (await client.get(EVENTS)).status_code == 200  # who does not wait is let in
        store.events.happen(event(1))
        assert {(await each).status_code for each in waiting} == {200}


# --- streams --------------------------------------------------------------------------------------------------------


async def test_a_stream_tells_events_as_they_happen(app, store):
    store.events.told.append(event(1))
    async with listening(app, store.mint()) as stream:
        status, headers = await stream.head()
        assert status == 200
        assert headers[b"content-type"] == b"text/event-stream"
        assert headers[b"x-accel-buffering"] == b"no"
        assert headers[b"cache-control"] == b"private, no-store"
        first, _ = await stream.part()
        assert first.startswith("retry: ")
        assert 1000 <= int(first.split("\n")[0][7:]) <= 3000
        assert len(first.split("id: ")[1].split("\n")[0]) == CURSOR_CHARACTERS
        store.events.happen(event(2, subject_id="user-2"))
        store.events.happen(event(3))
        ((cursor, shown),) = await stream.lines()
        assert shown["stream_sequence"] == 3
        assert "cursor" not in shown
        store.events.happen(event(4))
        assert len(await stream.lines()) == 1
    again = [(b"last-event-id", cursor.encode())]
    async with listening(app, store.mint(), headers=again) as stream:
        await stream.head()
        ((_, shown),) = await stream.lines()
        assert shown["stream_sequence"] == 4


async def test_a_stream_that_breaks_before_anything_happened_goes_on_where_it_was(app, store):
    async with listening(app, store.mint()) as stream:
        await stream.head()
        first, _ = await stream.part()
    store.events.told.append(event(1))
    again = [(b"last-event-id", first.split("id: ")[1].split("\n")[0].encode())]
    async with listening(app, store.mint(), headers=again) as stream:
        await stream.head()
        assert [each["stream_sequence"] for _, each in await stream.lines()] == [1]


async def test_a_stream_reads_what_is_behind_it_and_then_hears(app, call, store):
    async with call() as client:
        cursor = (await client.get(EVENTS)).json()["cursor"]
    store.events.told += [event(number) for number in range(1, 251)]
    async with listening(app, store.mint(), headers=[(b"last-event-id", cursor.encode())]) as stream:
        await stream.head()
        found = []
        while len(found) < 250:
            found += [each["stream_sequence"] for _, each in await stream.lines()]
        await until(lambda: not stream.task.done())
        store.events.happen(event(251))
        found += [each["stream_sequence"] for _, each in await stream.lines()]
        assert found == [*range(1, 252)]


async def test_a_client_that_hangs_up_is_no_waiter_any_more(app, store):
    async with listening(app, store.mint()) as stream:
        await stream.head()
        assert app.services.waiters.count == 1
        await stream.leave()
        assert app.services.waiters.count == 0


async def test_a_reader_is_told_all_of_a_burst_of_more_than_may_wait_for_it(app, store):
    async with listening(app, store.mint()) as stream:
        await stream.head()
        await stream.part()
        burst = 5 * WAITER_BYTES_MAX // 500
        for sequence in range(1, burst + 1):
            store.events.happen(event(sequence, run_id=f"{sequence}".rjust(200)))
        told = []
        while len(told) < burst:
            told += [data["run_id"].strip() for _, data in await stream.lines()]
        assert told == [str(sequence) for sequence in range(1, burst + 1)]
        store.events.happen(event(burst + 1))
        ((_, data),) = await stream.lines()
        assert "run_id" not in data or data["run_id"] is None


async def test_a_reader_that_takes_nothing_is_cut(app, store):
    async with listening(app, store.mint(), takes=False) as stream:
        await stream.head()
        sequence = 0
        while not stream.task.done():
            for _ in range(100):
                sequence += 1
                store.events.happen(event(sequence, run_id="r" * 200))
            await asyncio.sleep(LATE_SECONDS / 10)
            assert sequence * 500 < 40 * WAITER_BYTES_MAX
        assert app.services.waiters.count == 0
        assert stream.sent.empty()  # no end was said, so that it does not look whole


async def test_a_head_of_a_stream_ends_at_once(app, store):
    async with listening(app, store.mint(), method="HEAD") as stream:
        status, _ = await stream.head()
        assert status == 200
        assert await stream.part() == ("", False)


async def test_a_stream_does_not_take_wait_seconds(app, store):
    async with listening(app, store.mint(), path=f"{EVENTS}?wait_seconds=5") as stream:
        status, _ = await stream.head()
        assert status == 422


async def test_a_drain_ends_streams_and_waits_and_lets_no_new_stream_begin(app, call, store):
    app.services.drain.drain_seconds = 0.2
    async with listening(app, store.mint()) as stream, call() as client:
        await stream.head()
        waiting = asyncio.create_task(client.get(EVENTS, params={"wait_seconds": 30}))
        await until(lambda: app.services.waiters.count == 2)
        app.services.drain.begin()
        await stream.end()
        answer = await asyncio.wait_for(waiting, SECONDS)
        assert (answer.status_code, answer.json()["events"]) == (200, [])
        async with listening(app, store.mint()) as late:
            assert (await late.head())[0] == 503
        refused = await client.get(EVENTS, params={"wait_seconds": 30})  # or it would come again and again
        assert (refused.status_code, refused.json()["code"]) == (503, "draining")
        assert (await client.get(EVENTS)).status_code == 200


def test_ids_of_events_are_of_any_version():
    assert Positions(Peppers(Pepper(1, b"1" * 32))).write(b"", EventPosition(1, uuid7()))
