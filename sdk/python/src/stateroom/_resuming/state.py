"""A ready-made state for agents that come back: what they want, what they did, and what they know from where.

This module owns the shapes. A program with a state of its own need not use them: whatever of these members its state
has is found by name (`stateroom._resuming.gathering`).
"""

import hashlib
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from msgspec import Struct, ValidationError, convert, field

from stateroom._items.shapes import Item, ItemVectors, ItemWrite, Path

FACTS: Path = ("facts",)
"""Where facts are remembered that name no path."""


class Fact(Struct, kw_only=True, omit_defaults=True):
    """Something an agent holds to be true.

    Attributes:
        text: What it is.
        key: Its name, by which a later belief takes its place; when left out, a digest of the text.
        source: Where it is from, in the program's words: a tool, a page, a person.
        path: The labels that it is remembered under; when left out, ``FACTS``.
        revision: The revision of the item that it was read from or remembered as; ``None``: it was never remembered.
        keep: Whether it becomes an item when the thread completes.
    """

    text: str
    key: str = ""
    source: str = ""
    path: Path = ()
    revision: int | None = None
    keep: bool = False

    @property
    def name(self) -> str:
        """The key of its item."""
        return self.key or hashlib.sha256(self.text.encode()).hexdigest()[:32]

    @property
    def place(self) -> Path:
        """The path of its item."""
        return self.path or FACTS

    @classmethod
    def of(cls, item: Item) -> "Fact":
        """What an item says, to be believed from now on: its ``text``, or all of it as text."""
        text, source = item.value.get("text"), item.value.get("source")
        return cls(
            text=text if isinstance(text, str) else str(item.value),
            key=item.key,
            source=source if isinstance(source, str) else "",
            path=item.path,
            revision=item.revision,
        )


class AgentState(Struct, kw_only=True, omit_defaults=True):
    """A state with what a resumed agent asks for first. Subclass it for more.

    Attributes:
        goal: What the agent is to reach.
        plan: What it means to do, in order.
        done: What it has done.
        facts: What it holds to be true.
        summary: What came before the messages that are left.
        messages: The conversation, each message a mapping with a ``role`` and a ``content``.
    """

    goal: str = ""
    plan: list[str] = field(default_factory=list)
    done: list[str] = field(default_factory=list)
    facts: list[Fact] = field(default_factory=list)
    summary: str = ""
    messages: list[dict[str, Any]] = field(default_factory=list)


def facts_of(value: Any) -> list[Fact]:
    """Those facts of a state that are facts; texts are facts from nowhere."""
    found: list[Fact] = []
    for each in value if isinstance(value, list) else ():
        if isinstance(each, str):
            found.append(Fact(text=each))
            continue
        try:
            found.append(convert(each, Fact, strict=False))
        except ValidationError:
            continue
    return found


def remembered(
    facts: Iterable[Fact], thread_id: str, agent: str | None, vectors: Sequence[tuple[str, ItemVectors]], at: datetime
) -> list[ItemWrite]:
    """The items that facts become which are to be kept, each once; the last of a name counts.

    Args:
        facts: All facts of a state.
        thread_id: The thread that knows them.
        agent: Its program.
        vectors: Vectors by the names of facts.
        at: The moment that they are known at.
    """
    by_name = dict(vectors)
    writes: dict[tuple[Path, str], ItemWrite] = {}
    for each in facts:
        if not each.keep:
            continue
        value = {"text": each.text, "source": each.source, "thread_id": thread_id, "known_at": at.isoformat()}
        if agent is not None:
            value["agent"] = agent
        own = by_name.get(each.name)
        writes[each.place, each.name] = ItemWrite(
            path=each.place,
            key=each.name,
            value=value,
            vectors=[] if own is None else [own],
            if_revision=each.revision,
        )
    return [*writes.values()]
