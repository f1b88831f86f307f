import json
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import httpx
import msgpack
import pytest

from gateway.admission import limits
from tests.support.break_glass import decrypting_key
from tests.support.gateway import GatewayProcess
from tests.support.operations import AUTHENTICATED, Tenancy, assert_problem, path_of

SAVE = "/v1/threads/t/checkpoints"
WRITES = "/v1/threads/t/checkpoints/c/writes/w"
JSON, MSGPACK = "application/json", "application/msgpack"
NUL = "\0"
EMPTY: dict[str, Any] = {"state": {}}


class Site:
    """A subject of its own, and proof that nothing was stored for it."""

    def __init__(self, tenancy: Tenancy, client: httpx.Client) -> None:
        self.tenancy = tenancy
        self.client = client

    def refuses(self, answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
        problem = assert_problem(answer, status, code)
        assert not problem["retryable"]
        assert self.client.get("/v1/threads").json()["threads"] == []
        assert self.client.get("/v1/checkpoints").json()["checkpoints"] == []
        return problem

    def post(self, body: bytes, media: str = JSON, **headers: str) -> httpx.Response:
        return self.client.post(SAVE, content=body, headers={"Content-Type": media, **headers})


@pytest.fixture(scope="module")
def tenancy(running_gateway: GatewayProcess) -> Tenancy:
    return Tenancy(running_gateway)


@pytest.fixture(scope="module")
def shared_client(tenancy: Tenancy) -> Iterator[httpx.Client]:
    with tenancy.client(tenancy.gateway.api_key) as client:
        yield client


@pytest.fixture(scope="module")
def opening_key(running_gateway: GatewayProcess) -> str:
    return decrypting_key(running_gateway)


@pytest.fixture
def site(tenancy: Tenancy, shared_client: httpx.Client) -> Site:
    shared_client.headers["Stateroom-Subject"] = f"user-{uuid4()}"
    return Site(tenancy, shared_client)


def _deep(depth: int) -> bytes:
    """A state whose whole body nests ``depth`` deep."""
    return b'{"state":{"a":' + b"[" * (depth - 2) + b"]" * (depth - 2) + b"}}"


def _deep_packed(depth: int) -> bytes:
    return b"\x81\xa5state\x81\xa1a" + b"\x91" * (depth - 2) + b"\xc0"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"{",
        b"{}x",
        b'{"state":{}} {}',
        b"'",
        b"\xff\xfe{}",
        b'\xef\xbb\xbf{"state":{}}',
        '{"state":{}}'.encode("utf-16"),
        b'{"state":{"a":"\xff"}}',
        b'{"state":{"\xc3\x28":1}}',
        b'{"state":{},"metadata":{"a":"\xed\xa0\x80"}}',
        b'{"state":{"a":"\\ud800"}}',
        b'{"state":{"\\udc00":1}}',
        b'{"state":{},"agent":"\\ud800x"}',
        b'{"state":{"a":NaN}}',
        b'{"state":{"a":Infinity}}',
        b'{"state":{},"metadata":{"a":-Infinity}}',
        b'{"state":{"a":01}}',
        b'{"state":{"a":1,}}',
        b'{"state":{"a":1}/**/}',
        b'{"state":{"a":1},"state":{"b":2}}',
        b'{"state":{"a":1,"a":2}}',
        b'{"state":{"a":{"b":[{"c":1,"\\u0063":2}]}}}',
        b'{"state":{},"metadata":{"x":1,"x":1}}',
    ],
    ids=lambda body: f"{len(body)}-{body[:24]!r}",
)
def test_json_that_is_not_json_is_malformed(site: Site, body: bytes) -> None:
    site.refuses(site.post(body), 400, "malformed-body")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        b"\x81\xa5state",
        b"\x81\xa5state\x80\x00",
        b"\x81\xa5state\x81\xa1a\xc1",
        b"\x81\xa5state\x81\xa2\xff\xff\x01",
        b"\x81\xa5state\xdf\xff\xff\xff\xff",
        b"\x81\xa5state\x81\xa1a\xdd\xff\xff\xff\xff",
        b"\x81\xa5state\x81\xa1a\xdf\xff\xff\xff\xff\x01",
        b"\x81\xa5state\x81\xa1a\xdb\xff\xff\xff\xffx",
        b"\x81\xa5state\x81\xa1a\xc6\xff\xff\xff\xffx",
        b"\x81\xa5state\x81\xa1a\xc9\xff\xff\xff\xff\x01x",
        b"\x81\xa8metadata\xdd\x7f\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
    ],
    ids=lambda body: f"{len(body)}-{body[:24]!r}",
)
def test_messagepack_that_is_not_messagepack_is_refused(site: Site, body: bytes) -> None:
    answer = site.post(body, MSGPACK)
    if answer.status_code == 422:  # refused by its first bytes already: not even a map
        site.refuses(answer, 422, "invalid-request")
    else:
        site.refuses(answer, 400, "malformed-body")


