"""Items over HTTP: every route in JSON and MessagePack, conditions, names that need encoding, cursors, who may what."""

import json
from collections.abc import Iterator
from itertools import pairwise
from uuid import uuid4

import httpx
import msgpack
import pytest

from gateway.http.exchange import encode_id
from storage.items.filters import ITEM_FILTER_BYTES_MAX
from storage.items.model import ITEM_OFFSET_MAX, ITEM_OPERATIONS_MAX, ITEM_VALUE_BYTES_MAX
from tests.support.gateway import new_tenant
from tests.support.operations import Tenancy, assert_problem

MSGPACK = "application/msgpack"
SEAT = "/v1/items/memories,flights/seat"
ODD_NAMES = [
    "", "plain", "with,comma", "a/b", "a.b", "..", ".", "~", "~shared", "*", "ключ", "😀", "nul\0nul", "a b", "%2F",
    "x" * 255, "é" * 127, "\n", "?", "#", "\\", '"', "-", "A" * 254 + "é"[:0],
]  # fmt: skip


@pytest.fixture(scope="module")
def tenancy(running_gateway) -> Tenancy:
    return Tenancy(new_tenant(running_gateway))


@pytest.fixture(scope="module")
def service_key(tenancy: Tenancy) -> str:
    return tenancy.gateway.api_key


@pytest.fixture
def subject() -> str:
    return f"user-{uuid4()}"


@pytest.fixture
def client(tenancy, service_key, subject) -> Iterator[httpx.Client]:
    with tenancy.client(service_key, subject) as opened:
        yield opened


def put(client, url, value, headers=None, **more):
    return client.put(url, json={"value": value, **more}, headers=headers or {})


def batch(client, headers=None, **operations):
    return client.post("/v1/items:batch", json=operations, headers=headers or {})


def search(client, **wanted):
    answer = client.post("/v1/items:search", json=wanted)
    assert answer.status_code == 200, answer.text
    return answer.json()


def url_of(path, key):
    return f"/v1/items/{','.join(map(encode_id, path))}/{encode_id(key) if key else '~'}"


def test_an_item_is_put_read_replaced_and_deleted(client):
    made = put(client, SEAT, {"likes": "window"}, ttl_seconds=3600)
    assert (made.status_code, made.headers["location"], made.headers["etag"]) == (201, SEAT, '"1"')
    assert made.json() | {"created_at": 0, "updated_at": 0, "expires_at": 0} == {
        "status": "created", "revision": 1, "created_at": 0, "updated_at": 0, "expires_at": 0,
    }  # fmt: skip
    read = client.get(SEAT)
    assert read.headers["etag"] == '"1"'
    shown = read.json()
    assert (shown["path"], shown["key"], shown["value"]) == (["memories", "flights"], "seat", {"likes": "window"})
    assert shown["ttl_seconds"] == 3600
    again = put(client, SEAT, {"likes": "aisle"})
    assert (again.status_code, again.json()["status"], "location" in again.headers) == (200, "replaced", False)
    assert "expires_at" not in client.get(SEAT).json()
    gone = client.delete(SEAT)
    assert (gone.status_code, gone.json()) == (200, {"status": "deleted"})
    for answer in (client.get(SEAT), client.delete(SEAT)):
        assert_problem(answer, 404, "item-not-found")


def test_every_route_speaks_messagepack(client):
    client.headers.update({"Accept": MSGPACK, "Content-Type": MSGPACK})

    def said(answer, status=200):
        assert (answer.status_code, answer.headers["content-type"]) == (status, MSGPACK), answer.content
        return msgpack.unpackb(answer.content, strict_map_key=False, timestamp=3)

    value = {"bytes": b"\x00\xff", 1: "number", "nested": [{"a": None}], "float": 1.5}
    made = client.put(SEAT, content=msgpack.packb({"value": value}))
    assert said(made, 201)["status"] == "created"
    assert said(client.get(SEAT))["value"] == value
    found = said(
        client.post("/v1/items:search", content=msgpack.packb({"filter": {"float": 1.5}, "prefix": ["memories"]}))
    )
    assert found["items"] == []  # a map with a key that is no text is like nothing
    found = said(client.post("/v1/items:search", content=msgpack.packb({"prefix": ["memories"]})))
    assert found["items"][0]["value"] == value
    assert said(client.post("/v1/items:paths", content=msgpack.packb({})))["paths"] == [["memories", "flights"]]
    batch_ = {"gets": [{"path": ["memories", "flights"], "key": "seat"}], "writes": [
        {"path": ["memories", "flights"], "key": "seat", "delete": True}]}  # fmt: skip
    results = said(client.post("/v1/items:batch", content=msgpack.packb(batch_)))
    assert (results["gets"][0]["value"], results["writes"]) == (value, [{"status": "deleted"}])
    assert client.put(SEAT, content=msgpack.packb({"value": value})).status_code == 201
    assert said(client.delete(SEAT)) == {"status": "deleted"}


