"""Which checkpoints of a thread may go: rules as data, and what every rule has to leave.

Pure: it takes what a plan knows of a thread's checkpoints and says which of them are doomed, and in which order. What
it never dooms, whatever the rule: a namespace's head, unless the rule ends the namespace; ancestors down to the value
that a delta channel of what stays is rebuilt from; a fork's parent while the fork stays; an interrupt that nobody has
answered. Whether any of it is still so when a checkpoint is removed is `storage.threads.pruning`'s to ask again.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from heapq import heapify, heappop, heappush
from typing import Protocol

from storage.errors import DeltaChainNeeded
from storage.model import Status

# A thread is thinned when it has a quarter more checkpoints than it may have, and then down to what it may have: one
# that is saved to all the time is not thinned at every save.
HYSTERESIS = 1.25
# Sources of a checkpoint that say: its parent is an older one on purpose (LangGraph's words).
FORKING_SOURCES = frozenset({"fork", "update"})

CheckpointRef = tuple[str, str]
"""A namespace and a checkpoint id."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What thinning must know of a checkpoint; its manifest is not kept."""

    checkpoint_id: str
    parent_id: str | None
    run_id: str | None
    step: int
    status: str
    outcome: str | None
    source: str | None
    member: bytes
    created_at: datetime
    channels: frozenset[str]
    delta_channels: tuple[str, ...]
    # Of a sub-agent's: what the namespaces around it stood at as it began, by namespace (LangGraph's `parents`).
    outer: tuple[CheckpointRef, ...] = ()

    @property
    def waits(self) -> bool:
        """Whether it was interrupted."""
        return "waiting" in (self.status, self.outcome)


Entries = Mapping[str, Entry]


class PlannedNamespace(Protocol):
    """A namespace as a plan knows it."""

    @property
    def head_id(self) -> str:
        """Its newest checkpoint."""
        ...

    @property
    def entries(self) -> Entries:
        """Its checkpoints, by id."""
        ...


class StaleError(Exception):
    """What was planned does not describe the thread any more; plan again."""


# --- what must stay ------------------------------------------------------------------------------------------------


def needed(entries: Entries, survivors: Iterable[Entry]) -> set[str]:
    """Ancestors that survivors' delta channels are rebuilt from: back to one that holds a value, it included.

    A survivor that holds a channel's value itself is rebuilt from nothing.
    """
    return lines(entries, survivors)[0]


def lines(entries: Entries, survivors: Iterable[Entry]) -> tuple[set[str], set[str]]:
    """The ancestors that are `needed`, and those that would be next where a line leaves ``entries``."""
    found: set[str] = set()
    beyond: set[str] = set()
    seen: dict[str, set[str]] = {}
    for survivor in survivors:
        for channel in survivor.delta_channels:
            if channel in survivor.channels:
                continue
            line = seen.setdefault(channel, set())
            at = survivor.parent_id
            while at is not None and at in entries and at not in line:
                line.add(at)
                found.add(at)
                if channel in entries[at].channels:
                    break
                at = entries[at].parent_id
            if at is not None and at not in entries:
                beyond.add(at)
    return found, beyond


def children_of(entries: Entries) -> Counter[str]:
    """How many checkpoints were saved on top of each."""
    return Counter(each.parent_id for each in entries.values() if each.parent_id is not None)


def fork_parents(entries: Entries, kept: Iterable[str], children: Mapping[str, int]) -> set[str]:
    """Parents of the forks among ``kept``: of what says so, or is not its parent's only child."""
    found: set[str] = set()
    for each in kept:
        parent_id = entries[each].parent_id
        if (
            parent_id is not None
            and parent_id in entries
            and (entries[each].source in FORKING_SOURCES or children[parent_id] > 1)
        ):
            found.add(parent_id)
    return found


def closed(entries: Entries, kept: Collection[str]) -> set[str]:
    """``kept`` with everything that has to stay with it."""
    children = children_of(entries)
    result = set(kept)
    fresh = set(kept)
    while fresh:
        fresh = (needed(entries, (entries[each] for each in fresh)) | fork_parents(entries, fresh, children)) - result
        result |= fresh
    return result


def unanswered(entries: Entries) -> set[str]:
    """Interrupted checkpoints that no run went on from."""
    children = children_of(entries)
    return {each.checkpoint_id for each in entries.values() if each.waits and not children[each.checkpoint_id]}