@pytest.mark.parametrize(
    ("body", "media"),
    [
        (b"[" * 200_000, JSON),
        (b"{" * 200_000, JSON),
        (b'{"a":' * 200_000, JSON),
        (b'{"state":{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}}", JSON),
        (_deep(limits.DEPTH_MAX + 1), JSON),
        (b"\x91" * 200_000 + b"\xc0", MSGPACK),
        (b"\x81\xa5state\x81\xa1a" + b"\x81\xa1a" * 100_000 + b"\xc0", MSGPACK),
        (_deep_packed(limits.DEPTH_MAX + 1), MSGPACK),
    ],
    ids=lambda part: f"{len(part)}-{part[:12]!r}",
)
def test_what_is_too_deep_is_refused_by_the_name_of_the_limit(site: Site, body: bytes, media: str) -> None:
    assert site.refuses(site.post(body, media), 422, "limit-exceeded")["limit"] == "DEPTH_MAX"


NAMED_TWICE = [
    b"\x82\xa5state\x80\xa5state\x80",
    b"\x81\xa5state\x82\xa1a\x01\xa1a\x02",
    b"\x81\xa5state\xde\x00\x02\xa1a\x01\xa1a\x02",
    b"\x81\xa5state\xdf\x00\x00\x00\x02\xa1a\x01\xa1a\x02",
    b"\x81\xa5state\x82\xa1a\x01\xd9\x01a\x02",  # one name in two spellings
    b"\x81\xa8channels\x82\xa1a\x81\xa4data\xc4\x01\xc0\xa1a\x81\xa4data\xc4\x01\xc3",
    b"\x81\xa8channels\x81\xa1a\x82\xa4data\xc4\x01\xc0\xa4data\xc4\x01\xc3",
    b"\x82\xa5state\x80\xa8metadata\x82\xa1a\x01\xa1a\x02",
    b"\x82\xa5state\x80\xa5usage\x82\xacinput_tokens\x01\xacinput_tokens\x02",
    b"\x81\xa7changes\x81\xa3set\x82\xa1a\x01\xa1a\x02",
    b"\x81\xa7changes\x82\xa3set\x80\xa3set\x80",
]


@pytest.mark.parametrize("body", NAMED_TWICE)
def test_messagepack_that_names_a_member_twice_is_malformed(site: Site, body: bytes) -> None:
    msgpack.unpackb(body)
    site.refuses(site.post(body, MSGPACK), 400, "malformed-body")


def test_maps_inside_a_messagepack_value_pass_as_they_are(site: Site) -> None:
    value = b"\x83\xa1a\x01\xa1a\x02\x01\xa1b"
    assert site.post(b"\x81\xa5state\x81\xa1a" + value, MSGPACK).status_code == 201
    assert value in site.client.get(f"{SAVE}/latest", headers={"Accept": MSGPACK}).content


def test_the_depth_that_is_allowed_is_stored_and_read(site: Site) -> None:
    for body, media in ((_deep(limits.DEPTH_MAX), JSON), (_deep_packed(limits.DEPTH_MAX), MSGPACK)):
        assert site.post(body, media).status_code == 201
        for accept in (JSON, MSGPACK):
            assert site.client.get(f"{SAVE}/latest", headers={"Accept": accept}).status_code == 200


FAULTS: list[tuple[Any, str]] = [
    (None, ""),
    ([], ""),
    (1, ""),
    ("state", ""),
    ({}, ""),
    ({"state": {}, "channels": {}}, ""),
    ({"state": None}, "/state"),
    ({"state": []}, "/state"),
    ({"state": "x"}, "/state"),
    (EMPTY | {"unknown": 1}, "/unknown"),
    (EMPTY | {"step": "1"}, "/step"),
    (EMPTY | {"step": 2**31}, "/step"),
    (EMPTY | {"step": 10**400}, "/step"),
    (EMPTY | {"step": 1.5}, "/step"),
    (EMPTY | {"step": True}, "/step"),
    (EMPTY | {"status": "gone"}, "/status"),
    (EMPTY | {"fork": 1}, "/fork"),
    (EMPTY | {"checkpoint_id": "latest"}, "/checkpoint_id"),
    (EMPTY | {"checkpoint_id": "../x"}, "/checkpoint_id"),
    (EMPTY | {"checkpoint_id": "a" * 256}, "/checkpoint_id"),
    (EMPTY | {"checkpoint_id": ""}, "/checkpoint_id"),
    (EMPTY | {"parent_id": "a b"}, "/parent_id"),
    (EMPTY | {"parent_id": f"a{NUL}"}, "/parent_id"),
    (EMPTY | {"namespace": NUL}, "/namespace"),
    (EMPTY | {"namespace": "n" * 1025}, "/namespace"),
    (EMPTY | {"namespace": "ä" * 513}, "/namespace"),
    (EMPTY | {"agent": f"a{NUL}"}, "/agent"),
    (EMPTY | {"agent": ""}, "/agent"),
    (EMPTY | {"agent": "a" * 256}, "/agent"),
    (EMPTY | {"run_id": f"{NUL}a"}, "/run_id"),
    (EMPTY | {"run_id": ["a"]}, "/run_id"),
    (EMPTY | {"source": "a b"}, "/source"),
    (EMPTY | {"source": NUL}, "/source"),
    (EMPTY | {"source": "a\n"}, "/source"),
    (EMPTY | {"model": {"name": NUL}}, "/model/name"),
    (EMPTY | {"model": {"name": "m", "seed": 2**64}}, "/model/seed"),
    (EMPTY | {"model": {"name": "m", "other": 1}}, "/model/other"),
    (EMPTY | {"usage": {"input_tokens": -1}}, "/usage/input_tokens"),
    (EMPTY | {"usage": {"cost_micros": 10**30}}, "/usage/cost_micros"),
    (EMPTY | {"metadata": []}, "/metadata"),
    (EMPTY | {"metadata": {"a": 10**30}}, "/metadata"),
    (EMPTY | {"state_version": 0}, "/state_version"),
    (EMPTY | {"delta_channels": [f"a{NUL}"]}, "/delta_channels/0"),
    (EMPTY | {"delta_channels": "a"}, "/delta_channels"),
    ({"state": {NUL: 1}}, "/state"),
    ({"state": {"": 1}}, "/state"),
    ({"state": {"~private": 1}}, "/state/~0private"),
    ({"state": {"a/b": {"$bytes": "?"}}}, "/state/a~1b"),
    ({"state": {"a": {"$ext": [300, ""]}}}, "/state/a"),
    ({"state": {"a": {"$float": "2"}}}, "/state/a"),
    ({"state": {"a": {"$map": [[{"$map": []}, 1]]}}}, "/state/a"),
    ({"channels": {"a": 1}}, "/channels/a"),
    ({"channels": {"a": {"data": "?"}}}, "/channels/a/data"),
    ({"channels": {"a": {"data": "wA==", "version": 10**30}}}, "/channels/a/version"),
    ({"channels": {"a": {"data": "wA==", "version": []}}}, "/channels/a/version"),
    ({"channels": {"a": {"data": "wA==", "encoding": "e" * 65}}}, "/channels/a/encoding"),
]


@pytest.mark.parametrize(("body", "pointer"), FAULTS, ids=lambda part: repr(part)[:50])
def test_a_wrong_member_is_named_by_its_pointer(site: Site, body: Any, pointer: str) -> None:
    problem = site.refuses(site.post(json.dumps(body).encode()), 422, "invalid-request")
    assert problem["errors"][0].get("pointer") == pointer


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"channels": {"a": {"version": float("nan"), "data": b"\xc0"}}}, "/channels/a/version"),
        ({"channels": {"a": {"version": float("inf"), "data": b"\xc0"}}}, "/channels/a/version"),
        (EMPTY | {"model": {"name": "m", "temperature": float("nan")}}, "/model/temperature"),
        (EMPTY | {"model": {"name": "m", "top_p": float("-inf")}}, "/model/top_p"),
        (EMPTY | {"metadata": {"a": float("nan")}}, "/metadata"),
        (EMPTY | {"metadata": {"a": b"bytes"}}, "/metadata"),
        (EMPTY | {"metadata": {"a": msgpack.ExtType(5, b"x")}}, "/metadata"),
        (EMPTY | {"metadata": {"a": msgpack.Timestamp(1)}}, "/metadata"),
        ({"state": {1: 2}}, "/state"),
        ({1: 2}, ""),
    ],
)
def test_what_only_messagepack_can_say_is_checked_as_well(site: Site, body: Any, pointer: str) -> None:
    problem = site.refuses(site.post(msgpack.packb(body), MSGPACK), 422, "invalid-request")
    assert problem["errors"][0].get("pointer") == pointer


