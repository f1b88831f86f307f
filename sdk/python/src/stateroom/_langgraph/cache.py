"""LangGraph's cache of nodes on Stateroom: what a node made of an input, so that it need not run for it again.

This module owns how entries are named and kept as items, and what becomes of failures: a cache that cannot be read has
nothing, and a run goes on. It is for what only reads. A node that acts on the world must act, or say what it did where
that is kept for good: an entry goes with its time, or whenever somebody clears the cache.
"""

import logging
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from typing import Any, Final, NamedTuple, Self, TypedDict, Unpack

import httpx2
import msgspec
from langgraph.cache.base import BaseCache, FullKey, Namespace
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.event_hooks import SerdeEvent, register_serde_event_listener

from stateroom._items import requests
from stateroom._items.shapes import Item, ItemBatch, ItemGet, ItemSearch, ItemWrite, Path
from stateroom._langgraph.connections import Connected
from stateroom._langgraph.field_types import serialiser
from stateroom._options import refuse_unknown
from stateroom._protocol.core import Endpoint, Pinned, Steps, Timeouts
from stateroom._remembered.recent import Recent
from stateroom.errors import GatewayUnavailable, IntegrityFailure, LimitExceeded, StateroomError
from stateroom.share import ClientShare
from stateroom.subject import Subject

ROOT: Final = "~cache"
TTL_SECONDS: Final = 7 * 86_400
TTL_SECONDS_MAX: Final = 30 * 86_400
TIMEOUTS: Final = Timeouts(connect_seconds=1.0, attempt_seconds=4.0, total_seconds=5.0)
ENTRY_BYTES_MAX: Final = 256 * 1024

# Only LangGraph names entries so: those of tasks of a run.
_OF_RUNS: Final = "__pregel_ns_writes"
_RUNS_MAX: Final = 10_000
_BLOCKED: Final = frozenset({"msgpack_blocked", "msgpack_method_blocked"})
_LOGGER: Final = logging.getLogger("stateroom.langgraph")


class CacheOptions(TypedDict, total=False):
    """How a cache acts; each may be left out.

    Attributes:
        subject: Whose cache it is: a subject's id, ``"~shared"`` for one that all of the tenant's subjects use, a
            callable that returns it (``current_subject`` by default, set by ``with acting_for(...)``), or ``None`` for
            the subject the key is bound to. Two subjects never see each other's entries. What a run has made is kept
            for the subject that it asked for, wherever LangGraph calls back.
        version: A name of what the nodes do now, such as a release. LangGraph does not notice that a node's code
            changed: under another version there are other entries, and those of before are over in their time.
        ttl_seconds: How long an entry lives where a ``CachePolicy`` has no ``ttl``; a week when left out. None lives
            longer than 30 days.
        serde: Another serialiser. The default writes msgpack and instantiates only the types LangGraph calls safe plus
            ``allowed_msgpack_modules``. An entry with others is never a hit.
        allowed_msgpack_modules: Your own types that may be rebuilt, as classes or as ``(module, name)``; a class brings
            along the types of its fields. LangGraph's logger says once for each what to name here.
        timeouts: Time budgets of a request. They are short by default: a node that runs is better than one that waits.
        transport: Makes another transport for the blocking methods, for tests and embedding.
        async_transport: Makes another transport for each event loop.
        client_share: 32 bytes of ``stateroom.new_client_share`` that only you keep, or a callable that returns them:
            what is stored with them is found with them only.
    """

    subject: Subject
    version: str
    ttl_seconds: int
    serde: SerializerProtocol | None
    allowed_msgpack_modules: Sequence[type | tuple[str, ...]] | None
    timeouts: Timeouts | None
    transport: Callable[[], httpx2.BaseTransport] | None
    async_transport: Callable[[], httpx2.AsyncBaseTransport] | None
    client_share: ClientShare


class _Place(NamedTuple):
    """Where an entry is kept."""

    path: Path
    key: str


