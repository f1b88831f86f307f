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
from stateroom._resuming.state import Fact, facts_of
from stateroom.errors import ThreadNotFound
from stateroom.types import Head, ThreadInfo

# What is compared, so that one search at least has its place in the batch.
_FACTS_MAX = requests.OPERATIONS_MAX - 1
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
    facts = facts_of(plain.get("facts"))
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
    all_believed = [each for each in context.facts if each.revision is not None or each.keep]
    believed = all_believed[:_FACTS_MAX]
    _note(context, "facts", len(believed) < len(all_believed))
    places = [(each.place, each.name) for each in believed]
    prefixes = wanted.paths or tuple(dict.fromkeys(each.place for each in context.facts)) or ((),)
    searched = prefixes[: requests.OPERATIONS_MAX - len(places)] if wanted.items else ()
    near = UNSET if wanted.near is None else wanted.near
    batch = ItemBatch(
        gets=[ItemGet(path=path, key=key, refresh=False) for path, key in places],
        searches=[ItemSearch(prefix=each, near=near, limit=wanted.items, refresh=False) for each in searched],
    )
    if not batch.gets and not batch.searches:
        return
    results = yield from requests.batch(batch)
    for fact, item in zip(believed, results.gets, strict=True):
        change = _change(fact, item, context.thread_id)
        if change is not None:
            context.changes.append(change)
    known = {*places}
    found = [item for page in results.searches for item in page.items]
    found.sort(key=_score if wanted.near is not None else _moment, reverse=True)
    context.items = [item for item in found if (item.path, item.key) not in known][: wanted.items]
    is_more = any(page.next_cursor for page in results.searches) or len(found) > len(context.items)
    _note(context, "items", is_more or 0 < len(searched) < len(prefixes))
    since = context.saved_at
    context.changes += [
        Change(kind="new", item=item)
        for item in found
        if since is not None
        and item.updated_at > since
        and (item.path, item.key) not in known
        and item.value.get("thread_id") != context.thread_id
    ]


def _change(fact: Fact, item: Item | None, thread_id: str) -> Change | None:
    """What an item says against a fact; what the thread itself put there is what it believes."""
    if item is None:
        return None if fact.revision is None else Change(kind="gone", fact=fact)
    is_own = item.value.get("thread_id") == thread_id
    if is_own or (fact.revision is None and item.value.get("text") == fact.text):
        fact.revision = item.revision
    return None if item.revision == fact.revision else Change(kind="changed", fact=fact, item=item)


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