@pytest.mark.parametrize(
    ("body", "limit"),
    [
        ({"state": {f"c{number}": 1 for number in range(1001)}}, "CHANNELS_MAX"),
        ({"channels": {f"c{number}": {"data": "wA=="} for number in range(1001)}}, "CHANNELS_MAX"),
        ({"state": {"ä" * 128: 1}}, "NAME_BYTES_MAX"),
        (EMPTY | {"agent": "ä" * 128}, "NAME_BYTES_MAX"),
        (EMPTY | {"run_id": "ä" * 128}, "NAME_BYTES_MAX"),
        (EMPTY | {"metadata": {"a": "x" * 17 * 1024}}, "METADATA_BYTES_MAX"),
    ],
    ids=lambda part: repr(part)[:40],
)
def test_a_limit_that_is_exceeded_is_named(site: Site, body: Any, limit: str) -> None:
    assert site.refuses(site.client.post(SAVE, json=body), 422, "limit-exceeded")["limit"] == limit


@pytest.mark.parametrize(
    ("method", "path", "body", "limit"),
    [
        ("POST", SAVE, {"state": {"a" * 256: 1}}, "NAME_BYTES_MAX"),
        ("POST", SAVE, {"channels": {"a" * 256: {"data": "wA=="}}}, "NAME_BYTES_MAX"),
        ("POST", SAVE, EMPTY | {"agent": "a" * 256}, "NAME_BYTES_MAX"),
        ("POST", SAVE, EMPTY | {"namespace": "n" * 1025}, "NAMESPACE_BYTES_MAX"),
        ("POST", SAVE, EMPTY | {"namespace": "ä" * 513}, "NAMESPACE_BYTES_MAX"),
        ("POST", SAVE, {"channels": {"a": {"data": "wA==", "holes": [0] * 10_001}}}, "HOLES_MAX"),
        ("POST", WRITES, {"writes": [{"channel": "a", "idx": idx, "value": 1} for idx in range(1001)]}, "WRITES_MAX"),
        ("POST", WRITES, {"writes": [{"channel": "a" * 256, "idx": 0, "value": 1}]}, "NAME_BYTES_MAX"),
        ("POST", "/v1/threads:prune", {"thread_ids": ["a"] * 1001}, "BULK_ITEMS_MAX"),
        ("POST", "/v1/runs:delete", {"run_ids": ["a"] * 1001}, "BULK_ITEMS_MAX"),
        ("GET", "/v1/threads?limit=1001", None, "PAGE_ITEMS_MAX"),
        ("GET", f"{SAVE}?limit=1001", None, "PAGE_ITEMS_MAX"),
        ("GET", f"{SAVE}?namespace={'n' * 1025}", None, "NAMESPACE_BYTES_MAX"),
        ("GET", f"{SAVE}?namespace={'%C3%A4' * 513}", None, "NAMESPACE_BYTES_MAX"),
        ("GET", f"{SAVE}/latest/channel-history?{'&'.join(['channel=a'] * 1001)}", None, "CHANNELS_MAX"),
        ("GET", f"{SAVE}/latest/channel-history?channel={'a' * 256}", None, "NAME_BYTES_MAX"),
        ("GET", f"{SAVE}/latest?{'&'.join(['history=a'] * 1001)}", None, "CHANNELS_MAX"),
        ("GET", f"{SAVE}/latest?history={'a' * 256}", None, "NAME_BYTES_MAX"),
        ("GET", "/v1/checkpoints?filter=" + '{"a":' * 65 + "1" + "}" * 65, None, "DEPTH_MAX"),
    ],
    ids=lambda part: repr(part)[:40],
)
def test_a_bound_that_is_exceeded_is_named_too(site: Site, method: str, path: str, body: Any, limit: str) -> None:
    answer = site.client.request(method, path, json=body)
    assert site.refuses(answer, 422, "invalid-request")["limit"] == limit


