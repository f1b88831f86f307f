"""A list that grew is sent as its new elements, exactly when the gateway can put the same bytes together."""

import hashlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from sdk.python.tests.fakes import packed, problem, receipt
from stateroom import StateroomError, acting_for, current_subject
from stateroom._protocol.core import Pinned
from stateroom._protocol.wire import ChannelIn
from stateroom._remembered.growth import LIST_BYTES_MIN, Growth, Sent, grown, namespace_key
from stateroom._remembered.pieces import LEAF_BYTES_MIN

TEXT = "x" * 500


class Gateway:
    """As much of a gateway as saves need: it keeps checkpoints, and appends as the API says."""

    def __init__(self):
        self.saved = {}
        self.sizes = []
        self.bodies = []
        self.appends = True
        self.answers = []

    def __call__(self, request):
        if request.url.path.endswith("/pieces"):
            data = msgspec.msgpack.decode(request.content)["data"]
            return packed({"piece": b"\x01" + hashlib.sha256(data).digest()[:16], "size_bytes": len(data)}, 201)
        body = msgspec.msgpack.decode(request.content)
        self.sizes.append(len(request.content))
        self.bodies.append(body)
        if self.answers:
            return self.answers.pop(0)
        place = (request.headers["stateroom-subject"], request.url.path, body.get("namespace", ""))
        parent = self.saved.get((*place, body.get("parent_id")), {})
        channels = {}
        for name, each in body["channels"].items():
            held = parent.get(name)
            if "append_to" in each:
                if not self.appends or held is None or held[0] != each["append_to"]:
                    return problem(409, "channel-unchanged-unknown")
                elements = [*_elements(held[1]), *_elements(each["data"])]
                channels[name] = each["version"], msgspec.msgpack.encode(elements)
            elif "data" in each:
                channels[name] = each.get("version"), each["data"]
            elif held is None or held[0] != each["version"]:
                return problem(409, "channel-unchanged-unknown")
            else:
                channels[name] = held
        self.saved[*place, body["checkpoint_id"]] = channels
        return receipt(body["checkpoint_id"])

    def appended(self):
        return [name for name, each in self.bodies[-1]["channels"].items() if "append_to" in each]


def _elements(data):
    return msgspec.msgpack.decode(data, type=list[msgspec.Raw])


@pytest.fixture
def gateway():
    return Gateway()


@pytest.fixture
def saver(gateway, saver_to):
    return saver_to(gateway)


class Run:
    """A run of one thread: each step puts all values, the changed ones under a new version."""

    def __init__(self, saver, thread_id="t", namespace=""):
        self.saver = saver
        self.config = {"configurable": {"thread_id": thread_id, "checkpoint_ns": namespace}}
        self.number = 0
        self.versions = {}

    def step(self, changed=None, **values):
        return self.saver.put(*self.arguments(changed, values))

    async def astep(self, **values):
        return await self.saver.aput(*self.arguments(None, values))

    def arguments(self, changed, values):
        self.number += 1
        new = dict.fromkeys(values if changed is None else changed, f"{self.number:04}.1")
        self.versions |= new
        checkpoint = {
            "v": 4,
            "id": f"c{self.number:04}",
            "ts": "2026-11-21T10:00:00+00:00",
            "channel_values": values,
            "channel_versions": {name: self.versions[name] for name in values},
            "versions_seen": {},
            "updated_channels": None,
        }
        config = {"configurable": {**self.config["configurable"]}}
        self.config["configurable"]["checkpoint_id"] = checkpoint["id"]
        return config, checkpoint, {"step": self.number}, new


def stored(gateway, number, name="messages", thread_id="t", subject="user-42", namespace=""):
    return gateway.saved[subject, f"/v1/threads/{thread_id}/checkpoints", namespace, f"c{number:04}"][name][1]


def serialised(value):
    return JsonPlusSerializer().dumps_typed(value)[1]


def test_what_a_turn_of_a_growing_chat_sends_stays_bounded(gateway, saver):
    run, messages = Run(saver), []
    for turn in range(80):
        messages = [*messages, HumanMessage(TEXT, id=f"h{turn}"), AIMessage(TEXT, id=f"a{turn}")]
        run.step(messages=messages)
        assert stored(gateway, turn + 1) == serialised(messages)
    assert len(gateway.sizes) == 80
    assert len(serialised(messages)) > 80_000
    assert max(gateway.sizes) < 2 * LIST_BYTES_MIN + 2000
    assert max(gateway.sizes[-40:]) < 3000
    assert gateway.appended() == ["messages"]


async def test_the_loop_sends_the_same(gateway, saver):
    run, messages = Run(saver), [TEXT] * 20
    await run.astep(messages=messages)
    await run.astep(messages=[*messages, "more"])
    assert gateway.appended() == ["messages"]
    assert stored(gateway, 2) == serialised([*messages, "more"])
    await saver.aclose()


def test_a_channel_that_waited_unchanged_is_still_known(gateway, saver):
    run, messages = Run(saver), [TEXT] * 20
    run.step(messages=messages, n=1)
    run.step(["n"], messages=messages, n=2)
    assert "data" not in gateway.bodies[-1]["channels"]["messages"]
    run.step(["messages"], messages=[*messages, "more"], n=2)
    assert gateway.appended() == ["messages"]


@pytest.mark.parametrize(
    "after",
    [
        ["edited", *[TEXT] * 19, "more"],
        [*[TEXT] * 10, "inserted", *[TEXT] * 10],
        [TEXT] * 19,
        [],
        {"messages": [TEXT] * 21},
        TEXT * 30,
        b"\xdc" + b"x" * 9000,
    ],
)
def test_what_did_not_only_grow_is_sent_whole(gateway, saver, after):
    run = Run(saver)
    run.step(messages=[TEXT] * 20)
    run.step(messages=after)
    assert gateway.appended() == []
    assert stored(gateway, 2) == (after if isinstance(after, bytes) else serialised(after))


