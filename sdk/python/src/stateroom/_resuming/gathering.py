"""Gathering what a resumed agent is told, as steps without I/O.

Both clients drive the same steps: the head with its state, the items that its facts came from, what is near or new in
the paths that are asked for, and the threads that were begun from it. Each is one request, of bounded size.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from stateroom._items import requests
from stateroom._items.shapes import (
    Item,
    ItemBatch,
    ItemGet,
    ItemSearch,
    Near,
    Path,
)
from stateroom._protocol import calls
from stateroom._protocol.core import Steps
from stateroom._resuming.context import Change, ResumeContext
from stateroom._resuming.state import Fact
from stateroom.errors import ThreadNotFound
from stateroom.types import Head, ThreadInfo

FACTS_MAX = 100
_CHILDREN_MAX = 100


class ContextWanted(msgspec.Struct, kw_only=True, frozen=True):
    """What is to be gathered.

    Attributes:
        messages: How many of the newest messages.
        items: How many items.
        paths: The beginnings of the paths whose items matter; none: those under which the facts are.
        near: The vector that items are to be near to; ``None``: the last changed matter.
    """

    messages: int = 20
    items: int = 10
    paths: tuple[Path, ...] = ()
    near: Near | None = None


def gather(
    thread_id: str, head: Head[Any] | None, plain: Mapping[str, Any], wanted: ContextWanted
) -> Steps[ResumeContext]:
    """What a resumed agent is told.

    Args:
        thread_id: The id of the thread.
        head: Its head.
        plain: The head's state as a plain tree.
        wanted: What to gather.
    """
    if head is None:
        return ResumeContext(thread_id=thread_id)
    facts = _facts(plain.get("facts"))
    context = ResumeContext(
        thread_id=thread_id,
        checkpoint_id=head.checkpoint_id,
        status=head.status,
        saved_at=head.created_at,
        goal=_text(plain.get("goal")),
        plan=_texts(plain.get("plan")),
        done=_texts(plain.get("done")),
        facts=facts,
        summary=_text(plain.get("summary")),
        waiting=head.pending_writes,
    )
    messages = plain.get("messages")
    if isinstance(messages, list):
        context.messages = messages[len(messages) - wanted.messages :] if wanted.messages < len(messages) else messages
        _note(context, "messages", len(messages) > wanted.messages)
    yield from _compare(context, wanted)
    context.children = yield from _children(context)
    return context


def _compare(context: ResumeContext, wanted: ContextWanted) -> Steps[None]:
    """Compare what was believed with what items say, and look at what else they say since."""
    believed = [each for each in context.facts if each.revision is not None][:FACTS_MAX]
    places = [(each.place, each.name) for each in believed]
    prefixes = wanted.paths or tuple(dict.fromkeys(each.place for each in context.facts)) or ((),)
    batch = ItemBatch(
        gets=[ItemGet(path=path, key=key, refresh=False) for path, key in places],
        searches=[
            ItemSearch(
                prefix=prefix, near=UNSET if wanted.near is None else wanted.near, limit=wanted.items, refresh=False
            )
            for prefix in prefixes[: FACTS_MAX - len(places) or 1]
        ],
    )
    if wanted.items == 0:
        batch.searches = []
    if not batch.gets and not batch.searches:
        return
    results = yield from requests.batch(batch)
    for fact, item in zip(believed, results.gets, strict=True):
        if item is None:
            context.changes.append(Change(kind="gone", fact=fact))
        elif item.revision != fact.revision:
            context.changes.append(Change(kind="changed", fact=fact, item=item))
    known = {*places}
    found = [item for page in results.searches for item in page.items]
    found.sort(key=_score if wanted.near is not None else _moment, reverse=True)
    context.items = [item for item in found if (item.path, item.key) not in known][: wanted.items]
    _note(context, "items", any(page.next_cursor for page in results.searches) or len(found) > len(context.items))
    since = context.saved_at
    context.changes += [
        Change(kind="new", item=item)
        for item in found
        if since is not None
        and item.updated_at > since
        and (item.path, item.key) not in known
        and item.value.get("thread_id") != context.thread_id
    ]


def _children(context: ResumeContext) -> Steps[list[ThreadInfo]]:
    try:
        page = yield from calls.list_children(context.thread_id, _CHILDREN_MAX, None)
    except ThreadNotFound:  # removed meanwhile
        return []
    _note(context, "children", page.next_cursor is not None)
    return [*page.items]


def _note(context: ResumeContext, name: str, is_more: bool) -> None:
    if is_more:
        context.left_out.append(name)


def _score(item: Item) -> float:
    return item.score or 0.0


def _moment(item: Item) -> Any:
    return item.updated_at


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)


def _texts(value: Any) -> list[str]:
    return [_text(each) for each in value] if isinstance(value, Sequence) and not isinstance(value, str) else []


def _facts(value: Any) -> list[Fact]:
    """Those facts of a state that are facts; texts are facts from nowhere."""
    found: list[Fact] = []
    for each in value if isinstance(value, list) else ():
        if isinstance(each, str):
            found.append(Fact(text=each))
            continue
        try:
            found.append(msgspec.convert(each, Fact, strict=False))
        except msgspec.ValidationError:
            continue
    return found
