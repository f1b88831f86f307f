"""Seals and opens bytes under a context.

This package owns keys in memory, ciphers, the envelope format and root keys. It knows no table, no SQL and no
HTTP, and it is the only one that imports `cryptography`. Callers use a `Sealer` for a subject's data,
`SecretKey`, `KeyCache` and the wrapping functions for keys, and a `RootKey` for the outermost one; everything
fails closed with an error that carries neither payload nor key.
"""

from crypto.blob import BlobCipher
from crypto.context import Field, Kind, encode_context
from crypto.digests import CONTENT_ID_BYTES, boundary_digest, content_id, keyed_digest
from crypto.envelope import (
    READABLE_ENVELOPE_VERSIONS,
    WRITE_ENVELOPE_VERSION,
    Flag,
    Header,
    KeyScope,
    peek_header,
)
from crypto.errors import (
    CryptoError,
    ExportForOther,
    ExportForOtherTenant,
    ExportUnbound,
    KeyDenied,
    KeyDestroyed,
    KeyUnavailable,
    NoteInvalid,
    OpenError,
    RootKeyInvalid,
    SelfTestFailed,
    TransferKeyInvalid,
)
from crypto.keyring import (
    KCV_BYTES,
    KeyCache,
    SecretKey,
    SubjectKeyPlace,
    SubjectKeys,
    WrappingKey,
    unwrap_subject_key,
    wrap_subject_key,
)
from crypto.roots import (
    TOMBSTONE_PURPOSE,
    FileRootKey,
    MemoryRootKey,
    RootKey,
    RootKeys,
    WrappedKey,
    create_root_key,
    root_context,
)
from crypto.sealer import Sealer
from crypto.signing import NoteKey, SigningKey, open_note, sign_note
from crypto.suites import Suite
from crypto.transfer import ExportHeader, ExportOpener, ExportSealer, TransferKey, TransferPublicKey, TransferRecipient

__all__ = [
    "CONTENT_ID_BYTES",
    "KCV_BYTES",
    "READABLE_ENVELOPE_VERSIONS",
    "TOMBSTONE_PURPOSE",
    "WRITE_ENVELOPE_VERSION",
    "BlobCipher",
    "CryptoError",
    "ExportForOther",
    "ExportForOtherTenant",
    "ExportHeader",
    "ExportOpener",
    "ExportSealer",
    "ExportUnbound",
    "Field",
    "FileRootKey",
    "Flag",
    "Header",
    "KeyCache",
    "KeyDenied",
    "KeyDestroyed",
    "KeyScope",
    "KeyUnavailable",
    "Kind",
    "MemoryRootKey",
    "NoteInvalid",
    "NoteKey",
    "OpenError",
    "RootKey",
    "RootKeyInvalid",
    "RootKeys",
    "Sealer",
    "SecretKey",
    "SelfTestFailed",
    "SigningKey",
    "SubjectKeyPlace",
    "SubjectKeys",
    "Suite",
    "TransferKey",
    "TransferKeyInvalid",
    "TransferPublicKey",
    "TransferRecipient",
    "WrappedKey",
    "WrappingKey",
    "boundary_digest",
    "content_id",
    "create_root_key",
    "encode_context",
    "keyed_digest",
    "open_note",
    "peek_header",
    "root_context",
    "sign_note",
    "unwrap_subject_key",
    "wrap_subject_key",
]
