"""What a case of the suite is, and what it works with.

This module owns how cases are named and registered, the two halves of a store's methods, and how a case says what it
found to be otherwise. A case works below a label of its own, so that it finds nothing of another's.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias
from uuid import uuid4

from langgraph.store.base import BaseStore, Item, Op, Result, SearchItem

from stateroom.testing.stores.configs import PLAIN, StoreConfig
from stateroom.testing.stores.report import HalfName

Path: TypeAlias = tuple[str, ...]
Advance: TypeAlias = Callable[[float], Awaitable[None]]


class BrokenError(AssertionError):
    """A store did something else than a case claims."""


class UnsupportedError(Exception):
    """The store says itself that it does not do what a case is about."""


class Calls(Protocol):
    """One half of a store's methods, for whoever is on an event loop."""

    name: HalfName
    store: BaseStore

    async def get(self, path: Any, key: Any, **options: Any) -> Item | None:
        """Read an item, by ``get`` or ``aget``."""

    async def put(self, path: Any, key: Any, value: Any, **options: Any) -> None:
        """Put an item, by ``put`` or ``aput``."""

    async def delete(self, path: Any, key: Any) -> None:
        """Delete an item, by ``delete`` or ``adelete``."""

    async def search(self, prefix: Any, **options: Any) -> list[SearchItem]:
        """Find items, by ``search`` or ``asearch``."""

    async def namespaces(self, **options: Any) -> list[Path]:
        """List paths, by ``list_namespaces`` or ``alist_namespaces``."""

    async def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Carry operations out, by ``batch`` or ``abatch``."""


class AsyncCalls:
    """The asynchronous methods."""

    name: HalfName = "async"

    def __init__(self, store: BaseStore) -> None:
        self.store = store

    async def get(self, path: Any, key: Any, **options: Any) -> Item | None:
        """As `Calls.get`."""
        return await self.store.aget(path, key, **options)

    async def put(self, path: Any, key: Any, value: Any, **options: Any) -> None:
        """As `Calls.put`."""
        await self.store.aput(path, key, value, **options)

    async def delete(self, path: Any, key: Any) -> None:
        """As `Calls.delete`."""
        await self.store.adelete(path, key)

    async def search(self, prefix: Any, **options: Any) -> list[SearchItem]:
        """As `Calls.search`."""
        return await self.store.asearch(prefix, **options)

    async def namespaces(self, **options: Any) -> list[Path]:
        """As `Calls.namespaces`."""
        return await self.store.alist_namespaces(**options)

    async def batch(self, ops: Iterable[Op]) -> list[Result]:
        """As `Calls.batch`."""
        return await self.store.abatch(ops)


class BlockingCalls:
    """The blocking methods, each in a worker thread, so that a store may use the event loop meanwhile."""

    name: HalfName = "blocking"

    def __init__(self, store: BaseStore) -> None:
        self.store = store

    async def get(self, path: Any, key: Any, **options: Any) -> Item | None:
        """As `Calls.get`."""
        return await asyncio.to_thread(self.store.get, path, key, **options)

    async def put(self, path: Any, key: Any, value: Any, **options: Any) -> None:
        """As `Calls.put`."""
        await asyncio.to_thread(self.store.put, path, key, value, **options)

    async def delete(self, path: Any, key: Any) -> None:
        """As `Calls.delete`."""
        await asyncio.to_thread(self.store.delete, path, key)

    async def search(self, prefix: Any, **options: Any) -> list[SearchItem]:
        """As `Calls.search`."""
        return await asyncio.to_thread(self.store.search, prefix, **options)

    async def namespaces(self, **options: Any) -> list[Path]:
        """As `Calls.namespaces`."""
        return await asyncio.to_thread(self.store.list_namespaces, **options)

    async def batch(self, ops: Iterable[Op]) -> list[Result]:
        """As `Calls.batch`."""
        return await asyncio.to_thread(self.store.batch, ops)


class Trial:
    """What one run of a case works with.

    Args:
        calls: The half of the store's methods that it uses.
        advance: Lets time pass, in seconds.
    """

    def __init__(self, calls: Calls, advance: Advance) -> None:
        self.calls = calls
        self.advance = advance
        self.root = f"suite-{uuid4().hex}"
        self.get, self.put, self.delete = calls.get, calls.put, calls.delete
        self.search, self.namespaces, self.batch = calls.search, calls.namespaces, calls.batch

    def path(self, *labels: str) -> Path:
        """A path of this run's own."""
        return (self.root, *labels)

    async def fill(self, *labels: str, **values: Any) -> None:
        """Put an item for each name, one after the other, in that order."""
        for key, value in values.items():
            await self.put(self.path(*labels), key, value)

    async def keys(self, *labels: str, **options: Any) -> list[str]:
        """The keys of what a search finds, in its order."""
        return [each.key for each in await self.search(self.path(*labels), **options)]

    async def matching(self, wanted: dict[str, Any]) -> list[str]:
        """The keys of what a filter finds, in the order of the alphabet."""
        return sorted(await self.keys(filter=wanted, limit=100))

    async def listed(self, **options: Any) -> list[Path]:
        """This run's paths, without the label that is its own. The prefix that is asked for stands below that."""
        prefix = self.path(*options.pop("prefix", ()))
        return [each[1:] for each in await self.namespaces(prefix=prefix, **options)]

    async def is_there(self, key: str, *labels: str) -> bool:
        """Whether there is an item, without keeping it alive."""
        return await self.get(self.path(*labels), key, refresh_ttl=False) is not None


