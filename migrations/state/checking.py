"""Checks of steps against recorded states, for their authors: `stateroom state test` and operators' own tests.

Owns what a step promises and how that is put to the test:

1. it makes of a recorded state what was recorded, and its way back leads back;
2. it leaves what it is given as it was, and makes the same of it twice;
3. it touches no file, network, process, environment, clock or randomness;
4. what it makes of a pending write agrees with what it makes of the whole state;
5. the steps after it can go on from what it made.

The third is watched with an audit hook (PEP 578) and a profile function, on the thread that runs the step, for as long
as it runs. That catches mistakes, not malice: steps are operators' own code, and a C extension can do unseen what it
likes. Order that comes from hashing is not noticed within one process; what was recorded was made in another.
"""

import _thread
import datetime as dt
import gc
import os
import random  # noqa: TID251  to recognise its use, not to use it
import sys
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Final

from migrations.state.chain import Chain, Direction, Step
from migrations.state.document import ABSENT, Document, Encoded, escape
from migrations.state.errors import PathFault, StateMigrationError

# Events of the interpreter's audit table that mean reaching outside; a dot at the end stands for all of a module.
_OUTSIDE: Final = (
    "open", "os.", "shutil.", "glob.", "pathlib.", "tempfile.", "fcntl.", "mmap.", "sqlite3.",
    "socket.", "urllib.", "http.", "ftplib.", "smtplib.", "imaplib.", "poplib.", "webbrowser.",
    "subprocess.", "pty.", "ctypes.", "signal.", "syslog.", "_thread.start", "builtins.input",
)  # fmt: skip
_CLOCKS: Final = frozenset(
    getattr(time, name)
    for name in (
        "time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "process_time",
        "process_time_ns", "localtime", "ctime", "sleep",
    )
)  # fmt: skip
_NOW: Final = frozenset({"now", "utcnow", "today"})
# Threads begun have an event from Python 3.12 on only.
_MACHINE: Final = frozenset(
    {os.urandom, os.getpid, _thread.start_new_thread, getattr(uuid, "_generate_time_safe", None)}
)
_ENVIRON: Final = os.environ.__class__.__getitem__.__code__
_GLOBAL_RANDOM: Final = random.random.__self__  # type: ignore[attr-defined]

State = Mapping[str, Encoded]


@dataclass(frozen=True, slots=True)
class RecordedWrite:
    """A pending write, and what it became; None: that is not recorded, but must agree with the state."""

    channel: str
    value: Encoded
    becomes: State | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """A recorded state.

    Attributes:
        name: What it is called.
        before: The state at the step's source.
        after: What the step makes of it.
        back: What the way back makes of that; None: ``before`` again.
        writes: Pending writes to it.
    """

    name: str
    before: State
    after: State
    back: State | None = None
    writes: tuple[RecordedWrite, ...] = ()


@dataclass(frozen=True, slots=True)
class Finding:
    """A promise that a step does not keep.

    Attributes:
        step: The step, as ``v1_to_v2``, or ``v1_to_v2 (down)``.
        case: The case's name.
        why: What is wrong, without values.
        refused: Whether the step could not be applied.
        expected: The recorded state, where one was missed.
        actual: What came instead.
    """

    step: str
    case: str
    why: str
    refused: bool = False
    expected: State | None = field(default=None, compare=False)
    actual: State | None = field(default=None, compare=False)


class _Watched(threading.local):
    """What the step that this thread runs has reached for; None: it runs none."""

    seen: list[str] | None = None


_watched = _Watched()
_hook_lock = threading.Lock()
_hooked: list[bool] = []


def _on_event(event: str, _arguments: tuple[Any, ...]) -> None:
    seen = _watched.seen
    if seen is None or not event.startswith(_OUTSIDE) or _imports(sys._getframe()):  # noqa: SLF001  the documented way
        return
    seen.append(event)
    raise PathFault(f"the step reaches outside: {event}")


