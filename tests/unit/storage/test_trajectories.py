"""Which steps a trajectory has, and what each is said to have changed."""

from dataclasses import replace
from datetime import UTC, datetime

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import CheckpointNotFound, LimitExceeded
from storage.model import Channel, Checkpoint, HistoryQuery, LargeLeaf, Page, PendingWrite, Value
from storage.transfer import trajectories
from storage.transfer.lines import TRAJECTORY_STEPS_MAX, Line, TrajectoryQuery, find_lines
from storage.transfer.trajectories import changes_between

INTEGERS = st.integers(-(2**63), 2**64 - 1)
LISTS = st.lists(st.one_of(INTEGERS, st.text(max_size=3), st.lists(INTEGERS, max_size=2)), max_size=20)


def channel(value: object, encoding: str = "msgpack") -> Channel:
    return Channel(version=None, value=Value(encoding, msgspec.msgpack.encode(value)))


def checkpoint(checkpoint_id: str, parent_id: str | None, **state: object) -> Checkpoint:
    return Checkpoint(
        thread_id="t",
        namespace="",
        checkpoint_id=checkpoint_id,
        parent_id=parent_id,
        step=0,
        status="active",
        source=None,
        agent=None,
        run_id=None,
        created_at=datetime.now(UTC),
        state_schema=None,
        state_version=None,
        model=None,
        usage=None,
        metadata={},
        delta_channels=(),
        channels={name: channel(value) for name, value in state.items()},
        writes=[],
    )


def pages(*stored: Checkpoint, size: int = 2):
    """Reads pages of a history, as short as they are allowed to be."""
    newest_first = sorted(stored, key=lambda each: each.checkpoint_id, reverse=True)

    async def read_page(query: HistoryQuery) -> Page[Checkpoint]:
        ceilings = [each for each in (query.before, (query.after or (None,))[0]) if each is not None]
        found = [each for each in newest_first if all(each.checkpoint_id < most for most in ceilings)]
        page = found[: min(size, query.limit)]
        return Page(page, (page[-1].checkpoint_id,) if len(found) > len(page) else None)

    return read_page


async def line(query: TrajectoryQuery, read_page) -> list[str]:
    [found] = await find_lines(query, read_page)
    return found.ids


FORKED = (
    checkpoint("a", None, n=1),
    checkpoint("b", "a", n=2),
    checkpoint("c", "b", n=3),
    checkpoint("d", "b", n=4),
    checkpoint("e", "d", n=5),
)


@pytest.mark.parametrize(
    ("to", "after", "expected"),
    [
        (None, None, ["a", "b", "d", "e"]),
        ("c", None, ["a", "b", "c"]),
        ("e", "b", ["b", "d", "e"]),
        ("e", "e", ["e"]),
    ],
)
async def test_it_follows_the_parents_and_leaves_other_branches_out(to, after, expected):
    query = TrajectoryQuery(thread_id="t", checkpoint_id=to, after=after)
    assert await line(query, pages(*FORKED)) == expected


async def test_it_begins_where_the_parent_was_removed():
    kept = (checkpoint("b", None, n=2), *FORKED[2:])  # as history shows it
    assert await line(TrajectoryQuery(thread_id="t"), pages(*kept)) == ["b", "d", "e"]


async def test_a_checkpoint_that_is_none_is_looked_for_on_one_page():
    asked = []
    read_page = pages(*FORKED)

    async def counted(query: HistoryQuery) -> Page[Checkpoint]:
        asked.append(query)
        return await read_page(query)

    with pytest.raises(CheckpointNotFound):
        await line(TrajectoryQuery(thread_id="t", checkpoint_id="x"), counted)
    assert len(asked) == 1


@pytest.mark.parametrize(("to", "after"), [("x", None), ("e", "c"), ("b", "d")])
async def test_what_is_no_step_of_it_is_not_found(to, after):
    with pytest.raises(CheckpointNotFound):
        await line(TrajectoryQuery(thread_id="t", checkpoint_id=to, after=after), pages(*FORKED))