def test_what_comes_as_messagepack_is_shown_as_json(client):
    value = {"b": b"\x00", "n": 5, "m": {1: 2, b"k": 3}}
    put_ = client.put(SEAT, content=msgpack.packb({"value": value}), headers={"Content-Type": MSGPACK})
    assert put_.status_code == 201
    shown = {"b": {"$bytes": "AA=="}, "n": 5, "m": {"$map": [[1, 2], [{"$bytes": "aw=="}, 3]]}}
    assert client.get(SEAT).json()["value"] == shown
    assert put(client, SEAT, shown).status_code == 200
    assert (
        msgpack.unpackb(client.get(SEAT, headers={"Accept": MSGPACK}).content, strict_map_key=False)["value"] == value
    )


@pytest.mark.parametrize(
    "text", ['{"n":123456789012345678901234567890}', '{"f":1e400}', '{"a":NaN}', '{"s":"\\ud800"}', '{"a":1,"a":2}']
)
def test_odd_numbers_and_texts_are_kept_or_refused_by_name(client, text):
    answer = client.put(SEAT, content=f'{{"value":{text}}}', headers={"Content-Type": "application/json"})
    if answer.status_code == 201:
        assert client.get(SEAT).json()["value"] == json.loads(text)
        assert search(client, filter={"n": {"$gt": 5}})["items"]
    else:
        assert_problem(answer)
        assert answer.status_code in {400, 422}


@pytest.mark.parametrize(
    "value",
    [[], "x", 1, None, True, {"$bytes": "AA=="}, {"$float": "nan"}, {"$encoded": ["x", "gA=="]}],
    ids=json.dumps,
)
def test_a_value_that_is_no_map_is_refused(client, value):
    problem = assert_problem(put(client, SEAT, value), 422, "invalid-request")
    assert problem["errors"][0]["pointer"] == "/value"


@pytest.mark.parametrize("content", ["ew==", "e2dhcmJhZ2U=", "gqFhAQ=="], ids=["json", "garbage", "cut"])
@pytest.mark.parametrize("encoding", ["json", "msgpack"])
def test_what_says_of_itself_how_it_is_encoded_is_shown_as_it_came(client, content, encoding):
    answer = put(client, SEAT, {"$encoded": [encoding, content]})
    if answer.status_code == 201:
        assert client.get(SEAT).json()["value"] == {"$encoded": [encoding, content]}
        assert search(client, filter={"a": 1})["items"] == []
        assert len(search(client)["items"]) == 1
        assert client.get(SEAT, headers={"Accept": MSGPACK}).status_code == 200
    else:
        assert_problem(answer, 422)


# --- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ODD_NAMES, ids=ascii)
def test_a_name_travels_in_a_path_and_in_a_body_and_is_the_same(client, name):
    path = ["p", name or "empty"]
    made = put(client, url_of(path, name), {"n": 1})
    assert (made.status_code, made.headers["location"]) == (201, url_of(path, name))
    shown = client.get(made.headers["location"]).json()
    assert (shown["path"], shown["key"]) == (path, name)
    found = batch(
        client, gets=[{"path": path, "key": name}], searches=[{"prefix": path}], paths=[{"suffix": [path[1]]}]
    )
    assert found.status_code == 200, found.text
    results = found.json()
    assert results["gets"][0]["revision"] == shown["revision"]
    assert [each["key"] for each in results["searches"][0]["items"]] == [name]
    assert path in results["paths"][0]["paths"]
    assert client.delete(made.headers["location"]).status_code == 200


