"""States of any size through the plain client: large leaves travel once, and what comes back is what was saved."""

import httpx2
import msgspec
import pytest
from msgspec.msgpack import Ext

from stateroom import AsyncClient, Client, StateroomError
from stateroom._remembered.pieces import LEAF_BYTES_MIN
from stateroom.errors import PieceUnknown, StateTooLarge

MEGABYTE = 1024 * 1024


class Watched(httpx2.BaseTransport):
    """A network transport that remembers requests; `before` may do something just before one is sent."""

    def __init__(self):
        self.inner = httpx2.HTTPTransport()
        self.requests = []
        self.before = lambda request: None

    def handle_request(self, request):
        self.requests.append((request.method, request.url.path, int(request.headers.get("content-length", 0))))
        self.before(request)
        return self.inner.handle_request(request)

    def close(self):
        self.inner.close()

    def uploads(self):
        return [size for method, path, size in self.requests if method == "POST" and path.endswith("/pieces")]

    def downloads(self):
        return [path for method, path, _ in self.requests if method == "GET" and "/pieces/" in path]

    def saves(self):
        return [size for method, path, size in self.requests if method == "POST" and path.endswith("/checkpoints")]


@pytest.fixture
def opened(gateway_env, subject):
    """Makes clients, each with a transport of its own."""
    clients = []

    def make(**options):
        transport = Watched()
        clients.append(Client(gateway_env.url, gateway_env.api_key, subject=subject, transport=transport, **options))
        return clients[-1], transport

    yield make
    for client in clients:
        client.close()


def screen(number, size=MEGABYTE):
    return f"data:image/png;base64,{number:08}" + "A" * size


MIXED = {
    "text": screen(1, 200_000),
    "binary": bytes(range(256)) * 1000,
    "nested": [{"image": screen(2, 100_000), "note": "small"}, [b"x" * 70_000, None, -1, 2.5, True]],
    "extension": Ext(5, b"e" * 90_000),
    "small": {"a": [1, 2, 3]},
    "many": ["line"] * 50_000,
}


async def test_a_state_above_64_mib_is_saved_and_loaded(gateway_env, subject, thread_id, opened):
    state = {"screens": [screen(number) for number in range(70)], "last": screen(69), "n": 70}
    client, transport = opened()
    thread = client.thread(thread_id)
    for count in (30, 70):  # no upload is larger than a body may be
        thread.save({**state, "screens": state["screens"][:count]})
    assert len(transport.uploads()) == 70
    assert max(transport.saves()) < 10_000
    reader, downloads = opened()
    assert reader.thread(thread_id).load().state == state
    assert len(downloads.downloads()) == 70
    async with AsyncClient(gateway_env.url, gateway_env.api_key, subject=subject) as on_loop:
        head = await on_loop.thread(thread_id).load()
        assert head.state == state
        assert (await on_loop.thread(thread_id).at(head.checkpoint_id)).state == state
        head.state["n"] = 71
        await on_loop.thread(thread_id).save(head.state)
    assert client.thread(thread_id).load().state["n"] == 71
    # Whoever asks for all of it in one answer is told what to do instead.
    with pytest.raises(StateTooLarge):
        client.request("GET", f"/threads/{thread_id}/checkpoints/latest", headers={"Stateroom-Subject": subject})


def test_every_view_and_every_way_of_saving_gives_the_same_state(opened, thread_id, subject):
    client, transport = opened()
    with_pieces, whole, as_channels = (f"{thread_id}-{name}" for name in ("pieces", "whole", "channels"))
    client.thread(with_pieces).save(MIXED)
    assert len(transport.uploads()) == 5
    headers = {"Stateroom-Subject": subject}
    client.request("POST", f"/threads/{whole}/checkpoints", body={"state": MIXED}, headers=headers)
    packed = {name: {"data": msgspec.msgpack.encode(value)} for name, value in MIXED.items()}
    client.request("POST", f"/threads/{as_channels}/checkpoints", body={"channels": packed}, headers=headers)
    answers = []
    for name in (with_pieces, whole, as_channels):
        assert opened()[0].thread(name).load().state == MIXED
        path = f"/threads/{name}/checkpoints/latest"
        for query, accept in (
            ({}, "application/json"),
            ({"pieces": "refs"}, "application/json"),
            ({}, "application/msgpack"),
            ({"pieces": "refs"}, "application/msgpack"),
            ({"view": "channels"}, "application/msgpack"),
            ({"view": "channels", "pieces": "refs"}, "application/msgpack"),
        ):
            answer = client.request("GET", path, params=query, headers={**headers, "Accept": accept}).decode()
            shown = {member: answer.get(member) for member in ("state", "state_holes", "channels")}
            answers.append((accept, tuple(query.items()), shown))
    assert answers[:6] == answers[6:12] == answers[12:]  # references, too: the pieces are the same
    by_query = {(accept, query): shown for accept, query, shown in answers}
    assert by_query["application/msgpack", ()]["state"] == MIXED
    holed = by_query["application/msgpack", (("pieces", "refs"),)]
    assert {name: len(holes) for name, holes in holed["state_holes"].items()} == {
        "text": 1, "binary": 1, "nested": 2, "extension": 1,
    }  # fmt: skip
    as_json = by_query["application/json", (("pieces", "refs"),)]
    assert as_json == by_query["application/json", ()]
    assert as_json["state_holes"] is None


