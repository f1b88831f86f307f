import re
from inspect import signature

import msgspec
import pytest

from gateway.problems import MethodUnknown, OperationUnknown
from gateway.routes import GROUPS
from gateway.routing.operations import Call, PublicCall, Route

BODY = msgspec.json.encode({"state": {"a": 1}})
WRITES = msgspec.json.encode({"writes": [{"idx": 0, "channel": "a", "value": 1}]})
JSON = {"Content-Type": "application/json"}
REQUESTS = [
    ("POST", "/v1/threads/t/checkpoints", BODY),
    ("GET", "/v1/threads/t/checkpoints/latest", b""),
    ("HEAD", "/v1/threads/t/checkpoints/latest", b""),
    ("POST", "/v1/threads/t/checkpoints/c/writes/task", WRITES),
]
ROUTES: list[Route] = [route for found in GROUPS.values() for route in found]


@pytest.fixture
def app(one):
    return one.app


@pytest.fixture
def call(call_one_app):
    return call_one_app


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.operation.name)
def test_an_operation_is_found_by_its_method_and_path_and_by_nothing_else(app, route):
    operation = route.operation
    names = re.findall(r"\{(\w+)\}", operation.path)
    path = re.sub(r"\{(\w+)\}", r"of-\1", operation.path)
    assert app.router.find(operation.method.value, path) == (route, {name: f"of-{name}" for name in names})
    others = [each for each in ROUTES if each.operation.path == operation.path]
    assert app.router.allowed(path).split(", ") == sorted(
        {each.operation.method.value for each in others}
        | {"OPTIONS"}
        | ({"HEAD"} if any(each.operation.method == "GET" for each in others) else set())
    )
    with pytest.raises(MethodUnknown) as refused:
        app.router.find("BREW", path)
    assert refused.value.allowed == app.router.allowed(path)
    after = [] if operation.path.endswith("}") else [path + "\n"]  # in an id, the handler refuses it
    for wrong in (path + "/", path + "/more/of/it", "/" + path, path[1:], "x" + path, *after):
        with pytest.raises(OperationUnknown):
            app.router.find(operation.method.value, wrong)


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.operation.name)
def test_an_operation_takes_a_call_and_what_is_in_its_path(route):
    operation = route.operation
    call, *rest = signature(route.handler).parameters.values()
    assert [each.name for each in rest] == re.findall(r"\{(\w+)\}", operation.path)
    assert (call.annotation is PublicCall) == operation.public
    assert operation.public or call.annotation.__origin__ is Call


def test_no_two_operations_are_one():
    declared = [(route.operation.method, route.operation.path) for route in ROUTES]
    assert len(declared) == len(set(declared))


@pytest.mark.parametrize(
    "path",
    [
        "/v1/threads/t/checkpoints/",
        "//v1/threads/t/checkpoints",
        "/v1/threads//checkpoints",
        "/v1/threads/a/b/checkpoints",
        "/v1/threads/t/checkpoints\n",
        "/v1/threads/t/checkpoints/x/writes",
        "/v1",
        "/",
        "*",
        "",
    ],
)
def test_a_path_that_is_not_spelled_plainly_is_of_no_operation(app, path):
    with pytest.raises(OperationUnknown):
        app.router.find("POST", path)


@pytest.mark.parametrize(("method", "path", "body"), REQUESTS)
@pytest.mark.parametrize(
    ("kind", "more", "headers", "status", "code"),
    [
        ("subject", {}, JSON, None, None),
        (None, {}, JSON, 401, "unauthenticated"),
        ("operator", {}, JSON, 403, "permission-denied"),
        ("service", {}, JSON, 400, "subject-required"),
        ("service", {}, {**JSON, "Stateroom-Subject": "somebody"}, None, None),
        ("subject", {}, {**JSON, "Stateroom-Subject": "somebody-else"}, 403, "subject-mismatch"),
        ("subject", {"permissions": ["artifact:read"]}, JSON, 403, "permission-denied"),
        ("subject", {}, {"Content-Type": "text/plain"}, 415, "unsupported-media-type"),
        ("subject", {}, {**JSON, "Accept": "image/png"}, 406, "not-acceptable"),
        ("subject", {}, {**JSON, "Stateroom-Known-Token": "not a token"}, 422, "invalid-request"),
    ],
)
async def test_what_agents_call_at_every_step_is_refused_for_the_documented_reasons(
    call, method, path, body, kind, more, headers, status, code
):
    if not body and status == 415:
        status, code = None, None  # there is no body that could be of another type
    if kind == "service" and status is None:
        async with call(kind) as client:
            await client.post("/v1/threads/t/checkpoints", content=BODY, headers=headers)
    async with call() as client:
        await client.post("/v1/threads/t/checkpoints", content=BODY, headers=JSON)
    async with call(kind, **more) as client:
        answer = await client.request(method, path, content=body, headers=headers)
    assert answer.status_code == (status or (201 if body == BODY else 200))
    if code is not None and method != "HEAD":
        told = answer.json()
        assert told["code"] == code
        assert told["request_id"] == answer.headers["x-request-id"]
    assert answer.headers["cache-control"] == "private, no-store"


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("GET", "/nothing", 404, None),
        ("GET", "/v1/threads/t/nothing", 404, None),
        ("PUT", "/v1/threads/t", 405, "DELETE, GET, HEAD, OPTIONS, PATCH"),
        ("POST", "/readyz", 405, "GET, HEAD, OPTIONS"),
        ("HEAD", "/v1/threads:prune", 405, "OPTIONS, POST"),
        ("BREW", "/v1/threads", 405, "GET, HEAD, OPTIONS"),
    ],
)
@pytest.mark.parametrize("kind", ["subject", None])
async def test_what_is_no_operation_is_refused_whoever_asks(call, method, path, status, allow, kind):
    async with call(kind) as client:
        answer = await client.request(method, path)
    assert (answer.status_code, answer.headers.get("allow")) == (status, allow)
    if method != "HEAD":
        code, detail = {
            404: ("not-found", "Check the path and the identifiers in it."),
            405: ("method-not-allowed", "Use a method the Allow header lists."),
        }[status]
        assert (answer.json()["code"], answer.json()["detail"]) == (code, detail)


async def test_requests_are_counted_by_the_operations_path(app, call):
    labels = {"route": "/v1/threads/{thread_id}/checkpoints", "method": "POST", "status": "201"}

    def counted():
        return app.services.metrics.registry.get_sample_value("stateroom_request_seconds_count", labels)

    async with call() as client:
        await client.post("/v1/threads/t/checkpoints", content=BODY, headers=JSON)
        first = counted()
        await client.post("/v1/threads/t/checkpoints", content=BODY, headers=JSON)
        assert counted() == first + 1
