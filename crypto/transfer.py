"""Exports: a stream that only one tenant of one deployment can take in, sealed for its transfer key.

Owns the transfer key pair, the text form of who receives, and the outer form of an export (docs/formats/export.md):

    file    = magic (4) || format (2) || u16 || header || u16 || sealed file key || Cobblestone-256 message
    header  = JSON: recipient (fingerprint), export_id, tenant (tag)
    sealed file key = HPKE, RFC 9180, base mode, DHKEM(X25519, HKDF-SHA256), HKDF-SHA256, AES-256-GCM;
                      info = "stateroom/v2/export" 00 || everything before it in the file
    message = sealed under a key that is derived from file key and tenant, in the context of the same bytes
    tag = derived from the same two: it tells only the holder of the file key which tenant is meant

One message of 16 KiB chunks holds all of the content: no chunk can be moved, left out or taken from another export, and
only the last one is shorter, so that a stream that was cut does not open to its end. HPKE's base mode says nothing of
who sealed: anybody who has the public key can make an export for it. What the content means is decided above.

A file of format 1 names a deployment and no tenant, so that every tenant there can take it in: it is read only where
an administrator answers for that one file, and never made.
"""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import msgspec
from cryptography.exceptions import InvalidTag, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hpke
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from crypto.ciphers import cobblestone
from crypto.errors import ExportForOther, ExportForOtherTenant, ExportUnbound, OpenError, TransferKeyInvalid
from crypto.keyring import SecretKey
from crypto.suites import KEY_BYTES, TAG_BYTES, BytesLike

PUBLIC_KEY_BYTES: Final = 32
HEADER_BYTES_MAX: Final = 1024

_MAGIC: Final = b"\xc1SRX"
_FORMAT: Final = 2
_UNBOUND_FORMAT: Final = 1
_INFO: Final = {_UNBOUND_FORMAT: b"stateroom/v1/export\0", _FORMAT: b"stateroom/v2/export\0"}
_TENANT: Final = b"stateroom/v2/export-tenant"
_MESSAGE: Final = b"stateroom/v2/export-message"
_TENANT_TAG_BYTES: Final = 16
_FINGERPRINT: Final = b"stateroom/v1/transfer-key\0"
_FINGERPRINT_BYTES: Final = 16
_RECIPIENT: Final = b"stateroom/v2/transfer-recipient\0"
_UNBOUND_PREFIX: Final = "stateroom-transfer-1:"
_TEXT_PREFIX: Final = "stateroom-transfer-2:"
_TENANT_BYTES: Final = 16
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

    def seal(self, plaintext: bytes, info: bytes) -> bytes:
        """Seal bytes for the owner of the key (HPKE, base mode): the encapsulated key, then the ciphertext.

        Raises:
            TransferKeyInvalid: the key is a point that everybody knows the shared secret with (RFC 9180 7.1.4).
        """
        try:
            return _SUITE.encrypt(plaintext, X25519PublicKey.from_public_bytes(self.raw), info)
        except (ValueError, UnsupportedAlgorithm):
            raise TransferKeyInvalid("nothing can be sealed for this transfer key") from None


@dataclass(frozen=True, slots=True)
class TransferRecipient:
    """Who may take an export in."""

    public_key: TransferPublicKey
    tenant_id: UUID

    def __str__(self) -> str:
        named = self.public_key.raw + self.tenant_id.bytes
        check = hashlib.sha256(_RECIPIENT + named).digest()[-_CHECK_BYTES:]
        return _TEXT_PREFIX + base64.urlsafe_b64encode(named + check).decode().rstrip("=")

    @classmethod
    def parse(cls, text: str) -> "TransferRecipient":
        """Read the text form, which one recipient has exactly one of.

        Raises:
            TransferKeyInvalid: it is none, or was damaged, or names no tenant, or nothing can be sealed for it.
        """
        if text.startswith(_UNBOUND_PREFIX):
            raise TransferKeyInvalid(
                "this transfer key names a deployment and no tenant; ask for one at the receiving tenant"
            )
        try:
            coded = text.removeprefix(_TEXT_PREFIX).encode("ascii")
            decoded = base64.b64decode(coded + b"=" * (-len(coded) % 4), altchars=b"-_", validate=True)
        except (UnicodeEncodeError, binascii.Error, ValueError):
            raise TransferKeyInvalid("a transfer key looks like stateroom-transfer-2:<70 characters>") from None
        tenant = decoded[PUBLIC_KEY_BYTES : PUBLIC_KEY_BYTES + _TENANT_BYTES]
        if len(decoded) != PUBLIC_KEY_BYTES + _TENANT_BYTES + _CHECK_BYTES:
            raise TransferKeyInvalid("this is no transfer key: it is too short or too long")
        found = cls(TransferPublicKey(decoded[:PUBLIC_KEY_BYTES]), UUID(bytes=tenant))
        if str(found) != text:
            raise TransferKeyInvalid("this is no transfer key, or it was damaged: its check value does not match")
        found.public_key.seal(b"", b"")
        return found


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


