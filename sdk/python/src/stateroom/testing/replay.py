"""Running steps of a fixture again, and what came out otherwise.

This module owns which steps can be run again, what of a step is compared, and the report. How a step is run is for
whoever calls it: a function of any program here, a graph in ``stateroom.testing.graphs``. It sends nothing, prints
nothing, and says nothing of why a result differs.
"""

import asyncio
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from stateroom._protocol.wire import ChannelOut
from stateroom._threads.fixtures import Fixture, FixtureStep, plain_state
from stateroom.errors import CheckpointNotFound
from stateroom.testing.comparing import comparable
from stateroom.types import Model

PROMPT_HASH = "prompt_hash"
"""The name in a checkpoint's metadata under which ``prompt_hash`` is kept."""
_GIVEN = frozenset({"input", "update", "fork"})
_MODEL = ("name", "hash", "temperature", "top_p", "seed")


class Made(msgspec.Struct, kw_only=True):
    """What a step made.

    Attributes:
        state: The whole state after it.
        model: The model that answered, with its parameters and seed; ``None``: it is not known.
        prompt_hash: The ``prompt_hash`` of what the model was asked; ``None``: it is not known.
    """

    state: dict[str, Any]
    model: Model | None = None
    prompt_hash: str | None = None


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was compared.

    Attributes:
        what: ``model.name``, ``model.hash``, ``model.temperature``, ``model.top_p``, ``model.seed``, ``prompt_hash``,
            or ``result.`` with a channel's name.
        outcome: ``same``; ``drift``; ``not recorded``: the fixture does not say; ``not reported``: this run does not.
        recorded: What it was; ``None`` of a result: the channel was not there.
        now: What it is now.
    """

    what: str
    outcome: Literal["same", "drift", "not recorded", "not reported"]
    recorded: Any
    now: Any


class StepReport(msgspec.Struct, frozen=True, kw_only=True):
    """What came of running a step again.

    Attributes:
        checkpoint_id: The step.
        step: Its number.
        outcome: ``same``; ``drift``; ``failed``: it raised something; ``skipped``: nothing can be run.
        detail: Why it failed or was skipped.
        comparisons: What was compared.
    """

    checkpoint_id: str
    step: int
    outcome: Literal["same", "drift", "failed", "skipped"]
    detail: str | None = None
    comparisons: list[Comparison] = []


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What came of running steps of a fixture again.

    Attributes:
        thread_id: The thread that the fixture was made of.
        outcome: ``same``; ``drift``: of a step at least; ``failed``: a step failed, or none could be run.
        steps: The steps, oldest first.
    """

    thread_id: str
    outcome: Literal["same", "drift", "failed"]
    steps: list[StepReport]


class NotEndedError(Exception):
    """A step that ended when it was recorded did not end now: it waits for an answer."""


@dataclass(frozen=True, slots=True)
class Case:
    """A step to run again.

    Attributes:
        step: The step as it was recorded.
        after: The channels it left.
        parent: The step before it.
        before: The channels that one left.
        ancestors: The steps before that one with theirs, where delta channels are rebuilt from them.
    """

    step: FixtureStep
    after: Mapping[str, ChannelOut]
    parent: FixtureStep
    before: Mapping[str, ChannelOut]
    ancestors: Sequence[tuple[FixtureStep, Mapping[str, ChannelOut]]]


def check_run(fixture: Fixture, function: Callable[[dict[str, Any]], Any], steps: Collection[str] = ()) -> Report:
    """Run steps of a fixture again by a function, and compare.

    Args:
        fixture: The steps to run again.
        function: Is called with the state before a step, as plain data, and returns what the step makes: a ``Made``, or
            a mapping with its members. It may be a coroutine function.
        steps: Ids of checkpoints; none: all that can be run.

    Raises:
        CheckpointNotFound: The fixture has no such step.
    """

    def run(case: Case) -> Made:
        made = function(plain_state(case.before))
        if inspect.isawaitable(made):
            made = asyncio.run(_awaited(made))
        return made if isinstance(made, Made) else msgspec.convert(made, Made)

    return check(fixture, run, lambda case: plain_state(case.after), steps)


async def _awaited(made: Any) -> Any:
    return await made


