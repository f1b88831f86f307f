"""What large values are is said with a save, remembered, said again, and shown by a load without the values."""

import base64
import hashlib
import struct

import httpx2
import msgspec
import pytest

from sdk.python.tests.fakes import API_KEY, URL, packed, problem, receipt
from sdk.python.tests.test_pieces import SCREEN, Gateway, put
from stateroom import AsyncClient, Client, InvalidRequest, LargeValue, Preview
from stateroom._remembered.leaf_notes import REQUEST_BYTES_MAX, PieceNotes, media_type_of
from stateroom.errors import CheckpointNotFound

PLACEHOLDER = struct.Struct(">3s17sQ")
PNG = b"\x89PNG\r\n\x1a\n" + b"p" * 100_000


class States:
    """As much of a gateway as plain states need: it shows what was saved last, and knows notes unless it is old."""

    def __init__(self, *, is_old=False):
        self.pieces = {}
        self.requests = []
        self.bodies = []
        self.is_old = is_old

    def __call__(self, request):
        self.requests.append(request)
        last = request.url.path.split("/")[-1]
        if last == "pieces":
            data = msgspec.msgpack.decode(request.content)["data"]
            piece = b"\x01" + hashlib.sha256(data).digest()[:16]
            self.pieces[piece] = data
            return packed({"piece": piece, "size_bytes": len(data)}, 201)
        if "/pieces/" in request.url.path:
            return packed({"data": self.pieces[base64.urlsafe_b64decode(last + "=")]})
        if request.method == "POST":
            body = msgspec.msgpack.decode(request.content)
            if self.is_old and "state_leaves" in body:
                return problem(422, "invalid-request", errors=[{"detail": "unknown", "pointer": "/state_leaves"}])
            self.bodies.append(body)
            return receipt("child", step=len(self.bodies))
        body = self.bodies[-1]
        leaves = {}
        for name, holes in body.get("state_holes", {}).items():
            data = msgspec.msgpack.encode(body["state"][name])
            said = {each.get("at"): each for each in body.get("state_leaves", {}).get(name, ())}
            for at in holes:
                _, piece, size = PLACEHOLDER.unpack_from(data, at)
                shown = {key: each for key, each in said.get(at, {}).items() if key != "at"}
                leaves.setdefault(name, []).append({"path": f"/{at}", "piece": piece, "size_bytes": size, **shown})
        shown = {"state": body["state"], "state_holes": body.get("state_holes", {}), "state_leaves": leaves}
        info = {"thread_id": "t", "namespace": "", "checkpoint_id": "child", "parent_id": None, "step": 1}
        info |= {"status": "active", "created_at": "2026-11-21T10:00:00Z", "pending_writes": []}
        return packed({**info, **shown}, headers={"etag": '"child"'})

    def downloads(self):
        return [request for request in self.requests if "/pieces/" in request.url.path]


@pytest.fixture
def thread_of():
    def make(gateway):
        client = Client(URL, API_KEY, subject="user-42", transport=httpx2.MockTransport(gateway))
        return client.thread("t")

    return make


def test_the_type_is_said_without_being_asked(thread_of):
    gateway = States()
    thread_of(gateway).save({"text": SCREEN, "picture": [1, PNG], "small": "s"})
    [body] = gateway.bodies
    assert body["state_leaves"] == {
        "text": [{"at": 0, "media_type": "text/plain"}],
        "picture": [{"at": 2, "media_type": "image/png"}],
    }


def test_a_preview_is_said_by_path_and_again_with_the_next_save(thread_of):
    gateway = States()
    thread = thread_of(gateway)
    state = {"page": {"html/raw": SCREEN}, "shot": PNG}
    previews = {"/page/html~1raw": Preview("data", "text/x-url"), "/shot": b"thumb"}
    thread.save(state, previews=previews)
    thread.save({**state, "n": 1})
    first, second = gateway.bodies
    assert first["state_leaves"]["page"][0] == {"path": "/html~1raw", "media_type": "text/x-url", "preview": b"data"}
    assert first["state_leaves"]["shot"][0] == {"path": "", "preview": b"thumb"}
    at = second["state_holes"]["page"][0]
    assert second["state_leaves"] == {
        "page": [{"at": at, "media_type": "text/x-url", "preview": b"data"}],
        "shot": [{"at": 0, "media_type": "image/png", "preview": b"thumb"}],
    }


def test_a_load_shows_what_was_said_and_a_save_says_it_again(thread_of):
    gateway = States()
    thread_of(gateway).save({"shot": PNG}, previews={"/shot": b"thumb"})
    thread_of(gateway).save({"shot": PNG})  # another process, which knows nothing of it
    assert gateway.bodies[1]["state_leaves"] == {"shot": [{"at": 0, "media_type": "image/png"}]}
    gateway.bodies[1]["state_leaves"]["shot"][0]["preview"] = b"another"
    thread = thread_of(gateway)
    assert thread.large_values() == {
        "/shot/0": LargeValue(
            piece=next(iter(gateway.pieces)), size_bytes=len(PNG) + 5, media_type="image/png", preview=b"another"
        )
    }
    assert not gateway.downloads()
    head = thread.load()
    assert (head.state, head.large_values["/shot/0"].preview) == ({"shot": PNG}, b"another")
    thread.save(head.state)
    assert gateway.bodies[2]["state_leaves"]["shot"][0]["preview"] == b"another"


