"""State that was saved without versions, adopted afterwards: over HTTP, and with the command line."""

import json
from collections.abc import AsyncIterator
from uuid import UUID

import pytest

from crypto.roots import create_root_key
from gateway.cli.main import run
from storage.control.features import ADOPTIONS as ADOPTIONS_FEATURE
from storage.service import Store
from tests.support.features import switch_on
from tests.support.gateway import Tenant
from tests.support.operations import Tenancy, assert_problem
from tests.support.production import serving

STEP = {
    "up": [{"op": "rename", "from": "/msgs", "to": "/messages"}],
    "down": [{"op": "rename", "from": "/messages", "to": "/msgs"}],
}
PATH = "/v1/threads/t1/checkpoints"
ADOPTIONS = "/v1/state-schemas/travel/adoptions"
V1, V2 = {"Accept-State-Version": "travel=1"}, {"Accept-State-Version": "travel=2"}
OTHER = {"Accept-State-Version": "billing=1"}
AT_2 = {"state_schema": "travel", "state_version": 2}
OLD, NEW = {"msgs": ["hi"]}, {"messages": ["hi"]}
ADOPTED = {"agent": "travel", "state_version": 1}


@pytest.fixture(scope="module")
async def tenancy(launcher, deployment) -> AsyncIterator[Tenancy]:
    """Tenants of a deployment whose upgrade was finished: before, nothing is adopted."""
    async with serving(launcher, deployment) as gateway:
        store = await Store.open(
            deployment.environ["STATEROOM_DATABASE_URL"],
            root_key=create_root_key(deployment.environ["STATEROOM_ROOT_KEY"]),
            deployment_id=UUID(deployment.environ["STATEROOM_DEPLOYMENT_ID"]),
            connections_max=1,
        )
        await switch_on(store, ADOPTIONS_FEATURE)
        await store.close()
        yield Tenancy(Tenant(gateway.url, deployment.api_key, deployment.operator_key))


@pytest.fixture
def api_key(tenancy):
    return tenancy.tenant()


@pytest.fixture
def client(tenancy, api_key):
    """A new tenant's, with a schema of two versions and a thread that was saved without one."""
    with tenancy.client(api_key, "user-1") as opened:
        for number, definition in enumerate(({}, STEP), 1):
            assert opened.put(f"/v1/state-schemas/travel/versions/{number}", json=definition).status_code == 201
        opened.saved = saved(opened.post(PATH, json={"state": OLD, "agent": "travel"}))
        yield opened


@pytest.fixture
def command(tenancy, client, api_key, monkeypatch, capsys):
    monkeypatch.setenv("STATEROOM_URL", tenancy.gateway.url)
    monkeypatch.setenv("STATEROOM_API_KEY", api_key)
    monkeypatch.setenv("STATEROOM_SUBJECT", "user-1")

    def call(*words):
        capsys.readouterr()
        code = run(list(words))
        return code, *capsys.readouterr()

    return call


def saved(answer):
    assert answer.status_code == 201, answer.text
    return answer.json()["checkpoint_id"]


def state(client, versions, path=f"{PATH}/latest"):
    answer = client.get(path, headers=versions)
    assert answer.status_code == 200, answer.text
    return answer.json()["state"]


def test_an_adoption_is_said_once_and_corrected_until_somebody_built_on_it(client):
    made = client.post(ADOPTIONS, json=ADOPTED)
    assert (made.status_code, made.json()["namespace"]) == (201, "")
    again = client.post(ADOPTIONS, json=ADOPTED)
    assert (again.status_code, again.json()) == (200, made.json())
    other = ADOPTED | {"state_version": 2}
    assert_problem(client.post(ADOPTIONS, json=other), 409, "adoption-exists")
    assert client.post(ADOPTIONS, json=other | {"supersede": True}).status_code == 201
    assert state(client, V2) == OLD, "it says 2 now"
    assert client.post(ADOPTIONS, json=ADOPTED | {"supersede": True}).status_code == 201
    saved(client.post(PATH, json={"state": NEW, "agent": "travel", **AT_2}))
    assert_problem(client.post(ADOPTIONS, json=other | {"supersede": True}), 409, "adoption-built-on")
    assert [each["state_version"] for each in client.get(ADOPTIONS).json()["adoptions"]] == [1]
    actions = [each["action"] for each in client.get("/v1/audit").json()["events"]]
    assert actions.count("state-schema.adopt") == 3
    assert_problem(client.post(ADOPTIONS, json=ADOPTED | {"state_version": 3}), 409, "state-too-new")


