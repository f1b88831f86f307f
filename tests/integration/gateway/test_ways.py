"""The way of a save and of a load is the one in docs/architecture.md, function by function, and short."""

import asyncio
import re
import sys
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import httpx
import pytest

from gateway.app import create_app
from gateway.authentication import api_keys
from storage.model import Tenant
from storage.scope import OperatorScope
from storage.service import Store
from tests.support.operations import STATE
from tests.support.stores import DEPLOYMENT_ID
from tests.unit.gateway.doubles import PEPPERS, settings

PAGE = Path(__file__).parents[3] / "docs" / "architecture.md"
PACKAGES = ("gateway", "storage", "crypto")
DRIVER = ("execute", "fetch", "fetchrow", "fetchval", "executemany")
PATH = "/threads/t1/checkpoints"


@pytest.fixture
async def client(database, root_key):
    store = await Store.open(
        database.app_url, root_key=root_key, deployment_id=DEPLOYMENT_ID, connections_max=2, durable=False
    )
    app = create_app(settings(), store=store, background=False)
    now = datetime.now(UTC)
    tenant = Tenant(tenant_id=uuid4(), name=uuid4().hex, created_at=now)
    permissions = (*STATE, "subject:act_as")
    service, text = api_keys.mint(
        PEPPERS, api_keys.NewKey(kind="service", permissions=permissions, now=now, tenant_id=tenant.tenant_id)
    )
    await store.tenants.create(OperatorScope(founding=tenant.tenant_id), tenant, service)
    headers = {"Authorization": f"Bearer {text}", "Stateroom-Subject": "user-1"}
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test/v1", headers=headers) as made:
        await made.get("/threads")  # the key is verified, and the subject's keys are looked for
        yield made
    await store.close()


def named(frames):
    return [
        f"{frame.f_globals['__name__']}.{frame.f_code.co_qualname}"
        for frame in frames
        if frame.f_globals.get("__name__", "").partition(".")[0] in PACKAGES
    ]


def awaiting(task):
    """The frames of a task that waits, outermost first."""
    frames, at = [], task.get_coro()
    while at is not None:
        frames.append(getattr(at, "cr_frame", None) or getattr(at, "ag_frame", None) or getattr(at, "gi_frame", None))
        at = getattr(at, "cr_await", None) or getattr(at, "ag_await", None) or getattr(at, "gi_yieldfrom", None)
    return [each for each in frames if each is not None]


@contextmanager
def ways():
    """The functions of ours that are being awaited whenever the driver is called, outermost first, once each."""
    request, found = asyncio.current_task(), []

    def on_call(frame, event, _):
        code = frame.f_code
        if event == "call" and code.co_name in DRIVER and code.co_filename.endswith("asyncpg/connection.py"):
            inner, at = [], frame.f_back
            while at is not None:
                inner.insert(0, at)
                at = at.f_back
            outer = [] if asyncio.current_task() is request else awaiting(request)
            way = named(outer) + named(inner)
            if way not in found:
                found.append(way)

    sys.setprofile(on_call)
    try:
        yield found
    finally:
        sys.setprofile(None)


def documented(heading):
    """The numbered functions under a heading."""
    _, _, section = PAGE.read_text().partition(f"### {heading}\n")
    return re.findall(r"^\d+\. `([\w.<>]+)`", section.partition("\n#")[0], re.MULTILINE)


async def save(client, number, path=PATH):
    answer = await client.post(path, json={"state": {"n": number}})
    assert answer.status_code == 201, answer.text


async def test_a_save_on_what_is_remembered_takes_the_documented_way_of_ten_functions(client):
    await save(client, 1)
    with ways() as found:
        await save(client, 2)
    assert found == [documented("The way of a save on what is remembered")]
    assert len(found[0]) <= 10


async def test_a_save_that_reads_takes_at_most_twelve_functions(client):
    await save(client, 0, "/threads/other/checkpoints")  # the subject has keys
    with ways() as found:
        await save(client, 1)
    assert documented("The way of a save that reads") in found
    assert max(map(len, found)) <= 12, found


async def test_a_load_takes_the_documented_way_of_eight_functions(client):
    await save(client, 1)
    with ways() as found:
        assert (await client.get(f"{PATH}/latest")).status_code == 200
    assert found == [documented("The way of a load")]
    assert len(found[0]) <= 8
