"""Large leaves are sent once, come back whole, and never reach another subject's names."""

import asyncio
import base64
import hashlib
import struct

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from sdk.python.tests.fakes import checkpoint, packed, problem, receipt
from stateroom import GatewayUnavailable, acting_for, current_subject
from stateroom._remembered.pieces import LEAF_BYTES_MIN, PieceCache, large_leaves
from stateroom.errors import PieceUnknown

CONFIG = {"configurable": {"thread_id": "t", "checkpoint_ns": "", "checkpoint_id": "parent"}}
PLACEHOLDER = struct.Struct(">3s17sQ")
SCREEN = "data:image/png;base64," + "A" * 300_000


class Gateway:
    """As much of a gateway as pieces need: it keeps them by thread and subject, and puts them together to compare."""

    def __init__(self):
        self.pieces = {}
        self.requests = []
        self.saved = None
        self.answers = []
        self.writes = None

    def __call__(self, request):
        self.requests.append(request)
        place = (request.headers["stateroom-subject"], request.url.path.split("/")[3])
        parts = request.url.path.split("/")
        if request.method == "POST" and parts[-1] == "pieces":
            data = msgspec.msgpack.decode(request.content)["data"]
            piece = b"\x01" + hashlib.sha256(repr(place).encode() + data).digest()[:16]
            self.pieces[*place, piece] = data
            return packed({"piece": piece, "size_bytes": len(data)}, 201)
        if parts[-2] == "pieces":
            piece = base64.urlsafe_b64decode(parts[-1].removeprefix("~") + "=")
            data = self.pieces.get((*place, piece))
            return problem(404, "not-found") if data is None else packed({"data": data})
        if request.method == "POST":
            if self.answers:
                return self.answers.pop(0)
            body = msgspec.msgpack.decode(request.content)
            for value in [*body.get("channels", {}).values(), *body.get("writes", ())]:
                for at in value.get("holes", ()):
                    _, piece, _ = PLACEHOLDER.unpack_from(value["data"], at)
                    if (*place, piece) not in self.pieces:
                        return problem(409, "piece-unknown")
            if "writes" in body:
                self.writes = body["writes"]
                return packed({"stored": len(body["writes"]), "unchanged": 0})
            self.saved = body
            return receipt("child")
        channels = {
            name: {"version": "1.0", **{key: each[key] for key in ("encoding", "data", "holes") if key in each}}
            for name, each in self.saved["channels"].items()
        }
        for each in channels.values():
            each.setdefault("encoding", "msgpack")
        return checkpoint("child", channels=channels, pending_writes=[])

    def uploads(self):
        return [request for request in self.requests if request.url.path.endswith("/pieces")]

    def downloads(self):
        return [request for request in self.requests if "/pieces/" in request.url.path]


def put(saver, **values):
    stored = {
        "v": 4,
        "id": "child",
        "ts": "2026-11-21T10:00:00+00:00",
        "channel_values": values,
        "channel_versions": dict.fromkeys(values, "1.0"),
        "versions_seen": {},
        "updated_channels": None,
    }
    return saver.put(CONFIG, stored, {}, dict.fromkeys(values, "1.0"))


def test_a_large_leaf_is_uploaded_once_and_then_named(saver_to):
    gateway = Gateway()
    saver = saver_to(gateway)
    put(saver, messages=[{"image": SCREEN}])
    put(saver, messages=[{"image": SCREEN}, {"text": "hi"}])
    put(saver, messages=[{"image": SCREEN}, {"image": SCREEN + "B"}])
    assert len(gateway.uploads()) == 2
    assert all(len(request.content) < 3000 for request in gateway.requests if request not in gateway.uploads())
    assert saver_to(gateway).get_tuple(CONFIG).checkpoint["channel_values"] == {
        "messages": [{"image": SCREEN}, {"image": SCREEN + "B"}]
    }


def test_what_is_not_large_is_sent_as_ever(saver_to):
    gateway = Gateway()
    put(saver_to(gateway), messages=["x" * 60_000] * 3, raw=b"x" * 100_000)
    assert not gateway.uploads()
    assert all("holes" not in channel for channel in gateway.saved["channels"].values())


def test_a_piece_is_fetched_once_and_the_cache_is_bounded(saver_to):
    gateway = Gateway()
    screens = [chr(65 + number) * 100_000 for number in range(20)]
    put(saver_to(gateway), screens=screens, last=screens[0])
    reader = saver_to(gateway)
    for _ in range(2):
        assert reader.get_tuple(CONFIG).checkpoint["channel_values"] == {"screens": screens, "last": screens[0]}
    assert len(gateway.downloads()) == 20
    small = PieceCache(content_bytes_max=250_000)
    for number in range(5):
        small.keep_content(b"o", bytes([number]), bytes(100_000))
    assert [small.content(b"o", bytes([number])) is not None for number in range(5)] == [
        False,
        False,
        False,
        True,
        True,
    ]


def test_pieces_that_the_gateway_lost_are_uploaded_again(saver_to):
    gateway = Gateway()
    saver = saver_to(gateway)
    put(saver, messages=[SCREEN])
    gateway.pieces.clear()
    put(saver, messages=[SCREEN, "more"])
    assert len(gateway.uploads()) == 2
    assert saver.get_tuple(CONFIG).checkpoint["channel_values"]["messages"] == [SCREEN, "more"]