@pytest.mark.parametrize("after", [None, "b"])
async def test_steps_hold_what_changed_in_the_one_before(after):
    query = TrajectoryQuery(thread_id="t", after=after)
    lines = await find_lines(query, pages(*FORKED))
    read = trajectories._checkpoints("t", lines, pages(*FORKED))
    steps = [each async for each in trajectories._steps(read, is_resumed=after is not None, all_writes=False)]
    assert [each.checkpoint.checkpoint_id for each in steps] == ([*"abde"] if after is None else [*"de"])
    assert all(each.changes["n"].kind == "set" for each in steps)


async def test_large_states_are_read_fewer_at_a_time():
    large = [checkpoint(f"{number:03}", f"{number - 1:03}" if number else None, x=b"x" * 2**20) for number in range(40)]
    sizes = []
    read_page = pages(*large, size=16)

    async def counted(query: HistoryQuery) -> Page[Checkpoint]:
        sizes.append(query.limit)
        return await read_page(query)

    ids = [each.checkpoint_id for each in large]
    read = trajectories._checkpoints("t", [Line("", ids)], counted)
    assert [each.checkpoint_id async for each in read] == ids
    assert sizes[0] == trajectories.WINDOW_STEPS_MAX
    assert min(sizes) <= 8  # of 1 MiB each


@given(LISTS, LISTS)
def test_a_list_that_grew_is_told_by_its_new_elements(before, new):
    changes = changes_between({"list": channel(before)}, {"list": channel(before + new)})
    if not new:
        assert changes == {}
    else:
        assert changes["list"].kind == "append"
        assert msgspec.msgpack.decode(changes["list"].channel.value.data) == new


@given(st.integers(0, 40), st.integers(1, 40))
def test_what_is_known_of_large_leaves_is_said_as_of_the_new_elements(old, new):
    def noted(count: int) -> Channel:
        """A list of texts, of which each is a large leaf with a note."""
        data = msgspec.msgpack.encode(["x"] * count)
        header = len(data) - 2 * count
        leaves = [
            LargeLeaf(at=header + 2 * n, path=f"/{n}", preview=str(n).encode(), piece_id=b"p") for n in range(count)
        ]
        return Channel(version=None, value=Value("msgpack", data, leaves=tuple(leaves)))

    found = changes_between({"x": noted(old)}, {"x": noted(old + new)})["x"].channel.value
    expected = noted(new).value
    assert found.data == expected.data
    assert [(each.at, each.path) for each in found.leaves] == [(each.at, each.path) for each in expected.leaves]
    assert [each.preview for each in found.leaves] == [str(old + n).encode() for n in range(new)]


@given(st.dictionaries(st.sampled_from("abc"), LISTS), st.dictionaries(st.sampled_from("abc"), LISTS))
def test_changes_make_the_one_state_of_the_other(before, after):
    made = dict(before)
    changes = changes_between(*({name: channel(each) for name, each in state.items()} for state in (before, after)))
    for name, change in changes.items():
        if change.kind == "remove":
            del made[name]
        else:
            value = msgspec.msgpack.decode(change.channel.value.data)
            made[name] = made[name] + value if change.kind == "append" else value
    assert made == after


def test_a_value_that_stayed_is_told_by_its_new_version_alone():
    before, after = channel([1]), replace(channel([1]), version="2")
    changes = changes_between({"x": before, "y": before}, {"x": after, "y": before})
    assert {name: (each.kind, each.channel.version) for name, each in changes.items()} == {"x": ("version", "2")}


def test_a_list_under_a_longer_header_than_it_needs_is_told_whole():
    grown = Channel(version=None, value=Value("msgpack", b"\xdc\x00\x02\x01\x02"))
    assert changes_between({"x": channel([1])}, {"x": grown})["x"].kind == "set"


@pytest.mark.parametrize(
    ("all_writes", "expected"), [(False, ["n", "__interrupt__"]), (True, ["n", "__interrupt__", "m"])]
)
async def test_writes_that_the_next_step_shows_are_told_on_demand(all_writes, expected):
    def write(name):
        return PendingWrite(task_id="t", idx=0, channel=name, value=Value("msgpack", b"\xc0"), task_path="")

    first = replace(
        checkpoint("a", None, m=1), delta_channels=("n",), writes=[*map(write, ("n", "__interrupt__", "m"))]
    )
    last = replace(checkpoint("b", "a", m=2), writes=[write("m")])

    async def read():
        for each in (first, last):
            yield each

    steps = [each async for each in trajectories._steps(read(), is_resumed=False, all_writes=all_writes)]
    assert [[each.channel for each in step.writes] for step in steps] == [expected, ["m"]]


