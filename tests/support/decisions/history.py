"""The history of a run in which people decided, agents acted and everybody was killed, and its judge.

The history is what was seen from outside: lines that actions left in the world, words of people, and what the product
shows in the end. The judge knows none of the product's code, and says what is wrong in sentences.
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

import msgspec

# What a policy of the run lets nobody do without an approval.
GUARDED_TOOL = "transfer"
# Every action of the machine; a run in which one never happened shows nothing about it.
ACTIONS = (
    "approve", "edit", "expire", "claim", "start", "crash", "finish", "resolve", "fork", "replay", "prune", "archive",
)  # fmt: skip
# What nobody is answered, whatever is killed. The machine itself is at fault, too, if it is refused as malformed.
NEVER = frozenset({
    "internal-error", "integrity-failure", "rollback-detected", "unexpected-answer", "invalid-request", "invalid-state",
    "limit-exceeded", "permission-denied", "unauthenticated", "approval-not-yours", "edit-invalid",
})  # fmt: skip
GRANTED = frozenset({"approve", "edit"})

EffectPlace = tuple[str, str, int]


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """What one action left in the world.

    Attributes:
        thread: The thread.
        name: The name of its effect.
        execution: The number of the execution.
        attempt: The number of the attempt.
        mode: What of it may be repeated, as the gateway said.
        tool: What was done.
        args: With what.
        provider_key: The key that the service would have been given.
        nonce: What the action gave, which nothing else gives.
        asked: When the gateway was asked for it, in nanoseconds of the machine.
        told: When it said that the tool is to run.
        approval: The approval that the effect was begun with.
        position: Which action of it.
        repeat: Whether it was meant to happen once more.
    """

    thread: str
    name: str
    execution: int
    attempt: int
    mode: str
    tool: str
    args: dict[str, Any]
    provider_key: str
    nonce: str
    asked: int
    told: int
    approval: str | None = None
    position: int | None = None
    repeat: bool = False

    @property
    def place(self) -> EffectPlace:
        """The execution that it is an attempt at."""
        return self.thread, self.name, self.execution


class Word(msgspec.Struct, frozen=True, kw_only=True):
    """A person's word about an attempt of unknown outcome: ``answered`` is None where nobody knows if it was heard."""

    thread: str
    name: str
    execution: int
    attempt: int
    happened: bool
    sent: int
    answered: int | None

    @property
    def place(self) -> EffectPlace:
        """The execution that it is about."""
        return self.thread, self.name, self.execution

    def lies_between(self, before: Line, after: Line) -> bool:
        """Whether it is of one attempt, or of one after that, and may have been heard before another was begun."""
        is_between = before.attempt <= self.attempt < after.attempt
        return is_between and self.sent < after.told and (self.answered is None or self.answered > before.asked)


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What a person decided: ``args`` by position what may be done, None where nothing may.

    ``outcome``: it was acknowledged, refused, or nobody knows.
    """

    approval: str
    thread: str
    key: str
    verdicts: list[str]
    args: list[dict[str, Any] | None]
    sent: int
    outcome: Literal["acknowledged", "refused", "lost"]


class Shown(msgspec.Struct, kw_only=True):
    """An approval as the product shows it in the end.

    Attributes:
        approval: Its id.
        status: How it stands.
        votes: Who said what: the key, and the word that weighs most.
        actions: How its actions stand: their status, their verdict.
        args: The arguments that may be done of each, as its content says.
        recorded: What the audit chain has of decisions: the key, and the verdicts.
        consumed: The positions of the actions that the audit chain says were used up.
    """

    approval: str
    status: str
    votes: list[tuple[str, str]]
    actions: list[tuple[str, str | None]]
    args: list[dict[str, Any]]
    recorded: list[tuple[str, list[str]]] = []
    consumed: list[int] = []


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """An effect of which it was told that it is done, and what it gave: None where a person said so."""

    thread: str
    name: str
    tool: str
    args: dict[str, Any]
    nonce: str | None


class History(msgspec.Struct, kw_only=True):
    """All that was seen of a run.

    Attributes:
        lines: What actions left in the world, in order.
        words: What people said of effects.
        decisions: What people decided.
        shown: The approvals that somebody decided about, by their ids, as they are in the end.
        replayed: What was told instead of done.
        codes: How often what was refused.
        failures: Answers of status 500, and tracebacks.
        actions: How often each action of the machine happened.
    """

    lines: list[Line] = []
    words: list[Word] = []
    decisions: list[Decision] = []
    shown: dict[str, Shown] = {}
    replayed: list[Replayed] = []
    codes: Counter[str] = msgspec.field(default_factory=Counter)
    failures: list[str] = []
    actions: Counter[str] = msgspec.field(default_factory=Counter)


def judge(history: History) -> list[str]:
    """What is wrong; nothing if the run kept its promises."""
    return [
        *_used_twice(history),
        *_not_authorised(history),
        *_started_twice(history),
        *_same_again(history),
        *_lost_decisions(history),
        *_told_what_never_was(history),
        *_failed(history),
    ]


def _by(lines: Iterable[Line], key: Any) -> dict[Any, list[Line]]:
    grouped = defaultdict(list)
    for each in lines:
        grouped[key(each)].append(each)
    return grouped


def _used_twice(history: History) -> Iterator[str]:
    """Of one action of an approval there is one execution, under one key; each attempt at it is another one."""
    approved = [each for each in history.lines if each.approval is not None]
    for (approval, position), lines in _by(approved, lambda each: (each.approval, each.position)).items():
        if len({(each.place, each.provider_key) for each in lines}) > 1:
            yield f"action {position} of approval {approval} was used for {sorted({each.name for each in lines})}"
    for approval, shown in history.shown.items():
        if len(set(shown.consumed)) < len(shown.consumed):
            yield f"actions of approval {approval} are on record as used up more than once: {shown.consumed}"
    for place, lines in _by(history.lines, lambda each: each.place).items():
        attempts = [each.attempt for each in lines]
        if len(set(attempts)) < len(attempts):
            yield f"an attempt at {place} was begun twice: {attempts}"
        if len({each.provider_key for each in lines}) > 1:
            yield f"attempts at {place} have several keys"


def _not_authorised(history: History) -> Iterator[str]:
    """What was done under an approval is what a person allowed last, before, in that thread; the action is used up."""
    given = defaultdict(list)
    for each in history.decisions:
        given[each.approval].append(each)
    for line in history.lines:
        if line.approval is None or line.position is None:
            if line.tool == GUARDED_TOOL:
                yield f"{line.place} did {GUARDED_TOOL} without an approval"
            continue
        position = line.position
        allowed = [
            each
            for each in given[line.approval]
            if each.outcome != "refused" and each.sent < line.told and each.verdicts[position] in GRANTED
        ]
        where = f"action {position} of approval {line.approval}"
        if not allowed:
            yield f"{where} was done by {line.place}, and nobody had approved it"
        elif line.args not in [each.args[position] for each in allowed]:
            yield f"{where} was done by {line.place} with {line.args}, which nobody approved"
        elif line.thread not in {each.thread for each in allowed}:
            yield f"{where} was done in {line.thread}, which is another thread"
        shown = history.shown.get(line.approval)
        if shown is not None and shown.actions[position][0] != "consumed":
            yield f"{where} was done and stands as {shown.actions[position][0]}"
        if shown is not None and position not in shown.consumed:
            yield f"{where} was done and is not on record as used up"


def _started_twice(history: History) -> Iterator[str]:
    """Between two attempts at what happens once there is a person's word that the first did not."""
    words = defaultdict(list)
    for each in history.words:
        if not each.happened:
            words[each.place].append(each)
    for place, lines in _by(history.lines, lambda each: each.place).items():
        left = sorted(words[place], key=lambda each: each.sent)
        once = sorted((each for each in lines if each.mode == "once"), key=lambda each: each.attempt)
        for before, after in itertools.pairwise(once):
            found = next((each for each in left if each.lies_between(before, after)), None)
            if found is None:
                said = f"{before.attempt}. and {after.attempt}."
                yield f"{place} was begun {said}, and nobody said between that it did not happen"
            else:
                left.remove(found)


