"""Key material in memory: what holds it, what derives from it, what wraps it, and how long it is cached.

Owns `SecretKey`, the wrapping of subject keys under a tenant key, and `KeyCache`. Wiping is best effort: the
cipher library, the garbage collector and swap may hold copies this module cannot reach. Where keys are stored
and who may ask for them is decided above.
"""

import asyncio
import hmac
import os
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Final, Generic, Literal, NoReturn, TypeVar
from uuid import UUID

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand

from crypto.context import Field, Kind, encode_context, encode_fields
from crypto.envelope import Flag, Header, KeyScope, open_body, peek_header, seal_body
from crypto.errors import CryptoError, KeyDenied, KeyDestroyed, KeyUnavailable, OpenError
from crypto.suites import KEY_BYTES, BytesLike, Suite

KCV_BYTES: Final = 8

SubjectKeyPurpose = Literal["data", "id"]

_KCV_INFO: Final = b"stateroom/v1/kcv"
_SUBJECT_KEK: Final = b"stateroom/v1/subject-kek"
_CLIENT_SHARE: Final = b"stateroom/v1/client-share"
_SHA512: Final = hashes.SHA512()


class _Material(bytearray):
    """Bytes that are zeroed when the last view of them is gone."""

    __slots__ = ()

    def __del__(self) -> None:  # pragma: no mutate block - it runs in the middle of anything
        self[:] = bytes(len(self))


class SecretKey:
    """32 secret bytes that do not show in a repr, cannot be pickled or copied, and are zeroed at the end.

    Two instances are equal only if they are the same object; compare keys by their `kcv`.
    """

    __slots__ = ("__weakref__", "_view")

    def __init__(self, material: BytesLike) -> None:
        """Copy 32 bytes of key material.

        Raises:
            ValueError: There are not 32 of them.
        """
        if len(material) != KEY_BYTES:
            raise ValueError("a key is 32 bytes")
        self._view = memoryview(_Material(material)).toreadonly()

    @classmethod
    def generate(cls) -> "SecretKey":
        """Return a new key from the operating system's random source."""
        return cls(os.urandom(KEY_BYTES))

    def borrow(self) -> memoryview:
        """Return a read-only view of the key for one cryptographic call; do not keep or copy it."""
        return self._view

    def kcv(self) -> bytes:
        """Return the key check value: 8 bytes that recognise the key and reveal nothing of it.

        `HKDF-Expand-SHA-512(key, "stateroom/v1/kcv", 8)`.
        """
        return HKDFExpand(_SHA512, KCV_BYTES, _KCV_INFO).derive(self._view)

    def derive(self, purpose: bytes, *fields: Field) -> "SecretKey":
        """Derive an independent key: `HKDF-Expand-SHA-512(key, purpose || 00 || fields, 32)`.

        Fields are encoded as in a context, so that no two purposes with fields share their bytes.

        Raises:
            ValueError: The purpose is empty or contains a zero byte, or a field cannot be encoded.
        """
        if not purpose or 0 in purpose:
            raise ValueError("a purpose is not empty and has no zero byte")
        return SecretKey(
            HKDFExpand(_SHA512, KEY_BYTES, purpose + b"\0" + encode_fields(fields)).derive(self._view),
        )

    def mix(self, share: "SecretKey") -> "SecretKey":
        """Return the key that takes both this key and the share: `HKDF-SHA-512(salt = share, key, 32)`.

        RFC 5869, extract and expand, with "stateroom/v1/client-share" as info.
        """
        return SecretKey(HKDF(_SHA512, KEY_BYTES, bytes(share.borrow()), _CLIENT_SHARE).derive(self._view))

    def __repr__(self) -> str:
        return "SecretKey(...)"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a secret key cannot be pickled or copied")

    def __copy__(self) -> NoReturn:
        raise TypeError("a secret key cannot be pickled or copied")

    def __deepcopy__(self, memo: object) -> NoReturn:
        raise TypeError("a secret key cannot be pickled or copied")