def children_first(entries: Entries, doomed: Collection[str]) -> list[str]:
    """The order in which to remove: no ancestor before what may be rebuilt from it, so that all that is left loads."""
    waiting = Counter(entries[each].parent_id for each in doomed)
    ready = [_Newest(each) for each in doomed if not waiting[each]]
    heapify(ready)
    ordered: list[str] = []
    while ready:
        at = heappop(ready).checkpoint_id
        ordered.append(at)
        parent_id = entries[at].parent_id
        waiting[parent_id] -= 1
        if parent_id is not None and parent_id in doomed and not waiting[parent_id]:
            heappush(ready, _Newest(parent_id))
    # Parents that were made a circle of: nothing is rebuilt from it.
    return ordered + sorted(set(doomed).difference(ordered), reverse=True)


@dataclass(frozen=True, slots=True)
class _Newest:
    """A checkpoint id, of which the greatest comes first out of a heap."""

    checkpoint_id: str

    def __lt__(self, other: "_Newest") -> bool:
        return self.checkpoint_id > other.checkpoint_id


def finished_calls(thread: Mapping[str, PlannedNamespace]) -> set[str]:
    """Namespaces of calls of sub-agents that ended: one of those around it has gone on since, or is not there any more.

    A call has a namespace of its own, named by the id of its task after a colon (``node:task``). A sub-agent that
    remembers between calls has none of those in its name, and is never finished; nor is one that does not say what it
    began at, or that runs or waits at the head of all namespaces around it.
    """
    finished: set[str] = set()
    for namespace in sorted(thread):  # what is around comes first: its name is the beginning
        head = thread[namespace].entries.get(thread[namespace].head_id)
        if head is None or not _is_call(namespace):
            continue
        if any(
            outer in finished or outer not in thread or thread[outer].head_id != checkpoint_id
            for outer, checkpoint_id in head.outer
        ):
            finished.add(namespace)
    return finished


def _is_call(namespace: str) -> bool:
    names = [part for part in namespace.split("|") if not part.isdecimal()]  # a number: the task's next call of it
    return bool(names) and ":" in names[-1]


# --- rules ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ThinningRule:
    """Which checkpoints of a thread to keep. Without any term, all.

    ``keep_first``, ``keep_last`` and ``keep_statuses`` hold against ``checkpoints_max``, too.

    Attributes:
        every: Those whose step is a multiple of it, so that thinning again removes nothing more.
        keep_first: So many of the oldest of each namespace.
        keep_last: So many of the newest of each namespace.
        keep_statuses: Those that had or came to one of these statuses.
        checkpoints_max: Of the whole thread; where it has a quarter more than that, the oldest go, down to it.
        writes_since: A checkpoint with a pending write from then or later stays.
        made_since: A checkpoint that was made then or later stays. Without any other term, all older ones go.
    """

    every: int | None = None
    keep_first: int = 0
    keep_last: int = 0
    keep_statuses: frozenset[Status] = frozenset()
    checkpoints_max: int | None = None
    writes_since: datetime | None = None
    made_since: datetime | None = None

    def __post_init__(self) -> None:
        """Refuse what is no rule.

        Raises:
            ValueError: A number is out of its range.
        """
        if min(self.keep_first, self.keep_last) < 0 or any(
            each is not None and each < 1 for each in (self.every, self.checkpoints_max)
        ):
            raise ValueError("a rule keeps a number of checkpoints that is not negative, and every at least first one")

    @property
    def _chooses(self) -> bool:
        return (self.every, self.made_since) != (None, None) or bool(
            self.keep_first or self.keep_last or self.keep_statuses
        )

    def doomed(self, thread: Mapping[str, PlannedNamespace], written: Collection[CheckpointRef]) -> dict[str, set[str]]:
        """The checkpoints that go, by namespace. ``written``: those with a write that ``writes_since`` keeps."""
        firm: dict[str, set[str]] = {}
        kept: dict[str, set[str]] = {}
        for namespace, known in thread.items():
            entries = known.entries
            firm[namespace] = closed(entries, self._firm(namespace, known, written))
            chosen = set(entries)
            if self._chooses:
                chosen = {each for each in entries if self._has_step(entries[each])}
            kept[namespace] = closed(entries, chosen | firm[namespace])
        if self.checkpoints_max is not None:
            kept = _down_to(self.checkpoints_max, thread, firm, kept)
        doomed = {namespace: set(known.entries) - kept[namespace] for namespace, known in thread.items()}
        return {namespace: some for namespace, some in doomed.items() if some}

    def keeps_nothing_of(self, entries: Entries, *, ended: bool) -> bool:
        """Whether nothing of a namespace is kept but for its head; ``ended``: it is of a call that is over."""
        if not self._chooses or self.checkpoints_max is not None:
            return False
        if not ended and (self.keep_first or self.keep_last or any(map(self._has_step, entries.values()))):
            return False
        return not any(map(self._names, entries.values()))

    def _has_step(self, entry: Entry) -> bool:
        return self.every is not None and entry.step % self.every == 0

    def _names(self, entry: Entry) -> bool:
        """Whether a checkpoint stays for its age or its status."""
        return (
            self.made_since is not None and entry.created_at >= self.made_since
        ) or not self.keep_statuses.isdisjoint((entry.status, entry.outcome))

    def _firm(self, namespace: str, known: PlannedNamespace, written: Collection[CheckpointRef]) -> set[str]:
        entries = known.entries
        ordered = sorted(entries)
        firm = {known.head_id} | unanswered(entries)
        firm.update(ordered[: self.keep_first])
        firm.update(ordered[len(ordered) - min(self.keep_last, len(ordered)) :])
        for each in entries.values():
            if (namespace, each.checkpoint_id) in written or self._names(each):
                firm.add(each.checkpoint_id)
        return firm


