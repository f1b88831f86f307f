"""Places in a state: JSON Pointers (RFC 6901) that read, write and remove without changing anything in place.

A pointer's first token names a channel of a `Document`, or a member of the element inside ``for_each``. A whole channel
moves as it is stored; only a pointer that goes deeper decodes one.
"""

from collections.abc import Callable
from typing import Any, Final, Protocol

from migrations.state.document import ABSENT, Channel, Document, escape
from migrations.state.errors import PathFault, StepInvalid

TOKENS_MAX: Final = 16
POINTER_CHARACTERS_MAX: Final = 1_000

Tokens = tuple[str, ...]

Spend = Callable[[int], None]
"""Counts work, by how many members are copied, and raises when there is too much of it."""


def parse_pointer(pointer: object, at: str) -> Tokens:
    """The reference tokens of a pointer.

    Raises:
        StepInvalid: it is none, or names the whole state.
    """
    if not isinstance(pointer, str) or not pointer.startswith("/") or len(pointer) > POINTER_CHARACTERS_MAX:
        raise StepInvalid("a path is a JSON Pointer such as /channel/member", at)
    tokens = tuple(token.replace("~1", "/").replace("~0", "~") for token in pointer[1:].split("/"))
    if len(tokens) > TOKENS_MAX:
        raise StepInvalid(f"a path has at most {TOKENS_MAX} parts", at)
    if not tokens[0]:
        raise StepInvalid("a path names a channel first", at)
    return tokens


def show(tokens: Tokens) -> str:
    """The pointer of these tokens."""
    return "".join("/" + escape(token) for token in tokens)


class Root(Protocol):
    """What pointers start from. A handle is what is moved: a channel as it is stored, or a value."""

    def take(self, tokens: Tokens) -> Any:
        """The handle at a place, or `ABSENT`."""
        ...

    def give(self, tokens: Tokens, handle: Any) -> None:
        """Put a handle at a place; parents that are missing become objects."""
        ...

    def drop(self, tokens: Tokens) -> None:
        """Remove what is at a place, if anything is."""
        ...

    def tree(self) -> Any:
        """The whole, decoded."""
        ...


def value_of(handle: Any, tokens: Tokens) -> Any:
    """The value that a handle stands for.

    Raises:
        PathFault: it cannot be decoded.
    """
    return handle.tree(tokens[0]) if isinstance(handle, Channel) else handle


class DocumentRoot:
    """A whole state: the first part of a pointer names a channel."""

    __slots__ = ("_document", "_spend")

    def __init__(self, document: Document, spend: Spend) -> None:
        self._document = document
        self._spend = spend

    def take(self, tokens: Tokens) -> Any:
        """See `Root`."""
        channel = self._document.get(tokens[0])
        if channel is None:
            return ABSENT
        return channel if len(tokens) == 1 else _get(channel.tree(tokens[0]), tokens, 1)

    def give(self, tokens: Tokens, handle: Any) -> None:
        """See `Root`."""
        name = tokens[0]
        if len(tokens) == 1:
            self._document.put(name, handle if isinstance(handle, Channel) else Channel(tree=handle))
            return
        channel = self._document.get(name)
        before = {} if channel is None else channel.tree(name)
        self._document.put(name, Channel(tree=_put(before, tokens, 1, value_of(handle, tokens), self._spend)))

    def drop(self, tokens: Tokens) -> None:
        """See `Root`."""
        name = tokens[0]
        if len(tokens) == 1:
            self._document.remove(name)
            return
        channel = self._document.get(name)
        if channel is not None and _get(channel.tree(name), tokens, 1) is not ABSENT:
            self._document.put(name, Channel(tree=_without(channel.tree(name), tokens, 1, self._spend)))

    def rename(self, old: str, new: str) -> None:
        """Rename a channel where it stands."""
        self._document.rename(old, new)

    def tree(self) -> Any:
        """See `Root`."""
        return self._document.trees()


class ElementRoot:
    """An object inside a state: what ``for_each`` works on."""

    __slots__ = ("_spend", "element")

    def __init__(self, element: Any, spend: Spend) -> None:
        self.element = element
        self._spend = spend

    def take(self, tokens: Tokens) -> Any:
        """See `Root`."""
        return _get(self.element, tokens, 0)

    def give(self, tokens: Tokens, handle: Any) -> None:
        """See `Root`."""
        self.element = _put(self.element, tokens, 0, value_of(handle, tokens), self._spend)

    def drop(self, tokens: Tokens) -> None:
        """See `Root`."""
        if _get(self.element, tokens, 0) is not ABSENT:
            self.element = _without(self.element, tokens, 0, self._spend)

    def tree(self) -> Any:
        """See `Root`."""
        return self.element


def _index(parent: list[Any], token: str) -> int | None:
    return int(token) if token.isascii() and token.isdecimal() and int(token) < len(parent) else None


def _get(tree: Any, tokens: Tokens, depth: int) -> Any:
    for token in tokens[depth:]:
        if isinstance(tree, dict):
            tree = tree.get(token, ABSENT)
        elif isinstance(tree, list):
            index = _index(tree, token)
            tree = ABSENT if index is None else tree[index]
        else:
            return ABSENT
        if tree is ABSENT:
            return ABSENT
    return tree


def _put(parent: Any, tokens: Tokens, depth: int, value: Any, spend: Spend) -> Any:
    token, last = tokens[depth], depth == len(tokens) - 1
    if isinstance(parent, dict):
        spend(len(parent))
        after = value if last else _put(parent.get(token, {}), tokens, depth + 1, value, spend)
        return {**parent, token: after}
    if isinstance(parent, list):
        spend(len(parent))
        index = _index(parent, token)
        if index is None:
            raise PathFault("the list has no such element", show(tokens[: depth + 1]))
        after = value if last else _put(parent[index], tokens, depth + 1, value, spend)
        return [*parent[:index], after, *parent[index + 1 :]]
    raise PathFault("what is there is neither an object nor a list", show(tokens[:depth]))


def _without(parent: Any, tokens: Tokens, depth: int, spend: Spend) -> Any:
    token, last = tokens[depth], depth == len(tokens) - 1
    spend(len(parent))
    if isinstance(parent, list):
        index = int(token)
        middle = [] if last else [_without(parent[index], tokens, depth + 1, spend)]
        return [*parent[:index], *middle, *parent[index + 1 :]]
    if last:
        return {name: each for name, each in parent.items() if name != token}
    return {**parent, token: _without(parent[token], tokens, depth + 1, spend)}
