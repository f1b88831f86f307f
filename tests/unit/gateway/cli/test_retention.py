from datetime import UTC, datetime, timedelta

import pytest

HELD = {"policy": {}, "effective": {}, "agents": [], "ceilings": None, "damaged": []}


@pytest.mark.parametrize(
    ("hours", "said"),
    [(1, "Next: archive (idle_ttl), due 20"), (-1, "the next round does it; stateroom retention run")],
)
def test_what_is_due_already_is_not_told_as_if_it_were_to_come(command, gateway, hours, said):
    at = (datetime.now(UTC) + timedelta(hours=hours)).isoformat()
    gateway.answer(HELD | {"next": {"action": "archive", "reason": "idle_ttl", "at": at}})
    outcome = command("retention", "get", "--thread", "t1", "--subject", "u1")
    assert outcome.code == 0, outcome.err
    assert said in outcome.err
    assert ("due since" in outcome.err) == (hours < 0)


def test_a_round_is_begun_and_whoever_said_nothing_is_told_so(command, gateway):
    gateway.answer({"state": "waiting"}, 202)
    outcome = command("retention", "run")
    assert (gateway.last.method, gateway.last.path) == ("POST", "/v1/retention/round")
    assert "as soon as a process is free" in outcome.err
    gateway.answer({"state": "none"}, 202)
    assert "there is nothing to do" in command("retention", "run").err


def test_what_stays_hot_is_said_apart_from_what_thinning_keeps(command, gateway):
    said = {"checkpoints_idle_ttl_seconds": 86_400, "keep_hot": {"keep_last": 3}, "thinning": {"every": 2}}
    answer = {"agent": None, "effective": None, "agents": [], "ceilings": {}, "damaged": [], "updated_at": None}
    gateway.answer(answer | {"policy": said})
    gateway.answer(answer | {"policy": said})
    outcome = command(
        "retention", "set", "--checkpoints-idle-ttl", "30d", "--hot-last", "none", "--hot-first", "1",
        "--hot-status", "failed", "--keep-last", "9", "--segment-ttl", "2y",
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    assert gateway.last.body == {
        "checkpoints_idle_ttl_seconds": 2_592_000, "keep_hot": {"keep_first": 1, "keep_statuses": ["failed"]},
        "thinning": {"every": 2, "keep_last": 9}, "segment_ttl_seconds": 2 * 365 * 86_400,
    }  # fmt: skip
