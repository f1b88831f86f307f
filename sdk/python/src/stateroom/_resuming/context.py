"""What a resumed agent is told: a bounded, typed account, and the same as a text for a model.

This module owns the shapes and the text. It asks nobody: what is in it was gathered
(`stateroom._resuming.gathering`). Whatever was left out for want of room is named in ``left_out``.
"""

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any, Literal

from msgspec import Struct, field

from stateroom._items.shapes import Item
from stateroom._resuming.state import Fact
from stateroom.types import PendingWrite, Status, ThreadInfo

TEXT_CHARACTERS_MAX = 8_000
_LINE_CHARACTERS_MAX = 500


class Change(Struct, kw_only=True):
    """Something that is otherwise than the thread believed, or that it could not know.

    Attributes:
        kind: ``changed``: an item says something else than the fact that it was believed for; ``gone``: that item is
            not there any more; ``new``: an item was put since the thread last saved, by somebody else.
        fact: What the thread believed; ``None`` of what is new.
        item: What is there now; ``None`` of what is gone.
    """

    kind: Literal["changed", "gone", "new"]
    fact: Fact | None = None
    item: Item | None = None


class ResumeContext(Struct, kw_only=True):
    """What an agent needs to go on with a thread.

    Attributes:
        thread_id: The id of the thread.
        checkpoint_id: Its head; ``None``: it was never saved to, and all else is empty.
        status: The head's status.
        saved_at: When the head was saved.
        goal: What the agent is to reach.
        plan: What it means to do, in order.
        done: What it has done.
        facts: What it held to be true.
        summary: What came before the messages.
        messages: The newest messages.
        waiting: What tasks wrote that no checkpoint has taken up, such as questions to a person.
        items: Items that matter here: the nearest to what was asked, or the last changed.
        changes: What happened while the agent was away, as far as it concerns what it believed or was asked to look at.
        children: Threads that were begun from this one, with their status.
        left_out: What there is more of than is here, by the names of these attributes.
    """

    thread_id: str
    checkpoint_id: str | None = None
    status: Status = "active"
    saved_at: datetime | None = None
    goal: str = ""
    plan: list[str] = field(default_factory=list)
    done: list[str] = field(default_factory=list)
    facts: list[Fact] = field(default_factory=list)
    summary: str = ""
    messages: list[Any] = field(default_factory=list)
    waiting: list[PendingWrite] = field(default_factory=list)
    items: list[Item] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    children: list[ThreadInfo] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    @property
    def conflicts(self) -> list[Change]:
        """Those changes that contradict what the thread believed."""
        return [each for each in self.changes if each.kind != "new"]

    def text(self, *, characters_max: int = TEXT_CHARACTERS_MAX) -> str:
        """The same as a text, for the prompt of a model.

        What contradicts the agent's beliefs comes before what it knows anyway, so that it is what stays where the text
        has to end.

        Args:
            characters_max: How long it is at most; a last line says so where it was cut.
        """
        lines: list[str] = []
        left = characters_max
        for line in self._lines():
            short = line if len(line) <= _LINE_CHARACTERS_MAX else line[: _LINE_CHARACTERS_MAX - 1] + "…"
            if len(short) + 1 > left - len(_CUT):
                lines.append(_CUT)
                break
            lines.append(short)
            left -= len(short) + 1
        return "\n".join(lines)

    def _lines(self) -> Iterator[str]:
        yield from _one("Goal", self.goal)
        if self.saved_at is not None:
            yield f"Last saved: {self.saved_at:%Y-%m-%d %H:%M} UTC, {self.status}"
        yield from _section("What happened since", map(_of_change, self.changes))
        yield from _section("Waiting for an answer", (f"{each.channel}: {each.value}" for each in self.waiting))
        yield from _section("Done", self.done)
        yield from _section("Plan", self.plan)
        yield from _section("Facts", map(_of_fact, self.facts))
        yield from _section("Remembered", (f"{'/'.join(each.path)}/{each.key}: {_said(each)}" for each in self.items))
        yield from _section("Threads begun from here", (f"{each.thread_id}: {each.status}" for each in self.children))
        yield from _one("Summary", self.summary)
        yield from _section("Newest messages", map(_of_message, self.messages))
        if self.left_out:
            yield f"There is more of: {', '.join(self.left_out)}"


_CUT = "(cut here)"


def _one(name: str, text: str) -> Iterator[str]:
    if text:
        yield f"{name}: {text}"


def _section(name: str, texts: Iterable[str]) -> Iterator[str]:
    for number, text in enumerate(texts):
        if not number:
            yield f"{name}:"
        yield f"- {text}"


def _said(item: Item) -> str:
    text = item.value.get("text")
    return text if isinstance(text, str) else str(item.value)


def _of_fact(fact: Fact) -> str:
    return f"{fact.text} ({fact.source})" if fact.source else fact.text


def _of_change(change: Change) -> str:
    match change:
        case Change(kind="changed", fact=Fact() as fact, item=Item() as item):
            return f"you believed: {fact.text}; now it is: {_said(item)}"
        case Change(kind="gone", fact=Fact() as fact):
            return f"you believed: {fact.text}; that was taken back"
        case Change(item=Item() as item):
            return f"new: {_said(item)}"
        case _:
            return change.kind


def _of_message(message: Any) -> str:
    if isinstance(message, dict):
        role, content = message.get("role") or message.get("type"), message.get("content")
        return f"{role}: {content}"
    return str(message)
