"""What large values are comes with the load that shows them: in both formats and all views, and to nobody else."""

import base64
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import httpx
import msgpack
import pytest

import stateroom
from gateway.admission import limits
from tests.support.gateway import GatewayProcess
from tests.support.operations import Tenancy, assert_problem

PACKED = {"Accept": "application/msgpack", "Content-Type": "application/msgpack"}
TEXT = "t" * 70_000
PICTURE = b"\x89PNG\r\n\x1a\n" + b"p" * 80_000
PREVIEW = b"a preview that nobody else sees"


@pytest.fixture(scope="module")
def tenancy(running_gateway: GatewayProcess) -> Tenancy:
    return Tenancy(running_gateway)


@pytest.fixture(scope="module")
def tenant(tenancy: Tenancy) -> Any:
    return tenancy.tenant()


@pytest.fixture(scope="module")
def client(tenancy: Tenancy, tenant: Any) -> Iterator[httpx.Client]:
    with tenancy.client(tenant, "notes") as opened:
        yield opened


@pytest.fixture
def path() -> str:
    return f"/v1/threads/{uuid4()}/checkpoints"


def packed(client: httpx.Client, method: str, path: str, body: Any = None) -> Any:
    content = None if body is None else msgpack.packb(body)
    answer = client.request(method, path, headers=PACKED, content=content)
    assert answer.status_code < 300, answer.content
    return msgpack.unpackb(answer.content, timestamp=3)


def saved(client: httpx.Client, path: str, body: Any, **headers: str) -> str:
    answer = client.post(path, json=body, headers=headers)
    assert answer.status_code == 201, answer.text
    return answer.json()["checkpoint_id"]


def without(leaves: list[dict[str, Any]], *names: str) -> list[dict[str, Any]]:
    return [{name: said for name, said in each.items() if name not in names} for each in leaves]


def encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()


def test_a_client_of_json_is_told_type_size_digest_and_place_without_having_said_anything(client, path):
    saved(client, path, {"state": {"page": {"html": TEXT, "shot": {"$bytes": encoded(PICTURE)}}, "n": 1}})
    shown = client.get(f"{path}/latest", params={"view": "state"}).json()
    assert shown["state"]["page"]["html"] == TEXT
    assert shown["state_leaves"].keys() == {"page"}
    leaves = shown["state_leaves"]["page"]
    assert without(leaves, "piece") == [
        {"path": "/html", "size_bytes": 70_005, "media_type": "text/plain"},
        {"path": "/shot", "size_bytes": 80_013, "media_type": "application/octet-stream"},
    ]
    piece = base64.urlsafe_b64encode(base64.b64decode(leaves[1]["piece"])).rstrip(b"=").decode()
    fetched = packed(client, "GET", f"{path.removesuffix('/checkpoints')}/pieces/{piece}")
    assert msgpack.unpackb(fetched["data"]) == PICTURE


def test_previews_come_with_a_load_by_reference_in_one_call(client, path):
    said = [
        {"path": "/html", "media_type": "text/html", "preview": encoded(PREVIEW)},
        {"path": "/shot", "media_type": "image/png", "preview": encoded(b"small")},
    ]
    state = {"page": {"html": TEXT, "shot": {"$bytes": encoded(PICTURE)}}}
    saved(client, path, {"state": state, "state_leaves": {"page": said}})
    shown = packed(client, "GET", f"{path}/latest?view=state&pieces=refs")
    leaves = shown["state_leaves"]["page"]
    assert [each["at"] for each in leaves] == shown["state_holes"]["page"]
    assert [(each["path"], each["media_type"], each["preview"]) for each in leaves] == [
        ("/html", "text/html", PREVIEW),
        ("/shot", "image/png", b"small"),
    ]
    whole = packed(client, "GET", f"{path}/latest?view=state")
    assert without(whole["state_leaves"]["page"], "at") == without(leaves, "at")
    channel = packed(client, "GET", f"{path}/latest?view=channels&pieces=refs")["channels"]["page"]
    assert (channel["leaves"], [each["at"] for each in leaves]) == (leaves, channel["holes"])
    listed = packed(client, "GET", f"{path}?view=state&pieces=refs")["checkpoints"]
    assert [each["state_leaves"]["page"] for each in listed] == [leaves]
    assert "state_leaves" not in client.get(f"{path}/latest", params={"view": "none"}).json()


