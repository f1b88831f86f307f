"""The capability to seal and open one subject's data.

Owns `Sealer`: code that holds one can seal and open under exactly one deployment, tenant and subject, and nothing else.
The location comes from the caller, who must take it from the request and never from the row. It does not know which
keys are destroyed in the database, does not load keys, and does not detect that an old envelope was put back in its own
place.

A sealer may be mixed with a share that only the client holds: what it seals then takes both the subject's keys and
the share. Envelopes say so in their flags, and neither sort of sealer opens what the other sealed.
"""

import copy
from collections.abc import Sequence
from typing import Final, NamedTuple
from uuid import UUID

from crypto import digests
from crypto.blob import BlobCipher
from crypto.compression import compress_if_smaller, inflate
from crypto.context import HEADER_BYTES, Field, Kind, Location, context_start, encode_fields, encode_owner
from crypto.envelope import Flag, Header, KeyScope, envelope_bytes_min, open_body, peek_header, seal_body
from crypto.errors import KeyDestroyed, OpenError
from crypto.keyring import SecretKey, SubjectKeys
from crypto.suites import BytesLike, Suite

RAW_BYTES_MAX: Final = 64 * 1024 * 1024

# One purpose for each suite: a key is never used by two constructions.
_ROW_PURPOSE: Final = {
    Suite.COBBLESTONE_256: b"stateroom/v1/row",
    Suite.XAES_256_GCM: b"stateroom/v1/row-xaes",
}
_CONTENT_ID_PURPOSE: Final = b"stateroom/v1/content-id"
_BOUNDARY_PURPOSE: Final = b"stateroom/v1/boundary"
_MAC_PURPOSE: Final = b"stateroom/v1/mac"
# Purposes are constants of the program; the bound only keeps a mistake from growing without end.
_MAC_PURPOSES_MAX: Final = 256


class _Opening(NamedTuple):
    """What opens all envelopes with one header: their kind, key, context's start, whether inflated, shortest length."""

    kind: Kind
    row_key: SecretKey
    start: bytes
    compressed: bool
    bytes_min: int


def _encoded(location: Sequence[Field] | Location) -> bytes:
    return location.encoded if isinstance(location, Location) else encode_fields(location)