class StateroomCache(Connected, BaseCache[Any]):
    """A LangGraph cache whose entries live in a Stateroom gateway, as items below the path ``~cache``.

    One cache serves any number of subjects, threads of execution and event loops at once. No failure of it fails a run:
    what cannot be read is a miss, what cannot be kept is not, and the logger ``stateroom.langgraph`` says so once for
    each kind of failure. Only ``clear`` raises what it could not do.

    Args:
        url: The gateway's URL.
        api_key: The API key that authenticates each request.
        options: The options that ``CacheOptions`` lists.

    Raises:
        NotConfigured: The URL or the key cannot be used.
        ValueError: ``ttl_seconds`` is no time to live.
    """

    def __init__(self, url: str, api_key: str, **options: Unpack[CacheOptions]) -> None:
        refuse_unknown(type(self).__name__, options, CacheOptions)
        super().__init__(serde=serialiser(options.get("serde"), options.get("allowed_msgpack_modules")))
        self._ttl_seconds = options.get("ttl_seconds", TTL_SECONDS)
        if not 1 <= self._ttl_seconds <= TTL_SECONDS_MAX:
            raise ValueError(f"ttl_seconds is 1 to {TTL_SECONDS_MAX}")
        self._connect(url, api_key, options, timeouts=TIMEOUTS)
        self._root = (ROOT, _digest([options.get("version", "")]))
        # Whom the runs act for whose tasks were asked for, by the key that LangGraph made for the task.
        self._runs = Recent[tuple[str, Pinned]](_RUNS_MAX)
        self._said = Recent[bool]()

    @classmethod
    def from_env(cls, **options: Unpack[CacheOptions]) -> Self:
        """A cache configured by ``STATEROOM_URL`` and ``STATEROOM_API_KEY``.

        Args:
            options: The options that ``CacheOptions`` lists.

        Raises:
            NotConfigured: A variable is missing or unusable.
        """
        return cls(*Endpoint.read_env(), **options)

    # What LangGraph calls

    def get(self, keys: Sequence[FullKey]) -> dict[FullKey, Any]:
        """The entries that there are under some keys, up to 100 of them in one request.

        Raises:
            SubjectRequired: No subject to act for was given.
        """
        asked, pinned = self._asked(keys)
        return self._connections.blocking().drive(self._found(asked), pinned) if asked else {}

    async def aget(self, keys: Sequence[FullKey]) -> dict[FullKey, Any]:
        """The entries that there are under some keys, up to 100 of them in one request.

        Raises:
            SubjectRequired: No subject to act for was given.
        """
        asked, pinned = self._asked(keys)
        if not asked:
            return {}
        client = await self._connections.on_loop()
        return await client.drive(self._found(asked), pinned)

    def set(self, pairs: Mapping[FullKey, tuple[Any, int | None]]) -> None:
        """Keep values for so many seconds each; ``None`` is for as long as ``ttl_seconds`` of the options says."""
        for pinned, writes in self._writes(pairs).items():
            self._connections.blocking().drive(self._kept(writes), pinned)

    async def aset(self, pairs: Mapping[FullKey, tuple[Any, int | None]]) -> None:
        """Keep values for so many seconds each; ``None`` is for as long as ``ttl_seconds`` of the options says."""
        for pinned, writes in self._writes(pairs).items():
            client = await self._connections.on_loop()
            await client.drive(self._kept(writes), pinned)

    def clear(self, namespaces: Sequence[Namespace] | None = None) -> None:
        """Remove what there is in some namespaces; ``None``: all of this version of the cache, of the subject.

        Raises:
            StateroomError: Not all of it could be removed.
        """
        self._connections.blocking().drive(self._cleared(namespaces), self._endpoint.pin())

    async def aclear(self, namespaces: Sequence[Namespace] | None = None) -> None:
        """Remove what there is in some namespaces; ``None``: all of this version of the cache, of the subject.

        Raises:
            StateroomError: Not all of it could be removed.
        """
        client = await self._connections.on_loop()
        await client.drive(self._cleared(namespaces), self._endpoint.pin())

    # Reading

    def _asked(self, keys: Sequence[FullKey]) -> tuple[dict[_Place, FullKey], Pinned]:
        """Where the entries are that are asked for, and for whom."""
        pinned = self._endpoint.pin()
        asked: dict[_Place, FullKey] = {}
        for namespace, key in keys:
            asked[self._place(namespace, key)] = (tuple(namespace), key)
            if _is_of_a_run(namespace):
                self._runs.note(id(key), (key, pinned))
        return asked, pinned

    def _found(self, asked: Mapping[_Place, FullKey]) -> Steps[dict[FullKey, Any]]:
        found: dict[FullKey, Any] = {}
        places = [*asked]
        for start in range(0, len(places), requests.OPERATIONS_MAX):
            part = places[start : start + requests.OPERATIONS_MAX]
            try:
                entries = yield from _entries(part)
            except StateroomError as failure:
                self._say(failure.code)
                break
            for place, entry in zip(part, entries, strict=True):
                if entry is not None:
                    found |= self._opened(asked[place], entry)
        return found

    def _opened(self, full_key: FullKey, entry: Item) -> dict[FullKey, Any]:
        """The value of an entry under its key; nothing, if it is not what was kept."""
        encoding, data = entry.value.get("encoding"), entry.value.get("data")
        if isinstance(encoding, str) and isinstance(data, bytes):
            try:
                with _noting_types_left_out() as left_out:
                    value = self.serde.loads_typed((encoding, data))
            except Exception as failure:  # noqa: BLE001  whatever a serialiser fails with
                self._say(f"an entry could not be decoded ({type(failure).__name__})")
                return {}
            if not left_out:
                return {full_key: value}
        return {}

    # Writing

    def _writes(self, pairs: Mapping[FullKey, tuple[Any, int | None]]) -> dict[Pinned, list[ItemWrite]]:
        """What is to be written, by whom it is for."""
        writes: dict[Pinned, list[ItemWrite]] = {}
        for (namespace, key), (value, ttl_seconds) in pairs.items():
            try:
                pinned = self._of_run(namespace, key) or self._endpoint.pin()
                write = self._write(self._place(namespace, key), value, ttl_seconds)
            except StateroomError as failure:
                self._say(failure.code)
            except Exception as failure:  # noqa: BLE001  whatever a serialiser fails with
                self._say(f"a value could not be kept ({type(failure).__name__})")
            else:
                writes.setdefault(pinned, []).append(write)
        return writes

    def _of_run(self, namespace: Namespace, key: str) -> Pinned | None:
        """Whom the run acts for that a task's key was made in: LangGraph writes in threads whose context is empty."""
        noted = self._runs.get(id(key)) if _is_of_a_run(namespace) else None
        if noted is None or noted[0] is not key:
            return None
        self._runs.forget(id(key))
        return noted[1]

    def _write(self, place: _Place, value: Any, ttl_seconds: int | None) -> ItemWrite:
        removal = ItemWrite(path=place.path, key=place.key, delete=True)
        if ttl_seconds is not None and ttl_seconds <= 0:  # over already
            return removal
        encoding, data = self.serde.dumps_typed(value)
        entry = {"encoding": encoding, "data": data}
        if len(msgspec.msgpack.encode(entry)) > ENTRY_BYTES_MAX:
            self._say(f"an entry is larger than {ENTRY_BYTES_MAX} bytes")
            return removal  # what was kept before is not what there is now
        lives = self._ttl_seconds if ttl_seconds is None else min(math.ceil(ttl_seconds), TTL_SECONDS_MAX)
        return ItemWrite(path=place.path, key=place.key, value=entry, ttl_seconds=lives)

    def _kept(self, writes: Sequence[ItemWrite]) -> Steps[None]:
        # By themselves: a key that may not delete may keep entries.
        removals = [each for each in writes if each.delete]
        for part in [*_parts([each for each in writes if not each.delete]), *_parts(removals)]:
            try:
                results = yield from requests.batch(ItemBatch(writes=part))
            except StateroomError as failure:
                self._say(failure.code)
                if isinstance(failure, GatewayUnavailable):
                    break
            else:
                for each in results.writes:
                    if each.error is not None:
                        self._say(each.error.code)

    def _cleared(self, namespaces: Sequence[Namespace] | None) -> Steps[None]:
        prefixes = [self._root] if namespaces is None else [self._path(each) for each in namespaces]
        for prefix in dict.fromkeys(prefixes):
            cursor: str | None = None
            while True:
                wanted = ItemSearch(prefix=prefix, limit=requests.OPERATIONS_MAX, cursor=cursor, refresh=False)
                page = yield from requests.search(wanted)
                if page.items:
                    removals = [ItemWrite(path=each.path, key=each.key, delete=True) for each in page.items]
                    results = yield from requests.batch(ItemBatch(writes=removals))
                    for each in results.writes:
                        if each.error is not None:
                            raise each.error
                cursor = page.next_cursor
                if cursor is None:
                    break

    # Names

    def _path(self, namespace: Namespace) -> Path:
        return (*self._root, _digest(namespace))

    def _place(self, namespace: Namespace, key: str) -> _Place:
        return _Place(self._path(namespace), _digest([key]))

    def _say(self, what: str) -> None:
        """Say once, without a word of what is cached, why the cache does nothing for a run."""
        if what not in self._said:
            self._said.note(what, value=True)
            _LOGGER.warning("The cache is passed over, and runs go on without it: %s. This is said once.", what)