@dataclass(frozen=True, slots=True)
class WrappingKey:
    """One version of a tenant's key, under which subjects' keys are wrapped."""

    key: SecretKey
    key_version: int


@dataclass(frozen=True, slots=True)
class SubjectKeyPlace:
    """What a wrapped subject key is bound to: whose it is, what it is for, and which version."""

    deployment_id: UUID
    tenant_id: UUID
    subject_id: str
    purpose: SubjectKeyPurpose
    key_version: int

    def context(self, header: bytes) -> bytes:
        """The context of an envelope that begins with ``header``."""
        location = (self.purpose, self.key_version)
        return encode_context(header, self.deployment_id, self.tenant_id, self.subject_id, location)


@dataclass(frozen=True, slots=True)
class SubjectKeys:
    """A subject's opened keys.

    Attributes:
        data: The data keys by version, every one that still exists.
        active_key_version: The version of the data key that seals.
        id_key: The key that content ids and MACs derive from.
        stored_hash: The number that the stored keys made when they were read; a `Sealer` only carries it along.
    """

    data: Mapping[int, SecretKey]
    active_key_version: int
    id_key: SecretKey
    stored_hash: int = 0


def wrap_subject_key(wrapping: WrappingKey, place: SubjectKeyPlace, key: SecretKey) -> bytes:
    """Wrap a subject's data or id key under the tenant key.

    Returns:
        An envelope of kind SUBJECT_KEY with the tenant key's version as `key_version`, sealed under the tenant
        key's purpose key "stateroom/v1/subject-kek" at the location (purpose, key_version).

    Raises:
        ValueError: The tenant key's version is not 1 to 2^32 - 1.
    """
    header = Header(
        Suite.COBBLESTONE_256,
        Flag(0),
        Kind.SUBJECT_KEY,
        KeyScope.TENANT,
        wrapping.key_version,
    ).pack()
    wrapping_key = wrapping.key.derive(_SUBJECT_KEK)
    return seal_body(
        header,
        wrapping_key.borrow(),
        place.context(header),
        KEY_BYTES,
        bytes(key.borrow()),
    )


def unwrap_subject_key(wrapping: WrappingKey, place: SubjectKeyPlace, wrapped: bytes, kcv: bytes) -> SecretKey:
    """Unwrap a key made by `wrap_subject_key` and compare its check value with the stored one.

    Raises:
        OpenError: `format` or `unsupported` if the bytes are no such envelope; `authentication` if the tenant
            key, its version, any part of the place or the check value is another.
    """
    header = peek_header(wrapped)
    if (
        header.kind is not Kind.SUBJECT_KEY
        or header.scope is not KeyScope.TENANT
        or header.key_version != wrapping.key_version
        or header.suite is not Suite.COBBLESTONE_256
        or header.flags
    ):
        raise OpenError("authentication")
    wrapping_key = wrapping.key.derive(_SUBJECT_KEK)
    raw_bytes, body = open_body(wrapped, wrapping_key.borrow(), place.context(wrapped))
    if raw_bytes != KEY_BYTES or len(body) != KEY_BYTES:
        raise OpenError("format")
    key = SecretKey(body)
    if not hmac.compare_digest(key.kcv(), kcv):
        raise OpenError("authentication")
    return key


