"""The judge of `tests.support.decisions` finds what it is there for: each bad history is told, and no good one."""

from collections import Counter

import msgspec
import pytest

from tests.support.decisions.history import ACTIONS, Decision, History, Line, Replayed, Shown, Word, judge

ARGS = {"amount": 5, "to": "bob"}
EDITED = {"amount": 4, "to": "bob"}


def line(**parts):
    """Attempt 1 at an effect under an approval, asked for at 100 and told at 110."""
    told = {
        "thread": "t1", "name": "approved A:0", "execution": 1, "attempt": 1, "mode": "once", "tool": "pay",
        "args": ARGS, "provider_key": "k", "nonce": "n1", "asked": 100, "told": 110, "approval": "A", "position": 0,
        "repeat": True,
    }  # fmt: skip
    return Line(**(told | parts))


def plain(**parts):
    """The same without an approval."""
    return line(**({"name": "call", "approval": None, "position": None, "repeat": False} | parts))


def again(made, **parts):
    """A second attempt at what was done, asked for at 300."""
    later = {"attempt": made.attempt + 1, "nonce": "n2", "asked": 300, "told": 310}
    return msgspec.structs.replace(made, **(later | parts))


def word(**parts):
    said = {
        "thread": "t1", "name": "call", "execution": 1, "attempt": 1, "happened": False, "sent": 200, "answered": 210,
    }  # fmt: skip
    return Word(**(said | parts))


def decision(**parts):
    said = {
        "approval": "A", "thread": "t1", "key": "ann", "verdicts": ["approve"], "args": [ARGS], "sent": 50,
        "outcome": "acknowledged",
    }  # fmt: skip
    return Decision(**(said | parts))


def shown(**parts):
    stands = {
        "approval": "A", "status": "consumed", "votes": [("ann", "approve")], "actions": [("consumed", "approve")],
        "args": [ARGS], "recorded": [("ann", ["approve"])], "consumed": [0],
    }  # fmt: skip
    return Shown(**(stands | parts))


def history(**parts):
    """A run in which one thing was approved and done, and every action happened."""
    seen = {
        "lines": [line()], "decisions": [decision()], "shown": {"A": shown()}, "actions": Counter(ACTIONS),
    }  # fmt: skip
    return History(**(seen | parts))


def two(**parts):
    """A run in which two actions were approved together, the second one with other arguments."""
    given = decision(verdicts=["approve", "edit"], args=[ARGS, EDITED])
    stands = {
        "status": "approved", "votes": [("ann", "edit")], "actions": [("consumed", "approve"), ("approved", "edit")],
        "args": [ARGS, EDITED], "recorded": [("ann", ["approve", "edit"])],
    }  # fmt: skip
    return history(decisions=[given], shown={"A": shown(**(stands | parts))})


NOBODY = shown(status="pending", votes=[], actions=[("pending", None)], recorded=[])
REJECTED = decision(verdicts=["reject"], args=[None])
GOOD = {
    "one that was approved and done": history(),
    "done again after a person's word": history(lines=[line(), plain(), again(plain())], words=[word()]),
    "a word that may have been heard": history(lines=[line(), plain(), again(plain())], words=[word(answered=None)]),
    "done again what may be": history(lines=[line(mode="idempotent"), again(line(mode="idempotent"))]),
    "two actions": two(),
    "a lost decision that is there": history(decisions=[decision(outcome="lost")]),
    "a lost decision that is not there": history(
        lines=[plain()], decisions=[decision(outcome="lost")], shown={"A": NOBODY}
    ),
    "a refused decision": history(decisions=[decision(), decision(key="bob", outcome="refused", sent=60)]),
    "an approval of something else in the same place": history(
        lines=[plain()],
        shown={"A": shown(status="superseded", actions=[("approved", "approve")])},
    ),
    "the same in another thread": history(lines=[line(), plain(), plain(thread="t2", nonce="n2")]),
    "the same where it is meant": history(lines=[line(), plain(), plain(name="other", nonce="n2", repeat=True)]),
    "told what happened": history(
        replayed=[Replayed(thread="copy", name="approved A:0", tool="pay", args=ARGS, nonce="n1")]
    ),
    "told what a person said": history(replayed=[Replayed(thread="t1", name="x", tool="pay", args=ARGS, nonce=None)]),
    "refused as it should be": history(codes=Counter({"claim-held": 3})),
}