def _is_of_a_run(namespace: Namespace) -> bool:
    return tuple(namespace[:1]) == (_OF_RUNS,)


def _digest(texts: Iterable[str]) -> str:
    """A name of at most 64 bytes for any texts, whatever their lengths and characters."""
    digest = sha256()
    for text in texts:
        encoded = text.encode("utf-8", "surrogatepass")
        digest.update(len(encoded).to_bytes(8, "big") + encoded)
    return digest.hexdigest()


def _entries(places: Sequence[_Place]) -> Steps[list[Item | None]]:
    """The items at some places; what is damaged is asked for by itself, and is not there."""
    gets = [ItemGet(path=each.path, key=each.key, refresh=False) for each in places]
    try:
        return (yield from requests.batch(ItemBatch(gets=gets))).gets
    except (IntegrityFailure, LimitExceeded):
        if len(places) == 1:
            return [None]
    half = len(places) // 2
    first = yield from _entries(places[:half])
    return [*first, *(yield from _entries(places[half:]))]


def _parts(writes: Sequence[ItemWrite]) -> list[list[ItemWrite]]:
    return requests.in_parts(writes, lambda each: len(msgspec.msgpack.encode(each)))


@contextmanager
def _noting_types_left_out() -> Iterator[list[SerdeEvent]]:
    """Note types that a serialiser does not rebuild here: it gives a plain tree for them, and no node made that."""
    here = threading.get_ident()
    left_out: list[SerdeEvent] = []

    def note(event: SerdeEvent) -> None:
        if event["kind"] in _BLOCKED and threading.get_ident() == here:
            left_out.append(event)

    stop = register_serde_event_listener(note)
    try:
        yield left_out
    finally:
        stop()