async def test_the_asynchronous_client_shows_it_too():
    gateway = States()
    transport = httpx2.MockTransport(gateway)
    async with AsyncClient(URL, API_KEY, subject="user-42", transport=transport) as client:
        thread = client.thread("t")
        await thread.save({"shot": PNG}, previews={"/shot": b"thumb"})
        assert [each.size_bytes for each in (await thread.large_values()).values()] == [len(PNG) + 5]
    assert not gateway.downloads()


def test_a_patch_says_it_of_what_it_sets_and_appends(thread_of):
    gateway = States()
    thread = thread_of(gateway)
    thread.save({"log": []})
    thread.patch(append={"log": [SCREEN]}, set={"a": PNG}, previews={"/log/0": "text", "/a": b"thumb"})
    assert gateway.bodies[-1]["changes"]["leaves"] == {
        "log": [{"path": "/0", "preview": b"text"}],
        "a": [{"path": "", "preview": b"thumb"}],
    }
    thread.patch(set={"a": 1})
    assert "leaves" not in gateway.bodies[-1]["changes"]


def test_an_older_gateway_is_told_nothing_but_what_the_caller_insists_on(thread_of):
    gateway = States(is_old=True)
    thread = thread_of(gateway)
    for _ in range(2):
        thread.save({"shot": PNG})
    posts = [each for each in gateway.requests if each.url.path.endswith("/checkpoints")]
    assert (len(posts), len(gateway.bodies)) == (3, 2)
    with pytest.raises(InvalidRequest):
        thread.save({"shot": PNG}, previews={"/shot": b"thumb"})


def test_the_langgraph_saver_says_types_and_goes_on_at_an_older_gateway(saver_to):
    gateway = Gateway()
    put(saver_to(gateway), messages=[{"image": SCREEN}])
    [said] = gateway.saved["channels"]["messages"]["leaves"]
    assert said == {"at": gateway.saved["channels"]["messages"]["holes"][0], "media_type": "text/plain"}
    saver = saver_to(gateway)
    refused = [{"detail": "unknown", "pointer": "/channels/messages/leaves"}]
    gateway.answers = [problem(422, "invalid-request", errors=refused)]
    put(saver, messages=[{"image": SCREEN}])
    assert "leaves" not in gateway.saved["channels"]["messages"]
    gateway.answers = [problem(422, "invalid-request", errors=[{"detail": "no", "pointer": "/metadata"}])]
    with pytest.raises(InvalidRequest):
        put(saver, messages=[{"image": SCREEN}])


def test_no_request_says_more_than_a_gateway_takes(thread_of):
    gateway = States()
    thread = thread_of(gateway)
    shots = [f"{number:04}" + SCREEN for number in range(300)]
    for begin in (0, 200):
        some = range(begin, min(begin + 200, 300))
        thread.save({"shots": shots}, previews={f"/shots/{number}": b"p" * 4096 for number in some})
    thread.save({"shots": shots})
    for body in gateway.bodies:
        said = [len(each.get("preview", b"")) for each in body["state_leaves"]["shots"]]
        assert sum(said) <= REQUEST_BYTES_MAX
    assert said[-1] == 4096  # the newest keep theirs
    assert not said[0]


@pytest.mark.parametrize("path", ["", "shot", 1])
def test_a_path_that_is_none_is_refused_before_anything_is_sent(thread_of, path):
    gateway = States()
    with pytest.raises(InvalidRequest, match="path"):
        thread_of(gateway).save({"shot": PNG}, previews={path: b"thumb"})
    assert not gateway.requests


def test_a_text_is_cut_between_two_characters(thread_of):
    gateway = States()
    thread_of(gateway).save({"text": "ä" * 100_000}, previews={"/text": "xä" + "ä" * 100_000})
    preview = gateway.bodies[0]["state_leaves"]["text"][0]["preview"]
    assert (len(preview), preview.decode()[:2]) == (4095, "xä")


def test_a_large_value_that_is_not_there_has_no_checkpoint(thread_of):
    gone = problem(404, "checkpoint-not-found")
    thread = thread_of(lambda _: gone)
    assert thread.large_values() == {}
    with pytest.raises(CheckpointNotFound):
        thread.large_values("gone")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("text" * 100, "text/plain"),
        (b"\xff\xd8\xff" + b"j" * 100, "image/jpeg"),
        (b"GIF89a" + b"g" * 100, "image/gif"),
        (b"RIFF1234WEBP" + b"w" * 100, "image/webp"),
        (b"%PDF-1.7" + b"p" * 100, "application/pdf"),
        (b"b" * 70_000, "application/octet-stream"),
        (msgspec.msgpack.Ext(5, b"e" * 100), "application/msgpack"),
    ],
)
def test_what_a_leaf_looks_like(value, expected):
    assert media_type_of(msgspec.msgpack.encode(value)) == expected


def test_what_is_remembered_is_bounded():
    notes = PieceNotes(bytes_max=1000)
    for number in range(5):
        notes.note((b"o", bytes([number])), "text/plain", bytes(200))
    assert [notes.of((b"o", bytes([number])))[0] for number in range(5)] == [
        None,
        None,
        None,
        "text/plain",
        "text/plain",
    ]
    notes.note((b"o", b"\x04"), None, None)
    assert notes.of((b"o", b"\x04")) == (None, None)
