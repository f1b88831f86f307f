"""Exports: a stream that only one deployment can open, sealed for the public half of its transfer key.

Owns the transfer key pair, the text form of its public half, and the outer form of an export (docs/formats/export.md):

    file    = magic (4) || format (1) || u16 || header || u16 || sealed file key || Cobblestone-256 message
    header  = JSON: recipient (fingerprint), export_id
    sealed file key = HPKE, RFC 9180, base mode, DHKEM(X25519, HKDF-SHA256), HKDF-SHA256, AES-256-GCM;
                      info = "stateroom/v1/export" 00 || everything before it in the file
    message = sealed under the file key, in the context of the same bytes

One message of 16 KiB chunks holds all of the content: no chunk can be moved, left out or taken from another export, and
only the last one is shorter, so that a stream that was cut does not open to its end. HPKE's base mode says nothing of
who sealed: anybody who has the public key can make an export for it. What the content means is decided above.
"""

import base64
import binascii
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import msgspec
from cryptography.exceptions import InvalidTag, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hpke
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from crypto import cobblestone
from crypto.errors import ExportForOther, OpenError, TransferKeyInvalid
from crypto.keyring import SecretKey
from crypto.suites import KEY_BYTES, TAG_BYTES, BytesLike

PUBLIC_KEY_BYTES: Final = 32
HEADER_BYTES_MAX: Final = 1024

_MAGIC: Final = b"\xc1SRX"
_FORMAT: Final = 1
_INFO: Final = b"stateroom/v1/export\0"
_FINGERPRINT: Final = b"stateroom/v1/transfer-key\0"
_FINGERPRINT_BYTES: Final = 16
_TEXT_PREFIX: Final = "stateroom-transfer-1:"
_CHECK_BYTES: Final = 4
_SEALED_KEY_BYTES: Final = PUBLIC_KEY_BYTES + KEY_BYTES + TAG_BYTES
_START_BYTES: Final = len(_MAGIC) + 3
_SUITE: Final = hpke.Suite(hpke.KEM.X25519, hpke.KDF.HKDF_SHA256, hpke.AEAD.AES_256_GCM)


@dataclass(frozen=True, slots=True)
class TransferPublicKey:
    """The public half of a deployment's transfer key.

    Attributes:
        raw: 32 bytes (RFC 7748).
    """

    raw: bytes

    @property
    def fingerprint(self) -> str:
        """What people compare: 16 bytes of SHA-256("stateroom/v1/transfer-key" 00 || public key), in hex."""
        return hashlib.sha256(_FINGERPRINT + self.raw).digest()[:_FINGERPRINT_BYTES].hex()

    def __str__(self) -> str:
        check = hashlib.sha256(_FINGERPRINT + self.raw).digest()[-_CHECK_BYTES:]
        return _TEXT_PREFIX + base64.urlsafe_b64encode(self.raw + check).decode().rstrip("=")

    @classmethod
    def parse(cls, text: str) -> "TransferPublicKey":
        """Read the text form, which one key has exactly one of.

        Raises:
            TransferKeyInvalid: it is none, or was damaged, or nothing can be sealed for it.
        """
        try:
            coded = text.removeprefix(_TEXT_PREFIX).encode("ascii")
            decoded = base64.b64decode(coded + b"=" * (-len(coded) % 4), altchars=b"-_", validate=True)
        except (UnicodeEncodeError, binascii.Error, ValueError):
            raise TransferKeyInvalid("a transfer key looks like stateroom-transfer-1:<48 characters>") from None
        found = cls(decoded[:PUBLIC_KEY_BYTES])
        if len(decoded) != PUBLIC_KEY_BYTES + _CHECK_BYTES or str(found) != text:
            raise TransferKeyInvalid("this is no transfer key, or it was damaged: its check value does not match")
        found.seal(b"", b"")
        return found

    def seal(self, plaintext: bytes, info: bytes) -> bytes:
        """Seal bytes for the owner of the key (HPKE, base mode): the encapsulated key, then the ciphertext.

        Raises:
            TransferKeyInvalid: the key is a point that everybody knows the shared secret with (RFC 9180 7.1.4).
        """
        try:
            return _SUITE.encrypt(plaintext, X25519PublicKey.from_public_bytes(self.raw), info)
        except (ValueError, UnsupportedAlgorithm):
            raise TransferKeyInvalid("nothing can be sealed for this transfer key") from None


class TransferKey:
    """The private half; its 32 bytes are wiped as any `SecretKey`, the library's copy is not."""

    __slots__ = ("_private", "public_key")

    def __init__(self, secret: SecretKey) -> None:
        self._private = X25519PrivateKey.from_private_bytes(bytes(secret.borrow()))
        self.public_key = TransferPublicKey(self._private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw))

    def __repr__(self) -> str:
        return "TransferKey(...)"

    def open(self, sealed: bytes, info: bytes) -> bytes:
        """Open what `TransferPublicKey.seal` made for this key.

        Raises:
            OpenError: `authentication`: it was sealed for another key or another info, or was altered.
        """
        try:
            return _SUITE.decrypt(sealed, self._private, info)
        except (InvalidTag, ValueError):
            raise OpenError("authentication") from None