def test_what_is_wrong_but_within_its_limits_names_none(site: Site) -> None:
    for body in (EMPTY | {"step": 2**31}, EMPTY | {"agent": ""}, EMPTY | {"source": "a b"}):
        assert "limit" not in site.refuses(site.client.post(SAVE, json=body), 422, "invalid-request")


def test_a_number_out_of_range_in_a_filter_is_called_that(site: Site) -> None:
    problem = site.refuses(site.client.get("/v1/checkpoints", params={"filter": '{"a":1e999}'}), 422, "invalid-request")
    assert "range" in problem["errors"][0]["detail"]


@pytest.mark.parametrize(
    "moment",
    ["1700000000", "1700000000.5", "-1", "1e9", "null", "", "2026-03-01", "2026-03-01T09:00:00",
     "2026-03-01T09:00:00 05:00", "2026-03-01T25:00:00Z", "yesterday"],
)  # fmt: skip
@pytest.mark.parametrize("parameter", ["since", "until"])
def test_a_time_that_is_none_of_rfc_3339_is_refused(site: Site, parameter: str, moment: str) -> None:
    answer = site.client.get("/v1/checkpoints", params={parameter: moment})
    [error] = site.refuses(answer, 422, "invalid-request")["errors"]
    assert error["parameter"] == parameter
    if moment != "null":  # which is told in words of its own
        said = "has a blank before its zone" if " " in moment else "must be a time as RFC 3339 has it"
        assert error["detail"].startswith(f"{parameter} {said}")