@pytest.mark.parametrize(
    "url",
    [
        "/v1/items/,a/k", "/v1/items/a,/k", "/v1/items/a,,b/k", "/v1/items/~/k", "/v1/items/a/~YQ", "/v1/items/a/~!",
        "/v1/items/a/~_w", "/v1/items/a/%20", "/v1/items/a/k?x=1", "/v1/items/a/k?refresh=maybe",
        "/v1/items/" + ",".join("abcdefghijklmnopq") + "/k", "/v1/items/a/" + "x" * 256,
        "/v1/items/" + ",".join(["y" * 250] * 5) + "/k", "/v1/items/a/~" + "gICA" * 100,
    ],
    ids=lambda url: url[:40],
)  # fmt: skip
def test_a_name_that_is_none_is_refused_and_never_an_internal_error(client, url):
    for answer in (client.get(url), put(client, url, {}), client.delete(url)):
        assert_problem(answer)
        assert answer.status_code in {400, 404, 422}, answer.text


@pytest.mark.parametrize(
    ("path", "key", "pointer", "limit"),
    [
        ([], "k", "/writes/0/path", None),
        ([""], "k", "/writes/0/path/0", None),
        (["x" * 256], "k", "/writes/0/path/0", None),
        (["é" * 128], "k", "/writes/0/path/0", None),
        (["a"], "é" * 128, "/writes/0/key", None),
        (["a"] * 17, "k", "/writes/0/path", None),
        (["y" * 250] * 5, "k", "/writes/0/path", "ITEM_PATH_BYTES_MAX"),
    ],
)
def test_a_name_of_a_batch_that_is_none_fails_where_it_stands(client, path, key, pointer, limit):
    answer = batch(client, writes=[{"path": path, "key": key, "value": {}}, {"path": ["a"], "key": "b", "value": {}}])
    if answer.status_code == 200:
        refused, made = answer.json()["writes"]
        assert (refused["status"], made["status"]) == ("refused", "created")
        problem = refused["problem"]
    else:
        problem = assert_problem(answer, 422)
    assert problem["errors"][0]["pointer"].startswith(pointer) if problem.get("errors") else limit
    assert problem.get("limit") == limit or limit is None
    for where in ("gets", "searches", "paths"):
        named = {"path": path, "key": key} if where == "gets" else {"prefix": path}
        assert batch(client, **{where: [named]}).status_code in {200, 422}


# --- conditions ------------------------------------------------------------------------------------------------------


def test_a_condition_holds_or_says_at_which_revision_the_item_is(client):
    tag = put(client, SEAT, {"n": 1}).headers["etag"]
    for headers, code in (
        ({"If-Match": '"77"'}, "item-moved"), ({"If-None-Match": "*"}, "item-exists"),
        ({"If-Match": f'"77", {tag}'}, None), ({"If-Match": f"W/{tag}"}, None), ({"If-Match": "*"}, None),
        ({"If-Match": '"01"'}, None), ({"If-Match": '"x"'}, None), ({"If-Match": "1"}, None),
        ({"If-Match": '"' + "9" * 5000 + '"'}, None), ({"If-None-Match": tag}, None),
        ({"If-Match": '"\xb2"'.encode("latin-1")}, None),
    ):  # fmt: skip
        problem = assert_problem(put(client, SEAT, {"n": 2}, headers=headers))
        if code is None:
            assert problem["status"] in {400, 422}, headers
        else:
            assert (problem["status"], problem["code"], problem["revision"]) == (412, code, 1)
    replaced = put(client, SEAT, {"n": 2}, headers={"If-Match": tag})
    assert (replaced.status_code, replaced.headers["etag"] != tag) == (200, True)
    assert_problem(client.delete(SEAT, headers={"If-Match": tag}), 412, "item-moved")
    assert client.delete(SEAT, headers={"If-Match": replaced.headers["etag"]}).status_code == 200
    problem = assert_problem(
        put(client, SEAT, {"n": 3}, headers={"If-Match": replaced.headers["etag"]}), 412, "item-moved"
    )
    assert problem["revision"] is None
    assert put(client, SEAT, {"n": 3}, headers={"If-None-Match": "*"}).status_code == 201