def _same_again(history: History) -> Iterator[str]:
    """The same tool with the same arguments happens once in a thread, whatever its name, unless it is meant to."""
    once = [each for each in history.lines if each.mode == "once" and not each.repeat and each.approval is None]
    voided = Counter(each.place for each in history.words if not each.happened)
    for (thread, tool, args), lines in _by(once, lambda each: (each.thread, each.tool, _text(each.args))).items():
        allowed = 1 + sum(voided[place] for place in {each.place for each in lines})
        if len(lines) > allowed:
            yield f"{tool} with {args} happened {len(lines)} times in {thread}"


def _text(args: Any) -> str:
    return msgspec.json.encode(args, order="deterministic").decode()


def _lost_decisions(history: History) -> Iterator[str]:
    """What was acknowledged is there; what was not is there whole or not at all; nothing else is."""
    given = defaultdict(list)
    for each in history.decisions:
        given[each.approval].append(each)
    for approval, decisions in given.items():
        shown = history.shown.get(approval)
        if shown is None:
            yield f"approval {approval} is gone"
            continue
        for each in decisions:
            vote, record = (each.key, _overall(each.verdicts)), (each.key, each.verdicts)
            counts = shown.votes.count(vote), shown.recorded.count(record)
            if each.outcome == "acknowledged" and counts != (1, 1):
                yield f"a decision about {approval} is lost: {counts[0]} votes, {counts[1]} records"
            if each.outcome == "lost" and counts not in {(0, 0), (1, 1)}:
                yield f"half of a decision about {approval} is there: {counts[0]} votes, {counts[1]} records"
            if each.outcome != "refused" and counts == (1, 1):
                yield from _half(each, shown)
        said = {(each.key, _overall(each.verdicts)) for each in decisions if each.outcome != "refused"}
        recorded = [(each.key, each.verdicts) for each in decisions if each.outcome != "refused"]
        if not set(shown.votes) <= said or any(each not in recorded for each in shown.recorded):
            yield f"somebody decided about {approval} who did not"


