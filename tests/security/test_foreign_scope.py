import asyncio
import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any, NamedTuple

import asyncpg
import httpx
import pytest
from litestar.routes import HTTPRoute

from gateway.app import create_app
from tests.support.gateway import GatewayProcess
from tests.support.operations import (
    AUTHENTICATED,
    CANARY,
    DECLARED,
    OF_SUBJECTS,
    SERVICE,
    STATE,
    Declared,
    Request,
    Tenancy,
    Thread,
    assert_problem,
    key_id,
    path_of,
    request_of,
    save_thread,
)
from tests.unit.gateway.doubles import MemoryStore, settings

OWNER = "owner"
# What a stranger gets who sends the owner's very request in a scope of his own, where nothing is.
ALONE: dict[str, int] = {
    "list_threads": 200,
    "get_thread": 404,
    "put_thread": 200,
    "delete_thread": 404,
    "copy_thread": 404,
    "prune": 200,
    "delete_runs": 200,
    "save_checkpoint": 201,
    "load_checkpoint": 404,
    "list_checkpoints": 200,
    "search_checkpoints": 200,
    "channel_history": 404,
    "put_writes": 200,
    "get_writes": 200,
    "whoami": 200,
    "create_api_key": 201,
    "list_api_keys": 200,
    "revoke_api_key": 404,
}
NOTHING = {"threads": [], "checkpoints": [], "writes": []}
STRANGERS_AT_HOME = [
    "a subject of another tenant with the same name",
    "a service of another tenant that names the same subject",
    "another subject of the tenant",
    "a service of the tenant that names another subject",
]
REFUSED = {
    "a subject that names the owner": 403,
    "the operator": 403,
    "the operator who names the owner": 403,
    "nobody": 401,
    "a revoked key": 401,
    "an expired key": 401,
    "a key with a typo": 401,
    "a key of another scheme": 401,
    "half a key": 401,
}


class Caller(NamedTuple):
    api_key: str | None
    subject: str | None = None
    headers: Mapping[str, str] = MappingProxyType({})


class World(NamedTuple):
    tenancy: Tenancy
    service_key: str
    owner_key: str
    callers: dict[str, Caller]


