"""Events at real gateways: heard by whom they concern, wherever they listen, whatever dies, and however many wait."""

import asyncio
import contextlib
import json
import signal
import socket
import time
from urllib.parse import urlsplit
from uuid import uuid4

import httpx
import pytest

from gateway.admission import limits
from stateroom import AsyncClient, Client, EventsExpired, EventsOff, Timeouts, Unauthenticated
from storage.control.features import EVENTS
from tests.support.events import events_on
from tests.support.features import finish_upgrade
from tests.support.operations import Tenancy
from tests.support.production import ProductionGateway, ProductionWorker, deploy, serving
from tests.victims.rows import opened

PATH = "/v1/events"
STREAM = {"Accept": "text/event-stream"}
SECONDS = 20


async def switched_on(deployment, api_key=None):
    """Switch events of a key's tenant on, as if that were long ago."""
    await finish_upgrade(deployment, EVENTS)
    async with opened(deployment) as store:
        record = await store.tenants.look_up_key((api_key or deployment.api_key).split("_")[2])
        await events_on(store, record.tenant_id)


@pytest.fixture(scope="module")
async def heard(deployment):
    """The module's deployment, whose tenant has events."""
    await switched_on(deployment)
    return deployment


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


async def save(client, thread_id, **body):
    answer = await client.post(f"/v1/threads/{thread_id}/checkpoints", json={"state": {"note": "x"}, **body})
    assert answer.status_code == 201, answer.text
    return answer.json()["checkpoint_id"]


