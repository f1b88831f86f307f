"""What a start is answered: the rules of the ledger of effects, as functions of what was found.

They decide and do nothing else; what they need was read under the thread's lock (`storage.effects.verbs`).
"""

from collections.abc import Iterable
from typing import Literal, NamedTuple

from storage.effects.model import EffectStatus, Mode

CurrentAnswer = Literal["replay", "again", "in-progress", "became-unknown", "unknown", "mismatch"]


class Current(NamedTuple):
    """The current execution of the name that is started.

    Attributes:
        mode: What may be repeated of it.
        status: How it stands.
        same_intent: Whether it is what is meant now.
        own_fence: Whether it was started under the fence that the caller holds.
        lease_over: Whether whoever started it is taken for dead.
        fence_lost: Whether it was started under a claim that was released, or is another's now.
        was_repeated: Whether it was begun more than once as something that may be repeated: that its last attempt
            failed says nothing of those before.
    """

    mode: Mode
    status: EffectStatus
    same_intent: bool = True
    own_fence: bool = False
    lease_over: bool = False
    fence_lost: bool = False
    was_repeated: bool = False


def decide_current(found: Current) -> CurrentAnswer:
    """What is done when the name has an execution on this line.

    ``replay``: it is done. ``again``: the tool runs, as another attempt under the same provider key. The others refuse;
    ``became-unknown`` is what is found now and is stored.
    """
    if not found.same_intent:
        return "mismatch"
    match found.status:
        case "done":
            return "replay"
        case "failed":
            return "became-unknown" if found.mode == "once" and found.was_repeated else "again"
        case "voided":
            return "again"
        case "unknown":
            return "unknown" if found.mode == "once" else "again"
    if found.mode == "once":
        return "became-unknown" if found.lease_over or found.fence_lost else "in-progress"
    return "again" if found.own_fence or found.lease_over or found.fence_lost else "in-progress"


class Earlier(NamedTuple):
    """An effect of the same intent, on whatever line.

    Attributes:
        number: Its place among those that were found.
        status: How it stands.
        on_line: Whether its anchor is this checkpoint or an ancestor.
        recent: Whether it was started within the window of repeats.
    """

    number: int
    status: EffectStatus
    on_line: bool
    recent: bool


class New(NamedTuple):
    """A new execution.

    Attributes:
        repeats: The effect of the same intent that it is shown beside, or whose provider key it has; None: none.
        keeps_key: Whether it has that one's provider key.
    """

    repeats: int | None = None
    keeps_key: bool = False


class Repeats(NamedTuple):
    """The same was done, and is not meant to be done again: ``number`` is that one."""

    number: int


def decide_new(mode: Mode, *, repeat: bool, earlier: Iterable[Earlier]) -> New | Repeats:
    """What is done when the name has no execution on this line; ``earlier`` are those of the intent, newest first."""
    if mode == "read":
        return New()
    happened = [each for each in earlier if each.status not in {"failed", "voided"}]
    elsewhere = next((each for each in happened if not each.on_line), None)
    if mode == "idempotent":
        return New() if elsewhere is None else New(elsewhere.number, keeps_key=True)
    again = next((each for each in happened if not each.on_line or each.recent), None)
    if again is None:
        return New()
    return New(again.number) if repeat else Repeats(again.number)