def test_what_is_uploaded_appended_and_set_says_what_it_is(client, path):
    thread = path.removesuffix("/checkpoints")
    leaf = msgpack.packb(TEXT)
    piece = packed(client, "POST", f"{thread}/pieces", {"data": leaf})["piece"]
    hole = msgpack.ExtType(0x68, piece + len(leaf).to_bytes(8, "big"))
    body = {
        "state": {"log": [hole]},
        "state_holes": {"log": [1]},
        "state_leaves": {"log": [{"at": 1, "media_type": "text/csv", "preview": b"0"}]},
    }
    head = packed(client, "POST", path, body)["checkpoint_id"]
    changes = {
        "append": {"log": ["x", {"y": TEXT + "1"}]},
        "set": {"doc": TEXT + "2"},
        "leaves": {
            "log": [{"path": "/1/y", "preview": encoded(b"1")}],
            "doc": [{"path": "", "preview": encoded(b"2")}],
        },
    }
    saved(client, path, {"changes": changes}, **{"If-Match": f'"{head}"'})
    shown = client.get(f"{path}/latest", params={"view": "state"}).json()["state_leaves"]
    assert {name: without(leaves, "piece", "size_bytes") for name, leaves in shown.items()} == {
        "log": [
            {"path": "/0", "media_type": "text/csv", "preview": encoded(b"0")},
            {"path": "/2/y", "media_type": "text/plain", "preview": encoded(b"1")},
        ],
        "doc": [{"path": "", "media_type": "text/plain", "preview": encoded(b"2")}],
    }


def test_pending_writes_and_histories_say_what_they_hold(client, path):
    said = [{"path": "", "media_type": "text/html", "preview": encoded(PREVIEW)}]
    data = encoded(msgpack.packb(TEXT))
    first = saved(client, path, {"channels": {"a": {"version": 1, "data": data, "leaves": said}}})
    writes = [
        {"channel": "a", "idx": 0, "value": TEXT, "leaves": said},
        {"channel": "a", "idx": 1, "data": data, "leaves": said},
    ]
    assert client.post(f"{path}/{first}/writes/task", json={"writes": writes}).status_code == 200
    second = saved(client, path, {"state": {"n": 1}})
    expected = [{"path": "", "size_bytes": 70_005, "media_type": "text/html", "preview": encoded(PREVIEW)}]
    for view in ("state", "channels"):
        shown = client.get(f"{path}/{first}", params={"view": view}).json()["pending_writes"]
        assert [without(each["leaves"], "piece", "at") for each in shown] == [expected] * 2
        shown = client.get(f"{path}/{first}/writes/task", params={"view": view}).json()["writes"]
        assert [without(each["leaves"], "piece", "at") for each in shown] == [expected] * 2
    history = client.get(f"{path}/{second}/channel-history", params={"channel": "a"}).json()["channels"]["a"]
    assert without(history["seed"]["leaves"], "piece", "at") == expected
    assert [without(each["leaves"], "piece", "at") for each in history["writes"]] == [expected] * 2


def leaves_of(**said: Any) -> dict[str, Any]:
    return {"state": {"a": TEXT}, "state_leaves": {"a": [{"path": ""}, said]}}


@pytest.mark.parametrize(
    ("body", "status", "code", "pointer"),
    [
        (leaves_of(), 422, "invalid-request", "/state_leaves/a/1"),
        (leaves_of(at=0, path=""), 422, "invalid-request", "/state_leaves/a/1"),
        (leaves_of(at=0), 422, "invalid-request", "/state_leaves/a/1/at"),
        (leaves_of(at=-1), 422, "invalid-request", "/state_leaves/a/1/at"),
        (leaves_of(path="a"), 422, "invalid-request", "/state_leaves/a/1/path"),
        (leaves_of(path="", media_type="a picture"), 422, "invalid-request", "/state_leaves/a/1/media_type"),
        (leaves_of(path="", preview="!"), 422, "invalid-request", "/state_leaves/a/1/preview"),
        (leaves_of(path="", preview=encoded(bytes(4097))), 422, "invalid-request", "/state_leaves/a/1/preview"),
        (leaves_of(path="", other=1), 422, "invalid-request", "/state_leaves/a/1/other"),
        ({"state": {"a": 1}, "state_leaves": {"b": []}}, 422, "invalid-request", "/state_leaves/b"),
        ({"channels": {"a": {}}, "state_leaves": {"a": []}}, 422, "invalid-request", "/state_leaves/a"),
        ({"changes": {"leaves": {"a": []}}}, 422, "invalid-request", "/changes/leaves/a"),
        (
            {"changes": {"append": {"a": [1]}, "leaves": {"a": [{"at": 0}]}}},
            422, "invalid-request", "/changes/leaves/a/0/at",
        ),
        (
            {"state": {"a": 1}, "state_leaves": {"a": [{"path": ""}] * 10_001}},
            422, "invalid-request", "/state_leaves/a",
        ),
        (
            {"state": {"a": 1}, "state_leaves": {"a": [{"path": "", "preview": encoded(bytes(4096))}] * 257}},
            422, "limit-exceeded", "/state_leaves/a/256/preview",
        ),
    ],
    ids=lambda part: repr(part)[:60],
)  # fmt: skip
def test_what_is_wrong_with_it_is_said_where_it_is(client, path, body, status, code, pointer):
    answer = client.post(path, json=body, headers={"If-Match": '"x"'} if "changes" in body else {})
    problem = assert_problem(answer, status, code)
    assert [each.get("pointer") for each in problem["errors"]] == [pointer]
    assert client.get(f"{path}/latest").status_code == 404