def test_adopted_state_is_read_at_versions_and_state_of_another_schema_is_never_given_in_silence(client):
    assert state(client, OTHER) == OLD, "nobody has said what it is"
    assert client.post(ADOPTIONS, json=ADOPTED).status_code == 201
    assert client.post("/v1/threads/t1/copy", json={"target_thread_id": "t2"}).status_code == 201
    reads = (f"{PATH}/latest", f"{PATH}/{client.saved}", "/v1/threads/t2/checkpoints/latest")
    for path in reads:
        assert (state(client, V1, path), state(client, V2, path)) == (OLD, NEW)
        assert state(client, {}, path) == OLD, "without a version in mind it comes as it was saved"
        assert_problem(client.get(path, headers=OTHER), 409, "state-schema-mismatch")
    page = client.get(PATH, params={"view": "state"}, headers=V2).json()["checkpoints"]
    assert [each["state"] for each in page] == [NEW]
    listed = {"view": "state"}
    assert_problem(client.get(PATH, params=listed, headers=OTHER), 409, "state-schema-mismatch")


def test_from_then_on_the_agents_saves_name_their_version(client):
    assert client.post(ADOPTIONS, json=ADOPTED).status_code == 201
    head = {"If-Match": f'"{client.saved}"'}
    unversioned = ({"state": OLD, "agent": "travel"}, {}), ({"changes": {"set": {"a": 1}}}, head)
    for body, headers in unversioned:
        assert_problem(client.post(PATH, json=body, headers=headers), 422, "state-version-required")
    writes = f"{PATH}/{client.saved}/writes/task"
    sent = {"writes": [{"idx": 0, "channel": "msgs", "value": "x"}]}
    assert_problem(client.post(writes, json=sent), 422, "state-version-required")
    compact = {"channel": "msgs", "keep_last": 0, "summary": ["so far"]}
    assert_problem(client.post("/v1/threads/t1/compact", json=compact), 422, "state-version-required")
    assert client.get(PATH).json()["checkpoints"][0]["checkpoint_id"] == client.saved
    saved(client.post(PATH, json={"changes": {"append": {"messages": ["there"]}}, **AT_2}, headers=head))
    assert state(client, {}) == {"messages": ["hi", "there"]}
    saved(client.post("/v1/threads/t3/checkpoints", json={"state": OLD, "agent": "billing"}))


def test_operators_adopt_plan_migrate_and_roll_back_and_nothing_changed_is_no_success(client, command):
    code, _, told = command("state", "migrate", "travel", "--idle-seconds", "0")
    assert code != 0, "nothing is at a version, so nothing was done"
    assert "state adopt travel" in told
    assert command("state", "adopt", "travel", "1", "--agent", "travel")[0] == 0
    for verb in ("plan", "migrate"):
        code, report, _ = command("state", verb, "travel", "--idle-seconds", "0", "--json")
        assert (code, json.loads(report)["changed"]) == (0, 1)
    assert state(client, {}) == NEW
    code, _, told = command("state", "migrate", "travel")
    assert (code, "at the version already" in told) == (0, True)
    assert command("state", "rollback", "travel")[0] == 0
    assert state(client, {}) == OLD
    head = client.get(f"{PATH}/latest").json()
    assert (head["state_schema"], head["state_version"]) == ("travel", 1), "never below the adopted version"
    code, _, told = command("state", "rollback", "travel")
    assert code != 0
    assert "nothing was rolled back" in told
    assert command("state", "migrate", "travel", "--idle-seconds", "3600")[0] == 0, "a rollback's save is no recent use"