class ExportHeader(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What an export says in the clear: for which deployment it is, and which one it is.

    Attributes:
        recipient: The fingerprint of the deployment's transfer key.
        export_id: Which export.
        tenant: A tag that tells who has the file key which tenant it is for; None in a file of format 1.
    """

    recipient: str
    export_id: UUID
    tenant: str | None = None


def _tenant_tag(file_key: SecretKey, tenant_id: UUID) -> str:
    return bytes(file_key.derive(_TENANT, tenant_id).borrow()[:_TENANT_TAG_BYTES]).hex()


class ExportSealer:
    """Seals one export, of which it holds less than a chunk. `start`, then what `write` gives, then `finish`.

    Attributes:
        start: The first bytes of the file.
    """

    __slots__ = ("_chunks", "_pending", "start")

    def __init__(self, recipient: TransferRecipient, export_id: UUID) -> None:
        """Begin an export under a new file key.

        Raises:
            TransferKeyInvalid: as `TransferPublicKey.seal`.
        """
        file_key, public_key = SecretKey.generate(), recipient.public_key
        tag = _tenant_tag(file_key, recipient.tenant_id)
        header = msgspec.json.encode(ExportHeader(public_key.fingerprint, export_id, tag))
        clear = _MAGIC + bytes((_FORMAT,)) + len(header).to_bytes(2, "big") + header
        sealed_key = public_key.seal(bytes(file_key.borrow()), _INFO[_FORMAT] + clear)
        message_key = file_key.derive(_MESSAGE, recipient.tenant_id)
        self._chunks = cobblestone.ChunkSealer(message_key.borrow(), _INFO[_FORMAT] + clear)
        self.start = clear + len(sealed_key).to_bytes(2, "big") + sealed_key + self._chunks.prefix
        self._pending = bytearray()

    def write(self, data: BytesLike) -> bytes:
        """Take content; returns what is sealed by now, perhaps nothing."""
        self._pending += data
        chunks_end = len(self._pending) // cobblestone.CHUNK_BYTES * cobblestone.CHUNK_BYTES
        with memoryview(self._pending) as source:
            sealed = b"".join(
                self._chunks.seal_next(source[at : at + cobblestone.CHUNK_BYTES])
                for at in range(0, chunks_end, cobblestone.CHUNK_BYTES)
            )
        del self._pending[:chunks_end]
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
        file_format: The number of its format; 0 until it has arrived.
    """

    __slots__ = ("_index", "_keys", "_opener", "_pending", "_tenant_id", "_unbound", "file_format", "header")

    def __init__(
        self, keys: Callable[[str], TransferKey | None], tenant_id: UUID, unbound: Container[UUID] = ()
    ) -> None:
        """Begin.

        Args:
            keys: gives the transfer key of a fingerprint, or None where there is none.
            tenant_id: Who takes it in.
            unbound: Exports of format 1, which name no tenant, that may be taken in all the same.
        """
        self._keys = keys
        self._tenant_id = tenant_id
        self._unbound = unbound
        self._pending = bytearray()
        self._opener: cobblestone.ChunkOpener | None = None
        self._index = 0
        self.header: ExportHeader | None = None
        self.file_format = 0

    def write(self, data: BytesLike) -> bytes:
        """Take bytes of the file; returns the content that is open by now, perhaps none.

        Raises:
            ExportForOther: it is sealed for a key that is not ours.
            ExportForOtherTenant: it is for another tenant of this deployment.
            ExportUnbound: it names no tenant, and no administrator answers for it.
            OpenError: `format` or `unsupported`: it is no export that this release reads; `authentication`: it was
                altered.
        """
        self._pending += data
        if self._opener is None and not self._begin():
            return b""
        size = cobblestone.SEALED_CHUNK_BYTES
        chunks_end = len(self._pending) // size * size
        with memoryview(self._pending) as source:
            # A full chunk is never the last one.
            opened = b"".join(self._open(source[at : at + size]) for at in range(0, chunks_end, size))
        del self._pending[:chunks_end]
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
        format_number = pending[len(_MAGIC)]
        if format_number not in _INFO:
            raise OpenError("unsupported")
        header_bytes = int.from_bytes(pending[len(_MAGIC) + 1 : _START_BYTES], "big")
        if header_bytes > HEADER_BYTES_MAX:
            raise OpenError("format")
        clear_bytes = _START_BYTES + header_bytes
        message_at = clear_bytes + 2 + _SEALED_KEY_BYTES
        if len(pending) < message_at + cobblestone.PREFIX_BYTES:
            return False
        clear = bytes(pending[:clear_bytes])
        self.header = header = _header(clear[_START_BYTES:])
        self.file_format = format_number
        names_tenant = format_number != _UNBOUND_FORMAT
        length = int.from_bytes(pending[clear_bytes : clear_bytes + 2], "big")
        if length != _SEALED_KEY_BYTES or (header.tenant is not None) != names_tenant:
            raise OpenError("format")
        transfer_key = self._transfer_key(header)
        info = _INFO[format_number] + clear
        file_key = SecretKey(transfer_key.open(bytes(pending[clear_bytes + 2 : message_at]), info))
        message_key = self._message_key(header, file_key)
        prefix = bytes(pending[message_at : message_at + cobblestone.PREFIX_BYTES])
        self._opener = cobblestone.ChunkOpener(message_key.borrow(), info, prefix)
        del pending[: message_at + cobblestone.PREFIX_BYTES]
        return True

    def _transfer_key(self, header: ExportHeader) -> TransferKey:
        found = self._keys(header.recipient)
        if found is None:
            raise ExportForOther(header.recipient)
        return found

    def _message_key(self, header: ExportHeader, file_key: SecretKey) -> SecretKey:
        if header.tenant is None:
            if header.export_id not in self._unbound:
                raise ExportUnbound(header.export_id)
            return file_key
        if not hmac.compare_digest(header.tenant, _tenant_tag(file_key, self._tenant_id)):
            raise ExportForOtherTenant
        return file_key.derive(_MESSAGE, self._tenant_id)


def _header(encoded: bytes) -> ExportHeader:
    try:
        return msgspec.json.decode(encoded, type=ExportHeader)
    except msgspec.DecodeError:
        raise OpenError("format") from None
