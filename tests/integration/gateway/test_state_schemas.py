"""State schemas over HTTP: registration, versions on every operation that returns state, and eager migration."""

import json
import re
import time
from pathlib import Path

import pytest

import gateway.routes
from gateway.telemetry import Metrics
from tests.support.operations import Tenancy, assert_problem

RENAME = {
    "up": [{"op": "rename", "from": "/msgs", "to": "/messages"}],
    "down": [{"op": "rename", "from": "/messages", "to": "/msgs"}],
}
PATH = "/v1/threads/t1/checkpoints"
JOB_SECONDS_MAX = 30


@pytest.fixture(scope="module")
def tenancy(running_gateway):
    return Tenancy(running_gateway)


@pytest.fixture
def service(tenancy):
    """A new tenant's service key, acting for one subject."""
    with tenancy.client(tenancy.tenant(), "user-1") as client:
        yield client


def register(client, *definitions, schema="travel"):
    for number, definition in enumerate(definitions, 1):
        answer = client.put(f"/v1/state-schemas/{schema}/versions/{number}", json=definition)
        assert answer.status_code == 201, answer.text


def save(client, number, state, **parts):
    answer = client.post(PATH, json={"state": state, "state_schema": "travel", "state_version": number, **parts})
    assert answer.status_code == 201, answer.text
    return answer


def at(number):
    return {"Accept-State-Version": str(number)}


def test_no_route_reads_or_saves_state_past_the_versions():
    past = re.compile(r"store\.checkpoints\.(?!tenant_listing)")
    for path in Path(gateway.routes.__file__).parent.rglob("*.py"):
        assert not past.search(path.read_text()), path.name


def test_registering_listing_and_showing(service):
    register(service, {"label": "1.0.0", "ephemeral": ["token"]}, RENAME)
    again = service.put("/v1/state-schemas/travel/versions/2", json=RENAME)
    assert (again.status_code, again.json()["up"]) == (200, RENAME["up"])
    assert_problem(service.put("/v1/state-schemas/travel/versions/2", json={"up": []}), 409, "state-schema-exists")
    assert service.get("/v1/state-schemas").json() == {
        "state_schemas": [{"state_schema": "travel", "newest_version": 2}],
        "next_cursor": None,
    }
    shown = service.get("/v1/state-schemas/travel").json()
    assert [(each["state_version"], each["label"]) for each in shown["versions"]] == [(1, "1.0.0"), (2, None)]
    assert_problem(service.get("/v1/state-schemas/nobody"), 404, "state-schema-not-found")
    for path in ("tra vel/versions/3", "travel/versions/0", "travel/versions/x"):
        assert_problem(service.put(f"/v1/state-schemas/{path}", json=RENAME), 422, "invalid-request")


def nested(depth):
    operation = {"op": "remove", "path": "/x"}
    for _ in range(depth):
        operation = {"op": "for_each", "path": "/x", "operations": [operation]}
    return operation


@pytest.mark.parametrize(
    ("operation", "pointer"),
    [
        ({"op": "exec", "path": "/a"}, "/up/0"),
        ({"op": "rename", "from": "/a"}, "/up/0"),
        ({"op": "remove", "path": "/a", "when": "__import__('os').system('id')"}, "/up/0/when"),
        ({"op": "remove", "path": "/a", "when": "size(" * 200 + "a" + ")" * 200}, "/up/0/when"),
        ({"op": "set_default", "path": "/a", "value": "x" * 100_000}, "/up/0/value"),
        (nested(10), "/up/0"),
        ({"op": "split", "from": "/a", "separator": "", "to": ["/b", "/c"]}, "/up/0"),
    ],
)
def test_hostile_steps_are_refused_with_their_place(service, operation, pointer):
    register(service, {})
    began = time.monotonic()
    problem = assert_problem(
        service.put("/v1/state-schemas/travel/versions/2", json={"up": [operation]}), 422, "invalid-request"
    )
    assert problem["errors"][0]["pointer"].startswith(pointer)
    assert time.monotonic() - began < 2
    assert service.get("/v1/state-schemas").json()["state_schemas"][0]["newest_version"] == 1


