"""Steps in Python that an operator installs beside the gateway: found at its start, used by whoever names them."""

import asyncio
import shutil
import tempfile
from pathlib import Path

import pytest

from gateway.asgi import FromEnvironment
from gateway.settings import SettingsError
from stateroom import Client, StateroomError, StateUpcastFailed
from tests.support.gateway import GatewayProcess
from tests.support.production import ProductionGateway, serving

STEP = """
def upcast(state):
    first, _, last = state["name"].partition(" ")
    return {**{channel: value for channel, value in state.items() if channel != "name"}, "first": first, "last": last}


def upcast_write(channel, value):
    return dict(zip(("first", "last"), value.split(" ", 1))) if channel == "name" else {channel: value}


def downcast(state):
    rest = {channel: value for channel, value in state.items() if channel not in ("first", "last")}
    return {**rest, "name": f"{state['first']} {state['last']}"}
"""


@pytest.fixture(scope="module")
def folder():
    made = Path(tempfile.mkdtemp(prefix="stateroom-shipped-"))
    package, announced = made / "crm_steps" / "people", made / "crm_steps-1.dist-info"
    for each in (package, announced):
        each.mkdir(parents=True)
    (package.parent / "__init__.py").touch()
    (package / "__init__.py").touch()
    (package / "v1_to_v2.py").write_text(STEP)
    (announced / "METADATA").write_text("Metadata-Version: 2.1\nName: crm-steps\nVersion: 1\n")
    (announced / "entry_points.txt").write_text("[stateroom.state_schemas]\ncrm = crm_steps\n")
    yield made
    shutil.rmtree(made, ignore_errors=True)


def test_an_installed_step_is_run_for_the_schema_that_names_it_and_for_no_other(folder):
    with (
        GatewayProcess(folder / "data", {"PYTHONPATH": str(folder)}) as gateway,
        Client(gateway.url, gateway.api_key, subject="user-1") as client,
    ):
        for schema, definition in (
            ("contacts", {"deployment": "people"}),
            ("plain", {"up": [{"op": "remove", "path": "/x"}]}),
        ):
            client.request("PUT", f"/state-schemas/{schema}/versions/1", body={})
            client.request("PUT", f"/state-schemas/{schema}/versions/2", body=definition)
        for name in ("people/../x", "os", "crm_steps", "plain"):
            with pytest.raises(StateroomError) as refused:
                client.request("PUT", "/state-schemas/contacts/versions/3", body={"deployment": name})
            assert refused.value.code == "invalid-request"
        old, new = (client.thread("t", state_version=f"contacts@{number}") for number in (1, 2))
        saved = old.save({"name": "Ada Lovelace", "age": 36})
        place = f"/threads/t/checkpoints/{saved.checkpoint_id}"
        client.request(
            "POST", f"{place}/writes/task", body={"writes": [{"idx": 0, "channel": "name", "value": "Augusta King"}]}
        )
        assert new.load().state == {"first": "Ada", "last": "Lovelace", "age": 36}
        shown = client.request("GET", place, headers={"Accept-State-Version": "contacts=2"}).decode()
        assert [(each["channel"], each["value"]) for each in shown["pending_writes"]] == [
            ("first", "Augusta"), ("last", "King")
        ]  # fmt: skip
        new.save({"first": "Grace", "last": "Hopper", "age": 85})
        assert old.load().state == {"name": "Grace Hopper", "age": 85}
        client.thread("p", state_version="plain@1").save({"name": "Ada Lovelace"})
        assert client.thread("p", state_version="plain@2").load().state == {"name": "Ada Lovelace"}
        # Where operators' code raises, its words stay inside: they may hold state.
        client.thread("broken", state_version="contacts@1").save({"secret": "s3cr3t"})
        with pytest.raises(StateUpcastFailed) as failed:
            client.thread("broken", state_version="contacts@2").load()
        assert "KeyError" in str(failed.value)
        assert client.thread("broken", state_version="contacts@1").load().state == {"secret": "s3cr3t"}
    assert "s3cr3t" not in gateway.log


@pytest.fixture
def own_folder(folder):
    made = folder / "own"
    (made / "people").mkdir(parents=True, mode=0o755)
    (made / "people" / "v1_to_v2.py").write_text(STEP)
    (made / "people" / "v1_to_v2.py").chmod(0o644)
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


def save_old_and_load_new(url, api_key):
    with Client(url, api_key, subject="user-1") as client:
        client.request("PUT", "/state-schemas/contacts/versions/1", body={})
        client.request("PUT", "/state-schemas/contacts/versions/2", body={"deployment": "people"})
        client.thread("t", state_version="contacts@1").save({"name": "Ada Lovelace", "age": 36})
        shown = client.thread("t", state_version="contacts@2").load()
        assert shown.state == {"first": "Ada", "last": "Lovelace", "age": 36}


async def test_steps_of_the_folder_that_serve_is_told_are_run(launcher, deployment, own_folder):
    told = ("--state-schemas", str(own_folder))
    async with serving(launcher, deployment, *told) as gateway:
        await asyncio.to_thread(save_old_and_load_new, gateway.url, deployment.api_key)
    (own_folder / "people" / "v1_to_v2.py").chmod(0o666)
    refused = ProductionGateway(launcher, deployment, *told)
    with pytest.raises(AssertionError, match="other users can change this") as why:
        await refused.start()
    assert await refused.wait() == 1
    assert "v1_to_v2.py" in str(why.value)
    assert "Traceback" not in str(why.value)


async def test_an_application_for_other_servers_takes_the_folder_too(own_folder, monkeypatch, deployment):
    for name, text in deployment.environ.items():
        monkeypatch.setenv(name, text)
    (own_folder / "people" / "v1_to_v2.py").chmod(0o666)

    async def nothing():
        return {"type": "lifespan.startup"}

    async def sent(_message):
        return

    with pytest.raises(SettingsError, match="other users can change this"):
        await FromEnvironment(state_schemas=own_folder)({"type": "lifespan"}, nothing, sent)