class ExportHeader(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an export says in the clear: for whom it is, and which one it is."""

    recipient: str
    export_id: UUID


class ExportSealer:
    """Seals one export, of which it holds less than a chunk. `start`, then what `write` gives, then `finish`.

    Attributes:
        start: The first bytes of the file.
    """

    __slots__ = ("_chunks", "_pending", "start")

    def __init__(self, recipient: TransferPublicKey, export_id: UUID) -> None:
        """Begin an export under a new file key.

        Raises:
            TransferKeyInvalid: as `TransferPublicKey.seal`.
        """
        header = msgspec.json.encode(ExportHeader(recipient.fingerprint, export_id))
        clear = _MAGIC + bytes((_FORMAT,)) + len(header).to_bytes(2, "big") + header
        file_key = SecretKey.generate()
        sealed_key = recipient.seal(bytes(file_key.borrow()), _INFO + clear)
        self._chunks = cobblestone.ChunkSealer(file_key.borrow(), _INFO + clear)
        self.start = clear + len(sealed_key).to_bytes(2, "big") + sealed_key + self._chunks.prefix
        self._pending = bytearray()

    def write(self, data: BytesLike) -> bytes:
        """Take content; returns what is sealed by now, perhaps nothing."""
        self._pending += data
        whole = len(self._pending) // cobblestone.CHUNK_BYTES * cobblestone.CHUNK_BYTES
        with memoryview(self._pending) as source:
            sealed = b"".join(
                self._chunks.seal_next(source[at : at + cobblestone.CHUNK_BYTES])
                for at in range(0, whole, cobblestone.CHUNK_BYTES)
            )
        del self._pending[:whole]
        return sealed

    def finish(self) -> bytes:
        """End the export: the chunk without which it does not open to its end.

        Raises:
            ValueError: it was ended before.
        """
        last = bytes(self._pending)
        self._pending.clear()
        return self._chunks.seal_next(last)


class ExportOpener:
    """Opens one export as it arrives, holding less than a chunk of it beside what it is given.

    What `write` gives is authentic in its place; whether anything is missing is known when `finish` has returned.

    Attributes:
        header: What the export says of itself; None until it has arrived. Authentic once `write` gave anything.
    """

    __slots__ = ("_index", "_keys", "_opener", "_pending", "header")

    def __init__(self, keys: Callable[[str], TransferKey | None]) -> None:
        """Begin.

        Args:
            keys: gives the transfer key of a fingerprint, or None where there is none.
        """
        self._keys = keys
        self._pending = bytearray()
        self._opener: cobblestone.ChunkOpener | None = None
        self._index = 0
        self.header: ExportHeader | None = None

    def write(self, data: BytesLike) -> bytes:
        """Take bytes of the file; returns the content that is open by now, perhaps none.

        Raises:
            ExportForOther: it is sealed for a key that is not ours.
            OpenError: `format` or `unsupported`: it is no export that this release reads; `authentication`: it was
                altered.
        """
        self._pending += data
        if self._opener is None and not self._begin():
            return b""
        size = cobblestone.SEALED_CHUNK_BYTES
        whole = len(self._pending) // size * size
        with memoryview(self._pending) as source:
            # A full chunk is never the last one.
            opened = b"".join(self._open(source[at : at + size]) for at in range(0, whole, size))
        del self._pending[:whole]
        return opened

    def finish(self) -> bytes:
        """The last content, after the whole file was given.

        Raises:
            OpenError: `format`: it ends too early; `authentication`: as before, or something follows its end.
        """
        if self._opener is None or len(self._pending) < TAG_BYTES:
            raise OpenError("format")
        last = self._open(memoryview(bytes(self._pending)))
        self._pending.clear()
        return last

    def _open(self, chunk: memoryview) -> bytes:
        assert self._opener is not None  # noqa: S101  for the type checker: the callers looked
        opened = self._opener.open_chunk(self._index, chunk)
        self._index += 1
        return opened

    def _begin(self) -> bool:
        """Whether everything before the first chunk is here and authentic; it is taken then."""
        pending = self._pending
        start = bytes(pending[: len(_MAGIC)])
        if start != _MAGIC[: len(start)]:
            raise OpenError("format")
        if len(pending) < _START_BYTES:
            return False
        if pending[len(_MAGIC)] != _FORMAT:
            raise OpenError("unsupported")
        header_bytes = int.from_bytes(pending[len(_MAGIC) + 1 : _START_BYTES], "big")
        if header_bytes > HEADER_BYTES_MAX:
            raise OpenError("format")
        clear_bytes = _START_BYTES + header_bytes
        message_at = clear_bytes + 2 + _SEALED_KEY_BYTES
        if len(pending) < message_at + cobblestone.PREFIX_BYTES:
            return False
        clear = bytes(pending[:clear_bytes])
        self.header = _header(clear[_START_BYTES:])
        if int.from_bytes(pending[clear_bytes : clear_bytes + 2], "big") != _SEALED_KEY_BYTES:
            raise OpenError("format")
        transfer_key = self._keys(self.header.recipient)
        if transfer_key is None:
            raise ExportForOther(self.header.recipient)
        file_key = SecretKey(transfer_key.open(bytes(pending[clear_bytes + 2 : message_at]), _INFO + clear))
        prefix = bytes(pending[message_at : message_at + cobblestone.PREFIX_BYTES])
        self._opener = cobblestone.ChunkOpener(file_key.borrow(), _INFO + clear, prefix)
        del pending[: message_at + cobblestone.PREFIX_BYTES]
        return True


def _header(encoded: bytes) -> ExportHeader:
    try:
        return msgspec.json.decode(encoded, type=ExportHeader)
    except msgspec.DecodeError:
        raise OpenError("format") from None