def _imports(frame: FrameType | None) -> bool:
    """Whether a module is being imported: that reads files, once, and is no part of what a step does."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _on_call(frame: FrameType, event: str, argument: Any) -> None:
    seen = _watched.seen
    if seen is None:
        return
    what = None
    if event == "c_call":
        what = _forbidden(argument)
    elif event == "call" and frame.f_code is _ENVIRON:
        what = "os.environ"
    if what is not None and not _imports(frame):
        seen.append(what)


def _forbidden(function: Any) -> str | None:
    owner = getattr(function, "__self__", None)
    name = function.__name__
    if function in _CLOCKS or function in _MACHINE:
        return f"{function.__module__}.{name}"
    if owner is _GLOBAL_RANDOM:
        return f"random.{name}"
    if name in _NOW and isinstance(owner, type) and issubclass(owner, dt.date):
        return f"{owner.__name__}.{name}"
    return None


@contextmanager
def watched() -> Iterator[list[str]]:
    """Collect what is reached for outside of a step, on this thread, while the block runs.

    Reaching for a file, a socket or a process is refused, too: it raises `PathFault`. Garbage is collected afterwards:
    what finalizers and callbacks of a collection do is not the step's doing.
    """
    with _hook_lock:
        if not _hooked:
            sys.addaudithook(_on_event)  # for good: a hook cannot be taken away
            _hooked.append(True)
    seen: list[str] = []
    before = sys.getprofile()
    collects = gc.isenabled()
    gc.disable()
    _watched.seen = seen
    sys.setprofile(_on_call)
    try:
        yield seen
    finally:
        sys.setprofile(before)
        _watched.seen = None
        if collects:
            gc.enable()


def check_step(step: Step, cases: Iterable[Case]) -> list[Finding]:
    """Everything that a step does not keep, on these states."""
    findings: list[Finding] = []
    for case in cases:
        findings += _check_up(step, case)
        if step.down is not None:
            findings += _check_down(step.name, step.down, case)
    return findings


def check_chain(chain: Chain, recorded: Mapping[str, Iterable[Case]]) -> list[Finding]:
    """Everything that the steps of a schema do not keep.

    ``recorded`` are cases by step; a step without any is a finding.
    """
    findings: list[Finding] = []
    newest = chain.steps[-1].target if chain.steps else 0
    for step in chain.steps:
        cases = list(recorded.get(step.name, ()))
        if not cases:
            findings.append(Finding(step.name, "-", "no state is recorded for it"))
        findings += check_step(step, cases)
        for case in cases:
            try:
                chain.convert(case.after, step.target, newest)
            except StateMigrationError as error:
                findings.append(Finding(step.name, case.name, f"what it makes goes no further: {error}"))
    return findings


def record(step: Step, before: State) -> dict[str, Encoded]:
    """What a step makes of a state, to be looked at and kept.

    Raises:
        PathFault: it cannot be applied.
    """
    return step.up(Document.of(before), partial=False).encoded()


def record_write(step: Step, channel: str, value: Encoded) -> dict[str, Encoded]:
    """What a step makes of a pending write, to be looked at and kept.

    Raises:
        PathFault: it cannot be applied.
    """
    return step.up(Document.of({channel: value}), partial=True).encoded()


def same(one: State, other: State) -> bool:
    """Whether two states have equal channels, telling ``1`` from ``true`` and from ``1.0``, whatever their order."""
    return one.keys() == other.keys() and all(_equal(name, one[name], other[name]) for name in one)


def _check_up(step: Step, case: Case) -> list[Finding]:
    findings, after = _run(step.name, step.up, case.name, case.before, partial=False)
    if after is None:
        return findings
    if not same(case.after, after):
        why = f"it makes something else of the state than was recorded, at {_where(case.after, after)}"
        findings.append(Finding(step.name, case.name, why, expected=case.after, actual=after))
    recorded = {write.channel: write for write in case.writes}
    made: dict[str, dict[str, Encoded]] = {}
    for channel in [*case.before, *(name for name in recorded if name not in case.before)]:
        write = recorded.get(channel) or RecordedWrite(channel, case.before[channel])
        name = f"{case.name}, a pending write to {channel}"
        more, becomes = _run(step.name, step.up, name, {channel: write.value}, partial=True)
        findings += more
        if becomes is None:
            continue
        if write.becomes is None:
            made[channel] = becomes
        elif not same(write.becomes, becomes):
            why = f"it makes something else of the write than was recorded, at {_where(write.becomes, becomes)}"
            findings.append(Finding(step.name, name, why, expected=write.becomes, actual=becomes))
    unconverted = {name: write.value for name, write in recorded.items() if write.becomes is None}
    if any(
        name not in case.before or not _equal(name, case.before[name], value) for name, value in unconverted.items()
    ):
        more, after = _run(step.name, step.up, case.name, {**case.before, **unconverted}, partial=False)
        if after is None:
            return findings + more
    return findings + _disagreements(step.name, case.name, made, after)


def _disagreements(step: str, case: str, made: Mapping[str, Mapping[str, Encoded]], after: State) -> list[Finding]:
    """Where a pending write becomes something else than the same value in the state.

    A channel that several writes lead to is nobody's alone, and is passed over.
    """
    findings = []
    origins: dict[str, list[str]] = {}
    for channel, becomes in made.items():
        for name in becomes:
            origins.setdefault(name, []).append(channel)
    for name, channels in origins.items():
        if len(channels) != 1:
            continue
        value = made[channels[0]][name]
        if name not in after or not _equal(name, after[name], value):
            why = f"it becomes another {name} than the state's: give the step an upcast_write, or record what is right"
            findings.append(Finding(step, f"{case}, a pending write to {channels[0]}", why))
    return findings


def _check_down(name: str, down: Direction, case: Case) -> list[Finding]:
    name = f"{name} (down)"
    findings, back = _run(name, down, case.name, case.after, partial=False)
    expected = case.before if case.back is None else case.back
    if back is not None and not same(expected, back):
        recorded = "the state it came from" if case.back is None else "what was recorded"
        why = f"it does not lead back to {recorded}, at {_where(expected, back)}"
        findings.append(Finding(name, case.name, why, expected=expected, actual=back))
    for channel, value in case.after.items():
        more, _ = _run(name, down, f"{case.name}, a pending write to {channel}", {channel: value}, partial=True)
        # A way back may refuse a lone write: half of a name is no name, and an older program is told so.
        findings += [found for found in more if not found.refused]
    return findings


def _run(
    step: str, direction: Direction, case: str, state: State, *, partial: bool
) -> tuple[list[Finding], dict[str, Encoded] | None]:
    """Run a direction twice and compare; returns what is wrong, and what it made, None if nothing."""
    findings: list[Finding] = []
    results: list[dict[str, Encoded]] = []
    for _ in range(2):
        document = Document.of(state)
        _decode(document)
        with watched() as seen:
            try:
                made = direction(document, partial=partial)
            except PathFault as fault:
                if not seen:
                    origin = f" ({_line(fault.__context__)})" if fault.__context__ is not None else ""
                    findings.append(
                        Finding(step, case, f"it failed at {fault.pointer or '/'}: {fault.why}{origin}", refused=True)
                    )
                made = None
        findings += [Finding(step, case, f"it reaches outside of the state: {each}") for each in dict.fromkeys(seen)]
        if made is None:
            return findings, None
        changed = [name for name, encoded in state.items() if not _untouched(name, document, encoded)]
        findings += [Finding(step, case, f"it changes what it is given, at /{escape(name)}") for name in changed]
        try:
            results.append(made.encoded())
        except PathFault as fault:
            return [*findings, Finding(step, case, f"it failed at {fault.pointer or '/'}: {fault.why}")], None
        if findings:
            return findings, results[0]
    first, second = results
    if not same(first, second):
        findings.append(Finding(step, case, f"it makes something else the second time, at {_where(first, second)}"))
    return findings, first


def _line(error: BaseException) -> str:
    """Where in a step's file an exception came from: no text of it, which may hold state."""
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    kind = type(error).__name__
    return kind if at is None else f"{kind} in {os.path.basename(at.tb_frame.f_code.co_filename)}:{at.tb_lineno}"  # noqa: PTH119  a name, not a file