def test_a_repeated_put_and_delete_with_an_idempotency_key_happen_once(client):
    once = {"Idempotency-Key": str(uuid4())}
    first = put(client, SEAT, {"n": 1}, headers=once)
    put(client, SEAT, {"n": 2})
    again = put(client, SEAT, {"n": 1}, headers=once)
    assert (again.status_code, again.json(), again.headers["idempotency-replayed"]) == (200, first.json(), "true")
    assert client.get(SEAT).json()["value"] == {"n": 2}
    for other in (
        lambda: put(client, SEAT, {"n": 3}, headers=once), lambda: put(client, SEAT + "2", {"n": 1}, headers=once),
        lambda: put(client, SEAT, {"n": 1}, headers=once | {"If-Match": '"1"'}),
        lambda: client.delete(SEAT, headers=once),
    ):  # fmt: skip
        assert_problem(other(), 422, "idempotency-key-reused")
    gone = {"Idempotency-Key": str(uuid4())}
    assert client.delete(SEAT, headers=gone).json() == client.delete(SEAT, headers=gone).json() == {"status": "deleted"}
    some = {"Idempotency-Key": str(uuid4())}
    writes = [{"path": ["a"], "key": "k", "value": {}, "if_absent": True}, {"path": ["a"], "key": "z", "delete": True}]
    results = [batch(client, some, writes=writes) for _ in range(2)]
    assert results[0].json() == results[1].json()
    assert results[1].headers["idempotency-replayed"] == "true"


# --- batches ---------------------------------------------------------------------------------------------------------


def test_a_batch_has_a_hundred_operations_of_any_kind_and_no_more(client):
    some = [{"path": ["p"], "key": f"k{number}", "value": {"n": number}} for number in range(97)]
    others = {"gets": [{"path": ["p"], "key": "k1"}], "searches": [{}], "paths": [{}]}
    results = batch(client, writes=some, **others)
    assert results.status_code == 200, results.text
    told = results.json()
    assert (told["gets"], told["searches"][0]["items"], told["paths"][0]["paths"]) == ([None], [], [])
    assert {each["status"] for each in told["writes"]} == {"created"}
    assert len({each["revision"] for each in told["writes"]}) == 97
    problem = assert_problem(batch(client, writes=[*some, some[0]], **others), 422, "limit-exceeded")
    assert problem["limit"] == "ITEM_OPERATIONS_MAX"
    assert batch(client, gets=others["gets"] * ITEM_OPERATIONS_MAX).status_code == 200
    assert_problem(batch(client, gets=others["gets"] * (ITEM_OPERATIONS_MAX + 1)), 422)
    assert batch(client).json() == {"gets": [], "writes": [], "searches": [], "paths": []}


def test_a_write_that_is_refused_fails_alone_with_a_problem_of_its_own(client):
    put(client, "/v1/items/p/a", {"n": 1})
    big = {"a": "x" * ITEM_VALUE_BYTES_MAX}
    writes = [
        {"path": ["p"], "key": "a", "value": {}, "if_revision": 77},
        {"path": ["p"], "key": "a", "value": {}, "if_absent": True},
        {"path": ["p"], "key": "b", "value": [1]},
        {"path": ["p"], "key": "c", "value": big},
        {"path": ["p"], "key": "d", "value": {"$bytes": "not base64"}},
        {"path": ["p"], "key": "e", "value": {"fine": True}},
        {"path": ["p"], "key": "f", "delete": True},
    ]
    told = batch(client, writes=writes).json()["writes"]
    assert [each["status"] for each in told] == [*["refused"] * 5, "created", "absent"]
    moved, exists, no_map, too_large, _ = (each["problem"] for each in told[:5])
    assert (moved["code"], moved["revision"], exists["code"], exists["revision"]) == ("item-moved", 1, "item-exists", 1)
    assert no_map["errors"][0]["pointer"] == "/writes/2/value"
    assert too_large["limit"] == "ITEM_VALUE_BYTES_MAX"
    for problem in (each["problem"] for each in told[:5]):
        assert {"type", "title", "status", "code", "retryable", "detail", "request_id"} <= problem.keys()
        assert problem["type"].endswith(f"/docs#{problem['code']}")
    none = batch(client, writes=writes, atomic=True).json()["writes"]
    assert [each["status"] for each in none] == [*["undone"] * 2, *["refused"] * 3, "undone", "undone"]
    assert client.get("/v1/items/p/e").json()["revision"] == told[5]["revision"]
    none = batch(client, writes=[writes[0], writes[5]], atomic=True).json()["writes"]
    assert [each["status"] for each in none] == ["refused", "undone"]