K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class KeyCache(Generic[K, V]):
    """A bounded cache of opened keys with two ages, a memory of refusals and one load at a time for each entry.

    Younger than `soft_ttl_seconds`, an entry is used; in the last tenth of that age its use also starts a load
    that no request waits for. Between the two ages `get_or_load` waits for a load and falls back to the old value only
    while the loader says `KeyUnavailable` (an outage must not stop cached tenants); for another such tenth after
    an attempt that said so, it does not wait. Older than `hard_ttl_seconds`, an entry does not exist. Any other
    failure of a load evicts the entry: a key that was denied or destroyed must not be served from memory.

    `KeyDenied` and `KeyDestroyed` are raised again, without a load, for `DENIED_TTL_SECONDS`; `KeyUnavailable` for
    `UNAVAILABLE_TTL_SECONDS` plus the jitter. No other failure is remembered. `put`, `evict` and `clear` forget
    refusals, too. Loads of different entries run `LOADS_MAX` at a time; one that finds no place in
    `QUEUED_SECONDS_MAX` fails with `KeyUnavailable`.

    What is made of something that is itself cached is as old as that (`since`): otherwise the ages would add up. A load
    that brings a value which is due again already, because nothing newer could be had, counts as an outage.

    Not thread safe: one instance belongs to one event loop.
    """

    DENIED_TTL_SECONDS: Final = 30.0
    UNAVAILABLE_TTL_SECONDS: Final = 1.0
    LOADS_MAX: Final = 20
    QUEUED_SECONDS_MAX: Final = 5.0

    def __init__(
        self,
        entries_max: int,
        soft_ttl_seconds: float,
        hard_ttl_seconds: float,
        clock: Callable[[], float],
        *,
        jitter: Callable[[], float],
        since: Callable[[V], float] | None = None,
    ) -> None:
        """Create an empty cache.

        Args:
            entries_max: The least recently used entry beyond this number is dropped; as many refusals are kept.
            soft_ttl_seconds: Age from which an entry is loaded anew before it is used.
            hard_ttl_seconds: Age from which an entry is never used.
            clock: Monotonic seconds, for example `time.monotonic`.
            jitter: Seconds, different at every call, so that processes that saw one outage do not return as one.
            since: When, by the clock, a value's age began; without it, when it is stored.

        Raises:
            ValueError: No room for one entry, or the ages are negative or out of order.
        """
        if entries_max < 1:
            raise ValueError("entries_max must be at least 1")
        if not 0 <= soft_ttl_seconds <= hard_ttl_seconds:
            raise ValueError("0 <= soft_ttl_seconds <= hard_ttl_seconds must hold")
        self._entries_max = entries_max
        self._soft_ttl_seconds = soft_ttl_seconds
        self._hard_ttl_seconds = hard_ttl_seconds
        self._refresh_ahead_seconds = soft_ttl_seconds / 10
        self._clock = clock
        self._jitter = jitter
        self._since = since
        self._entries: OrderedDict[K, tuple[float, V]] = OrderedDict()
        # Until when a refusal counts, and what it was.
        self._refusals: OrderedDict[K, tuple[float, CryptoError]] = OrderedDict()
        self._loads: dict[K, asyncio.Task[V]] = {}
        self._places = asyncio.Semaphore(self.LOADS_MAX)

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, cache_key: K) -> V | None:
        """Return the value if there is one younger than the hard age, else None."""
        entry = self._entry(cache_key)
        return None if entry is None else entry[1]

    def put(self, cache_key: K, value: V) -> None:
        """Store a value, newest of all; a load that is under way will not overwrite it."""
        self._loads.pop(cache_key, None)
        self._store(cache_key, value)

    def evict(self, cache_key: K) -> None:
        """Forget a value or a refusal; a load that is under way will not bring it back."""
        self._loads.pop(cache_key, None)
        self._entries.pop(cache_key, None)
        self._refusals.pop(cache_key, None)

    def clear(self) -> None:
        """Forget everything; loads that are under way will not bring anything back."""
        self._loads.clear()
        self._entries.clear()
        self._refusals.clear()

    async def get_or_load(self, cache_key: K, loader: Callable[[], Awaitable[V]]) -> V:
        """Return the cached value, or load it once for all who ask at the same time.

        The load runs in its own task: a waiter that is cancelled leaves it to the others. Everyone who waits for
        a load that fails gets its error.

        Raises:
            KeyUnavailable: The loader's, now or a moment ago, when no value younger than the hard age is left.
            KeyDenied: The loader's, now or a while ago.
            KeyDestroyed: The loader's, now or a while ago.
            Exception: Whatever else the loader raises.
        """
        entry, now = self._entry(cache_key), self._clock()
        until, refusal = self._refusals.get(cache_key, (0.0, None))
        if refusal is not None and now < until:
            # A refusal beside an entry is an outage: every other one evicted it.
            if entry is None:
                raise refusal.with_traceback(None)
            return entry[1]
        if entry is not None and now - entry[0] < self._soft_ttl_seconds - self._refresh_ahead_seconds:
            return entry[1]
        load = self._join_or_start(cache_key, loader)
        if entry is not None:
            outage_known = refusal is not None and now < until + self._refresh_ahead_seconds
            if now - entry[0] < self._soft_ttl_seconds or outage_known:
                return entry[1]
        try:
            return await asyncio.shield(load)
        except KeyUnavailable:
            entry = self._entry(cache_key)
            if entry is None:
                raise
            return entry[1]

    def _join_or_start(self, cache_key: K, loader: Callable[[], Awaitable[V]]) -> "asyncio.Task[V]":
        load = self._loads.get(cache_key)
        # A load cancelled before its first step could not take itself off the list.
        if load is None or load.done():
            load = asyncio.get_running_loop().create_task(self._load(cache_key, loader))
            self._loads[cache_key] = load
            load.add_done_callback(_retrieve)
        return load

    async def _load(self, cache_key: K, loader: Callable[[], Awaitable[V]]) -> V:
        this_load = asyncio.current_task()
        try:
            value = await self._load_in_place(loader)
        except BaseException as error:
            if self._loads.get(cache_key) is this_load:
                del self._loads[cache_key]
                self._refuse(cache_key, error)
            raise
        # Evicted or replaced meanwhile: what was read before that moment must not come back.
        if self._loads.get(cache_key) is this_load:
            del self._loads[cache_key]
            self._store(cache_key, value)
        return value

    async def _load_in_place(self, loader: Callable[[], Awaitable[V]]) -> V:
        try:
            async with asyncio.timeout(self.QUEUED_SECONDS_MAX):
                await self._places.acquire()
        except TimeoutError:
            raise KeyUnavailable(self.UNAVAILABLE_TTL_SECONDS) from None
        try:
            return await loader()
        finally:
            self._places.release()

    def _entry(self, cache_key: K) -> tuple[float, V] | None:
        """Return when a value younger than the hard age was stored, and the value."""
        entry = self._entries.get(cache_key)
        if entry is None:
            return None
        if self._clock() - entry[0] >= self._hard_ttl_seconds:
            del self._entries[cache_key]
            return None
        self._entries.move_to_end(cache_key)
        return entry

    def _store(self, cache_key: K, value: V) -> None:
        now = self._clock()
        since = now if self._since is None else self._since(value)
        self._refusals.pop(cache_key, None)
        self._entries[cache_key] = (since, value)
        self._entries.move_to_end(cache_key)
        while len(self._entries) > self._entries_max:
            self._entries.popitem(last=False)
        if since < now and now - since >= self._soft_ttl_seconds - self._refresh_ahead_seconds:
            self._refuse(cache_key, KeyUnavailable(self.UNAVAILABLE_TTL_SECONDS))

    def _refuse(self, cache_key: K, error: BaseException) -> None:
        if isinstance(error, asyncio.CancelledError):
            return
        self._refusals.pop(cache_key, None)
        if isinstance(error, KeyUnavailable):
            ttl_seconds = self.UNAVAILABLE_TTL_SECONDS + self._jitter()
        else:
            self._entries.pop(cache_key, None)
            ttl_seconds = self.DENIED_TTL_SECONDS
        if isinstance(error, (KeyUnavailable, KeyDenied, KeyDestroyed)):
            self._refusals[cache_key] = (self._clock() + ttl_seconds, error)
            while len(self._refusals) > self._entries_max:
                self._refusals.popitem(last=False)


def _retrieve(load: "asyncio.Task[V]") -> None:
    """Mark a failure as seen, so that a load that is not waited for any more does not log its traceback."""
    if not load.cancelled():
        load.exception()