def test_when_pieces_go_as_often_as_they_come_everything_is_sent(saver_to):
    gateway = Gateway()
    gateway.answers = [problem(409, "piece-unknown"), problem(409, "piece-unknown")]
    put(saver_to(gateway), messages=[SCREEN])
    assert len(gateway.saved["channels"]["messages"]["data"]) > len(SCREEN)
    assert "holes" not in gateway.saved["channels"]["messages"]
    gateway.answers = [problem(409, "piece-unknown")] * 3
    with pytest.raises(PieceUnknown):
        put(saver_to(gateway), messages=[SCREEN])


def test_what_one_subject_or_thread_sent_is_not_named_for_another(saver_to):
    gateway = Gateway()
    saver = saver_to(gateway, subject=current_subject)
    for subject in ("user-1", "user-2", "user-1"):
        with acting_for(subject):
            put(saver, messages=[SCREEN])
    assert [request.headers["stateroom-subject"] for request in gateway.uploads()] == ["user-1", "user-2"]
    other = {"configurable": {**CONFIG["configurable"], "thread_id": "other"}}
    with acting_for("user-1"):
        saver.put_writes(other, [("messages", [SCREEN])], "task")
    assert len(gateway.uploads()) == 3


def test_writes_name_pieces_too(saver_to):
    gateway = Gateway()
    saver = saver_to(gateway)
    saver.put_writes(CONFIG, [("messages", [{"image": SCREEN}])], "task")
    put(saver, messages=[{"image": SCREEN}])
    assert len(gateway.uploads()) == 1
    assert len(gateway.writes[0]["data"]) < 200


def test_a_leaf_that_may_name_an_artifact_stays_where_the_gateway_sees_it(saver_to):
    gateway = Gateway()
    put(saver_to(gateway), messages=[SCREEN + " stateroom:artifact:0190b5a2-0000-7000-8000-000000000001"])
    assert not gateway.uploads()


def test_a_piece_of_another_length_than_announced_is_refused(saver_to):
    gateway = Gateway()
    saver = saver_to(gateway)
    put(saver, messages=[SCREEN])
    gateway.pieces = {place: data[:-1] for place, data in gateway.pieces.items()}
    with pytest.raises(GatewayUnavailable):
        saver.get_tuple(CONFIG)


@pytest.mark.parametrize("hole", [-1, 5_000_000, 10])
def test_an_answer_that_names_a_piece_where_none_is_is_refused(saver_to, hole):
    gateway = Gateway()
    saver = saver_to(gateway)
    put(saver, messages=["x" * 5000])
    gateway.saved["channels"]["messages"]["holes"] = [hole]
    with pytest.raises(GatewayUnavailable):
        saver.get_tuple(CONFIG)


async def test_the_loop_sends_and_fetches_the_same(saver_to):
    gateway = Gateway()
    saver = saver_to(gateway)
    screens = [chr(65 + number) * 100_000 for number in range(20)]
    await saver.aput_writes(CONFIG, [("messages", screens)], "task")
    stored = {"v": 4, "id": "child", "ts": "", "channel_values": {"messages": screens}, "channel_versions": {}}
    await saver.aput(CONFIG, stored, {}, {})
    assert len(gateway.uploads()) == 20
    found = await saver_to(gateway).aget_tuple(CONFIG)
    assert found.checkpoint["channel_values"]["messages"] == screens
    await saver.aclose()
    await asyncio.sleep(0)


@given(st.recursive(
    st.one_of(st.none(), st.integers(-5, 1 << 40), st.floats(), st.text(max_size=5),
              st.builds(lambda size: "Ą" * size, st.integers(32_000, 33_000)),
              st.builds(bytes, st.integers(65_500, 65_600))),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=3), inner, max_size=4)),
    max_leaves=12,
))  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_exactly_the_large_leaves_are_found(tree):
    def expected(node):
        if isinstance(node, dict):
            return [each for inner in node.values() for each in expected(inner)]
        if isinstance(node, list):
            return [each for inner in node for each in expected(inner)]
        encoded = msgspec.msgpack.encode(node)
        return [encoded] if len(encoded) >= LEAF_BYTES_MIN and isinstance(node, str | bytes) else []

    data = msgspec.msgpack.encode(tree)
    found = [data[start:end] for start, end in large_leaves(data)]
    wanted = expected(tree)
    # Below 65,541 bytes a leaf may have a short header, which is not looked for when there is no long one.
    assert found == wanted or (not found and all(len(each) <= 65_538 for each in wanted))


@given(st.binary(max_size=3000), st.integers(0, 3))
@settings(max_examples=100, deadline=None)
def test_no_bytes_break_the_search(data, kind):
    padded = data + b"\xdb\x00\x01\x00\x00" * kind + bytes(LEAF_BYTES_MIN)
    assert all(0 <= start < end <= len(padded) for start, end in large_leaves(padded))


def test_a_message_is_a_leaf_as_langgraph_writes_it():
    from langchain_core.messages import HumanMessage

    _, data = JsonPlusSerializer().dumps_typed([HumanMessage(content=SCREEN, id="1"), HumanMessage(content="hi")])
    ((start, end),) = large_leaves(data)
    assert end - start > len(SCREEN)