def test_a_leaf_travels_once_for_a_client_in_either_direction(opened, thread_id):
    client, transport = opened()
    thread = client.thread(thread_id)
    for number in range(4):
        thread.save({"image": screen(1), "n": number})
    thread.load()
    client.thread(thread_id).load()
    assert (len(transport.uploads()), len(transport.downloads())) == (1, 1)
    other, watched = opened()
    resumed = other.thread(thread_id)
    state = resumed.load().state
    for number in range(3):
        resumed.save({**state, "n": number})
    assert (len(watched.uploads()), len(watched.downloads())) == (0, 1)
    assert max(watched.saves()) < LEAF_BYTES_MIN


def test_pieces_that_went_meanwhile_are_uploaded_again(opened, thread_id):
    client, transport = opened()
    thread = client.thread(thread_id)
    thread.save({"image": screen(1)})
    thread.save({})
    client.prune([thread_id])
    thread.save({"image": screen(1)})
    assert len(transport.uploads()) == 2
    assert opened()[0].thread(thread_id).load().state == {"image": screen(1)}


def test_a_load_whose_pieces_go_before_they_are_fetched_loads_what_is_there_then(opened, thread_id):
    writer, _ = opened()
    thread = writer.thread(thread_id)
    thread.save({"image": screen(1)})
    reader, transport = opened()

    def overtake(request):
        if "/pieces/" in request.url.path:
            transport.before = lambda request: None
            thread.save({"image": screen(2)})
            writer.prune([thread_id])

    transport.before = overtake
    assert reader.thread(thread_id).load().state == {"image": screen(2)}


def test_pending_writes_come_whole(opened, thread_id, subject):
    client, _ = opened()
    receipt = client.thread(thread_id).save({"n": 1})
    client.request(
        "POST",
        f"/threads/{thread_id}/checkpoints/{receipt.checkpoint_id}/writes/task",
        body={"writes": [{"channel": "image", "idx": 0, "value": [screen(1)]}]},
        headers={"Stateroom-Subject": subject},
    )
    reader, transport = opened()
    assert [each.value for each in reader.thread(thread_id).load().pending_writes] == [[screen(1)]]
    assert len(transport.downloads()) == 1
    assert client.thread(thread_id).once("shot", lambda: screen(3)) == screen(3)
    assert reader.thread(thread_id).once("shot", lambda: "another") == screen(3)


@pytest.mark.parametrize(
    "body",
    [
        {"state": {"a": 1}, "state_holes": {"b": [0]}},
        {"channels": {"a": {"data": b"\x01"}}, "state_holes": {"a": [0]}},
        {"state": {"a": "x" * 100}, "state_holes": {"a": [0]}},
        {"state": {"a": Ext(0x68, bytes(25))}, "state_holes": {"a": [1]}},
        {"state": {"a": {"$encoded": ["msgpack", b"\xc7\x19\x68" + bytes(25)]}}, "state_holes": {"a": [0]}},
    ],
)
def test_holes_where_no_placeholder_stands_are_refused(opened, thread_id, subject, body):
    client, _ = opened()
    with pytest.raises(StateroomError) as refused:
        client.request("POST", f"/threads/{thread_id}/checkpoints", body=body, headers={"Stateroom-Subject": subject})
    assert refused.value.status == 422


def test_a_placeholder_of_a_piece_that_the_thread_does_not_have_is_refused(opened, thread_id, subject):
    client, _ = opened()
    body = {"state": {"a": Ext(0x68, bytes(25))}, "state_holes": {"a": [0]}}
    with pytest.raises(PieceUnknown):
        client.request("POST", f"/threads/{thread_id}/checkpoints", body=body, headers={"Stateroom-Subject": subject})
    # Without being declared as one, the same bytes are a value like any other.
    client.thread(thread_id).save(body["state"])
    assert client.thread(thread_id).load().state == body["state"]