@pytest.mark.parametrize(
    "write",
    [
        {"path": ["p"], "key": "a"},
        {"path": ["p"], "key": "a", "value": {}, "delete": True},
        {"path": ["p"], "key": "a", "delete": True, "if_absent": True},
        {"path": ["p"], "key": "a", "value": {}, "if_absent": True, "if_revision": 1},
        {"path": ["p"], "key": "a", "value": {}, "ttl_seconds": 0},
        {"path": ["p"], "key": "a", "value": {}, "ttl_seconds": -1},
        {"path": ["p"], "key": "a", "value": {}, "ttl_seconds": 10**12},
        {"path": ["p"], "key": "a", "value": {}, "if_revision": -1e300},
        {"path": "p", "key": "a", "value": {}},
        {"path": ["p"], "key": 1, "value": {}},
        {"path": ["p"], "value": {}},
        {"path": ["p"], "key": "a", "value": {}, "other": 1},
    ],
    ids=json.dumps,
)
def test_a_write_that_says_nothing_or_two_things_is_refused_with_all_of_its_batch(client, write):
    answer = batch(client, writes=[{"path": ["p"], "key": "z", "value": {}}, write])
    problem = assert_problem(answer, 422)
    assert problem["errors"][0]["pointer"].startswith("/writes/1")
    assert_problem(client.get("/v1/items/p/z"), 404)


# --- searches --------------------------------------------------------------------------------------------------------


def filled(client, count=25):
    for start in range(0, count, 5):
        writes = [
            {"path": ["m", f"p{n % 3}"], "key": f"k{n}", "value": {"n": n, "odd": bool(n % 2)}}
            for n in range(start, min(start + 5, count))
        ]
        assert batch(client, writes=writes).status_code == 200


def pages(client, url, name, **wanted):
    cursor, found = None, []
    while True:
        answer = client.post(url, json=wanted | ({} if cursor is None else {"cursor": cursor}))
        assert answer.status_code == 200, answer.text
        found.append(answer.json()[name])
        cursor = answer.json()["next_cursor"]
        if cursor is None:
            return found


def test_pages_are_full_and_repeat_and_leave_out_nothing(client):
    filled(client)
    whole = search(client, prefix=["m"])["items"]
    assert len(whole) == 25
    assert all(one["updated_at"] >= other["updated_at"] for one, other in pairwise(whole))
    for limit in (1, 2, 5, 24, 25, 26):
        got = pages(client, "/v1/items:search", "items", prefix=["m"], limit=limit)
        assert [each for page in got for each in page] == whole
        assert {len(page) for page in got[:-1]} <= {limit}
    odd = [each for each in whole if each["value"]["odd"]]
    for limit in (1, 5, 12):
        got = pages(client, "/v1/items:search", "items", prefix=["m"], limit=limit, filter={"odd": True})
        assert [each for page in got for each in page] == odd
        assert all(len(page) == limit for page in got[:-1])
        for offset in (0, 1, 11, 12, 13):
            got = pages(client, "/v1/items:search", "items", limit=limit, offset=offset, filter={"odd": True})
            assert [each for page in got for each in page] == odd[offset:]
    assert search(client, offset=ITEM_OFFSET_MAX)["items"] == []
    listed = pages(client, "/v1/items:paths", "paths", limit=1)
    assert listed[:3] == [[["m", "p0"]], [["m", "p1"]], [["m", "p2"]]]


def test_what_others_write_meanwhile_is_neither_shown_twice_nor_hides_what_stayed(client):
    filled(client)
    first = client.post("/v1/items:search", json={"limit": 10}).json()
    shown = [each["key"] for each in first["items"]]
    staying = {f"k{n}" for n in range(25)} - {"k3", "k20"} - {*shown}
    put(client, "/v1/items/m,p0/k3", {"n": "new"})
    put(client, "/v1/items/m,p0/new", {"n": "new"})
    client.delete("/v1/items/m,p2/k20")
    cursor, rest = first["next_cursor"], []
    while cursor is not None:
        page = client.post("/v1/items:search", json={"limit": 3, "cursor": cursor}).json()
        rest += [each["key"] for each in page["items"]]
        cursor = page["next_cursor"]
    assert len(rest) == len({*rest})
    assert not {*shown} & {*rest}
    assert staying <= {*rest}