def test_a_short_list_is_sent_whole(gateway, saver):
    run = Run(saver)
    run.step(messages=[TEXT] * 7)
    run.step(messages=[TEXT] * 8)
    assert gateway.appended() == []


def test_large_leaves_are_sent_as_ever(gateway, saver):
    run, screen = Run(saver), "s" * LEAF_BYTES_MIN
    run.step(messages=[TEXT] * 20)
    run.step(messages=[*[TEXT] * 20, screen])
    run.step(messages=[*[TEXT] * 20, screen, TEXT])
    assert gateway.appended() == []
    assert gateway.bodies[-1]["channels"]["messages"]["holes"]


def test_a_parent_that_was_saved_elsewhere_is_not_appended_to(gateway, saver, saver_to):
    ours, messages = Run(saver), [TEXT] * 20
    ours.step(messages=messages)
    theirs = Run(saver_to(gateway))
    theirs.__dict__.update({**ours.__dict__, "saver": theirs.saver})
    theirs.step(messages=[*messages, "theirs"])
    ours.number = theirs.number
    ours.step(messages=[*messages, "theirs", "ours"])
    assert gateway.appended() == []
    assert len(gateway.bodies) == 3
    ours.step(messages=[*messages, "theirs", "ours", "more"])
    assert gateway.appended() == ["messages"]


def test_a_gateway_that_does_not_append_gets_everything_and_is_not_asked_again(gateway, saver):
    run, messages = Run(saver), [TEXT] * 20
    run.step(messages=messages)
    gateway.appends = False
    for _ in range(3):
        messages = [*messages, "more"]
        run.step(messages=messages)
        assert stored(gateway, run.number) == serialised(messages)
    assert len(gateway.bodies) == 5


def test_a_save_that_was_not_acknowledged_is_not_remembered(gateway, saver):
    run, messages = Run(saver), [TEXT] * 20
    run.step(messages=messages)
    gateway.answers = [problem(500, "internal")]
    with pytest.raises(StateroomError):
        run.step(messages=[*messages, "lost"])
    run.step(messages=[*messages, "lost", "more"])
    assert gateway.appended() == []


def test_subjects_threads_and_namespaces_are_told_apart(gateway, saver_to):
    saver, messages = saver_to(gateway, current_subject), [TEXT] * 20
    with acting_for("user-42"):
        Run(saver).step(messages=messages)
    for subject, thread_id, namespace in (("user-7", "t", ""), ("user-42", "u", ""), ("user-42", "t", "sub")):
        run = Run(saver, thread_id, namespace)
        run.arguments(None, {"messages": messages})
        with acting_for(subject):
            run.step(messages=[*messages, "more"])
        assert gateway.appended() == []
        assert stored(gateway, 2, subject=subject, thread_id=thread_id, namespace=namespace)


def test_what_is_remembered_is_bounded():
    growth, sent = Growth(namespaces_max=2), {"m": Sent("1", 1, 1, b"")}
    keys = [namespace_key(Pinned(subject="s"), f"t{number}", "") for number in range(3)]
    for key in keys:
        growth.note(key, "c", sent, first=True)
    assert [growth.at(key, "c") for key in keys] == [{}, sent, sent]
    assert growth.at(keys[2], "d") == growth.at(keys[2], None) == {}


ELEMENTS = st.one_of(
    st.binary(max_size=3000), st.integers(-(1 << 63), (1 << 64) - 1), st.lists(st.text(max_size=5), max_size=3)
)
LISTS = st.lists(ELEMENTS, max_size=40)


@given(before=LISTS, after=LISTS, grows=st.booleans())
def test_the_parts_are_always_the_whole(before, after, grows):
    first = ChannelIn(version="1", data=msgspec.msgpack.encode(before))
    known = grown(first, None)
    elements = [*before, *after] if grows else after
    whole = msgspec.msgpack.encode(elements)
    second = ChannelIn(version="2", data=whole)
    remembered = grown(second, known)
    if second.append_to is msgspec.UNSET:
        assert second.data == whole
        assert known is None or not grows
    else:
        assert second.append_to == "1"
        assert [*before, *msgspec.msgpack.decode(second.data)] == elements
    # What is remembered does not depend on how it was sent.
    assert remembered == grown(ChannelIn(version="2", data=whole), None)


def test_a_header_that_no_encoder_writes_is_sent_whole():
    known = grown(ChannelIn(version="1", data=msgspec.msgpack.encode([TEXT] * 20)), None)
    odd = b"\xdd\x00\x00\x00\x15" + msgspec.msgpack.encode([TEXT] * 21)[3:]
    channel = ChannelIn(version="2", data=odd)
    assert grown(channel, known).count == 21
    assert channel.data == odd


@given(st.binary(max_size=30))
def test_no_bytes_break_it(head):
    grown(ChannelIn(version="2", data=head + b"x" * LIST_BYTES_MIN), Sent("1", 3, 10, b""))
    grown(ChannelIn(version="2", data=head), Sent("1", 0, 0, hashlib.blake2b(digest_size=32).digest()))


@pytest.mark.parametrize("subject", [None, "a"])
def test_values_that_are_no_versioned_lists_are_not_remembered(subject):
    data = msgspec.msgpack.encode([TEXT] * 20)
    assert grown(ChannelIn(version=None, data=data), None) is None
    assert grown(ChannelIn(version="1", encoding="json", data=data), None) is None
    assert namespace_key(Pinned(subject=subject), "t", "") == namespace_key(Pinned(subject=subject), "t", "")
