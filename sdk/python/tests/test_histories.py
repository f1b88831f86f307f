"""Of a delta channel's history the saver asks for what came since, and uses what it kept only where it is told to."""

import httpx2
import msgspec
import pytest

from sdk.python.tests.fakes import URL, checkpoint, packed, problem
from stateroom import IntegrityFailure, InvalidRequest, acting_for, current_subject
from stateroom._protocol.wire import ChannelHistories, ChannelHistory, ChannelOut, SerialisedWrite
from stateroom._remembered.histories import Histories, joined

ID, OTHER_ID = (f"1ef00000-0000-6000-8000-00000000000{number}" for number in (1, 2))
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


class Loading(Gateway):
    """As `Gateway`, with a head, whose loads give histories; ``refusal``: what those that name some are answered."""

    def __init__(self):
        super().__init__()
        self.loads, self.refusal = [], None

    def __call__(self, request):
        query = request.url.params
        if not request.url.path.endswith("latest") and not request.url.path.endswith(ID):
            return super().__call__(request)
        asked = query.get_list("history")
        self.loads.append((asked, query.get("mark")))
        if asked and self.refusal is not None:
            return problem(
                422, *self.refusal[:1], errors=[{"detail": "no", "parameter": each} for each in self.refusal[1:]]
            )
        found = msgspec.msgpack.decode(checkpoint(ID, channels={}, pending_writes=[]).content)
        if asked:
            params = [("channel", name) for name in asked] + [("mark", query["mark"])]
            history = super().__call__(httpx2.Request("GET", f"{URL}/channel-history", params=params))
            found["history"] = msgspec.msgpack.decode(history.content)
            self.asked.pop()
        return packed(found)


@pytest.fixture
def loading():
    gateway = Loading()
    for channel in "ab":
        gateway.write(channel, 0)
    return gateway


def at(checkpoint_id):
    return {"configurable": {**place()["configurable"], "checkpoint_id": checkpoint_id}}


def turn(gateway, saver):
    """As LangGraph does at the beginning of a run; the writes that it is given."""
    found = saver.get_tuple(place())
    [writes, _] = history(saver, config=found.config)["a"]
    for channel in "ab":
        gateway.write(channel, len(writes))
    return writes


def test_what_came_since_comes_along_with_the_head(loading, saver_to):
    saver = saver_to(loading)
    assert [turn(loading, saver) for _ in range(3)] == [[0], [0, 1], [0, 1, 2]]
    assert loading.asked == [None]
    assert loading.loads == [([], None), (["a"], "1-of"), (["a"], "2-of")]


async def test_what_came_along_comes_along_on_the_loop(loading, saver_to):
    saver = saver_to(loading)
    for _ in range(3):
        found = await saver.aget_tuple(place())
        await saver.aget_delta_channel_history(config=found.config, channels=["a"])
    assert len(loading.asked) == 1


def test_what_came_along_answers_once_and_only_for_its_checkpoint_and_channels(loading, saver_to):
    saver = saver_to(loading)
    turn(loading, saver)
    for config, channels in ((place(), ["a"]), (at(OTHER_ID), ["a"]), (at(ID), ["a", "b"])):
        saver.get_tuple(place())
        asked = len(loading.asked)
        history(saver, *channels, config=config)
        assert len(loading.asked) == asked + 1
    saver.get_tuple(place())
    for _ in range(2):
        history(saver, "a", "b", config=at(ID))
    assert len(loading.asked) == asked + 2
    saver.get_tuple(at(ID))
    assert loading.loads[-1] == ([], None)


def test_a_gateway_that_knows_no_histories_of_loads_is_asked_for_one_once(loading, saver_to):
    saver = saver_to(loading)
    loading.refusal = ("invalid-request", "history", "mark")
    assert [turn(loading, saver) for _ in range(4)] == [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3]]
    assert loading.asked == [None, "1-of", "2-of", "3-of"]
    assert loading.loads == [([], None), (["a"], "1-of"), ([], None), ([], None), ([], None)]


def test_what_does_not_fit_one_answer_is_asked_for_apart(loading, saver_to):
    saver = saver_to(loading)
    turn(loading, saver)
    loading.refusal = ("state-too-large",)
    assert turn(loading, saver) == [0, 1]
    loading.refusal = None
    assert turn(loading, saver) == [0, 1, 2]
    assert loading.asked == [None, "1-of"]


def test_another_fault_than_histories_is_told(loading, saver_to):
    saver = saver_to(loading)
    turn(loading, saver)
    loading.refusal = ("invalid-request", "namespace")
    with pytest.raises(InvalidRequest):
        turn(loading, saver)
    loading.refusal = None
    assert turn(loading, saver) == [0, 1]
    assert loading.loads[-1] == (["a"], "1-of")