def check(
    fixture: Fixture,
    run: Callable[[Case], Made],
    recorded: Callable[[Case], dict[str, Any]],
    steps: Collection[str] = (),
) -> Report:
    """Run steps of a fixture again, and compare.

    Args:
        fixture: The steps to run again.
        run: Runs a step again.
        recorded: The results of a step as they were recorded, under the names that ``run`` has for them.
        steps: Ids of checkpoints; none: all that can be run.

    Raises:
        CheckpointNotFound: The fixture has no such step.
    """
    if unknown := {*steps} - {each.checkpoint_id for each in fixture.steps}:
        raise CheckpointNotFound(f"the fixture has no step {min(unknown)}")
    reports = [
        each if isinstance(each, StepReport) else _checked(each, run, recorded)
        for each in _cases(fixture)
        if not steps or _id_of(each) in steps
    ]
    outcomes = {each.outcome for each in reports}
    failed = "failed" in outcomes or outcomes == {"skipped"}
    outcome: Literal["same", "drift", "failed"] = "failed" if failed else "drift" if "drift" in outcomes else "same"
    return Report(thread_id=fixture.thread_id, outcome=outcome, steps=reports)


def _cases(fixture: Fixture) -> Iterator[Case | StepReport]:
    """The steps to run again; of the others, what is said of them."""
    has_deltas = any(each.delta_channels for each in fixture.steps)
    ancestors = list[tuple[FixtureStep, Mapping[str, ChannelOut]]]()
    held: tuple[FixtureStep, Mapping[str, ChannelOut]] | None = None
    for step, channels in fixture.checkpoints():
        if fixture.is_whole and step.namespace:  # the program is the root's
            yield _skipped(step, f"it is of the namespace {step.namespace!r}: make a fixture of that")
            continue
        if held is None:
            yield _skipped(step, "what was before it is not in the fixture")
        elif step.source in _GIVEN:
            yield _skipped(step, f"no program made it, but a caller ({step.source})")
        else:
            yield Case(step, channels, *held, tuple(ancestors))
        if held is not None and has_deltas:
            ancestors.append(held)
        held = step, channels


def _id_of(each: Case | StepReport) -> str:
    return each.checkpoint_id if isinstance(each, StepReport) else each.step.checkpoint_id


def _skipped(step: FixtureStep, detail: str) -> StepReport:
    return StepReport(checkpoint_id=step.checkpoint_id, step=step.step, outcome="skipped", detail=detail)


def _checked(case: Case, run: Callable[[Case], Made], recorded: Callable[[Case], dict[str, Any]]) -> StepReport:
    step = case.step
    try:
        made = run(case)
        comparisons = [*_asked(step, made), *_results(recorded(case), made.state)]
    except NotEndedError as error:
        return StepReport(checkpoint_id=step.checkpoint_id, step=step.step, outcome="drift", detail=str(error))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a program may raise anything
        detail = f"{type(error).__name__}: {error}"
        return StepReport(checkpoint_id=step.checkpoint_id, step=step.step, outcome="failed", detail=detail)
    return StepReport(
        checkpoint_id=step.checkpoint_id,
        step=step.step,
        outcome="drift" if any(each.outcome == "drift" for each in comparisons) else "same",
        comparisons=comparisons,
    )


def _asked(step: FixtureStep, made: Made) -> Iterator[Comparison]:
    """Of which model what was asked."""
    for name in _MODEL:
        yield _compared(f"model.{name}", getattr(step.model, name, None), getattr(made.model, name, None))
    yield _compared(PROMPT_HASH, step.metadata.get(PROMPT_HASH), made.prompt_hash)


def _compared(what: str, recorded: Any, now: Any) -> Comparison:
    outcome: Literal["same", "drift", "not recorded", "not reported"]
    if recorded is None:
        outcome = "not recorded"
    elif now is None:
        outcome = "not reported"
    else:
        outcome = "same" if recorded == now else "drift"
    return Comparison(what=what, outcome=outcome, recorded=recorded, now=now)


def _results(recorded: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[Comparison]:
    for name in sorted({*recorded, *now}):
        was, is_now = comparable(recorded.get(name)), comparable(now.get(name))
        is_same = was == is_now and (name in recorded) == (name in now)
        outcome: Literal["same", "drift"] = "same" if is_same else "drift"
        yield Comparison(what=f"result.{name}", outcome=outcome, recorded=was, now=is_now)