async def _expire(dsn: str, api_key: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        moment = datetime.now(UTC) - timedelta(seconds=1)
        done = await connection.execute(
            "UPDATE stateroom.api_keys SET expires_at = $2 WHERE key_id = $1", key_id(api_key), moment
        )
        assert done == "UPDATE 1"
    finally:
        await connection.close()


@pytest.fixture(scope="module")
async def world(running_gateway: GatewayProcess) -> World:
    tenancy = Tenancy(running_gateway)
    service_key, foreign_key = tenancy.tenant(), tenancy.tenant()
    owner_key = tenancy.key(service_key, OWNER)
    revoked, expired = tenancy.key(service_key, OWNER), tenancy.key(service_key, OWNER)
    tenancy.revoke(service_key, revoked)
    await _expire(running_gateway.database_dsn, expired)
    typo = owner_key[:-10] + ("a" if owner_key[-10] != "a" else "b") + owner_key[-9:]
    callers = {
        STRANGERS_AT_HOME[0]: Caller(tenancy.key(foreign_key, OWNER)),
        STRANGERS_AT_HOME[1]: Caller(foreign_key, OWNER),
        STRANGERS_AT_HOME[2]: Caller(tenancy.key(service_key, "other")),
        STRANGERS_AT_HOME[3]: Caller(service_key, "another"),
        "a subject that names the owner": Caller(tenancy.key(service_key, "other"), OWNER),
        "the operator": Caller(running_gateway.operator_key),
        "the operator who names the owner": Caller(running_gateway.operator_key, OWNER),
        "nobody": Caller(None, OWNER),
        "a revoked key": Caller(revoked),
        "an expired key": Caller(expired),
        "a key with a typo": Caller(typo),
        "a key of another scheme": Caller(None, None, {"Authorization": f"Basic {owner_key}"}),
        "half a key": Caller(owner_key[: len(owner_key) // 2]),
    }
    assert callers.keys() == {*STRANGERS_AT_HOME, *REFUSED}
    return World(tenancy, service_key, owner_key, callers)


def _seen(owner: httpx.Client, thread: Thread) -> list[bytes]:
    """All the owner can read of a thread, byte for byte."""
    base = f"/v1/threads/{thread.thread_id}"
    paths = [
        base,
        f"{base}/checkpoints?view=channels",
        f"{base}/checkpoints/latest?view=channels",
        f"{base}/checkpoints/{thread.checkpoint_id}/writes/{thread.task_id}?view=channels",
        f"{base}/checkpoints/latest/channel-history?channel=note",
        f"/v1/checkpoints?run_id={thread.run_id}&view=channels",
    ]
    answers = [owner.get(path) for path in paths]
    assert all(answer.status_code == 200 for answer in answers)
    return [answer.content for answer in answers]


def _refused_or_alone(answer: httpx.Response, declared: Declared, stranger: str, secrets: list[str]) -> None:
    if stranger in STRANGERS_AT_HOME:
        assert answer.status_code == ALONE[declared.name], answer.text[:300]
    else:
        assert answer.status_code == REFUSED[stranger], answer.text[:300]
    if answer.status_code >= 400:
        assert_problem(answer)
    for secret in [CANARY, *secrets]:
        assert secret not in answer.text
    if answer.status_code == 200 and declared.name in {"prune", "delete_runs"}:
        assert set(answer.json().values()) == {0}
    for name, content in NOTHING.items():
        if declared.operation.method.value == "GET" and answer.status_code == 200 and name in answer.json():
            ours = [found for found in answer.json()[name] if name != "writes" and found["agent"] == "tester"]
            assert ours == content


@pytest.mark.parametrize("stranger", [*STRANGERS_AT_HOME, *REFUSED])
@pytest.mark.parametrize("name", OF_SUBJECTS)
def test_a_subjects_state_is_out_of_reach(world: World, name: str, stranger: str) -> None:
    declared = DECLARED[name]
    caller = world.callers[stranger]
    with world.tenancy.client(world.owner_key) as owner:
        twin, thread = save_thread(owner), save_thread(owner)
        proof = request_of(declared, twin).send(owner)
        assert proof.status_code in declared.operation.statuses, proof.text
        if declared.name in {"prune", "delete_runs"}:
            assert proof.json()["checkpoints"] == 1
        before = _seen(owner, thread)
        request = request_of(declared, thread)
        with world.tenancy.client(caller.api_key, caller.subject, **caller.headers) as client:
            if request.method == "GET":
                headed = request.send(client, "HEAD")
                answer = request.send(client)
                assert (headed.status_code, headed.content) == (answer.status_code, b"")
            else:
                answer = request.send(client)
        secrets = [] if thread.checkpoint_id in request.path else [thread.checkpoint_id]
        _refused_or_alone(answer, declared, stranger, secrets)
        assert _seen(owner, thread) == before


def _without_last_use(page: Any) -> Any:
    for found in page["api_keys"]:
        found["last_used_at"] = None
    return page


@pytest.mark.parametrize("stranger", [*STRANGERS_AT_HOME, *REFUSED])
@pytest.mark.parametrize("name", [name for name in AUTHENTICATED if name not in OF_SUBJECTS])
def test_a_tenants_and_the_operators_records_are_out_of_reach(world: World, name: str, stranger: str) -> None:
    declared = DECLARED[name]
    caller = world.callers[stranger]
    of_operator = declared.operation.permission == "operator"
    owner_key = world.tenancy.gateway.operator_key if of_operator else world.service_key
    with world.tenancy.client(world.service_key) as service:
        tenant_id = service.get("/v1/whoami").json()["tenant_id"]
    keys = [key_id(world.tenancy.key(world.service_key, f"owner-{CANARY}")) for _ in range(2)]
    of_tenant, list_path = {"tenant_id": tenant_id}, "/v1/admin/tenants" if of_operator else "/v1/api-keys"
    with world.tenancy.client(owner_key) as owner:
        proof = request_of(declared, key_id=keys[0], **of_tenant).send(owner)
        assert proof.status_code in declared.operation.statuses, proof.text
        before = owner.get(list_path).json()
        with world.tenancy.client(caller.api_key, caller.subject, **caller.headers) as client:
            answer = request_of(declared, key_id=keys[1], **of_tenant).send(client)
        after = owner.get(list_path).json()
    service_of_tenant = stranger == STRANGERS_AT_HOME[3]
    service = stranger in STRANGERS_AT_HOME and "service" in stranger
    if of_operator:
        expected = 401 if REFUSED.get(stranger) == 401 else 403
        if stranger in {"the operator", "the operator who names the owner"}:
            return  # he is who may
    elif declared.operation.permission is None:  # whoami: everybody is somebody
        expected = 401 if REFUSED.get(stranger) == 401 else 200
    elif service_of_tenant:
        return  # he is who may
    elif service:
        expected = ALONE[declared.name]
    else:
        expected = 401 if REFUSED.get(stranger) == 401 else 403
    assert answer.status_code == expected, answer.text
    assert CANARY not in answer.text
    if expected >= 400:
        assert_problem(answer)
    if declared.operation.permission is not None:
        assert tenant_id not in answer.text
        assert key_id(world.service_key) not in answer.text
    if not of_operator:
        before, after = _without_last_use(before), _without_last_use(after)
    assert after == before


def test_every_declared_operation_has_a_case() -> None:
    cases = ALONE.keys() | {name for name, one in AUTHENTICATED.items() if one.operation.permission == "operator"}
    assert cases == AUTHENTICATED.keys()
    for declared in AUTHENTICATED.values():
        named = dict.fromkeys(["thread_id", "checkpoint_id", "task_id", "run_id", "key_id", "tenant_id"], "x")
        assert "{" not in request_of(declared, **named).path


def test_the_application_has_no_route_that_is_not_declared() -> None:
    app = create_app(settings(), store=MemoryStore())
    found = {
        (method, route.path_format)
        for route in app.routes
        if isinstance(route, HTTPRoute)
        for method in route.methods
        if method != "OPTIONS"
    }
    declared = {(one.operation.method.value, one.path.replace(":str", "")) for one in DECLARED.values()}
    assert found == declared
    assert len(app.routes) == len({path for _, path in declared})


def test_exactly_four_routes_are_public(world: World) -> None:
    public = {"/livez", "/readyz", "/docs", "/openapi.json"}
    assert {one.path for one in DECLARED.values() if one.operation.public} == public
    with world.tenancy.client(None) as client:
        for one in DECLARED.values():
            answer = client.request(one.operation.method.value, path_of(one))
            assert (answer.status_code == 200) == (one.path in public), one.path
            if one.path not in public:
                assert_problem(answer, 401, "unauthenticated")
                assert answer.headers["www-authenticate"].startswith("Bearer")


@pytest.mark.parametrize("public", ["livez", "readyz", "docs", "openapi.json"])
@pytest.mark.parametrize("path", ["/v1/threads/{}", "/v1/threads/{}/checkpoints", "/v1/threads/t/checkpoints/{}"])
def test_an_id_that_looks_like_a_public_path_opens_nothing(world: World, public: str, path: str) -> None:
    with world.tenancy.client(None) as client:
        for spelling in ("//v1/threads", "/v1//threads", "/v1/threads/", f"/{public}/../v1/threads"):
            assert client.get(spelling).status_code in {401, 404}
        for spelling in (public, f"%2F{public}", f"{public}%3F"):
            assert client.get(path.format(spelling)).status_code == 401


@pytest.mark.parametrize("path", sorted({one.path for one in DECLARED.values()}))
def test_every_other_method_is_refused_without_a_word_about_data(world: World, path: str) -> None:
    here = [one for one in DECLARED.values() if one.path == path]
    allowed = {one.operation.method.value for one in here}
    allowed |= {"HEAD"} if "GET" in allowed else set()
    with world.tenancy.client(world.owner_key) as client:
        for method in sorted({"GET", "HEAD", "PUT", "POST", "DELETE", "PATCH", "TRACE"} - allowed):
            answer = client.request(method, path_of(here[0]))
            assert answer.status_code == 405, (method, path)
            assert set(answer.headers["allow"].split(", ")) - {"OPTIONS"} == allowed
            if method != "HEAD":
                assert_problem(answer, 405, "method-not-allowed")


@pytest.mark.parametrize("name", [name for name, one in AUTHENTICATED.items() if one.operation.permission])
def test_a_key_without_the_permission_is_refused(world: World, name: str) -> None:
    declared = DECLARED[name]
    permission = declared.operation.permission
    service_key = world.tenancy.key(world.service_key, None, [one for one in SERVICE if one != permission])
    with world.tenancy.client(world.owner_key) as owner:
        thread = save_thread(owner)
        before = _seen(owner, thread)
        request = request_of(declared, thread, key_id="k", tenant_id="t")
        with world.tenancy.client(service_key, OWNER) as client:
            problem = assert_problem(request.send(client), 403, "permission-denied")
        assert str(permission) in problem["detail"]
        if permission in STATE:
            subject_key = world.tenancy.key(world.service_key, OWNER, [one for one in STATE if one != permission])
            with world.tenancy.client(subject_key) as client:
                assert_problem(request.send(client), 403, "permission-denied")
        assert _seen(owner, thread) == before


@pytest.mark.parametrize("name", OF_SUBJECTS)
def test_a_service_acts_for_nobody_without_permission_or_without_a_name(world: World, name: str) -> None:
    thread = Thread("t", "c", "w", "r")
    request = request_of(DECLARED[name], thread)
    with world.tenancy.client(world.tenancy.key(world.service_key, None, STATE), OWNER) as client:
        assert_problem(request.send(client), 403, "permission-denied")
    # Without tenant:admin, with which some operations list the whole tenant.
    with world.tenancy.client(world.tenancy.key(world.service_key, None, [*STATE, "subject:act_as"])) as client:
        assert_problem(request.send(client), 400, "subject-required")


def test_a_cursor_is_worth_nothing_to_anybody_else(world: World) -> None:
    with world.tenancy.client(world.owner_key) as owner:
        for _ in range(2):
            save_thread(owner)
        pages = ["/v1/threads?limit=1", "/v1/checkpoints?limit=1"]
        cursors = [owner.get(page).json()["next_cursor"] for page in pages]
        for page, cursor in zip(pages, cursors, strict=True):
            assert owner.get(f"{page}&cursor={cursor}").status_code == 200
        assert_problem(owner.get(f"{pages[1]}&cursor={cursors[0]}"), 422)
        assert_problem(owner.get(f"{pages[1]}&agent=x&cursor={cursors[1]}"), 422)
    for stranger in STRANGERS_AT_HOME:
        caller = world.callers[stranger]
        with world.tenancy.client(caller.api_key, caller.subject) as client:
            for page, cursor in zip(pages, cursors, strict=True):
                problem = assert_problem(client.get(f"{page}&cursor={cursor}"), 422, "invalid-request")
                assert problem["errors"][0]["parameter"] == "cursor"


def test_a_revoked_key_stops_at_once_even_while_it_is_in_use(world: World) -> None:
    api_key = world.tenancy.key(world.service_key, OWNER)
    with world.tenancy.client(api_key) as client:
        assert client.get("/v1/threads").status_code == 200
        world.tenancy.revoke(world.service_key, api_key)
        assert_problem(client.get("/v1/threads"), 401, "unauthenticated")


def test_the_four_ways_a_key_can_be_wrong_look_alike(world: World) -> None:
    def shown(caller: Caller) -> Any:
        with world.tenancy.client(caller.api_key, None, **caller.headers) as client:
            answer = client.get("/v1/whoami", headers={"X-Request-Id": "same"})
        return answer.status_code, json.loads(answer.text), answer.headers["www-authenticate"]

    refusals = [shown(world.callers[name]) for name, status in REFUSED.items() if status == 401]
    assert all(refusal == refusals[0] for refusal in refusals)


async def test_racing_strangers_never_meet_the_owners_state(world: World) -> None:
    """Interleaved requests of many scopes on the same ids, over the same pool of connections."""
    scopes = [(world.service_key, f"racer-{number}") for number in range(6)]
    url = world.tenancy.gateway.url

    async def race(api_key: str, subject: str) -> None:
        headers = {"Authorization": f"Bearer {api_key}", "Stateroom-Subject": subject}
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=30) as client:
            for step in range(8):
                body = {"state": {"who": subject, "step": step}}
                assert (await client.post("/v1/threads/shared-id/checkpoints", json=body)).status_code == 201
                loaded = (await client.get("/v1/threads/shared-id/checkpoints/latest")).json()
                assert loaded["state"] == {"who": subject, "step": step}
                history = (await client.get("/v1/checkpoints?view=state")).json()["checkpoints"]
                assert {found["state"]["who"] for found in history} == {subject}

    await asyncio.gather(*(race(*scope) for scope in scopes))


def test_the_request_without_a_body_is_still_authenticated_first(world: World) -> None:
    for declared in AUTHENTICATED.values():
        with world.tenancy.client(None) as client:
            answer = Request(declared.operation.method.value, path_of(declared)).send(client)
        assert_problem(answer, 401, "unauthenticated")
