from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import DeltaChainNeeded
from storage.threads.thinning import (
    AllButLatest,
    ByRule,
    Entry,
    OfRuns,
    StaleError,
    ThinningRule,
    children_first,
    finished_calls,
    needed,
    writes_that_may_go,
)

NOW = datetime(2026, 11, 25, tzinfo=UTC)


@dataclass
class Known:
    entries: dict = field(default_factory=dict)

    @property
    def head_id(self):
        return max(self.entries)


def entry(
    number,
    parent=None,
    *,
    holds=(),
    deltas=(),
    status="active",
    outcome=None,
    source=None,
    run=None,
    step=None,
    outer=(),
    age=0,
):
    return Entry(
        f"c{number:04}",
        None if parent is None else f"c{parent:04}",
        run,
        number if step is None else step,
        status,
        outcome,
        source,
        bytes([number % 256]),
        NOW - timedelta(days=age),
        frozenset(holds),
        tuple(deltas),
        tuple((name, f"c{each:04}") for name, each in outer),
    )


def line(*entries):
    return {"": Known({each.checkpoint_id: each for each in entries})}


def chain(count, **of):
    return line(*(entry(n, n - 1 if n else None, **of.get(f"c{n}", {})) for n in range(count)))


def left(thread, rule, written=()):
    doomed = rule.doomed(thread, written).get("", set())
    return [int(each[1:]) for each in sorted(set(thread[""].entries) - doomed)]


def test_a_rule_without_terms_removes_nothing():
    assert left(chain(9), ThinningRule()) == list(range(9))


@pytest.mark.parametrize(
    ("rule", "kept"),
    [
        (ThinningRule(every=3), [0, 3, 6, 9, 10]),
        (ThinningRule(keep_first=2), [0, 1, 10]),
        (ThinningRule(keep_last=2), [9, 10]),
        (ThinningRule(keep_last=99), list(range(11))),
        (ThinningRule(every=5, keep_first=2, keep_last=2), [0, 1, 5, 9, 10]),
        (ThinningRule(keep_statuses=frozenset({"failed"})), [4, 10]),
        (ThinningRule(checkpoints_max=9), list(range(11))),  # 11 is no quarter more than 9
        (ThinningRule(checkpoints_max=8), list(range(3, 11))),
        (ThinningRule(checkpoints_max=2, keep_first=1), [0, 10]),
        (ThinningRule(checkpoints_max=1, keep_last=3), [8, 9, 10]),  # what is kept by name is kept above the maximum
        (ThinningRule(every=2, checkpoints_max=2), [8, 10]),
    ],
)
def test_rules_keep_what_they_name_and_the_head(rule, kept):
    thread = chain(11, c4={"outcome": "failed"})
    assert left(thread, rule) == kept


def test_thinning_again_removes_nothing_more():
    thread = chain(30)
    rule = ThinningRule(every=4, keep_last=2)
    kept = left(thread, rule)
    assert left(line(*(thread[""].entries[f"c{each:04}"] for each in kept)), rule) == kept


@pytest.mark.parametrize("numbers", [{"every": 0}, {"keep_first": -1}, {"keep_last": -1}, {"checkpoints_max": 0}])
def test_what_is_no_rule_is_refused(numbers):
    with pytest.raises(ValueError, match="rule"):
        ThinningRule(**numbers)


def test_a_delta_line_stays_down_to_the_value_and_no_further():
    thread = line(
        entry(0, holds="d"), entry(1, 0, holds="d"), entry(2, 1, deltas="d"), entry(3, 2, deltas="d"),
        entry(4, 3, deltas="d"),
    )  # fmt: skip
    assert left(thread, ThinningRule(keep_last=1)) == [1, 2, 3, 4]


def test_a_head_that_holds_the_value_of_its_delta_channel_needs_no_line():
    thread = line(entry(0, holds="d"), entry(1, 0, deltas="d"), entry(2, 1, deltas="d", holds="d"))
    assert left(thread, ThinningRule(keep_last=1)) == [2]


def test_what_stays_for_one_channel_has_its_other_channels_lines_too():
    thread = line(entry(0, holds="e"), entry(1, 0, holds="d", deltas="e"), entry(2, 1, deltas="d"))
    assert left(thread, ThinningRule(keep_last=1)) == [0, 1, 2]
    assert AllButLatest().doomed(thread, ()) == {}