def test_a_step_that_grows_without_bound_is_stopped_when_it_runs(service):
    doubling = [{"op": "copy", "from": "/a", "to": "/b"}]
    for _ in range(12):
        doubling += [
            {"op": "wrap", "path": "/a", "in": "x"}, {"op": "copy", "from": "/b", "to": "/a/y"},
            {"op": "remove", "path": "/b"}, {"op": "copy", "from": "/a", "to": "/b"},
        ]  # fmt: skip
    register(service, {}, {"up": doubling})
    save(service, 1, {"a": ["secret"] * 1000})
    problem = assert_problem(service.get(f"{PATH}/latest", headers=at(2)), 422)
    assert problem["code"] in {"state-upcast-failed", "too-costly"}, "whichever bound is met first on this machine"
    assert "'travel'" in problem["detail"]
    assert "secret" not in str(problem)
    assert service.get(f"{PATH}/latest").json()["state"]["a"][0] == "secret"


def test_every_operation_that_returns_state_gives_it_at_the_readers_version(service):
    register(service, {}, RENAME)
    head = save(service, 1, {"msgs": ["a"]}, delta_channels=["msgs"])
    first = head.json()["checkpoint_id"]
    writes = {"writes": [{"channel": "msgs", "idx": 0, "value": ["b"]}]}
    assert service.post(f"{PATH}/{first}/writes/task-1", json=writes).status_code == 200
    writes = {"writes": [{"channel": "messages", "idx": 0, "value": ["c"]}], "state_schema": "travel"}
    assert_problem(service.post(f"{PATH}/{first}/writes/task-2", json=writes), 422, "invalid-request")
    writes["state_version"] = 2
    assert service.post(f"{PATH}/{first}/writes/task-2", json=writes).status_code == 200
    for number, name, other in ((1, "msgs", "messages"), (2, "messages", "msgs"), ("travel=2", "messages", "msgs")):
        headers = at(number)
        for path in (f"{PATH}/latest", f"{PATH}/{first}"):
            answer = service.get(path, headers=headers)
            assert answer.headers["etag"] == f'"{first}"'
            assert (answer.json()["state"], answer.json()["delta_channels"]) == ({name: ["a"]}, [name])
            assert [(each["channel"], each["value"]) for each in answer.json()["pending_writes"]] == [
                (name, ["b"]), (name, ["c"])
            ]  # fmt: skip
        for path in (f"{PATH}?view=state", "/v1/checkpoints?view=state"):
            [found] = service.get(path, headers=headers).json()["checkpoints"]
            assert found["state"] == {name: ["a"]}
        for task in ("task-1", "task-2"):
            [write] = service.get(f"{PATH}/{first}/writes/{task}", headers=headers).json()["writes"]
            assert write["channel"] == name
        assert other not in service.get(f"{PATH}/latest?view=channels", headers=headers).json()["channels"]
    save(service, 2, {"x": 1}, delta_channels=["messages"])
    for number, name in ((1, "msgs"), (2, "messages")):
        found = service.get(f"{PATH}/latest/channel-history?channel={name}", headers=at(number)).json()
        assert [each["channel"] for each in found["channels"][name]["writes"]] == [name, name]
        assert "seed" in found["channels"][name]


def test_what_cannot_be_shown_or_saved_is_a_problem(service):
    register(service, {"json_schema": {"properties": {"n": {"type": "integer"}}}}, {"up": RENAME["up"]})
    save(service, 2, {"messages": []})
    assert_problem(service.get(f"{PATH}/latest", headers=at(1)), 409, "state-too-new")
    assert_problem(service.get(f"{PATH}/latest", headers=at(9)), 409, "state-too-new")
    newer = {"state": {}, "state_schema": "travel", "state_version": 3}
    assert_problem(service.post(PATH, json=newer), 409, "state-too-new")
    problem = assert_problem(
        service.post(PATH, json={"state": {"n": "secret"}, "state_schema": "travel", "state_version": 1}), 422
    )
    assert problem["errors"][0]["pointer"] == "/state/n"
    assert "secret" not in str(problem)
    for wrong in ("0", "x", "travel", "1,2", "travel=1,travel=2", "travel=", "-1", "1.5", ""):
        problem = assert_problem(service.get(f"{PATH}/latest", headers=at(wrong)), 422, "invalid-request")
        assert problem["errors"][0]["header"] == "Accept-State-Version"