def same(found: object, wanted: object, what: str) -> None:
    """Say that something was found to be what it should be.

    Raises:
        BrokenError: It is not.
    """
    if found != wanted:
        raise BrokenError(f"{what}: found {_shown(found)}, wanted {_shown(wanted)}")


def holds(found: object, what: str) -> None:
    """Say that something is so.

    Raises:
        BrokenError: It is not.
    """
    if not found:
        raise BrokenError(what)


def there(found: Item | None, what: str = "the item") -> Item:
    """An item that must be there.

    Raises:
        BrokenError: It is not.
    """
    if found is None:
        raise BrokenError(f"{what} is not there")
    return found


async def refused(asked: Awaitable[object], kind: type[Exception] = Exception, what: str = "it") -> None:
    """Say that a call is refused by an error of some kind.

    Raises:
        BrokenError: It is not.
    """
    try:
        await asked
    except kind:
        return
    raise BrokenError(f"{what} is not refused with {kind.__name__}")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}... ({len(text)} characters)"


Run: TypeAlias = Callable[[Trial], Awaitable[None]]


class Case(NamedTuple):
    """A claim about stores.

    Attributes:
        name: Its name, unlike all others.
        group: What it is about.
        claim: What it claims.
        run: Finds out.
        config: What the store is made with.
        needs_time: Whether time must pass, which only the caller can arrange.
    """

    name: str
    group: str
    claim: str
    run: Run
    config: StoreConfig
    needs_time: bool


class Cases:
    """The cases of a group, in the order that they are written in.

    Args:
        group: What they are about.
    """

    def __init__(self, group: str) -> None:
        self._group = group
        self._cases: list[Case] = []

    def case(self, config: StoreConfig = PLAIN, *, needs_time: bool = False) -> Callable[[Run], Run]:
        """Register a function as a case: its name is the case's, and its docstring what it claims."""

        def register(run: Run) -> Run:
            name = run.__name__.replace("_", "-")
            claim = (run.__doc__ or "").strip().partition("\n")[0]
            self._cases.append(Case(name, self._group, claim, run, config, needs_time))
            return run

        return register

    @property
    def all(self) -> Sequence[Case]:
        """All of them."""
        return self._cases