BAD = {
    "an approval used by two effects": (
        history(lines=[line(), line(name="again A:0", nonce="n2", asked=300, told=310)]),
        "was used for",
    ),
    "an approval used by two executions": (history(lines=[line(), line(execution=2, nonce="n2")]), "was used for"),
    "an approval used under two keys": (history(lines=[line(), again(line(), provider_key="other")]), "was used for"),
    "one attempt begun twice": (history(lines=[line(), plain(), plain(nonce="n2")]), "begun twice"),
    "attempts with several keys": (
        history(lines=[plain(mode="idempotent"), again(plain(mode="idempotent"), provider_key="other")]),
        "several keys",
    ),
    "done again under an approval without a word": (history(lines=[line(), again(line())]), "nobody said between"),
    "done again without a word": (history(lines=[plain(), again(plain())]), "nobody said between"),
    "done again after a word that it happened": (
        history(lines=[plain(), again(plain())], words=[word(happened=True)]),
        "nobody said between",
    ),
    "done again before the word": (
        history(lines=[plain(), again(plain())], words=[word(sent=400, answered=410)]),
        "nobody said between",
    ),
    "done again after a word about something earlier": (
        history(lines=[plain(), again(plain())], words=[word(sent=10, answered=20)]),
        "nobody said between",
    ),
    "done again after a word about another": (
        history(lines=[plain(), again(plain())], words=[word(name="other")]),
        "nobody said between",
    ),
    "one word for two repetitions": (
        history(
            lines=[plain(), again(plain()), again(again(plain()), nonce="n3", asked=500, told=510)],
            words=[word(sent=200, answered=None)],
        ),
        "nobody said between",
    ),
    "done again after a word about another attempt": (
        history(lines=[plain(), again(plain())], words=[word(attempt=2)]),
        "nobody said between",
    ),
    "the same under another name": (history(lines=[plain(), plain(name="other", nonce="n2")]), "happened 2 times"),
    "done before it was approved": (history(decisions=[decision(sent=120)]), "nobody had approved"),
    "done what was rejected": (
        history(
            decisions=[REJECTED],
            shown={
                "A": shown(
                    status="rejected",
                    votes=[("ann", "reject")],
                    actions=[("rejected", "reject")],
                    recorded=[("ann", ["reject"])],
                )
            },
        ),
        "nobody had approved",
    ),
    "done what nobody decided": (history(decisions=[], shown={}), "nobody had approved"),
    "done what a refused decision said": (history(decisions=[decision(outcome="refused")]), "nobody had approved"),
    "done something else": (history(lines=[line(args={"amount": 6, "to": "bob"})]), "which nobody approved"),
    "done what was edited": (
        history(
            decisions=[decision(verdicts=["edit"], args=[EDITED])],
            shown={
                "A": shown(
                    votes=[("ann", "edit")],
                    actions=[("consumed", "edit")],
                    args=[EDITED],
                    recorded=[("ann", ["edit"])],
                )
            },
        ),
        "which nobody approved",
    ),
    "done in another thread": (history(lines=[line(thread="copy")]), "another thread"),
    "done and not used up": (
        history(shown={"A": shown(status="approved", actions=[("approved", "approve")])}),
        "stands as approved",
    ),
    "done and not on record": (history(shown={"A": shown(consumed=[])}), "not on record"),
    "used up twice on record": (history(shown={"A": shown(consumed=[0, 0])}), "more than once"),
    "done without the approval that it takes": (history(lines=[line(), plain(tool="transfer")]), "without an approval"),
    "an approval that is gone": (history(shown={}), "is gone"),
    "a decision that is lost": (history(shown={"A": NOBODY}), "is lost: 0 votes, 0 records"),
    "a decision that is not recorded": (history(shown={"A": shown(recorded=[])}), "is lost: 1 votes, 0 records"),
    "a decision that is recorded only": (history(shown={"A": shown(votes=[])}), "is lost: 0 votes, 1 records"),
    "a decision that is recorded twice": (
        history(shown={"A": shown(recorded=[("ann", ["approve"])] * 2)}),
        "1 votes, 2 records",
    ),
    "half of a decision whose answer was lost": (
        history(decisions=[decision(outcome="lost")], shown={"A": shown(recorded=[])}),
        "half of a decision",
    ),
    "a decision that changed": (two(actions=[("consumed", "approve"), ("rejected", "reject")]), "and edit was said"),
    "an edit that is not there": (two(args=[ARGS, ARGS]), "was allowed"),
    "a decision that left it pending": (
        history(lines=[plain()], shown={"A": shown(status="pending", actions=[("approved", "approve")])}),
        "is pending after",
    ),
    "a decision of nobody": (
        history(shown={"A": shown(votes=[("ann", "approve"), ("eve", "approve")])}),
        "who did not",
    ),
    "a record of a decision of nobody": (
        history(shown={"A": shown(recorded=[("ann", ["approve"]), ("eve", ["approve"])])}),
        "who did not",
    ),
    "told what never was": (
        history(replayed=[Replayed(thread="t1", name="approved A:0", tool="pay", args=ARGS, nonce="n9")]),
        "was told to have given n9",
    ),
    "told what another did": (
        history(replayed=[Replayed(thread="t1", name="other", tool="pay", args=ARGS, nonce="n1")]),
        "was told to have given n1",
    ),
    "answered 500": (history(failures=["GET / was answered 500"]), "was answered 500"),
    "answered with damage": (history(codes=Counter({"integrity-failure": 1})), "1 requests were answered"),
    "nothing done": (history(lines=[], decisions=[], shown={}), "nothing was done"),
    **{f"no {action}": (history(actions=Counter(ACTIONS) - Counter([action])), f"no {action}") for action in ACTIONS},
}


@pytest.mark.parametrize("seen", GOOD.values(), ids=GOOD.keys())
def test_a_run_that_kept_its_promises_is_found_good(seen):
    assert judge(seen) == []


@pytest.mark.parametrize(("seen", "told"), BAD.values(), ids=BAD.keys())
def test_what_went_wrong_is_told(seen, told):
    found = judge(seen)
    assert found
    assert any(told in each for each in found), found