def test_a_value_in_another_encoding_is_told_whole():
    before, after = channel([1]), channel([1, 2], "json")
    assert changes_between({"x": before}, {"x": after})["x"].kind == "set"


def of(namespace: str, *stored: Checkpoint) -> list[Checkpoint]:
    return [replace(each, namespace=namespace) for each in stored]


def thread_pages(stored: list[Checkpoint], size: int = 2):
    """Reads pages of the history of a thread with namespaces; of equal ids the greater namespace comes first."""
    newest_first = sorted(stored, key=lambda each: (each.checkpoint_id, each.namespace), reverse=True)

    async def read_page(query: HistoryQuery) -> Page[Checkpoint]:
        def is_wanted(each: Checkpoint) -> bool:
            return (
                query.namespace in {None, each.namespace}
                and (query.before is None or each.checkpoint_id < query.before)
                and (query.after is None or (each.checkpoint_id, each.namespace) < query.after)
            )

        found = list(filter(is_wanted, newest_first))
        page = found[: min(size, query.limit)]
        after = (page[-1].checkpoint_id, page[-1].namespace) if len(found) > len(page) else None
        return Page(page, after)

    return read_page


WHOLE = [
    *of("", checkpoint("a", None), checkpoint("f", "a")),
    *of("x", checkpoint("b", None), checkpoint("c", "b"), checkpoint("d", "b")),
    *of("y", checkpoint("e", None)),
]


async def whole(stored: list[Checkpoint] = WHOLE, **wanted: str) -> list[tuple[str, str]]:
    query = TrajectoryQuery(thread_id="t", all_namespaces=True, **wanted)
    lines = await find_lines(query, thread_pages(stored))
    return [(line.namespace, "".join(line.ids)) for line in lines]


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({}, [("x", "bd"), ("y", "e"), ("", "af")]),
        ({"checkpoint_id": "f"}, [("x", "bd"), ("y", "e"), ("", "af")]),
        ({"checkpoint_id": "c", "namespace": "x"}, [("", "a"), ("x", "bc")]),
        ({"checkpoint_id": "a"}, [("", "a")]),
        ({"checkpoint_id": "f", "after": "b", "after_namespace": "x"}, [("x", "bd"), ("y", "e"), ("", "af")]),
        ({"checkpoint_id": "f", "after": "e", "after_namespace": "y"}, [("y", "e"), ("", "af")]),
        ({"checkpoint_id": "f", "after": "f"}, [("", "f")]),
    ],
)
async def test_a_whole_thread_has_a_line_for_each_namespace_the_newest_last(wanted, expected):
    assert await whole(**wanted) == expected


@pytest.mark.parametrize(
    "wanted",
    [
        {"checkpoint_id": "f", "namespace": "x"},
        {"checkpoint_id": "ee"},
        {"checkpoint_id": "f", "after": "c", "after_namespace": "x"},
        {"checkpoint_id": "f", "after": "b"},
        {"checkpoint_id": "a", "after": "f"},
    ],
)
async def test_what_is_no_step_of_a_whole_thread_is_not_found(wanted):
    with pytest.raises(CheckpointNotFound):
        await whole(**wanted)


async def test_checkpoints_of_one_id_end_with_the_one_that_is_led_to():
    same = [*of("", checkpoint("a", None)), *of("x", checkpoint("a", None)), *of("y", checkpoint("a", None))]
    assert await whole(same) == [("x", "a"), ("y", "a"), ("", "a")]
    assert await whole(same, checkpoint_id="a", namespace="x") == [("", "a"), ("y", "a"), ("x", "a")]


async def test_a_thread_of_more_checkpoints_than_are_looked_through_is_refused():
    pages = []

    async def endless(query: HistoryQuery) -> Page[Checkpoint]:
        pages.append(query)
        return Page(WHOLE[-1:] * query.limit, ("e", "y"))

    with pytest.raises(LimitExceeded):
        await find_lines(TrajectoryQuery(thread_id="t", all_namespaces=True), endless)
    assert sum(each.limit for each in pages) == TRAJECTORY_STEPS_MAX + pages[-1].limit