async def begin(client, **query):
    answer = await client.get(PATH, params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()["cursor"]


async def lines_of(answer):
    """The ids and events of a stream, as they come."""
    event_id = None
    async for line in answer.aiter_lines():
        name, _, text = line.partition(": ")
        if name == "id":
            event_id = text
        elif name == "data":
            yield event_id, json.loads(text)


def thread_name():
    return f"t-{uuid4()}"


# --- who hears what, and where ------------------------------------------------------------------------------------


async def test_what_one_gateway_stores_is_heard_at_another(launcher, heard):
    thread = thread_name()
    async with (
        serving(launcher, heard) as first,
        serving(launcher, heard) as second,
        first.client() as writer,
        second.client() as listener,
    ):
        cursor = await begin(listener)
        waiting = asyncio.create_task(listener.get(PATH, params={"since": cursor, "wait_seconds": 30}))
        async with listener.stream("GET", PATH, headers={**STREAM, "Last-Event-ID": cursor}) as stream:
            saved = await save(writer, thread)
            found = []
            async with asyncio.timeout(SECONDS):
                async for _, event in lines_of(stream):
                    found.append(event)
                    if event["type"] == "checkpoint.saved":
                        break
        assert [each["type"] for each in found] == ["thread.created", "checkpoint.saved"]
        assert {each["thread_id"] for each in found} == {thread}
        assert found[-1]["checkpoint_id"] == saved
        page = (await asyncio.wait_for(waiting, SECONDS)).json()
        assert page["events"][0]["thread_id"] == thread


async def test_gateways_that_do_nothing_in_the_background_hear_what_a_worker_numbers(launcher, heard):
    async with serving(launcher, heard, "--no-background") as gateway, gateway.client() as client:
        cursor = await begin(client)
        worker = await ProductionWorker(launcher, heard).start()
        try:
            waiting = asyncio.create_task(client.get(PATH, params={"since": cursor, "wait_seconds": 30}))
            await save(client, thread_name())
            page = (await asyncio.wait_for(waiting, SECONDS)).json()
            assert page["events"][0]["type"] == "thread.created"
        finally:
            await worker.stop()


async def test_nobody_else_hears_it(launcher, heard):
    async with serving(launcher, heard) as gateway:
        tenancy = Tenancy(_Operated(gateway))
        other_key = await asyncio.to_thread(tenancy.tenant)
        await switched_on(heard, other_key)
        async with (
            gateway.client("one") as one,
            gateway.client("two") as two,
            gateway.client("one", other_key) as elsewhere,
            whole_tenant(gateway, heard.api_key) as all_of_it,
            whole_tenant(gateway, other_key) as all_elsewhere,
        ):
            clients = (one, two, elsewhere, all_of_it, all_elsewhere)
            cursors = [await begin(each) for each in clients]
            thread = thread_name()
            waiting = [
                asyncio.create_task(each.get(PATH, params={"since": cursor, "wait_seconds": 3}))
                for each, cursor in zip(clients, cursors, strict=True)
            ]
            await save(one, thread)
            answers = [(await each).json() for each in waiting]
            assert [{each["thread_id"] for each in page["events"]} for page in answers] == [
                {thread}, set(), set(), {thread}, set(),
            ]  # fmt: skip
            # A cursor of one is none of another, whoever they are.
            for each in (two, elsewhere, all_of_it, all_elsewhere):
                assert (await each.get(PATH, params={"since": cursors[0]})).status_code == 422


class _Operated:
    """A gateway as `Tenancy` knows it."""

    def __init__(self, gateway):
        self.url, self.operator_key = gateway.url, gateway.deployment.operator_key


@contextlib.asynccontextmanager
async def whole_tenant(gateway, api_key):
    async with httpx.AsyncClient(
        base_url=gateway.url, headers={"Authorization": f"Bearer {api_key}"}, timeout=60
    ) as client:
        yield client


async def test_filters_leave_out_what_is_not_asked_for(launcher, heard):
    async with serving(launcher, heard) as gateway, gateway.client() as client:
        thread, other = thread_name(), thread_name()
        query = {"types": ["thread.deleted", "checkpoint.saved"], "thread": thread}
        cursor = await begin(client, **query)
        await save(client, other)
        await save(client, thread)
        assert (await client.delete(f"/v1/threads/{thread}")).status_code == 204
        found = []
        async with asyncio.timeout(SECONDS):
            while "thread.deleted" not in found:
                page = (await client.get(PATH, params={**query, "since": cursor, "wait_seconds": 10})).json()
                found += [each["type"] for each in page["events"]]
                assert {each["thread_id"] for each in page["events"]} <= {thread}
                cursor = page["cursor"]
        assert found == ["checkpoint.saved", "thread.deleted"]


# --- what dies ----------------------------------------------------------------------------------------------------


async def test_no_event_is_skipped_and_none_comes_twice_while_gateways_are_killed(launcher, heard):
    """The client listens at one address whose gateway is killed again and again; another one stores meanwhile."""
    port, thread, count = free_port(), thread_name(), 240
    stored, told = [], []
    async with serving(launcher, heard) as writing, writing.client() as writer:
        gateway = await ProductionGateway(launcher, heard, listen=f"127.0.0.1:{port}").start()
        timeouts = Timeouts(attempt_seconds=5.0, total_seconds=10.0)
        async with AsyncClient(gateway.url, heard.api_key, subject="user-1", timeouts=timeouts) as client:
            events = client.events(types=["checkpoint.saved"], thread=thread)
            first = asyncio.create_task(anext(events))
            # The iterator begins where "now" is for its first step: what is stored until that is known is not counted.
            before = 0
            while not first.done():
                await save(writer, thread, run_id=f"before-{before}")
                before += 1
                await asyncio.sleep(0.1)
            begun = (await first).run_id

            async def listen():
                async for event in events:
                    told.append(event)
                    if event.run_id == f"run-{count - 1}":
                        return

            listening = asyncio.create_task(listen())
            for number in range(count):
                stored.append(await save(writer, thread, run_id=f"run-{number}"))
                if number % 80 == 40:
                    await gateway.kill()
                    gateway = await ProductionGateway(launcher, heard, listen=f"127.0.0.1:{port}").start()
            async with asyncio.timeout(60):
                await listening
        await gateway.stop()
    assert begun.startswith("before-")
    ids = [each.checkpoint_id for each in told if each.run_id.startswith("run-")]
    assert ids == stored
    assert len({each.event_id for each in told}) == len(told)


async def test_a_stream_goes_on_with_its_last_id_after_its_gateway_was_killed(launcher, heard):
    port, thread, count = free_port(), thread_name(), 120
    query = {"thread": thread, "types": "checkpoint.saved"}
    stored, told = [], []
    async with serving(launcher, heard) as writing, writing.client() as writer:
        gateway = await ProductionGateway(launcher, heard, listen=f"127.0.0.1:{port}").start()
        async with gateway.client() as client:
            last = await begin(client, **query)

            async def listen():
                nonlocal last
                while len(told) < count:
                    with contextlib.suppress(httpx.TransportError):
                        headers = {**STREAM, "Last-Event-ID": last}
                        async with client.stream("GET", PATH, params=query, headers=headers) as stream:
                            assert stream.status_code == 200
                            async for cursor, event in lines_of(stream):
                                told.append(event)
                                last = cursor
                                if len(told) == count:
                                    return
                    await asyncio.sleep(0.02)

            listening = asyncio.create_task(listen())
            for number in range(count):
                stored.append(await save(writer, thread))
                if number in {30, 80}:
                    await gateway.kill()
                    gateway = await ProductionGateway(launcher, heard, listen=f"127.0.0.1:{port}").start()
            async with asyncio.timeout(60):
                await listening
        await gateway.stop()
    assert [each["checkpoint_id"] for each in told] == stored


async def test_a_gateway_that_stops_ends_streams_and_waits_within_half_of_its_drain(launcher, heard):
    async with serving(launcher, heard, drain_seconds="3") as gateway, gateway.client() as client:
        async with client.stream("GET", PATH, headers=STREAM) as stream:
            lines = stream.aiter_lines()
            await anext(lines)
            waiting = asyncio.create_task(client.get(PATH, params={"wait_seconds": 30}))
            await asyncio.sleep(0.5)  # another process' affair, which says nowhere that it waits
            began = time.monotonic()
            gateway.send(signal.SIGTERM)
            async for _ in lines:
                pass
            answer = await waiting
            assert time.monotonic() - began < 2.5
            assert (answer.status_code, answer.json()["events"]) == (200, [])
        assert await gateway.wait() == 0
        assert time.monotonic() - began < 6


# --- who may no more ----------------------------------------------------------------------------------------------


async def test_a_key_that_is_revoked_elsewhere_listens_no_longer_than_5_seconds(launcher, heard):
    async with serving(launcher, heard) as first, serving(launcher, heard) as second:
        tenancy = Tenancy(_Operated(second))
        key = await asyncio.to_thread(tenancy.key, heard.api_key, "user-1", ["state:read"])
        headers = {"Authorization": f"Bearer {key}"}
        async with httpx.AsyncClient(base_url=first.url, headers=headers, timeout=60) as client:
            waiting = asyncio.create_task(client.get(PATH, params={"wait_seconds": 30}))
            async with client.stream("GET", PATH, headers=STREAM) as stream:
                lines = stream.aiter_lines()
                await anext(lines)
                await asyncio.to_thread(tenancy.revoke, heard.api_key, key)
                revoked = time.monotonic()
                async for _ in lines:
                    pass
                assert (await waiting).status_code == 401
                assert time.monotonic() - revoked < 6
            assert (await client.get(PATH, headers=STREAM)).status_code == 401
            with Client(first.url, key) as listener, pytest.raises(Unauthenticated):
                next(listener.events())


async def test_a_subject_that_is_shredded_listens_no_longer_than_5_seconds(launcher, heard):
    async with serving(launcher, heard) as gateway, gateway.client("gone") as client:
        await save(client, thread_name())
        async with client.stream("GET", PATH, headers=STREAM) as stream:
            lines = stream.aiter_lines()
            await anext(lines)
            shredded = await client.post("/v1/subjects/gone/shred", json={"confirm": "gone"})
            assert shredded.status_code == 202
            began = time.monotonic()
            async for _ in lines:
                pass
            assert time.monotonic() - began < 8
        refused = await client.get(PATH)
        assert (refused.status_code, refused.json()["code"]) == (410, "key-destroyed")


# --- how many -----------------------------------------------------------------------------------------------------


async def test_saves_go_on_while_as_many_wait_as_may(launcher, heard):
    """The database has room for two, so that nobody who waits can have a connection."""
    async with (
        serving(launcher, heard, database_connections_max="2") as gateway,
        gateway.client() as client,
        contextlib.AsyncExitStack() as streams,
    ):
        cursor = await begin(client)
        for _ in range(limits.TENANT_WAITERS_MAX // 64):
            opening = [
                streams.enter_async_context(client.stream("GET", PATH, headers={**STREAM, "Last-Event-ID": cursor}))
                for _ in range(64)
            ]
            assert {answer.status_code for answer in await asyncio.gather(*opening)} == {200}
        refused = await client.get(PATH, headers=STREAM)
        assert (refused.status_code, refused.json()["code"]) == (429, "too-many-waiters")
        waited = await client.get(PATH, params={"wait_seconds": 30})
        assert waited.status_code == 429
        thread = thread_name()
        for _ in range(20):
            await save(client, thread)
        page = (await client.get(PATH, params={"since": cursor})).json()  # who does not wait is let in
        assert page["events"]


async def test_a_reader_that_takes_nothing_is_cut_and_holds_no_place(launcher, heard):
    async with serving(launcher, heard) as gateway, gateway.client() as client:
        parts = urlsplit(gateway.url)
        slow = socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.settimeout(SECONDS)
        slow.connect((parts.hostname, parts.port))
        slow.sendall(
            f"GET {PATH} HTTP/1.1\r\nHost: {parts.netloc}\r\nAuthorization: Bearer {heard.api_key}\r\n"
            "Stateroom-Subject: user-1\r\nAccept: text/event-stream\r\n\r\n".encode()
        )
        await asyncio.to_thread(slow.recv, 1)
        deadline = time.monotonic() + 120
        long = {"run_id": "r" * 255, "agent": "a" * 255, "namespace": "n" * 1000}  # the system keeps megabytes for it
        while "events not read" not in gateway.log:  # at level info
            assert time.monotonic() < deadline, gateway.log[-20_000:]
            await asyncio.gather(*(save(client, f"{number}".ljust(255, "t"), **long) for number in range(16)))
        slow.close()


@pytest.fixture(autouse=True)
def _log_level(heard):
    heard.environ["STATEROOM_LOG_LEVEL"] = "info"


# --- settings -----------------------------------------------------------------------------------------------------


async def test_events_are_off_until_somebody_switches_them_on(
    launcher, durable_postgres, durable_template, production_dir
):
    fresh = await deploy(durable_postgres, production_dir, durable_template)
    async with serving(launcher, fresh) as gateway, whole_tenant(gateway, fresh.api_key) as client:
        for method, path, body in (("GET", PATH, None), ("PUT", f"{PATH}/settings", {"on": True})):
            refused = await client.request(method, path, json=body)
            assert (refused.status_code, refused.json()["code"]) == (409, "feature-off")
        assert (await client.get(f"{PATH}/settings")).json() == {"on": False, "on_since": None, "damaged": False}
        await finish_upgrade(fresh, EVENTS)
        async with asyncio.timeout(SECONDS):
            while (refused := await client.get(PATH)).json()["code"] == "feature-off":  # noqa: ASYNC110
                await asyncio.sleep(0.2)  # until the process has looked what is on
        assert (refused.status_code, refused.json()["code"]) == (409, "events-off")
        with Client(gateway.url, fresh.api_key) as listener, pytest.raises(EventsOff):
            next(listener.events())
        on = (await client.put(f"{PATH}/settings", json={"on": True})).json()
        assert on["on"]
        assert on["on_since"] is not None
        early = await client.get(PATH)  # not before on_since, which is some seconds ahead
        assert (early.status_code, early.json()["code"]) == (409, "events-off")
        assert (await client.put(f"{PATH}/settings", json={"on": False})).json()["on"] is False
        noted = (await client.get("/v1/audit")).json()["events"]
        assert [each["action"] for each in noted].count("event-settings.set") == 2


async def test_a_cursor_from_before_events_were_switched_on_again_has_expired(launcher, heard):
    async with serving(launcher, heard) as gateway:
        tenancy = Tenancy(_Operated(gateway))
        key = await asyncio.to_thread(tenancy.tenant)
        await switched_on(heard, key)
        async with whole_tenant(gateway, key) as client:
            cursor = await begin(client)
            await switched_on(heard, key)
            refused = await client.get(PATH, params={"since": cursor})
            assert (refused.status_code, refused.json()["code"]) == (410, "events-expired")
            with Client(gateway.url, key) as listener, pytest.raises(EventsExpired):
                next(listener.events(since=cursor))


async def test_who_begins_to_listen_is_in_the_audit_log_and_no_question_is(launcher, heard):
    async with serving(launcher, heard) as gateway:
        tenancy = Tenancy(_Operated(gateway))
        key = await asyncio.to_thread(tenancy.tenant)
        await switched_on(heard, key)
        async with whole_tenant(gateway, key) as client:
            cursor = await begin(client)
            for _ in range(5):
                await client.get(PATH, params={"since": cursor})
            async with asyncio.timeout(SECONDS):
                while not (found := await _notes(client)):  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
        assert found == [1]


async def _notes(client):
    events = (await client.get("/v1/audit", params={"limit": 1000})).json()["events"]
    accesses = [each for event in events if event["action"] == "access" for each in event["detail"]["accesses"]]
    return [each["count"] for each in accesses if each["action"] == "event.read"]