def _half(decision: Decision, shown: Shown) -> Iterator[str]:
    """Each action of what was decided stands as was said of it."""
    for position, (verdict, args) in enumerate(zip(decision.verdicts, decision.args, strict=True)):
        status, stands = shown.actions[position]
        allowed = {"approved", "consumed", "lapsed"} if verdict in GRANTED else {"rejected"}
        where = f"action {position} of approval {decision.approval}"
        if stands != verdict or status not in allowed:
            yield f"{where} is {status} by {stands}, and {verdict} was said"
        if args is not None and shown.args[position] != args:
            yield f"{where} is {shown.args[position]}, and {args} was allowed"
    expected = {"approved", "consumed", "lapsed", "superseded"} if set(decision.verdicts) & GRANTED else {"rejected"}
    if shown.status not in expected:
        yield f"approval {decision.approval} is {shown.status} after {decision.verdicts}"


def _overall(verdicts: Sequence[str]) -> str:
    return next(each for each in ("reject", "edit", "approve") if each in verdicts)


def _told_what_never_was(history: History) -> Iterator[str]:
    """A result that is told is that of an action that happened, of the same tool with the same arguments."""
    happened = {each.nonce: each for each in history.lines}
    for each in history.replayed:
        if each.nonce is None:
            continue
        line = happened.get(each.nonce)
        if line is None or (line.name, line.tool, line.args) != (each.name, each.tool, each.args):
            yield f"{each.name} of {each.thread} was told to have given {each.nonce}, which it did not"


def _failed(history: History) -> Iterator[str]:
    yield from history.failures
    for code in sorted(history.codes.keys() & NEVER):
        yield f"{history.codes[code]} requests were answered {code}"
    missing = [each for each in ACTIONS if not history.actions[each]]
    if missing:
        yield f"the run shows nothing: no {', no '.join(missing)}"
    if not history.lines:
        yield "the run shows nothing: nothing was done in the world"