def test_a_gap_is_told_by_its_step_and_by_the_parameter_that_makes_it(service):
    register(service, {})
    problem = service.put("/v1/state-schemas/travel/versions/3", json=RENAME)
    assert_problem(problem, 422, "invalid-request")
    [fault] = problem.json()["errors"]
    assert fault == {"parameter": "state_version", "detail": "v2_to_v3: the next version is 2: versions leave no gap"}


def test_declared_metadata_is_searched_over_http(service):
    register(service, {"searchable": ["customer_tier"]}, {**RENAME, "searchable": ["region", "customer_tier"]})
    shown = service.get("/v1/state-schemas/travel").json()["versions"]
    assert [each["searchable"] for each in shown] == [["customer_tier"], ["region", "customer_tier"]]
    ids = [
        save(service, number, {"a": 1}, metadata={"customer_tier": tier, "region": "eu"}).json()["checkpoint_id"]
        for number, tier in ((1, "gold"), (2, "silver"), (2, "gold"))
    ]
    for path in (PATH, "/v1/checkpoints"):
        for wanted, expected in (
            ({"customer_tier": "gold"}, [ids[2], ids[0]]),
            ({"region": "eu"}, [*reversed(ids)]),
            ({"customer_tier": "gold", "region": "eu", "other": 1}, []),
        ):
            answer = service.get(path, params={"filter": json.dumps(wanted)})
            assert [each["checkpoint_id"] for each in answer.json()["checkpoints"]] == expected
    for keys, where in (
        (["k" * 129], "/searchable/0"),
        (["a", "a"], "/searchable/1"),
        ([f"{n}" for n in range(17)], ""),
    ):
        problem = service.put("/v1/state-schemas/travel/versions/3", json={**RENAME, "searchable": keys})
        assert_problem(problem, 422, "invalid-request")
        assert problem.json()["errors"][0]["pointer"].startswith(where)


def test_schemas_come_in_pages_by_name(tenancy):
    with tenancy.client(tenancy.tenant()) as service, tenancy.client(tenancy.tenant()) as other:
        names = ["A", "Z", "a", "a.b", "b", "b-1", "z"]
        for name in reversed(names):
            assert service.put(f"/v1/state-schemas/{name}/versions/1", json={}).status_code == 201
        assert service.put("/v1/state-schemas/a/versions/2", json=RENAME).status_code == 201
        for limit in (1, 2, 3, 7, 8):
            found, cursor, pages = [], "", 0
            while cursor is not None:
                page = service.get(
                    "/v1/state-schemas", params={"limit": limit} | ({"cursor": cursor} if cursor else {})
                )
                assert len(page.json()["state_schemas"]) <= limit
                found += page.json()["state_schemas"]
                cursor, pages = page.json()["next_cursor"], pages + 1
            assert [each["state_schema"] for each in found] == sorted(names)
            assert found[2] == {"state_schema": "a", "newest_version": 2}
            assert pages >= len(names) / limit
        cursor = service.get("/v1/state-schemas?limit=1").json()["next_cursor"]
        assert_problem(other.get("/v1/state-schemas", params={"cursor": cursor}), 422, "invalid-request")
        assert_problem(service.get("/v1/state-schemas?limit=0"), 422, "invalid-request")


