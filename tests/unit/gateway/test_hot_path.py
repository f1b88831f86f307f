import re
from contextlib import contextmanager
from inspect import signature

import msgspec
import pytest
from litestar.routes import HTTPRoute

from gateway.routing.hot_path import HotPath

BODY = msgspec.json.encode({"state": {"a": 1}})
WRITES = msgspec.json.encode({"writes": [{"idx": 0, "channel": "a", "value": 1}]})
JSON = {"Content-Type": "application/json"}
REQUESTS = [
    ("POST", "/v1/threads/t/checkpoints", BODY),
    ("GET", "/v1/threads/t/checkpoints/latest", b""),
    ("HEAD", "/v1/threads/t/checkpoints/latest", b""),
    ("POST", "/v1/threads/t/checkpoints/c/writes/task", WRITES),
]


@pytest.fixture
def app(one):
    return one.app


@pytest.fixture
def call(call_one_app):
    return call_one_app


@contextmanager
def all_left_to_the_router(app):
    hot_path = app.hot_path
    app.hot_path = HotPath((), hot_path, app.services)  # finds nothing
    try:
        yield
    finally:
        app.hot_path = hot_path


def operations(app):
    return [
        (route.path_format, handler)
        for route in app.routes
        if isinstance(route, HTTPRoute)
        for handler in route.route_handlers
        if "operation" in handler.opt
    ]


def scope(method, path):
    return {"type": "http", "method": method, "path": path}


def test_what_agents_do_at_every_step_is_hot(app):
    hot = {handler.opt["operation"].name for _, handler in operations(app) if handler.opt["operation"].hot}
    assert hot == {"save_checkpoint", "load_checkpoint", "put_writes"}


def test_a_hot_operation_has_a_permission_and_a_subject_and_takes_only_what_it_is_given(app):
    for path, handler in operations(app):
        operation = handler.opt["operation"]
        if operation.hot:
            assert operation.permission is not None
            assert operation.subject
            assert not operation.tenant_listing
            given = {"exchange", "services", "subject_scope", *re.findall(r"\{(\w+)\}", path)}
            assert set(signature(handler.fn).parameters) == given


def test_no_other_operation_is_taken_for_a_hot_one(app):
    for path, handler in operations(app):
        operation = handler.opt["operation"]
        found = scope(operation.method, re.sub(r"\{\w+\}", "x", path))
        assert (app.hot_path.find(found) is not None) == operation.hot, path
        if operation.hot:
            assert found["route_handler"] is handler
            assert found["path_template"] == path
            assert set(found["path_params"].values()) == {"x"}


@pytest.mark.parametrize(
    "path",
    [
        "/v1/threads/t/checkpoints/",
        "//v1/threads/t/checkpoints",
        "/v1/threads//checkpoints",
        "/v1/threads/a/b/checkpoints",
        "/v1/threads/t/checkpoints\n",
        "/v1/threads/t/checkpoints/x/writes",
    ],
)
def test_a_path_that_is_not_spelled_plainly_is_the_routers(app, path):
    assert app.hot_path.find(scope("POST", path)) is None


@pytest.mark.parametrize(("method", "path", "body"), REQUESTS)
@pytest.mark.parametrize(
    ("kind", "more", "headers"),
    [
        ("subject", {}, JSON),
        (None, {}, JSON),
        ("operator", {}, JSON),
        ("service", {}, JSON),
        ("service", {}, {**JSON, "Stateroom-Subject": "somebody"}),
        ("subject", {}, {**JSON, "Stateroom-Subject": "somebody-else"}),
        ("subject", {"permissions": ["artifact:read"]}, JSON),
        ("subject", {}, {"Content-Type": "text/plain"}),
        ("subject", {}, {**JSON, "Accept": "image/png"}),
        ("subject", {}, {**JSON, "Stateroom-Known-Token": "not a token"}),
    ],
)
async def test_the_router_would_have_answered_the_same(app, call, method, path, body, kind, more, headers):
    async with call() as client:
        await client.post("/v1/threads/t/checkpoints", content=BODY, headers=JSON)
    async with call(kind, **more) as client:
        hot = await client.request(method, path, content=body, headers=headers)
        with all_left_to_the_router(app):
            routed = await client.request(method, path, content=body, headers=headers)
    assert hot.status_code == routed.status_code
    assert {*hot.headers} == {*routed.headers}
    if hot.is_error and hot.content:
        told, again = hot.json(), routed.json()
        assert told.pop("request_id") != again.pop("request_id")
        assert told == again
    elif method != "HEAD":
        assert hot.json().keys() == routed.json().keys()


async def test_hot_requests_are_counted_under_the_routers_names(app, call):
    labels = {"route": "/v1/threads/{thread_id}/checkpoints", "method": "POST", "status": "201"}

    def counted():
        return app.services.metrics.registry.get_sample_value("stateroom_request_seconds_count", labels)

    async with call() as client:
        await client.post("/v1/threads/t/checkpoints", content=BODY, headers=JSON)
        first = counted()
        await client.post("/v1/threads/t/checkpoints", content=BODY, headers=JSON)
        assert counted() == first + 1
        with all_left_to_the_router(app):
            await client.post("/v1/threads/t/checkpoints", content=BODY, headers=JSON)
        assert counted() == first + 2