@pytest.mark.parametrize("view", ["state", "channels"])
def test_writes_to_the_latest_checkpoint_are_neither_stored_nor_read(site: Site, view: str) -> None:
    path = f"{SAVE}/latest/writes/w"
    body = {"writes": [{"channel": "a", "idx": 0, "value": 1}]}
    for answer in (site.client.post(path, json=body), site.client.get(path, params={"view": view})):
        assert site.refuses(answer, 422, "invalid-request")["errors"][0]["parameter"] == "checkpoint_id"


@pytest.mark.parametrize(
    ("method", "path", "body", "pointer"),
    [
        ("POST", SAVE, {"channels": {"a/b": {"data": b"\xc0", "holes": [0]}}}, "/channels/a~1b/holes"),
        ("POST", SAVE, {"state": {"a": None}, "state_holes": {"a": [0]}}, "/state_holes/a"),
        (
            "POST",
            WRITES,
            {
                "writes": [
                    {"channel": "a", "idx": 0, "value": 1},
                    {"channel": "a", "idx": 1, "data": b"x", "holes": [0]},
                ]
            },
            "/writes/1/holes",
        ),
    ],
    ids=lambda part: repr(part)[:40],
)
def test_a_placeholder_that_is_none_is_named_where_it_was_said(
    site: Site, method: str, path: str, body: Any, pointer: str
) -> None:
    answer = site.client.request(method, path, content=msgpack.packb(body), headers={"Content-Type": MSGPACK})
    assert site.refuses(answer, 422, "invalid-request")["errors"][0]["pointer"] == pointer


UUID_PATHS = [
    ("GET", "/v1/admin/tenants/{}", None),
    ("GET", "/v1/admin/tenants/{}/usage", None),
    ("PATCH", "/v1/admin/tenants/{}/usage", {"quota_bytes": None}),
    ("GET", "/v1/admin/tenants/{}/retention-ceilings", None),
    ("PUT", "/v1/admin/tenants/{}/retention-ceilings", {}),
    ("POST", "/v1/admin/tenants/{}/shred", {"confirm": "x"}),
    ("GET", "/v1/admin/jobs/{}", None),
]


@pytest.mark.parametrize(("method", "path", "body"), UUID_PATHS)
def test_an_id_that_is_a_uuid_has_one_spelling(site: Site, method: str, path: str, body: Any) -> None:
    tenant_id = site.client.get("/v1/whoami").json()["tenant_id"]
    spellings = (tenant_id.upper(), f"{{{tenant_id}}}", tenant_id.replace("-", ""), f"urn:uuid:{tenant_id}", "nonsense")
    with site.tenancy.client(site.tenancy.gateway.operator_key) as operator:
        for spelling in spellings:
            assert_problem(operator.request(method, path.format(spelling), json=body), 404, "not-found")


@pytest.mark.parametrize(
    ("write", "pointer"),
    [
        ({"channel": NUL, "idx": 0, "value": 1}, "/writes/0/channel"),
        ({"channel": "a", "idx": 2**31, "value": 1}, "/writes/0/idx"),
        ({"channel": "a", "idx": -(2**15) - 1, "value": 1}, "/writes/0/idx"),
        ({"channel": "a", "idx": 0}, "/writes/0"),
        ({"channel": "a", "idx": 0, "value": 1, "data": "wA=="}, "/writes/0"),
        ({"channel": "a", "idx": 0, "data": "?"}, "/writes/0/data"),
    ],
)
def test_a_wrong_write_is_named_by_its_pointer(site: Site, write: Any, pointer: str) -> None:
    problem = site.refuses(site.client.post(WRITES, json={"writes": [write]}), 422, "invalid-request")
    assert problem["errors"][0].get("pointer") == pointer