def _decode(document: Document) -> None:
    for name in document:
        _tree(document, name)


def _tree(document: Document, name: str) -> Any:
    """A channel's tree; ABSENT if it cannot be looked into, which is no fault of a step that does not."""
    channel = document.get(name)
    try:
        return ABSENT if channel is None else channel.tree(name)
    except PathFault:
        return ABSENT


def _untouched(name: str, document: Document, encoded: Encoded) -> bool:
    return _alike(_tree(document, name), _tree(Document.of({name: encoded}), name))


def _equal(name: str, one: Encoded, other: Encoded) -> bool:
    if one == other:
        return True
    trees = [_tree(Document.of({name: each}), name) for each in (one, other)]
    return ABSENT not in trees and _alike(*trees)


def _alike(one: Any, other: Any) -> bool:
    """Equal values of equal types; floats of either width are floats, and a NaN is a NaN."""
    if isinstance(one, float) and isinstance(other, float):
        return one == other or (one != one and other != other)  # noqa: PLR0124  only NaN differs from itself
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_alike(each, other[name]) for name, each in one.items())
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_alike, one, other))
    return bool(one == other)


def _where(one: State, other: State) -> str:
    """JSON Pointer to the first difference of two states."""
    both = one.keys() & other.keys()
    name = next(name for name in [*one, *other] if name not in both or not _equal(name, one[name], other[name]))
    if name not in both:
        return f"/{escape(name)}"
    trees = [_tree(Document.of({name: each[name]}), name) for each in (one, other)]
    return f"/{escape(name)}{_deeper(*trees)}"


def _deeper(one: Any, other: Any) -> str:
    if isinstance(one, dict) and isinstance(other, dict):
        both = one.keys() & other.keys()
        name = next(name for name in [*one, *other] if name not in both or not _alike(one[name], other[name]))
        return f"/{escape(str(name))}{_deeper(one[name], other[name]) if name in both else ''}"
    if isinstance(one, list) and isinstance(other, list):
        for index, (left, right) in enumerate(zip(one, other, strict=False)):
            if not _alike(left, right):
                return f"/{index}{_deeper(left, right)}"
        return f"/{min(len(one), len(other))}"
    return ""
