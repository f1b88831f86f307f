"""Of a delta channel's history the saver asks for what came since, and uses what it kept only where it is told to."""

import msgspec
import pytest

from sdk.python.tests.fakes import packed, problem
from stateroom import IntegrityFailure, acting_for, current_subject
from stateroom._protocol.wire import ChannelHistories, ChannelHistory, ChannelOut, SerialisedWrite
from stateroom._remembered.histories import Histories, joined

LARGE = b"\xc6" + (70_000).to_bytes(4, "big") + b"x" * 70_000


class Gateway:
    """One thread's writes to channels; what was written is given from the mark on, which is a number of writes."""

    def __init__(self):
        self.writes = {"a": [], "b": []}
        self.seed = None
        self.asked = []
        self.holds = True
        self.marks = True
        self.gone = False

    def write(self, channel, value, data=None, holes=()):
        data = data or msgspec.msgpack.encode(value)
        number = len(self.writes[channel])
        self.writes[channel].append(
            {"task_id": f"{number}", "idx": 0, "channel": channel, "encoding": "msgpack", "data": data, "holes": holes}
        )

    def __call__(self, request):
        query = request.url.params
        if not request.url.path.endswith("channel-history"):
            return packed({"data": LARGE})
        mark = query.get("mark")
        self.asked.append(mark)
        if self.gone:
            return problem(404, "thread-not-found")
        known = int(mark.partition("-")[0]) if mark and self.holds else 0
        channels = {}
        for name in query.get_list("channel"):
            entry = {"writes": self.writes[name][known:]}
            if known:
                entry["continues"] = True
            elif self.seed is not None:
                entry["seed"] = {"encoding": "msgpack", "data": msgspec.msgpack.encode(self.seed)}
            channels[name] = entry
        count = min(map(len, self.writes.values()))
        return packed({"channels": channels, "mark": f"{count}-of" if self.marks else None})


@pytest.fixture
def gateway():
    return Gateway()


@pytest.fixture
def saver(gateway, saver_to):
    return saver_to(gateway)


def place(thread_id="t", namespace=""):
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": namespace}}


def history(saver, *channels, config=None):
    found = saver.get_delta_channel_history(config=config or place(), channels=channels or ("a",))
    return {name: ([value for _, _, value in each["writes"]], each.get("seed")) for name, each in found.items()}


def test_what_came_since_is_put_behind_what_was_given(gateway, saver):
    gateway.seed = ["seed"]
    for number in range(3):
        for channel in "ab":
            gateway.write(channel, f"{channel}{number}")
        expected = {name: ([f"{name}{each}" for each in range(number + 1)], ["seed"]) for name in "ab"}
        assert history(saver, "a", "b") == expected
    assert gateway.asked == [None, "1-of", "2-of"]


def test_what_does_not_hold_any_more_is_replaced(gateway, saver):
    for channel in "ab":
        gateway.write(channel, "old")
    assert history(saver) == {"a": (["old"], None)}
    gateway.holds = False
    gateway.writes = {"a": [], "b": []}
    for channel in "ab":
        gateway.write(channel, "new")
    assert history(saver) == {"a": (["new"], None)}
    gateway.holds = True
    gateway.write("a", "newer")
    assert history(saver) == {"a": (["new", "newer"], None)}


def test_what_callers_do_to_their_values_is_not_remembered(gateway, saver):
    for channel in "ab":
        gateway.write(channel, ["kept"])
    for _ in range(2):
        found = saver.get_delta_channel_history(config=place(), channels=["a"])
        assert [value for _, _, value in found["a"]["writes"]] == [["kept"]]
        found["a"]["writes"][0][2].append("changed")
        found["a"]["writes"].clear()


def test_other_channels_than_those_asked_for_before_come_whole(gateway, saver):
    for channel in "ab":
        gateway.write(channel, channel)
    history(saver, "a")
    assert history(saver, "a", "b") == {"a": (["a"], None), "b": (["b"], None)}
    assert history(saver, "b", "a") == {"a": (["a"], None), "b": (["b"], None)}
    assert history(saver, "b") == {"b": (["b"], None)}
    assert gateway.asked == [None, None, "1-of", None]


def test_nothing_is_kept_without_a_mark_or_of_a_thread_that_is_gone(gateway, saver):
    for channel in "ab":
        gateway.write(channel, 1)
    gateway.marks = False
    history(saver)
    gateway.marks = True
    history(saver)
    gateway.gone = True
    assert history(saver) == {"a": ([], None)}
    gateway.gone = False
    history(saver)
    assert gateway.asked == [None, None, "1-of", None]


def test_subjects_threads_and_namespaces_are_told_apart(gateway, saver_to):
    saver = saver_to(gateway, current_subject)
    for channel in "ab":
        gateway.write(channel, 1)
    for subject, thread_id, namespace in (("u", "t", ""), ("v", "t", ""), ("u", "s", ""), ("u", "t", "sub")):
        with acting_for(subject):
            history(saver, config=place(thread_id, namespace))
    assert gateway.asked == [None] * 4
    with acting_for("v"):
        history(saver)
    assert gateway.asked[4:] == ["1-of"]


def test_large_leaves_are_put_back_before_they_are_kept(gateway, saver):
    hole = b"\xc7\x19\x68" + b"\x01" * 17 + len(LARGE).to_bytes(8, "big")
    for channel in "ab":
        gateway.write(channel, None, data=b"\x91" + hole, holes=[1])
    for _ in range(2):
        assert history(saver) == {"a": ([[LARGE[5:]]], None)}
    assert gateway.asked == [None, "1-of"]


async def test_the_loop_remembers_the_same(gateway, saver):
    for number in range(2):
        for channel in "ab":
            gateway.write(channel, number)
        found = await saver.aget_delta_channel_history(config=place(), channels=["a"])
    assert [value for _, _, value in found["a"]["writes"]] == [0, 1]
    assert gateway.asked == [None, "1-of"]


def histories(*sizes, mark="m", seed=None):
    writes = [SerialisedWrite(task_id="t", idx=0, channel="a", encoding="bytes", data=b"x" * size) for size in sizes]
    entry = ChannelHistory(writes=writes)
    if seed is not None:
        entry.seed = ChannelOut(encoding="bytes", data=b"x" * seed)
    return ChannelHistories(channels={"a": entry}, mark=mark)


def test_what_is_kept_is_bounded_and_the_least_recently_used_goes_first():
    kept = Histories(10_000)
    places = [(b"owner", f"t{number}", "") for number in range(4)]
    for each in places[:3]:
        kept.keep(each, histories(1000, seed=1500))
    assert all(kept.at(each, ["a"]) for each in (*places[1:3], places[0]))
    kept.keep(places[3], histories(1000, seed=1500))
    assert [kept.at(each, ["a"]) is not None for each in places] == [True, False, True, True]
    kept.keep(places[3], histories(20_000))
    assert kept.at(places[3], ["a"]) is None
    kept.keep(places[1], histories(1000, seed=1500))
    assert [kept.at(each, ["a"]) is not None for each in places] == [True, True, True, False]


def test_an_answer_that_goes_on_from_nothing_is_refused():
    found = histories(1)
    found.channels["a"].continues = True
    with pytest.raises(IntegrityFailure):
        joined(None, found)