def namespaces():
    """A root at c0009, and what sub-agents left beside it."""

    def known(*outer):
        return Known({each.checkpoint_id: each for each in (entry(1, outer=outer), entry(2, 1, outer=outer))})

    return {
        "": Known({each.checkpoint_id: each for each in (entry(8), entry(9, 8))}),
        "runs:1": known(("", 9)),
        "runs:1|deep:5": known(("", 9), ("runs:1", 2)),
        "runs:1|deep:4": known(("", 9), ("runs:1", 1)),
        "done:2": known(("", 8)),
        "done:2|1": known(("", 8)),
        "done:2|deep:6": known(("", 8), ("done:2", 2)),
        "gone:3|deep:7": known(("", 9), ("gone:3", 2)),
        "remembers": known(("", 8)),
        "silent:8": known(),
    }


def test_only_calls_that_what_is_around_them_went_on_from_are_finished():
    finished = {"runs:1|deep:4", "done:2", "done:2|1", "done:2|deep:6", "gone:3|deep:7"}
    thread = namespaces()
    assert finished_calls(thread) == AllButLatest().ended(thread) == finished
    doomed = AllButLatest().doomed(thread, ())
    assert {name for name, some in doomed.items() if some == set(thread[name].entries)} == finished
    assert ByRule(ThinningRule(keep_last=1)).ended(thread) == set()


def test_the_parent_of_a_fork_stays_while_the_fork_does():
    thread = line(entry(0), entry(1, 0), entry(2, 1), entry(3, 1), entry(4, 3))
    assert left(thread, ThinningRule(keep_last=2)) == [1, 3, 4]
    assert left(thread, ThinningRule(keep_last=1)) == [4]
    declared = line(entry(0), entry(1, 0), entry(2, 1, source="update"))
    assert left(declared, ThinningRule(keep_last=1)) == [1, 2]


def test_an_interrupt_stays_until_somebody_went_on_from_it():
    thread = line(entry(0, status="waiting"), entry(1, 0, outcome="waiting"), entry(2, 0, status="active"), entry(3, 2))
    assert left(thread, ThinningRule(keep_last=1)) == [0, 1, 3]  # 0 because 1 is a fork of it
    answered = line(entry(0, outcome="waiting"), entry(1, 0), entry(2, 1))
    assert left(answered, ThinningRule(keep_last=1)) == [2]


def test_what_was_written_to_lately_stays():
    assert left(chain(5), ThinningRule(keep_last=1), {("", "c0002"), ("other", "c0001")}) == [2, 4]


def test_the_maximum_is_of_the_whole_thread():
    thread = {**chain(8), "sub": chain(8)[""]}
    doomed = ThinningRule(checkpoints_max=6).doomed(thread, ())
    assert sum(map(len, doomed.values())) == 10


def test_a_long_delta_thread_is_thinned_in_passable_time():
    deltas = chain(5_000, c0={"holds": "d"})
    for each in list(deltas[""].entries.values())[1:]:
        deltas[""].entries[each.checkpoint_id] = entry(int(each.checkpoint_id[1:]), int(each.parent_id[1:]), deltas="d")
    assert ThinningRule(every=7, checkpoints_max=100).doomed(deltas, ()) == {}


def test_runs_that_others_are_rebuilt_from_are_refused():
    thread = line(entry(0, holds="d", run="a"), entry(1, 0, deltas="d", run="b"))
    with pytest.raises(DeltaChainNeeded):
        OfRuns(frozenset("a")).doomed(thread, ())
    assert OfRuns(frozenset("ab")).doomed(thread, ()) == {"": {"c0000", "c0001"}}


def test_what_came_meanwhile_spares_refuses_or_asks_for_another_plan():
    entries = line(entry(0, holds="d"), entry(1, 0, deltas="d"), entry(2))[""].entries
    fresh = entry(3, 1, deltas="d", run="b")
    entries["c0003"] = fresh
    assert AllButLatest().spared(entries, {"c0000", "c0001"}, [fresh]) == {"c0000", "c0001"}
    assert AllButLatest().spared(entries, {"c0002"}, [fresh]) == set()
    with pytest.raises(DeltaChainNeeded):
        OfRuns(frozenset("a")).spared(entries, {"c0000"}, [fresh])
    with pytest.raises(StaleError):
        OfRuns(frozenset("b")).spared(entries, {"c0000"}, [fresh])


def test_writes_that_are_state_or_wait_for_an_answer_stay():
    thread = line(
        entry(0, holds="d"), entry(1, 0, deltas="d"), entry(2, 1), entry(3, 2, outcome="waiting"), entry(5, 2),
        entry(6, 5),
    )  # fmt: skip
    places = {("", f"c{number:04}") for number in range(9)} | {("elsewhere", "c0000")}
    gone = {each for _, each in writes_that_may_go(thread, places)}
    # 0 and 1: 1 is rebuilt from 0. 3: nobody has answered. 4 never arrived; 7 and 8 may. 6 is the head.
    assert gone == {"c0001", "c0002", "c0004", "c0005"}