def test_a_cursor_is_good_for_its_search_of_its_subject(tenancy, service_key, client):
    filled(client)
    wanted = {"prefix": ["m"], "limit": 3, "filter": {"odd": True}}
    cursor = client.post("/v1/items:search", json=wanted).json()["next_cursor"]
    assert client.post("/v1/items:search", json=wanted | {"limit": 7, "cursor": cursor}).status_code == 200
    listed = client.post("/v1/items:paths", json={"limit": 1}).json()["next_cursor"]
    for url, body in (
        ("search", wanted | {"prefix": [], "cursor": cursor}), ("search", wanted | {"filter": {}, "cursor": cursor}),
        ("search", {"prefix": ["m"], "cursor": cursor}), ("search", {"cursor": listed}), ("paths", {"cursor": cursor}),
        ("search", wanted | {"cursor": cursor[:-2] + "AA"}), ("search", wanted | {"cursor": ""}),
        ("search", wanted | {"cursor": "\u00e9"}), ("search", wanted | {"cursor": "A" * 10_000}),
        ("paths", {"limit": 1, "suffix": ["x"], "cursor": listed}), ("paths", {"max_depth": 1, "cursor": listed}),
    ):  # fmt: skip
        problem = assert_problem(client.post(f"/v1/items:{url}", json=body), 422, "invalid-request")
        assert problem["errors"][0]["pointer"] == "/cursor"
    problem = assert_problem(batch(client, searches=[{}, wanted | {"cursor": listed}]), 422)
    assert problem["errors"][0]["pointer"] == "/searches/1/cursor"
    with tenancy.client(service_key, "somebody-else") as other:
        put(other, "/v1/items/m,p0/k", {"odd": True})
        assert_problem(other.post("/v1/items:search", json=wanted | {"cursor": cursor}), 422)
    again = batch(client, searches=[wanted | {"cursor": cursor}])
    assert_problem(again, 422)  # of this route there was none


@pytest.mark.parametrize(
    ("wanted", "pointer"),
    [
        ({"limit": 0}, "/limit"), ({"limit": 1001}, "/limit"), ({"limit": -1}, "/limit"), ({"offset": -1}, "/offset"),
        ({"offset": ITEM_OFFSET_MAX + 1}, "/offset"), ({"filter": []}, "/filter"), ({"filter": None}, "/filter"),
        ({"filter": {"$x": 1}}, "/filter/$x"), ({"filter": {"a": {"$gt": None}}}, "/filter/a/$gt"),
        ({"filter": {"a": "x" * ITEM_FILTER_BYTES_MAX}}, None), ({"prefix": [""]}, "/prefix/0"),
        ({"filter": {"$or": [{"a": 1}] * 1000}}, None), ({"x": 1}, "/x"), ({"prefix": "m"}, "/prefix"),
    ],
    ids=lambda each: json.dumps(each)[:40],
)  # fmt: skip
def test_a_search_that_is_none_is_refused_where_it_is_wrong(client, wanted, pointer):
    for answer, before in (
        (client.post("/v1/items:search", json=wanted), ""),
        (batch(client, searches=[{}, wanted]), "/searches/1"),
    ):
        problem = assert_problem(answer, 422)
        if pointer is not None:
            assert problem["errors"][0]["pointer"].startswith(before + pointer)


@pytest.mark.parametrize("body", [{b"filter": {b"a": 1}}, {"filter": {1: 1}}, {"filter": {"a": {b"$gt": 1}}}], ids=repr)
def test_a_filter_whose_keys_are_no_texts_is_refused(client, body):
    answer = client.post("/v1/items:search", content=msgpack.packb(body), headers={"Content-Type": MSGPACK})
    assert_problem(answer)
    assert answer.status_code in {400, 422}


# --- who may what ----------------------------------------------------------------------------------------------------


def test_a_key_does_what_it_may_and_nothing_else(tenancy, service_key, subject, client):
    put(client, SEAT, {"n": 1})
    write = {"path": ["a"], "key": "b", "value": {}}
    remove = {"path": ["a"], "key": "b", "delete": True}
    calls = {
        "state:read": [
            lambda by: by.get(SEAT), lambda by: by.post("/v1/items:search", json={}),
            lambda by: by.post("/v1/items:paths", json={}), lambda by: batch(by, searches=[{}]),
        ],
        "state:write": [lambda by: put(by, "/v1/items/a/b", {})],
        "state:delete": [lambda by: by.delete("/v1/items/a/b")],
        "state:read state:write": [lambda by: batch(by, writes=[write])],
        "state:read state:delete": [lambda by: batch(by, writes=[remove])],
        "state:read state:write state:delete": [lambda by: batch(by, writes=[write, remove])],
    }  # fmt: skip
    for permissions in (["state:read"], ["state:write"], ["state:delete"], ["state:read", "state:write"]):
        with tenancy.client(tenancy.key(service_key, subject, permissions)) as by:
            for needed, some in calls.items():
                for call in some:
                    answer = call(by)
                    if {*needed.split()} <= {*permissions}:
                        assert answer.status_code in {200, 201, 404}, (permissions, needed, answer.text)
                    else:
                        assert_problem(answer, 403, "permission-denied")