def test_a_tenants_schemas_are_its_own(service, tenancy):
    register(service, {}, RENAME)
    save(service, 1, {"msgs": []})
    with tenancy.client(tenancy.tenant(), "user-1") as other:
        assert other.get("/v1/state-schemas").json()["state_schemas"] == []
        body = {"state": {}, "state_schema": "travel", "state_version": 1}
        assert_problem(other.post(PATH, json=body), 409, "state-too-new")


def test_a_tenant_whose_schema_takes_too_much_is_told_so_and_its_neighbour_is_served(tenancy):
    half = {"items": {"enum": [{"k": [number] * 4} for number in range(150)]}}
    save = {"state": {"a": [{"k": [149] * 4}] * 20_000}, "state_schema": "travel", "state_version": 1}
    with tenancy.client(tenancy.tenant(), "user-1") as hostile, tenancy.client(tenancy.tenant(), "user-1") as other:
        too_large = {f"c{number}": {"pattern": r"[\p{L}\p{N}]{90}" + str(number)} for number in range(300)}
        refused = assert_problem(
            hostile.put("/v1/state-schemas/travel/versions/1", json={"json_schema": {"properties": too_large}}), 422
        )
        assert refused["errors"][0]["pointer"].startswith("/json_schema/properties/c")
        for client in (hostile, other):
            register(client, {"json_schema": {"properties": {"a": half}}})
        for _ in range(3):
            told = assert_problem(hostile.post(PATH, json=save), 422, "too-costly")
            assert not told["retryable"]
        answer = hostile.post(PATH, json=save)
        assert assert_problem(answer, 429, "tenant-too-costly")["retryable"]
        assert 0 < int(answer.headers["Retry-After"]) <= 60
        assert hostile.post(PATH, json={"state": {"a": 1}}).status_code == 201
        fits = {**save, "state": {"a": [{"k": [1] * 4}]}}
        assert other.post(PATH, json=fits).status_code == 201
        assert_problem(other.post(PATH, json={**save, "state": {"a": [1]}}), 422, "invalid-request")


def test_a_migration_over_http(service):
    register(service, {}, RENAME)
    for number in range(3):
        body = {"state": {"msgs": [number]}, "state_schema": "travel", "state_version": 1}
        assert service.post(f"/v1/threads/m{number}/checkpoints", json=body).status_code == 201
    for verb, version, kind in (
        ("plan", 1, "state-plan"),
        ("migrate", 2, "state-migrate"),
        ("rollback", 1, "state-rollback"),
    ):
        how = {} if verb == "rollback" else {"idle_seconds": 0}
        begun = service.post(f"/v1/state-schemas/travel/{verb}", json=how)
        assert begun.status_code == 202, begun.text
        deadline = time.monotonic() + JOB_SECONDS_MAX
        while True:
            status = service.get("/v1/state-schemas/travel/status").json()
            job = next(each for each in status["jobs"] if each["job_id"] == begun.json()["job_id"])
            if job["state"] in {"done", "failed"} or time.monotonic() > deadline:
                break
            time.sleep(0.05)  # another process works on it; nothing here could tell when it is done
        assert (job["kind"], job["state"], job["migration"]["changed"]) == (kind, "done", 3)
        assert status["heads"] == [{"state_version": version, "heads": 3}]
    assert_problem(
        service.post("/v1/state-schemas/travel/rollback", json={"target_version": 1}), 422, "invalid-request"
    )
    assert_problem(service.post("/v1/state-schemas/nobody/plan", json={}), 404, "state-schema-not-found")
    assert_problem(service.post("/v1/state-schemas/travel/plan", json={"target_version": 9}), 409, "state-too-new")


def test_versions_that_were_read_are_counted_for_whoever_waits_for_a_step_to_go_quiet():

    metrics = Metrics()
    metrics.state_read(1, 2)
    metrics.state_read(10**6, 10**6)
    name = "stateroom_state_reads_total"
    assert metrics.registry.get_sample_value(name, {"from_version": "1", "to_version": "2"}) == 1
    assert metrics.registry.get_sample_value(name, {"from_version": "50+", "to_version": "50+"}) == 1