def test_as_many_previews_as_a_request_may_have_come_back(client, path):
    size = limits.PREVIEW_BYTES_MAX
    count = limits.PREVIEWS_BYTES_MAX // size
    thread = path.removesuffix("/checkpoints")
    leaf = msgpack.packb("x" * 40)
    piece = packed(client, "POST", f"{thread}/pieces", {"data": leaf})["piece"]
    hole = msgpack.ExtType(0x68, piece + len(leaf).to_bytes(8, "big"))
    offsets = [3 + 28 * number for number in range(count)]
    leaves = [{"at": at, "preview": number.to_bytes(2) * (size // 2)} for number, at in enumerate(offsets)]
    packed(client, "POST", path, {
        "state": {"a": [hole] * count}, "state_holes": {"a": offsets}, "state_leaves": {"a": leaves},
    })  # fmt: skip
    shown = packed(client, "GET", f"{path}/latest?view=state&pieces=refs")["state_leaves"]["a"]
    assert [each["preview"] for each in shown] == [each["preview"] for each in leaves]
    assert [each["path"] for each in shown] == [f"/{number}" for number in range(count)]


def test_the_client_says_it_keeps_it_and_shows_it_without_fetching(running_gateway, tenant):
    state = {"page": {"html": TEXT}, "shots": [PICTURE]}
    options = {"subject": "notes"}
    with stateroom.Client(running_gateway.url, tenant, **options) as first:
        thread = first.thread(f"sdk-{uuid4()}")
        thread.save(state, previews={"/page/html": stateroom.Preview(TEXT, "text/html")})
        thread.patch(append={"shots": [PICTURE + b"2"]}, previews={"/shots/0": PREVIEW})
    with stateroom.Client(running_gateway.url, tenant, **options) as second:
        thread = second.thread(thread.thread_id)
        for _ in range(2):
            shown = thread.large_values()
            assert {path: (each.media_type, each.preview) for path, each in shown.items()} == {
                "/page/html": ("text/html", TEXT[:4096].encode()),
                "/shots/0": ("image/png", None),
                "/shots/1": ("application/octet-stream", PREVIEW),
            }
            head = thread.load()
            assert head.large_values == shown
            assert head.state == {"page": {"html": TEXT}, "shots": [PICTURE, PICTURE + b"2"]}
            thread.save(head.state)


def test_another_subject_sees_no_preview_and_no_log_has_one(client, tenancy, tenant, path, running_gateway):
    said = [{"path": "", "media_type": "text/html", "preview": encoded(PREVIEW)}]
    saved(client, path, {"state": {"a": TEXT}, "state_leaves": {"a": said}})
    with tenancy.client(tenant, "somebody-else") as other:
        answers = [other.get(f"{path}/latest"), other.get(path), other.get("/v1/checkpoints?view=state")]
        assert answers[0].status_code == 404
        for answer in answers:
            assert encoded(PREVIEW) not in answer.text
    refused = client.post(
        path,
        json={"state": {"a": TEXT}, "state_leaves": {"a": [*said, {"path": "no"}]}},
    )
    assert_problem(refused, 422, "invalid-request")
    assert encoded(PREVIEW) not in refused.text