@pytest.mark.parametrize(
    ("path", "body", "pointer"),
    [
        ("/v1/threads/t/copy", {"target_thread_id": NUL}, "/target_thread_id"),
        ("/v1/threads/t/copy", {"target_thread_id": "ä" * 128}, "/target_thread_id"),
        ("/v1/threads:prune", {"thread_ids": ["a", ""]}, "/thread_ids/1"),
        ("/v1/threads:prune", {"thread_ids": ["a"] * 1001}, "/thread_ids"),
        ("/v1/runs:delete", {"run_ids": [NUL]}, "/run_ids/0"),
        ("/v1/api-keys", {"kind": "service", "name": NUL}, "/name"),
        ("/v1/api-keys", {"kind": "subject", "subject_id": NUL}, "/subject_id"),
        ("/v1/api-keys", {"kind": "subject", "subject_id": "~u"}, "/subject_id"),
        ("/v1/api-keys", {"kind": "service", "expires_at": "9999-12-31T23:59:59-14:00"}, "/expires_at"),
        ("/v1/api-keys", {"kind": "service", "expires_at": "2100-01-01T00:00:00"}, "/expires_at"),
    ],
)
def test_other_bodies_name_their_faults_too(site: Site, path: str, body: Any, pointer: str) -> None:
    problem = site.refuses(site.client.post(path, json=body), 422, "invalid-request")
    assert problem["errors"][0].get("pointer") == pointer


def test_a_thread_or_tenant_cannot_have_an_unstorable_name(site: Site) -> None:
    site.refuses(site.client.patch("/v1/threads/t", json={"agent": NUL}), 422, "invalid-request")
    with site.tenancy.client(site.tenancy.gateway.operator_key) as operator:
        assert_problem(operator.post("/v1/admin/tenants", json={"name": NUL}), 422, "invalid-request")


@pytest.mark.parametrize("media", ["text/plain", "application/xml", "", "application/json-patch+json", "json"])
def test_another_media_type_is_refused(site: Site, media: str) -> None:
    site.refuses(site.post(b'{"state":{}}', media), 415, "unsupported-media-type")


@pytest.mark.parametrize("coding", ["gzip", "br", "deflate", "zstd", "gzip, identity", "x"])
def test_a_compressed_body_is_refused(site: Site, coding: str) -> None:
    answer = site.post(b"\x1f\x8b", **{"Content-Encoding": coding})
    site.refuses(answer, 415, "unsupported-media-type")


@pytest.mark.parametrize("accept", ["text/html", "application/json;q=0", "image/*", "application/problem+json"])
def test_an_unwritable_answer_is_refused_before_anything_happens(site: Site, accept: str) -> None:
    site.refuses(site.post(b'{"state":{}}', Accept=accept), 406, "not-acceptable")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("If-Match", "bare"),
        ("If-Match", ""),
        ("If-Match", "*, *"),
        ("If-Match", '*, "a"'),
        ("If-Match", '"a" "b"'),
        ("If-Match", '"a", b'),
        ("If-Match", 'w/"a"'),
        ("If-Match", '"a'),
        ("If-Match", ","),
        ("If-None-Match", '"a"'),
        ("Idempotency-Key", "a b"),
        ("Idempotency-Key", "a" * 256),
        ("Stateroom-Subject", "a b"),
        ("Stateroom-Subject", "~"),
        ("Stateroom-Subject", "~YQ"),
        ("Stateroom-Subject", "~fnNoYXJlZA"),
        ("Stateroom-Subject", "a" * 256),
    ],
)
def test_a_wrong_header_is_named(site: Site, name: str, text: str) -> None:
    problem = assert_problem(site.post(b'{"state":{}}', **{name: text}), 422, "invalid-request")
    assert problem["errors"][0]["header"] == name
    assert site.client.get("/v1/threads").json()["threads"] == []


@pytest.mark.parametrize("name", ["If-Match", "Stateroom-Subject", "Content-Type", "Idempotency-Key", "Authorization"])
def test_a_header_given_twice_is_refused(site: Site, name: str) -> None:
    headers = dict(site.client.headers) | {"Content-Type": JSON}
    pairs = [(one, text) for one, text in headers.items() if one.lower() != name.lower()]
    shown = headers.get(name.lower(), headers.get(name, '"x"'))
    with site.tenancy.client(None) as client:
        client.headers = httpx.Headers()
        answer = client.post(SAVE, content=b'{"state":{}}', headers=[*pairs, (name, shown), (name, shown)])
    if name == "Authorization":
        site.refuses(answer, 401, "unauthenticated")
    else:
        problem = site.refuses(answer, 422, "invalid-request")
        assert problem["errors"][0]["header"].lower() == name.lower()


