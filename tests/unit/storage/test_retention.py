"""The planner of retention: which thread is due of what, from clear facts alone."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from msgspec import structs

from storage.errors import InvalidState
from storage.retention.planner import (
    COUNT_MAX,
    NO_POLICY,
    QUIET_SECONDS,
    SECONDS_MAX,
    SEGMENT_CHECKPOINTS_MIN,
    Ceilings,
    Effective,
    Facts,
    Plan,
    Policy,
    Thinning,
    check_ceilings,
    check_policy,
    outlook,
    plan,
    plan_besides,
    removes,
    removes_sooner,
    resolve,
)

DAY = 86_400
NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
CLASSES = frozenset({"STANDARD", "GLACIER"})


def ago(seconds):
    return NOW - timedelta(seconds=seconds)


def hot(**facts):
    given = {"status": "active", "created_at": ago(100 * DAY), "updated_at": ago(10 * DAY), **facts}
    return Facts(tier="hot", **given)


def archived(**facts):
    given = {
        "status": "active",
        "created_at": ago(100 * DAY),
        "updated_at": ago(50 * DAY),
        "archived_at": ago(20 * DAY),
    }
    return Facts(tier="archive", **{**given, **facts})


def test_where_nobody_says_anything_nothing_is_ever_due():
    assert plan(resolve([]), hot(status="done", checkpoints=10**6, writes_due=True), NOW) is None
    assert outlook(resolve([NO_POLICY]), archived()) is None


@pytest.mark.parametrize(
    ("policy", "facts", "reason", "since"),
    [
        (Policy(idle_ttl_seconds=10 * DAY), hot(), "idle_ttl", ago(0)),
        (Policy(idle_ttl_seconds=9 * DAY), hot(), "idle_ttl", ago(DAY)),
        (Policy(absolute_ttl_seconds=90 * DAY), hot(updated_at=ago(50 * DAY)), "absolute_ttl", ago(10 * DAY)),
        (Policy(done_ttl_seconds=DAY), hot(status="done"), "done_ttl", ago(9 * DAY)),
        (Policy(done_ttl_seconds=9 * DAY, idle_ttl_seconds=8 * DAY), hot(status="done"), "idle_ttl", ago(2 * DAY)),
    ],
)
@pytest.mark.parametrize(("on_expiry", "action"), [(None, "archive"), ("archive", "archive"), ("delete", "delete")])
def test_a_hot_thread_ends_when_the_first_of_its_times_is_over(policy, facts, reason, since, on_expiry, action):
    policies = [policy, Policy(on_expiry=on_expiry)]
    assert plan(resolve(policies), facts, NOW) == Plan(action, reason, since)
    assert plan(resolve(policies), facts, since) == Plan(action, reason, since), "at that very moment"
    assert plan(resolve(policies), facts, since - timedelta(microseconds=1)) is None


def test_only_a_thread_that_is_done_ends_for_being_done():
    for status in ("active", "waiting", "failed"):
        assert plan(resolve([Policy(done_ttl_seconds=1)]), hot(status=status), NOW) is None


def test_an_archived_thread_is_left_until_its_archive_is_too_old():
    idle = Policy(idle_ttl_seconds=1, absolute_ttl_seconds=1)
    assert plan(resolve([idle]), archived(), NOW) is None
    policy = resolve([idle, Policy(archive_ttl_seconds=20 * DAY)])
    assert plan(policy, archived(), NOW) == Plan("expire", "archive_ttl", NOW)
    assert plan(policy, archived(archived_at=ago(19 * DAY)), NOW) is None


def test_who_wants_expired_threads_deleted_wants_it_of_archived_ones_too():
    policy = resolve([Policy(idle_ttl_seconds=40 * DAY, on_expiry="delete")])
    assert plan(policy, archived(), NOW) == Plan("expire", "idle_ttl", ago(10 * DAY))


def test_an_old_thread_that_somebody_came_back_to_is_not_archived_under_their_hands():
    policy = resolve([Policy(absolute_ttl_seconds=DAY)])
    assert plan(policy, hot(updated_at=ago(QUIET_SECONDS - 1)), NOW) is None
    assert plan(policy, hot(updated_at=ago(QUIET_SECONDS)), NOW).action == "archive"
    delete = resolve([Policy(absolute_ttl_seconds=DAY, on_expiry="delete")])
    assert plan(delete, hot(updated_at=ago(1)), NOW).action == "delete", "an age is an age"


def test_more_checkpoints_than_allowed_are_thinned_when_they_are_a_quarter_more():
    policy = resolve([Policy(checkpoints_max=100)])
    assert plan(policy, hot(checkpoints=125), NOW) is None
    assert plan(policy, hot(checkpoints=126), NOW).action == "thin"
    assert plan(policy, hot(checkpoints=126, changed=False), NOW) is None, "it was tried: what is left must stay"
    assert plan(policy, hot(checkpoints=None), NOW) is None
    assert plan(policy, archived(checkpoints=126), NOW) is None
    assert plan(policy, hot(checkpoints=126, client_share=True), NOW) is None, "nobody here can open it"


def test_a_thread_that_did_not_change_is_not_thinned_again():
    policy = resolve([Policy(thinning=Thinning(every=10))])
    assert plan(policy, hot(), NOW).reason == "thinning"
    assert plan(policy, hot(changed=False), NOW) is None


def test_pending_writes_that_nobody_resumes_from_go_when_they_are_old():
    policy = resolve([Policy(pending_writes_seconds=DAY)])
    assert plan(policy, hot(writes_due=True, changed=False), NOW).reason == "pending_writes"
    assert plan(policy, hot(), NOW) is None


def test_a_thread_that_ends_is_not_thinned_first():
    policy = resolve([Policy(checkpoints_max=1, idle_ttl_seconds=DAY)])
    assert plan(policy, hot(checkpoints=1000), NOW).action == "archive"


COOL = Policy(checkpoints_idle_ttl_seconds=30 * DAY, keep_hot=Thinning(keep_last=20, keep_first=1))


def test_old_checkpoints_move_in_groups_or_when_one_is_twice_as_old():
    policy = resolve([COOL])
    few, many = SEGMENT_CHECKPOINTS_MIN + 20, SEGMENT_CHECKPOINTS_MIN + 21
    assert plan(policy, hot(old_checkpoints=few), NOW) is None
    moved = plan(policy, hot(old_checkpoints=many), NOW)
    assert (moved.action, moved.reason) == ("segment", "checkpoints_idle_ttl")
    assert plan(policy, hot(old_checkpoints=1, has_overdue=True), NOW).action == "segment"
    assert plan(resolve([]), hot(old_checkpoints=many, has_overdue=True), NOW) is None
    for facts in (archived(old_checkpoints=many), hot(old_checkpoints=many, client_share=True)):
        assert plan(policy, facts, NOW) is None


def test_a_hold_keeps_no_checkpoint_from_moving_and_what_is_thinned_is_thinned_first():
    held = resolve([COOL, Policy(legal_hold=True)])
    assert plan(held, hot(has_overdue=True), NOW).action == "segment"
    both = resolve([COOL, Policy(checkpoints_max=10)])
    assert plan(both, hot(has_overdue=True, checkpoints=99), NOW).action == "thin"
    assert plan(both, hot(has_overdue=True, checkpoints=9), NOW).action == "segment"


def test_moving_checkpoints_removes_nothing_and_a_ceiling_makes_it_due():
    assert not removes(COOL)
    assert not removes_sooner(resolve([]), resolve([COOL]))
    capped = resolve([], Ceilings(checkpoints_idle_ttl_seconds=DAY))
    assert capped.checkpoints_idle_ttl_seconds == DAY
    assert resolve([COOL], Ceilings(checkpoints_idle_ttl_seconds=DAY)).checkpoints_idle_ttl_seconds == DAY


def test_segments_go_when_a_volume_was_there_for_long_enough_and_what_else_is_due_is_done_besides():
    policy = resolve([COOL, Policy(segment_ttl_seconds=DAY, checkpoints_max=10)])
    facts = hot(segmented=True, volume_at=ago(DAY), checkpoints=99)
    due = plan(policy, facts, NOW)
    assert (due.action, due.reason, due.at) == ("segment-expire", "segment_ttl", NOW)
    assert plan_besides(policy, facts, due, NOW).action == "thin"
    assert plan_besides(policy, facts, plan_besides(policy, facts, due, NOW), NOW) is None
    young = replace(facts, volume_at=ago(DAY - 1))
    assert plan(policy, young, NOW).action == "thin"
    assert outlook(policy, young).action == "segment-expire"
    ended = resolve([Policy(segment_ttl_seconds=DAY, idle_ttl_seconds=DAY)])
    assert plan(ended, replace(facts, updated_at=ago(DAY)), NOW).action == "archive"


@pytest.mark.parametrize(
    "facts",
    [{"client_share": True}, {"segmented": False}, {"volume_at": None}, {"tier": "archive", "archived_at": ago(DAY)}],
    ids=str,
)
def test_of_segments_that_nobody_may_or_need_remove_nothing_is_due(facts):
    there = hot(segmented=True, volume_at=ago(DAY))
    policy = resolve([Policy(segment_ttl_seconds=DAY)])
    assert plan(policy, there, NOW).action == "segment-expire"
    assert plan(policy, replace(there, **facts), NOW) is None
    assert outlook(policy, replace(there, **facts)) is None
    held = resolve([Policy(segment_ttl_seconds=DAY, legal_hold=True)])
    assert (plan(held, there, NOW), outlook(held, there)) == (None, None)


def test_letting_segments_go_is_a_removal_and_has_a_ceiling():
    said, sooner = Policy(segment_ttl_seconds=2 * DAY), Policy(segment_ttl_seconds=DAY)
    assert removes(said)
    assert removes_sooner(resolve([]), resolve([said]))
    assert removes_sooner(resolve([said]), resolve([sooner]))
    assert not removes_sooner(resolve([sooner]), resolve([said]))
    assert resolve([said], Ceilings(segment_ttl_seconds=DAY)).segment_ttl_seconds == DAY
    for seconds in (0, -1, SECONDS_MAX + 1):
        with pytest.raises(InvalidState) as refused:
            check_policy(Policy(segment_ttl_seconds=seconds), frozenset())
        assert refused.value.pointer == "/segment_ttl_seconds"


def test_the_most_specific_level_wins_field_by_field():
    tenant = Policy(idle_ttl_seconds=1, absolute_ttl_seconds=2, on_expiry="delete", thinning=Thinning(every=2))
    agent = Policy(idle_ttl_seconds=10, done_ttl_seconds=20, archive_storage_class="GLACIER")
    thread = Policy(idle_ttl_seconds=100, on_expiry="archive", thinning=Thinning(keep_last=3))
    assert resolve([tenant, agent, thread]) == Effective(
        idle_ttl_seconds=100,
        absolute_ttl_seconds=2,
        done_ttl_seconds=20,
        on_expiry="archive",
        thinning=Thinning(keep_last=3),
        archive_storage_class="GLACIER",
    )


def test_no_level_lifts_the_hold_of_another():
    for levels in ([True, False, False], [None, True, False], [False, None, True]):
        assert resolve([Policy(legal_hold=each) for each in levels]).legal_hold
    assert not resolve([Policy(legal_hold=False), NO_POLICY]).legal_hold


def test_a_hold_leaves_only_archiving():
    held = Policy(legal_hold=True)
    for policy in (
        Policy(idle_ttl_seconds=1, on_expiry="delete"),
        Policy(checkpoints_max=1),
        Policy(thinning=Thinning(every=2)),
        Policy(pending_writes_seconds=1),
    ):
        assert plan(resolve([policy]), hot(checkpoints=1000, writes_due=True), NOW) is not None
        assert plan(resolve([policy, held]), hot(checkpoints=1000, writes_due=True), NOW) is None
    expiring = Policy(archive_ttl_seconds=1)
    assert plan(resolve([expiring]), archived(), NOW) is not None
    assert plan(resolve([expiring, held]), archived(), NOW) is None
    assert plan(resolve([Policy(idle_ttl_seconds=1), held]), hot(), NOW).action == "archive"


def test_ceilings_cap_what_is_said_and_what_nobody_said():
    ceilings = Ceilings(idle_ttl_seconds=10, archive_ttl_seconds=20, checkpoints_max=30)
    assert resolve([Policy(idle_ttl_seconds=100, checkpoints_max=3)], ceilings) == Effective(
        idle_ttl_seconds=10, archive_ttl_seconds=20, checkpoints_max=3
    )
    assert resolve([Policy(legal_hold=True)], ceilings).legal_hold, "no ceiling ends a hold"


@pytest.mark.parametrize(
    ("policy", "pointer"),
    [
        (Policy(idle_ttl_seconds=0), "/idle_ttl_seconds"),
        (Policy(archive_ttl_seconds=10**11), "/archive_ttl_seconds"),
        (Policy(checkpoints_max=0), "/checkpoints_max"),
        (Policy(thinning=Thinning()), "/thinning"),
        (Policy(thinning=Thinning(every=0)), "/thinning/every"),
        (Policy(thinning=Thinning(keep_last=-1)), "/thinning/keep_last"),
        (Policy(checkpoints_idle_ttl_seconds=0), "/checkpoints_idle_ttl_seconds"),
        (Policy(keep_hot=Thinning()), "/keep_hot"),
        (Policy(keep_hot=Thinning(keep_first=-1)), "/keep_hot/keep_first"),
        (Policy(archive_storage_class="FREEZER"), "/archive_storage_class"),
    ],
)
def test_a_policy_that_means_nothing_is_refused_where_it_does(policy, pointer):
    with pytest.raises(InvalidState) as refused:
        check_policy(policy, CLASSES)
    assert refused.value.pointer == pointer


def test_what_can_be_said_is_accepted():
    everything = Policy(
        idle_ttl_seconds=1,
        absolute_ttl_seconds=100 * 365 * DAY,
        done_ttl_seconds=1,
        on_expiry="delete",
        checkpoints_max=1,
        thinning=Thinning(every=1, keep_first=1, keep_last=1, keep_statuses=("failed",)),
        pending_writes_seconds=1,
        checkpoints_idle_ttl_seconds=1,
        keep_hot=Thinning(every=1, keep_first=1, keep_last=1, keep_statuses=("failed",)),
        archive_storage_class="GLACIER",
        archive_ttl_seconds=1,
        legal_hold=True,
    )
    assert check_policy(everything, CLASSES) is everything
    with pytest.raises(InvalidState):
        check_ceilings(Ceilings(done_ttl_seconds=0))


@pytest.mark.parametrize(
    ("policy", "deletes"),
    [
        (Policy(), False),
        (Policy(legal_hold=True), False),
        (Policy(archive_storage_class="GLACIER"), False),
        (Policy(idle_ttl_seconds=1, on_expiry="archive"), False),
        # Another level may say `delete`.
        (Policy(idle_ttl_seconds=1), True),
        (Policy(absolute_ttl_seconds=1), True),
        (Policy(done_ttl_seconds=1), True),
        (Policy(on_expiry="delete"), True),
        (Policy(archive_ttl_seconds=1, on_expiry="archive"), True),
        (Policy(checkpoints_max=1), True),
        (Policy(thinning=Thinning(every=2)), True),
        (Policy(pending_writes_seconds=1), True),
    ],
)
def test_a_policy_that_can_remove_state_takes_the_permission_to(policy, deletes):
    assert removes(policy) is deletes


DELETING = Effective(idle_ttl_seconds=100, on_expiry="delete", archive_ttl_seconds=100, checkpoints_max=100)


@pytest.mark.parametrize(
    ("before", "after", "sooner"),
    [
        (DELETING, DELETING, False),
        (DELETING, replace(DELETING, idle_ttl_seconds=101), False),
        (DELETING, replace(DELETING, idle_ttl_seconds=99), True),
        (DELETING, replace(DELETING, absolute_ttl_seconds=1), True),
        (DELETING, replace(DELETING, done_ttl_seconds=1), True),
        (DELETING, replace(DELETING, archive_ttl_seconds=99), True),
        (DELETING, replace(DELETING, archive_ttl_seconds=None), False),
        (DELETING, replace(DELETING, checkpoints_max=99), True),
        (DELETING, replace(DELETING, pending_writes_seconds=1), True),
        (DELETING, replace(DELETING, on_expiry="archive", idle_ttl_seconds=1), False),
        (replace(DELETING, on_expiry="archive"), DELETING, True),
        (Effective(), Effective(thinning=Thinning(every=2)), True),
        (Effective(thinning=Thinning(every=2)), Effective(thinning=Thinning(every=2)), False),
        (Effective(thinning=Thinning(every=2)), Effective(thinning=Thinning(every=3)), True),
        (Effective(thinning=Thinning(every=2)), Effective(), False),
    ],
)
def test_what_removes_something_new_or_earlier_is_told_apart(before, after, sooner):
    assert removes_sooner(before, after) is sooner


def test_bounds_are_allowed_and_what_is_beyond_them_is_not():
    most = Policy(
        idle_ttl_seconds=SECONDS_MAX, checkpoints_max=COUNT_MAX, thinning=Thinning(every=COUNT_MAX, keep_last=COUNT_MAX)
    )
    assert check_policy(most, CLASSES) == most
    for beyond in (
        structs.replace(most, idle_ttl_seconds=SECONDS_MAX + 1),
        structs.replace(most, checkpoints_max=COUNT_MAX + 1),
        structs.replace(most, thinning=Thinning(every=COUNT_MAX + 1)),
    ):
        with pytest.raises(InvalidState):
            check_policy(beyond, CLASSES)


def test_a_storage_class_that_is_none_is_told_which_there_are():
    with pytest.raises(InvalidState, match="one of GLACIER, STANDARD"):
        check_policy(Policy(archive_storage_class="TAPE"), CLASSES)