class Sealer:
    """One subject's keys: seals, opens and digests, without ever showing a key."""

    __slots__ = (
        "_active_key_version",
        "_boundary_key",
        "_content_id_key",
        "_data_keys",
        "_id_key",
        "_mac_keys",
        "_openings",
        "_owner",
        "_row_keys",
        "_share",
        "_starts",
        "_subject_id",
        "_suite",
        "_tenant_id",
        "_without_share",
        "keys_hash",
    )

    def __init__(
        self,
        deployment_id: UUID,
        tenant_id: UUID,
        subject_id: str,
        keys: SubjectKeys,
        suite: Suite = Suite.COBBLESTONE_256,
    ) -> None:
        if not subject_id:
            raise ValueError("a sealer needs a subject")
        if keys.active_key_version not in keys.data:
            raise ValueError("there is no data key of the active version")
        self._tenant_id = tenant_id
        self._subject_id = subject_id
        self._active_key_version = keys.active_key_version
        self._suite = suite
        self.keys_hash = keys.stored_hash
        self._owner = encode_owner(deployment_id, tenant_id, subject_id)
        self._data_keys = dict(keys.data)
        self._share: SecretKey | None = None
        self._without_share: Sealer | None = None
        self._digest_with(keys.id_key)
        self._row_keys: dict[tuple[int, Suite], SecretKey] = {}
        self._starts: dict[tuple[Kind, bool], tuple[bytes, bytes]] = {}
        self._openings: dict[bytes, _Opening] = {}

    def _digest_with(self, id_key: SecretKey) -> None:
        self._id_key = id_key
        self._content_id_key = id_key.derive(_CONTENT_ID_PURPOSE)
        self._boundary_key = id_key.derive(_BOUNDARY_PURPOSE)
        self._mac_keys: dict[bytes, SecretKey] = {}

    def with_share(self, share: bytes) -> "Sealer":
        """The sealer of what takes a client-held share as well; it holds what the share makes of the keys.

        Row keys and the id key are mixed (`SecretKey.mix`), hence every envelope, content id, boundary and MAC.

        The share is 32 random bytes that the client keeps; a client that can guess them is not kept out.

        Raises:
            ValueError: There are not 32 of them, or this sealer is mixed with a share already.
        """
        if self._share is not None:
            raise ValueError("a sealer is mixed with one share")
        mixed = copy.copy(self)
        mixed._share = SecretKey(share)  # noqa: SLF001  it is ours
        mixed._without_share = self  # noqa: SLF001
        mixed._row_keys = {}  # noqa: SLF001
        mixed._starts = {}  # noqa: SLF001
        mixed._openings = {}  # noqa: SLF001
        mixed._digest_with(self._id_key.mix(mixed._share))  # noqa: SLF001
        return mixed

    @property
    def shared(self) -> bool:
        """Whether a client-held share is mixed in."""
        return self._share is not None

    @property
    def without_share(self) -> "Sealer":
        """The same subject's sealer of what needs no share; itself when it has none."""
        return self if self._without_share is None else self._without_share

    def __repr__(self) -> str:
        return f"Sealer(active_key_version={self._active_key_version})"

    @property
    def tenant_id(self) -> UUID:
        """The tenant this sealer is bound to."""
        return self._tenant_id

    @property
    def subject_id(self) -> str:
        """The subject this sealer is bound to."""
        return self._subject_id

    @property
    def active_key_version(self) -> int:
        """The data key version every new envelope is sealed under."""
        return self._active_key_version

    def seal(
        self,
        kind: Kind,
        location: Sequence[Field] | Location,
        plaintext: bytes,
        *,
        compress: bool = True,
    ) -> bytes:
        """Seal bytes for one place.

        Args:
            kind: What they are.
            location: Where they stand, with every immutable clear column; the same fields open them.
            plaintext: The content, at most 4 GiB; above 64 MiB it needs a larger `raw_bytes_max` to be
                opened.
            compress: Try zstd (level 3), alone for this record; kept if it saves at least 5 %. Pass False
                where the sealed length must not depend on the text.

        Returns:
            An envelope; 92 bytes more than the body below 16 KiB, then 16 more for each further 16 KiB.

        Raises:
            ValueError: The content is too long, or a field of the location cannot be encoded.
            TypeError: A field of the location has no encoding.
        """
        frame = compress_if_smaller(plaintext) if compress else None
        compressed = frame is not None
        header, start = self._starts.get((kind, compressed)) or self._start(kind, compressed=compressed)
        return seal_body(
            header,
            self._row_key(self._active_key_version, self._suite).borrow(),
            start + _encoded(location),
            len(plaintext),
            plaintext if frame is None else frame,
        )

    def _start(self, kind: Kind, *, compressed: bool) -> tuple[bytes, bytes]:
        """The header of new envelopes of a kind, and what their contexts begin with."""
        flags = (Flag.ZSTD if compressed else Flag(0)) | (Flag.CLIENT_SHARE if self.shared else Flag(0))
        header = Header(self._suite, flags, kind, KeyScope.SUBJECT, self._active_key_version).pack()
        start = self._starts[kind, compressed] = header, context_start(header, self._owner)
        return start

    def open(
        self,
        kind: Kind,
        location: Sequence[Field] | Location,
        envelope: bytes,
        *,
        raw_bytes_max: int = RAW_BYTES_MAX,
    ) -> bytes:
        """Open an envelope that must be of this kind, for this subject, at this place.

        Args:
            kind: What the caller expects.
            location: Where the caller found it, from the request.
            envelope: The sealed bytes.
            raw_bytes_max: Refuse content longer than this many bytes before it is inflated.

        Raises:
            OpenError: `format`, `unsupported`, `authentication` (wrong key, place, kind, owner or share, or
                altered) or `size`.
            KeyDestroyed: The key version the envelope names does not exist any more.
            ValueError: A field of the location cannot be encoded.
            TypeError: A field of the location has no encoding.
        """
        opening = self._openings.get(envelope[:HEADER_BYTES]) or self._opening(kind, envelope)
        if len(envelope) < opening.bytes_min:
            raise OpenError("format")
        if opening.kind is not kind:
            raise OpenError("authentication")
        raw_bytes, body = open_body(envelope, opening.row_key.borrow(), opening.start + _encoded(location))
        if raw_bytes > raw_bytes_max:
            raise OpenError("size")
        if opening.compressed:
            return inflate(body, raw_bytes)
        if raw_bytes != len(body):
            raise OpenError("size")
        return body

    def _opening(self, kind: Kind, envelope: bytes) -> _Opening:
        """What a header says, checked; kept, because it repeats for every row of a kind.

        Only what this sealer has a key for is kept, so that there are no more of them than kinds, flags and keys.
        """
        header = peek_header(envelope)
        if header.kind is not kind or header.scope is not KeyScope.SUBJECT:
            raise OpenError("authentication")
        if (Flag.CLIENT_SHARE in header.flags) != self.shared:
            raise OpenError("authentication")
        opening = self._openings[bytes(envelope[:HEADER_BYTES])] = _Opening(
            kind,
            self._row_key(header.key_version, header.suite),
            context_start(envelope, self._owner),
            Flag.ZSTD in header.flags,
            envelope_bytes_min(header),
        )
        return opening

    @staticmethod
    def new_blob_key() -> SecretKey:
        """A random key for one new blob; it is kept in the blob's sealed pointer and nowhere else.

        So a rotation seals pointers again and no blob, and without opening the pointer the blob cannot be opened.
        """
        return SecretKey.generate()

    def blob_cipher(self, blob_id: UUID, blob_key: SecretKey) -> BlobCipher:
        """What seals and opens the parts of one blob of this subject.

        A client-held share makes no difference here: it is needed to open the pointer that holds the key.

        Args:
            blob_id: The blob's id, from the row that names it.
            blob_key: What `new_blob_key` gave for it, from the opened pointer.
        """
        return BlobCipher(self._owner, blob_id, blob_key)

    def content_id(self, kind: str, encoding: str, data: BytesLike) -> bytes:
        """The 17-byte id of a piece of this subject's content; see `crypto.digests.content_id`."""
        return digests.content_id(self._content_id_key.borrow(), kind, encoding, data)

    def boundary(self, data: BytesLike) -> int:
        """The keyed 64-bit number of a list element; see `crypto.digests.boundary_digest`."""
        return digests.boundary_digest(self._boundary_key.borrow(), data)

    def mac(self, purpose: bytes, *parts: bytes) -> bytes:
        """A 32-byte MAC over the parts under this subject's id key, independent for each purpose.

        Raises:
            ValueError: The purpose cannot be encoded.
        """
        subkey = self._mac_keys.get(purpose)
        if subkey is None:
            subkey = self._id_key.derive(_MAC_PURPOSE, purpose)
            if len(self._mac_keys) < _MAC_PURPOSES_MAX:
                self._mac_keys[purpose] = subkey
        return digests.keyed_digest(subkey.borrow(), *parts)

    def _row_key(self, key_version: int, suite: Suite) -> SecretKey:
        row_key = self._row_keys.get((key_version, suite))
        if row_key is None:
            data_key = self._data_keys.get(key_version)
            if data_key is None:
                raise KeyDestroyed
            row_key = data_key.derive(_ROW_PURPOSE[suite], self._tenant_id, self._subject_id, key_version)
            if self._share is not None:
                row_key = row_key.mix(self._share)
            self._row_keys[key_version, suite] = row_key
        return row_key