def test_subjects_see_their_own_and_what_is_shared_if_they_may(tenancy, service_key, subject, client):
    with tenancy.client(service_key, "~shared") as shared:
        assert put(shared, "/v1/items/all/rule", {"n": 1}).status_code == 201
        assert [each["key"] for each in search(shared, prefix=["all"])["items"]] == ["rule"]
    assert_problem(client.get("/v1/items/all/rule"), 404)
    own = tenancy.key(service_key, subject)
    with tenancy.client(own, "~shared") as by:
        assert_problem(by.get("/v1/items/all/rule"), 403)
    with tenancy.client(own, "somebody-else") as by:
        assert_problem(by.get(SEAT), 403)
    with tenancy.client(None) as by:
        assert_problem(by.get(SEAT), 401)


def test_a_clients_share_has_items_of_its_own(client):
    share = {"Stateroom-Client-Share": "c2hhcmVzaGFyZXNoYXJlc2hhcmVzaGFyZXNoYXJlczE="}
    assert put(client, SEAT, {"n": 1}, headers=share).status_code == 201
    assert_problem(client.get(SEAT), 404)
    assert client.get(SEAT, headers=share).json()["value"] == {"n": 1}
    assert search(client)["items"] == []
    assert len(client.post("/v1/items:search", json={}, headers=share).json()["items"]) == 1
    assert_problem(client.get(SEAT, headers={"Stateroom-Client-Share": "x"}), 422)


def test_reading_gives_an_item_its_time_anew_unless_it_is_told_not_to(client):
    made = put(client, SEAT, {"n": 1}, ttl_seconds=1000).json()
    for query in ("?refresh=false", "?refresh=true", ""):
        assert client.get(SEAT + query).json()["expires_at"] == made["expires_at"]  # nothing fades yet


@pytest.mark.parametrize("size", [ITEM_VALUE_BYTES_MAX - 8, ITEM_VALUE_BYTES_MAX - 7])
def test_a_value_has_as_many_bytes_as_it_may(client, size):
    value = {"a": "x" * size}
    packed = len(msgpack.packb(value))
    answer = put(client, SEAT, value)
    if packed <= ITEM_VALUE_BYTES_MAX:
        assert answer.status_code == 201
        assert client.get(SEAT).json()["value"] == value
    else:
        assert assert_problem(answer, 422, "limit-exceeded")["limit"] == "ITEM_VALUE_BYTES_MAX"


def test_a_page_of_large_values_ends_early_and_goes_on(client):
    value = {"a": "x" * (ITEM_VALUE_BYTES_MAX - 100)}
    for start in range(0, 80, 20):
        writes = [{"path": ["big"], "key": f"k{n}", "value": value} for n in range(start, start + 20)]
        assert batch(client, writes=writes).status_code == 200
    got = pages(client, "/v1/items:search", "items", prefix=["big"], limit=1000)
    assert len(got) > 1
    assert sorted(each["key"] for page in got for each in page) == sorted(f"k{n}" for n in range(80))


def test_what_cannot_be_told_is_not_written(client):
    """A control character takes a byte where it is stored, and six where it is shown as JSON."""
    value = {"a": "\x01" * (ITEM_VALUE_BYTES_MAX - 100)}
    packed = {"writes": [{"path": ["big"], "key": f"k{n}", "value": value} for n in range(70)]}
    sent = client.post("/v1/items:batch", content=msgpack.packb(packed), headers={"Content-Type": MSGPACK})
    assert sent.status_code == 200
    gets = [{"path": ["big"], "key": f"k{n}"} for n in range(70)]
    answer = batch(client, gets=gets, writes=[{"path": ["other"], "key": "k", "value": {}}])
    assert_problem(answer, 413, "state-too-large")
    assert_problem(client.get("/v1/items/other/k"), 404)
    assert batch(client, gets=gets[:40], writes=[{"path": ["other"], "key": "k", "value": {}}]).status_code == 200
