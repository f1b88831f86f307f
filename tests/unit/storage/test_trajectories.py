"""Which steps a trajectory has, and what each is said to have changed."""

from dataclasses import replace
from datetime import UTC, datetime

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import CheckpointNotFound
from storage.model import Channel, Checkpoint, HistoryQuery, Page, PendingWrite, Value
from storage.transfer import trajectories
from storage.transfer.trajectories import TrajectoryQuery, changes_between

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
    return await trajectories._line(query, read_page)


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
    query = TrajectoryQuery("t", "", checkpoint_id=to, after=after)
    assert await line(query, pages(*FORKED)) == expected


async def test_it_begins_where_the_parent_was_removed():
    kept = (checkpoint("b", None, n=2), *FORKED[2:])  # as history shows it
    assert await line(TrajectoryQuery("t", ""), pages(*kept)) == ["b", "d", "e"]


async def test_a_checkpoint_that_is_none_is_looked_for_on_one_page():
    asked = []
    read_page = pages(*FORKED)

    async def counted(query: HistoryQuery) -> Page[Checkpoint]:
        asked.append(query)
        return await read_page(query)

    with pytest.raises(CheckpointNotFound):
        await line(TrajectoryQuery("t", "", checkpoint_id="x"), counted)
    assert len(asked) == 1


@pytest.mark.parametrize(("to", "after"), [("x", None), ("e", "c"), ("b", "d")])
async def test_what_is_no_step_of_it_is_not_found(to, after):
    with pytest.raises(CheckpointNotFound):
        await line(TrajectoryQuery("t", "", checkpoint_id=to, after=after), pages(*FORKED))


@pytest.mark.parametrize("after", [None, "b"])
async def test_steps_hold_what_changed_in_the_one_before(after):
    query = TrajectoryQuery("t", "", after=after)
    ids = await line(query, pages(*FORKED))
    read = trajectories._checkpoints(query, ids, pages(*FORKED))
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
    read = trajectories._checkpoints(TrajectoryQuery("t", ""), ids, counted)
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