QUERIES = [
    ("limit=1001", "limit"), ("limit=0", "limit"), ("limit=-1", "limit"), ("limit=x", "limit"), ("limit=", "limit"),
    ("limit=" + "9" * 5000, "limit"), ("limit=1&limit=2", "limit"), ("cursor=forged", "cursor"),
    ("cursor=%00", "cursor"), ("cursor=%C3%A4", "cursor"), ("cursor=", "cursor"), ("cursor=" + "A" * 5000, "cursor"),
    ("nonsense=1", "nonsense"), ("status=gone", "status"), ("agent=%00", "agent"), ("agent=" + "a" * 256, "agent"),
    ("status=active&status=active", "status"), ("=1", ""), ("%00=1", "\0"),
]  # fmt: skip
SEARCHES = [
    ("before=%00", "before"), ("run_id=a%00", "run_id"), ("source=%00", "source"), ("step=99999999999", "step"),
    ("namespace=%00", "namespace"), ("namespace=" + "n" * 1025, "namespace"),
    ("namespace=" + "%C3%A4" * 513, "namespace"), ("filter=%00", "filter"), ("filter=[]", "filter"),
    ("filter={", "filter"), ('filter={"a":NaN}', "filter"), ('filter={"a":1,"a":2}', "filter"),
    ("filter=" + '{"a":' * 65 + "1" + "}" * 65, "filter"), ("view=all", "view"), ("since=2026-01-01", "since"),
    ("since=2026-01-01T00:00:00", "since"), ("since=0001-01-01T00:00:00%2B14:00", "since"),
    ("until=9999-12-31T23:59:59-14:00", "until"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("path", "query", "parameter"),
    [("/v1/threads", *case) for case in QUERIES]
    + [("/v1/checkpoints", *case) for case in [*QUERIES, *SEARCHES]]
    + [("/v1/api-keys", *case) for case in QUERIES if case[1] in {"limit", "cursor", "nonsense"}]
    + [(f"{SAVE}/latest/channel-history", query, "channel") for query in ("", "namespace=", "channel=%00")]
    + [(f"{SAVE}/latest", query, "view") for query in ("view=", "view=all", "view=none&view=none")]
    + [(f"{SAVE}/latest", "history=%00", "history"), (f"{SAVE}/latest", "history=a&mark=" + "m" * 513, "mark")],
    ids=lambda part: repr(part)[:40],
)
def test_a_wrong_query_parameter_is_named(site: Site, path: str, query: str, parameter: str) -> None:
    answer = site.client.get(f"{path}?{query}")
    problem = site.refuses(answer, 422, "invalid-request")
    assert problem["errors"][0]["parameter"] == parameter


@pytest.mark.parametrize("name", AUTHENTICATED)
def test_every_operation_refuses_a_parameter_it_does_not_know(site: Site, opening_key: str, name: str) -> None:
    declared = AUTHENTICATED[name]
    operating = {"operator": site.tenancy.gateway.operator_key, "decrypt-any": opening_key}
    if declared.operation.permission in operating:
        with site.tenancy.client(operating[declared.operation.permission]) as operator:
            answer = operator.request(declared.operation.method.value, f"{path_of(declared)}?nonsense=1")
    else:
        answer = site.client.request(declared.operation.method.value, f"{path_of(declared)}?nonsense=1")
    problem = site.refuses(answer, 422, "invalid-request")
    assert problem["errors"][0]["parameter"] == "nonsense"


def _raw(site: Site, head: str, body: bytes = b"") -> tuple[int, dict[str, Any]]:
    """Send bytes as they are and read one answer: no client normalises the path or the framing."""
    parts = urlsplit(site.tenancy.gateway.url)
    lines = [head, f"Host: {parts.netloc}", "Connection: close"]
    lines += [f"{name}: {site.client.headers[name]}" for name in ("authorization", "stateroom-subject")]
    with socket.create_connection((parts.hostname, parts.port), timeout=20) as connection:
        connection.sendall("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body)
        answer = b""
        while chunk := connection.recv(65536):
            answer += chunk
    status_line, _, rest = answer.partition(b"\r\n")
    content = rest.partition(b"\r\n\r\n")[2]
    return int(status_line.split()[1]), json.loads(content) if content.startswith(b"{") else {}


PLACES = ["/v1/threads/{}", "/v1/threads/{}/checkpoints", "/v1/threads/{}/checkpoints/latest",
          "/v1/threads/t/checkpoints/{}", "/v1/threads/t/checkpoints/c/writes/{}"]  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    "spelling",
    ["%2e%2e", "%2E%2E%2Fapi-keys", "..%2f..%2flivez", "%00", "a%00", "%0a", "a%20b", "%ff", "~", "~AA", "~YQ",
     "~YWI=", "~gA", "~AAA", "~L2E=", "%7EYQ", "~shared", "~" + "A" * 400, "a" * 256, "%252e", ";x", "a%3F", "-a"],
)  # fmt: skip
def test_an_id_in_a_path_has_one_spelling_or_is_refused(site: Site, place: str, spelling: str) -> None:
    status, problem = _raw(site, f"GET {place.format(spelling)} HTTP/1.1")
    assert status in {404, 405, 422}
    assert problem["code"] in {"invalid-request", "not-found", "method-not-allowed"}
    if problem["code"] == "invalid-request":
        assert problem["errors"][0]["parameter"] in {"thread_id", "checkpoint_id", "task_id"}


@pytest.mark.parametrize("path", ["/v1/threads/../threads", "/v1/./threads", "/livez/../v1/threads", "/V1/threads"])
def test_a_path_is_never_normalised_into_a_route(site: Site, path: str) -> None:
    status, problem = _raw(site, f"GET {path} HTTP/1.1")
    if status == 422:  # `..` was the thread's id
        assert problem["errors"][0]["parameter"] == "thread_id"
    else:
        assert (status, problem.get("code")) in {(404, "not-found"), (405, "method-not-allowed")}


def test_ids_that_look_like_paths_are_ids(site: Site) -> None:
    """What travels as ~base64url reaches exactly the thread of that name."""
    for text in ("../../etc/passwd", "a/b", ".", "..", "%00", "\\..\\", "ﬁ", "\uff0e\uff0e"):
        saved = site.client.post("/v1/threads/t0/checkpoints", json=EMPTY)
        assert saved.status_code == 201
        made = site.client.post("/v1/threads/t0/copy", json={"target_thread_id": text})
        assert made.status_code == 201, made.text
        assert made.json()["thread_id"] == text
    names = {found["thread_id"] for found in site.client.get("/v1/threads").json()["threads"]}
    assert {"../../etc/passwd", "\uff0e\uff0e", "ﬁ"} <= names


def test_a_body_that_is_announced_too_large_is_refused_unread(site: Site) -> None:
    size = 33 * 1024 * 1024
    head = f"POST {SAVE} HTTP/1.1\r\nContent-Type: {JSON}\r\nContent-Length: {size}"
    status, problem = _raw(site, head, b'{"state":')
    assert (status, problem["code"], problem["limit"]) == (413, "body-too-large", "BODY_BYTES_MAX")


def test_a_chunked_body_is_cut_off_at_the_limit(site: Site) -> None:
    sent = 0

    def chunks() -> Iterator[bytes]:
        nonlocal sent
        yield b'{"state":{"a":"'
        for _ in range(33):
            sent += 1
            yield b"x" * (1024 * 1024)
        yield b'"}}'

    try:
        answer = site.client.post(SAVE, content=chunks(), headers={"Content-Type": JSON})
    except httpx.TransportError:  # the gateway answered and hung up while we were still sending
        assert sent >= 32
    else:
        site.refuses(answer, 413, "body-too-large")
    assert site.client.get("/v1/threads").json()["threads"] == []


@pytest.mark.parametrize("announced", ["-1", "1x", "0x10", "1, 1", "99999999999999999999999"])
def test_a_nonsense_length_stores_nothing(site: Site, announced: str) -> None:
    head = f"POST {SAVE} HTTP/1.1\r\nContent-Type: {JSON}\r\nContent-Length: {announced}"
    status, _ = _raw(site, head, b'{"state":{}}')
    assert 400 <= status < 500
    assert site.client.get("/v1/threads").json()["threads"] == []


@pytest.mark.parametrize("path", ["/v1/whoami", "/v1/threads", "/livez", "/openapi.json", "/v1/threads/none"])
def test_head_is_get_without_its_body_and_keeps_the_connection(site: Site, path: str) -> None:
    for coding in ("identity", "gzip", "identity"):
        headers = {"Accept-Encoding": coding}
        got, headed = site.client.get(path, headers=headers), site.client.head(path, headers=headers)
        assert (headed.status_code, headed.content) == (got.status_code, b"")
        packed = "content-encoding" in got.headers  # padded at random: no length is that of the next GET
        if got.status_code == 200:
            assert headed.headers.get("content-encoding") == got.headers.get("content-encoding")
            assert headed.headers.get("content-length") == (None if packed else got.headers["content-length"])


def test_what_was_sent_is_not_repeated_in_problems(site: Site) -> None:
    word = f"word-{uuid4().hex}"
    answers = [
        site.post(f'{{"state":{{"a":1}},"status":"{word}"}}'.encode()),
        site.post(f'{{"state":{{"a":{{"$bytes":"{word}"}}}}}}'.encode()),
        site.post(f'{{"state":"{word}"'.encode()),
        site.client.get(f"/v1/threads/%00{word}"),
        site.client.get(f"/v1/threads?cursor={word}"),
        site.client.get(f"/v1/{word}"),
        site.client.get(f"/v1/threads?status={word}"),
    ]
    for answer in answers:
        assert_problem(answer)
        assert word not in answer.text
