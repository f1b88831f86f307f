"""What holds of the planner of retention whatever is said and whatever a thread is."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from storage.retention.planner import Ceilings, Effective, Facts, Policy, Thinning, may_thin, plan, resolve, too_many

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
SECONDS = st.one_of(st.none(), st.integers(1, 10_000))
COUNTS = st.one_of(st.none(), st.integers(1, 1_000))
TTLS = ("segment_ttl_seconds", "idle_ttl_seconds", "absolute_ttl_seconds", "done_ttl_seconds", "archive_ttl_seconds")
TIMES = dict.fromkeys((*TTLS, "pending_writes_seconds"), SECONDS)
THINNING = st.one_of(st.none(), st.builds(Thinning, every=st.integers(1, 100), keep_last=st.integers(0, 10)))
POLICIES = st.builds(
    Policy,
    **TIMES,
    on_expiry=st.sampled_from([None, "archive", "delete"]),
    checkpoints_max=COUNTS,
    thinning=THINNING,
    legal_hold=st.sampled_from([None, None, False, True]),
)
CEILINGS = st.builds(Ceilings, **TIMES, checkpoints_max=COUNTS)
LEVELS = st.lists(POLICIES, max_size=3)
MOMENTS = st.integers(0, 12_000).map(lambda seconds: NOW - timedelta(seconds=seconds))


@st.composite
def threads(draw):
    created, updated, archived = sorted(draw(st.tuples(MOMENTS, MOMENTS, MOMENTS)))
    tier = draw(st.sampled_from(["hot", "archive"]))
    return Facts(
        tier=tier,
        status=draw(st.sampled_from(["active", "waiting", "failed", "done"])),
        created_at=created,
        updated_at=updated,
        client_share=draw(st.booleans()),
        archived_at=archived if tier == "archive" else None,
        changed=draw(st.booleans()),
        checkpoints=draw(COUNTS),
        writes_due=draw(st.booleans()),
        segmented=draw(st.booleans()),
        volume_at=draw(st.one_of(st.none(), MOMENTS)),
    )


@given(LEVELS, CEILINGS, threads())
def test_nothing_is_removed_under_a_hold(levels, ceilings, facts):
    due = plan(resolve(levels, ceilings), facts, NOW)
    if any(level.legal_hold for level in levels):
        assert due is None or due.action == "archive"


@given(LEVELS, CEILINGS, threads(), st.sampled_from(TTLS), st.integers(1, 10_000))
def test_a_longer_time_makes_no_thread_end_sooner(levels, ceilings, facts, name, more):
    shorter = resolve(levels, ceilings)
    said = getattr(shorter, name)
    longer = replace(shorter, **{name: None if said is None else said + more})
    sooner, later = plan(shorter, facts, NOW), plan(longer, facts, NOW)
    if later is not None and later.action != "thin":
        assert sooner is not None
        assert sooner.at <= later.at
        assert sooner.action == later.action


@given(LEVELS, CEILINGS, threads(), st.integers(0, 20_000))
def test_what_is_due_stays_due_as_time_goes_by(levels, ceilings, facts, seconds):
    policy = resolve(levels, ceilings)
    due = plan(policy, facts, NOW)
    if due is not None and due.action != "thin":
        assert plan(policy, facts, NOW + timedelta(seconds=seconds)) == due


@given(LEVELS, POLICIES)
def test_the_last_level_that_says_something_of_a_field_is_right(levels, last):
    before, after = resolve(levels), resolve([*levels, last])
    for name, said in msgspec.structs.asdict(last).items():
        if name == "legal_hold":
            assert after.legal_hold == (before.legal_hold or bool(said))
        else:
            assert getattr(after, name) == (getattr(before, name) if said is None else said)


@given(LEVELS, CEILINGS)
def test_nothing_is_above_its_ceiling_and_nothing_else_is_touched(levels, ceilings):
    free, capped = resolve(levels), resolve(levels, ceilings)
    for name in Effective.__slots__:
        ceiling = getattr(ceilings, name, None)
        said = getattr(free, name)
        if ceiling is None:
            assert getattr(capped, name) == said
        else:
            assert getattr(capped, name) == (ceiling if said is None else min(ceiling, said))


@given(LEVELS, CEILINGS, threads())
def test_each_tier_gets_only_what_can_be_done_there(levels, ceilings, facts):
    due = plan(resolve(levels, ceilings), facts, NOW)
    if due is not None:
        assert due.action in ({"archive", "delete", "segment-expire", "thin"} if facts.tier == "hot" else {"expire"})
        assert due.action not in {"segment-expire", "thin"} or not facts.client_share


@given(st.integers(1, 1_000), st.integers(0, 3_000), threads())
def test_a_thread_that_was_thinned_is_not_thinned_again_for_the_next_checkpoint(most, checkpoints, facts):
    policy = resolve([Policy(checkpoints_max=most)])
    facts = replace(facts, checkpoints=checkpoints, changed=True)
    if not may_thin(policy, facts):
        return
    due = plan(policy, facts, NOW)
    assert (due is not None) == too_many(policy, checkpoints)
    for grown in range(most, most + most // 4 + 1):
        assert plan(policy, replace(facts, checkpoints=grown), NOW) is None, "down to the bound, and a quarter more"