@given(st.lists(st.tuples(st.sampled_from("xyz"), st.integers(0, 30)), min_size=1, max_size=30))
async def test_a_whole_thread_is_what_each_of_its_namespaces_is(made):
    stored, own = [], dict[str, list[Checkpoint]]()
    for number, (namespace, parent) in enumerate(made):
        before = own.setdefault(namespace, [])
        parent_id = before[parent].checkpoint_id if parent < len(before) else None
        before.extend(of(namespace, checkpoint(f"{number:02}", parent_id)))
        stored.append(before[-1])
    read_page = thread_pages(stored, size=4)
    lines = await find_lines(TrajectoryQuery(thread_id="t", all_namespaces=True), read_page)
    alone = [await find_lines(TrajectoryQuery(thread_id="t", namespace=name), read_page) for name in own]
    assert lines == sorted((each for [each] in alone), key=lambda each: each.ids[-1])


async def test_each_namespace_begins_anew_and_its_last_step_shows_all_writes():
    def write(name):
        return PendingWrite(task_id="t", idx=0, channel=name, value=Value("msgpack", b"\xc0"), task_path="")

    stored = [
        *of("x", replace(checkpoint("a", None, n=1), writes=[write("m")]), checkpoint("b", "a", n=1)),
        *of("y", checkpoint("c", None, n=1)),
    ]
    stored[1] = replace(stored[1], writes=[write("m")])
    lines = await find_lines(TrajectoryQuery(thread_id="t", all_namespaces=True), thread_pages(stored))
    read = trajectories._checkpoints("t", lines, thread_pages(stored))
    steps = [each async for each in trajectories._steps(read, is_resumed=False, all_writes=False)]
    assert [{name: each.kind for name, each in step.changes.items()} for step in steps] == [
        {"n": "set"}, {}, {"n": "set"},
    ]  # fmt: skip
    assert [len(step.writes) for step in steps] == [0, 1, 0]


@pytest.mark.parametrize(
    ("number_of", "pages_max"),
    [
        (lambda agent, step: agent * 3 + step, 12),  # one after the other: a page for many
        (lambda agent, step: step * 100 + agent, 12 + 100 * 2),  # all at once: a page for each
    ],
)
async def test_many_namespaces_are_read_a_few_steps_at_a_time(number_of, pages_max):
    def made(agent: int, step: int) -> Checkpoint:
        parent_id = f"{number_of(agent, step - 1):04}" if step else None
        return replace(checkpoint(f"{number_of(agent, step):04}", parent_id, n=[agent]), namespace=f"a{agent:02}")

    stored = [made(agent, step) for agent in range(100) for step in range(3)]
    asked = []
    read_page = thread_pages(stored, size=32)

    async def counted(query: HistoryQuery) -> Page[Checkpoint]:
        asked.append(query)
        return await read_page(query)

    lines = await find_lines(TrajectoryQuery(thread_id="t", all_namespaces=True), read_page)
    steps = trajectories._steps(trajectories._checkpoints("t", lines, counted), is_resumed=False, all_writes=True)
    first = await anext(steps)
    assert len(asked) <= 2 + 11  # nothing is read before it is told, but for its neighbours
    rest = [each async for each in steps]
    told = [(each.checkpoint.namespace, each.checkpoint.checkpoint_id) for each in [first, *rest]]
    assert told == [(line.namespace, each) for line in lines for each in line.ids]
    assert len(asked) <= pages_max
    assert all(each.limit <= trajectories.WINDOW_STEPS_MAX for each in asked)


async def test_a_step_that_was_removed_meanwhile_breaks_a_whole_thread_off():
    lines = await find_lines(TrajectoryQuery(thread_id="t", all_namespaces=True), thread_pages(WHOLE))
    kept = [each for each in WHOLE if each.checkpoint_id != "e"]
    with pytest.raises(CheckpointNotFound):
        _ = [each async for each in trajectories._checkpoints("t", lines, thread_pages(kept))]


async def test_large_states_of_several_namespaces_are_read_fewer_at_a_time():
    large = [
        replace(checkpoint(f"{number:03}", None, x=b"x" * 2**20), namespace=f"n{number:02}") for number in range(40)
    ]
    lines = await find_lines(TrajectoryQuery(thread_id="t", all_namespaces=True), thread_pages(large, size=16))
    read = trajectories._checkpoints("t", lines, thread_pages(large, size=16))
    assert [each.namespace async for each in read] == [f"n{number:02}" for number in range(40)]
