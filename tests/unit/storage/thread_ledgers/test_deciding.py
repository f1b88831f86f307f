"""The rules of the ledger of effects, case by case, and that what may not be repeated never runs by them."""

import itertools

import pytest

from storage.effects.deciding import Current, Earlier, New, Repeats, decide_current, decide_new

OVER = {"lease_over": True}
LOST = {"fence_lost": True}
OWN = {"own_fence": True}
# mode, status, what is known, answer
CURRENT = [
    *((mode, "done", {}, "replay") for mode in ("read", "idempotent", "once")),
    *((mode, "failed", {}, "again") for mode in ("read", "idempotent", "once")),
    *((mode, "voided", {}, "again") for mode in ("read", "idempotent", "once")),
    ("read", "unknown", {}, "again"),
    ("idempotent", "unknown", {}, "again"),
    ("once", "unknown", {}, "unknown"),
    *((mode, "started", {}, "in-progress") for mode in ("read", "idempotent", "once")),
    *((mode, "started", known, "again") for mode in ("read", "idempotent") for known in (OWN, OVER, LOST)),
    ("once", "started", OWN, "in-progress"),
    ("once", "started", OVER, "became-unknown"),
    ("once", "started", LOST, "became-unknown"),
    ("once", "started", OWN | OVER, "became-unknown"),
]


@pytest.mark.parametrize(("mode", "status", "known", "answer"), CURRENT)
def test_a_name_that_has_an_execution_on_this_line(mode, status, known, answer):
    assert decide_current(Current(mode, status, **known)) == answer
    assert decide_current(Current(mode, status, **known)._replace(same_intent=False)) == "mismatch"


def test_what_is_to_be_done_once_runs_again_only_when_it_certainly_did_not_happen():
    flags = list(itertools.product((True, False), repeat=4))
    for status in ("started", "done", "failed", "unknown", "voided"):
        for same_intent, own, over, lost in flags:
            answer = decide_current(Current("once", status, same_intent, own, over, lost))
            assert (answer == "again") == (same_intent and status in {"failed", "voided"})


HERE, OLD = Earlier(0, "done", on_line=True, recent=True), Earlier(0, "done", on_line=True, recent=False)
THERE = Earlier(0, "done", on_line=False, recent=False)
# mode, repeat, earlier, answer
NEW = [
    *((mode, False, [], New()) for mode in ("read", "idempotent", "once")),
    ("once", False, [HERE], Repeats(0)),
    ("once", True, [HERE], New(0)),
    ("once", False, [OLD], New()),
    ("once", False, [THERE], Repeats(0)),
    ("once", True, [THERE], New(0)),
    ("once", False, [OLD, THERE._replace(number=1)], Repeats(1)),
    ("once", False, [THERE._replace(status="unknown")], Repeats(0)),
    ("once", False, [THERE._replace(status="started")], Repeats(0)),
    ("once", False, [THERE._replace(status="failed"), HERE._replace(status="voided")], New()),
    ("idempotent", False, [HERE], New()),
    ("idempotent", False, [THERE], New(0, keeps_key=True)),
    ("idempotent", True, [HERE, THERE._replace(number=1)], New(1, keeps_key=True)),
    ("idempotent", False, [THERE._replace(status="failed")], New()),
    ("read", False, [HERE, THERE], New()),
]


@pytest.mark.parametrize(("mode", "repeat", "earlier", "answer"), NEW)
def test_a_name_that_has_none(mode, repeat, earlier, answer):
    assert decide_new(mode, repeat=repeat, earlier=earlier) == answer