def _down_to(
    checkpoints_max: int, thread: Mapping[str, PlannedNamespace], firm: dict[str, set[str]], kept: dict[str, set[str]]
) -> dict[str, set[str]]:
    """Reduce ``kept`` to what is ``firm`` and as many of the newest others as fit beside it."""
    if sum(map(len, kept.values())) <= checkpoints_max * HYSTERESIS:
        return kept
    # Newest first, over all namespaces.
    spare = sorted(((each, name) for name, some in kept.items() for each in some - firm[name]), reverse=True)

    def with_newest(count: int) -> dict[str, set[str]]:
        result = {name: set(some) for name, some in firm.items()}
        for each, name in spare[:count]:
            result[name].add(each)
        return {name: closed(thread[name].entries, some) for name, some in result.items()}

    low, high = 0, len(spare)
    while low < high:
        middle = (low + high + 1) // 2
        if sum(map(len, with_newest(middle).values())) <= checkpoints_max:
            low = middle
        else:
            high = middle - 1
    return with_newest(low)


class Choice(Protocol):
    """What a removal takes."""

    @property
    def takes_all(self) -> bool:
        """Whether all of it has to go, a head, too, and what is written to meanwhile. Else that stays."""
        ...

    def doomed(self, thread: Mapping[str, PlannedNamespace], written: Collection[CheckpointRef]) -> dict[str, set[str]]:
        """The checkpoints that go, by namespace."""
        ...

    def ended(self, thread: Mapping[str, PlannedNamespace]) -> set[str]:
        """Namespaces that go with their heads, asked again under the lock."""
        ...

    def spared(self, entries: Entries, doomed: Collection[str], fresh: Collection[Entry]) -> set[str]:
        """Which of those have to stay because of what came meanwhile.

        Raises:
            StaleError: choose again.
            DeltaChainNeeded: something that must go would have to stay.
        """
        ...


def spared_by(entries: Entries, doomed: Collection[str], fresh: Iterable[Entry]) -> set[str]:
    """What of ``doomed`` has to stay for ``fresh``: what they are rebuilt from or go on from, and all of theirs."""
    fresh = list(fresh)
    held = needed(entries, fresh) | {each.parent_id for each in fresh if each.parent_id is not None}
    # Where nothing doomed is held, all that is held was kept before, and with it what it needs.
    return set() if held.isdisjoint(doomed) else closed(entries, held.intersection(entries)).intersection(doomed)


class AllButLatest:
    """Everything but each namespace's head and what that is rebuilt from; finished calls go whole."""

    takes_all = False

    def doomed(self, thread: Mapping[str, PlannedNamespace], written: Collection[CheckpointRef]) -> dict[str, set[str]]:
        """As `Choice.doomed`."""
        del written
        doomed = {}
        finished = self.ended(thread)
        for namespace, known in thread.items():
            kept = set() if namespace in finished else {known.head_id}
            while more := needed(known.entries, (known.entries[each] for each in kept)) - kept:
                kept |= more
            if some := set(known.entries) - kept:
                doomed[namespace] = some
        return doomed

    def ended(self, thread: Mapping[str, PlannedNamespace]) -> set[str]:
        """As `Choice.ended`."""
        return finished_calls(thread)

    def spared(self, entries: Entries, doomed: Collection[str], fresh: Collection[Entry]) -> set[str]:
        """As `Choice.spared`."""
        return spared_by(entries, doomed, fresh)