@given(st.randoms(use_true_random=False), st.integers(1, 40))
def test_after_any_part_of_a_removal_all_that_is_left_is_rebuilt_from_the_same(dice, count):
    entries = {}
    for number in range(count):
        parent = dice.randrange(-1, number + 2)  # a later one, too: ids need not grow
        each = entry(
            number,
            None if parent < 0 else parent,
            holds=dice.sample("de", dice.randrange(3)),
            deltas=dice.sample("de", dice.randrange(3)),
        )
        entries[each.checkpoint_id] = each
    known = {"": Known(entries)}
    rule = ThinningRule(every=dice.randrange(1, 5), keep_last=dice.randrange(3))
    doomed = rule.doomed(known, ()).get("", set())
    assert known[""].head_id not in doomed
    lines = {each: needed(entries, [entries[each]]) for each in entries}
    rest = dict(entries)
    in_a_circle = {each for each in entries if goes_round(entries, each)}
    order = children_first(entries, doomed)
    assert sorted(order) == sorted(doomed)
    for each in order:
        del rest[each]
        for checkpoint_id in rest.keys() - in_a_circle:
            assert needed(rest, [rest[checkpoint_id]]) == lines[checkpoint_id]


def goes_round(entries, at):
    seen = set()
    while at in entries:
        if at in seen:
            return True
        seen.add(at)
        at = entries[at].parent_id
    return False


@pytest.mark.parametrize(
    ("count", "rule", "kept"),
    [
        (10, ThinningRule(checkpoints_max=8), list(range(10))),  # a quarter more, and no more than that
        (11, ThinningRule(every=2, checkpoints_max=1, keep_last=3), [8, 9, 10]),  # nothing fits beside what is kept
    ],
)
def test_the_maximum_begins_above_a_quarter_more_and_ends_at_what_is_kept_by_name(count, rule, kept):
    assert left(chain(count), rule) == kept


def test_children_go_first_whatever_their_ids():
    entries = {each.checkpoint_id: each for each in (entry(9), entry(3, 9), entry(5, 3), entry(1, 9))}
    order = children_first(entries, set(entries))
    assert order.index("c0005") < order.index("c0003") < order.index("c0009")
    assert order[-1] == "c0009"


def test_a_sub_agent_that_remembers_within_a_call_is_never_finished():
    outer = (("", 0),)
    thread = {
        "": Known({"c0001": entry(1)}),
        "node:1|memory": Known({"c0002": entry(2, outer=outer)}),
        "node:1|7": Known({"c0003": entry(3, outer=outer)}),
    }
    assert finished_calls(thread) == {"node:1|7"}


def test_what_a_fresh_checkpoint_goes_on_from_is_spared_without_any_delta_channel():
    entries = chain(6)[""].entries
    choice = ByRule(ThinningRule(keep_last=1))
    doomed = choice.doomed({"": Known(entries)}, ())[""]
    assert doomed == {f"c{each:04}" for each in range(5)}
    assert choice.spared(entries, doomed, [entry(7, 2)]) == {"c0002"}
    assert choice.spared(entries, doomed, [entry(7, 5), entry(8)]) == set()
    assert choice.ended({"": Known(entries)}) == set()


def test_runs_go_with_the_namespaces_that_have_nothing_left():
    thread = {"": Known({"c0001": entry(1)}), "sub": Known({"c0002": entry(2)})}
    assert OfRuns(frozenset({"r"})).ended(thread) == {"", "sub"}


def test_what_was_made_since_stays_with_what_it_is_rebuilt_from():
    thread = line(
        entry(0, holds=["log"], age=9), entry(1, 0, deltas=["log"], age=8), entry(2, 1, deltas=["log"], age=7),
        entry(3, 2, holds=["log"], age=6), entry(4, 3, deltas=["log"], age=1), entry(5, 4, holds=["log"]),
    )  # fmt: skip
    assert left(thread, ThinningRule(made_since=NOW - timedelta(days=2))) == [3, 4, 5]
    assert left(thread, ThinningRule(made_since=NOW - timedelta(days=2), keep_first=1)) == [0, 3, 4, 5]
    assert left(thread, ThinningRule(made_since=NOW + timedelta(days=1))) == [5]
    assert left(thread, ThinningRule(made_since=NOW - timedelta(days=99))) == [0, 1, 2, 3, 4, 5]