@dataclass(frozen=True, slots=True)
class OfRuns:
    """The checkpoints of some runs."""

    run_ids: frozenset[str]
    takes_all = True

    def doomed(self, thread: Mapping[str, PlannedNamespace], written: Collection[CheckpointRef]) -> dict[str, set[str]]:
        """As `Choice.doomed`.

        Raises:
            DeltaChainNeeded: a checkpoint of another run is rebuilt from one of them.
        """
        del written
        doomed = {}
        for namespace, known in thread.items():
            some = {each.checkpoint_id for each in known.entries.values() if each.run_id in self.run_ids}
            if some & needed(
                known.entries, (each for each in known.entries.values() if each.checkpoint_id not in some)
            ):
                raise DeltaChainNeeded
            if some:
                doomed[namespace] = some
        return doomed

    def ended(self, thread: Mapping[str, PlannedNamespace]) -> set[str]:
        """As `Choice.ended`: whichever have nothing left."""
        return set(thread)

    def spared(self, entries: Entries, doomed: Collection[str], fresh: Collection[Entry]) -> set[str]:
        """As `Choice.spared`."""
        if needed(entries, fresh).isdisjoint(doomed):
            return set()
        if any(each.run_id in self.run_ids for each in fresh):
            raise StaleError
        raise DeltaChainNeeded


@dataclass(frozen=True, slots=True)
class ByRule:
    """What a rule does not keep."""

    rule: ThinningRule
    takes_all = False

    def doomed(self, thread: Mapping[str, PlannedNamespace], written: Collection[CheckpointRef]) -> dict[str, set[str]]:
        """As `Choice.doomed`."""
        return self.rule.doomed(thread, written)

    def ended(self, thread: Mapping[str, PlannedNamespace]) -> set[str]:
        """As `Choice.ended`: none."""
        del thread
        return set()

    def spared(self, entries: Entries, doomed: Collection[str], fresh: Collection[Entry]) -> set[str]:
        """As `Choice.spared`."""
        return spared_by(entries, doomed, fresh)


@dataclass(frozen=True, slots=True)
class Leaving(ByRule):
    """What moves into segments: what a rule does not keep, and some namespaces whole, with their heads."""

    whole: frozenset[str] = frozenset()

    def doomed(self, thread: Mapping[str, PlannedNamespace], written: Collection[CheckpointRef]) -> dict[str, set[str]]:
        """As `Choice.doomed`."""
        doomed = self.rule.doomed(thread, written)
        return doomed | {name: set(thread[name].entries) for name in self.whole}

    def ended(self, thread: Mapping[str, PlannedNamespace]) -> set[str]:
        """As `Choice.ended`: those that leave whole."""
        return {*self.whole.intersection(thread)}


def may_leave_whole(
    thread: Mapping[str, PlannedNamespace], rule: ThinningRule, written: Collection[CheckpointRef]
) -> frozenset[str]:
    """Namespaces of which a rule keeps nothing, so that their heads need not stay.

    Never the root, nor the one that has the thread's newest checkpoint. What a rule keeps by its number, its place or
    its step is kept of a namespace that goes on: of a call that ended (`finished_calls`) only what is young, was
    written to, waits, or had a status that is kept.

    ``written`` are the checkpoints with a write that ``writes_since`` keeps.
    """
    newest_id = max((known.head_id for known in thread.values()), default="")
    ended = finished_calls(thread)
    apart = {name for name, _ in written}
    return frozenset(
        name
        for name, known in thread.items()
        if name
        and known.head_id != newest_id
        and name not in apart
        and not unanswered(known.entries)
        and rule.keeps_nothing_of(known.entries, ended=name in ended)
    )


def writes_that_may_go(thread: Mapping[str, PlannedNamespace], refs: Iterable[CheckpointRef]) -> set[CheckpointRef]:
    """Those of these checkpoints whose pending writes nothing needs.

    Not a head's; not those of a checkpoint that a delta channel is rebuilt from, because they are its state; not those
    of an interrupt that was not answered; and of a checkpoint that is not there only where the head has a greater id:
    another one may be still to come.
    """
    held = {
        namespace: {known.head_id} | needed(known.entries, known.entries.values()) | unanswered(known.entries)
        for namespace, known in thread.items()
    }
    return {
        (namespace, checkpoint_id)
        for namespace, checkpoint_id in refs
        if namespace in thread and checkpoint_id not in held[namespace] and checkpoint_id < thread[namespace].head_id
    }
