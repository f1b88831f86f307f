"""Every failure this package raises, and nothing more than its name.

Owns the exception types of `crypto`. An error carries a code, a version number or a delay; it never carries a
payload, a key, a context or the cause that could hold one. Mapping errors to HTTP answers belongs to the
gateway.
"""

from typing import Literal
from uuid import UUID

OpenCode = Literal["format", "unsupported", "authentication", "size"]


class CryptoError(Exception):
    """Base of every error of this package."""


class OpenError(CryptoError):
    """An envelope was refused; nothing of its content was released.

    Attributes:
        code: Why. `format`: the bytes are not an envelope. `unsupported`: a newer envelope version, an
            unknown suite or a reserved flag. `authentication`: wrong key, wrong context, another kind than
            asked for, or altered bytes. `size`: the content is larger than the caller allows, or its sealed
            length is untrue.
    """

    def __init__(self, code: OpenCode) -> None:
        super().__init__(f"envelope refused: {code}")
        self.code: OpenCode = code


class KeyUnavailable(CryptoError):
    """The key exists but cannot be had now (a root key service is down or throttles); try again later.

    Attributes:
        retry_after_seconds: The earliest moment at which another try makes sense, in seconds from now.
    """

    def __init__(self, retry_after_seconds: float) -> None:
        super().__init__(f"key unavailable, retry after {retry_after_seconds:g} s")
        self.retry_after_seconds = retry_after_seconds


class KeyDenied(CryptoError):
    """The root key refused: no permission, a disabled key, or a wrapping made by another root key."""


class KeyDestroyed(CryptoError):
    """The key version an envelope names no longer exists; what it sealed is gone for ever."""


class RootKeyInvalid(CryptoError):
    """The root key's configuration or file cannot be used; the message says what to do about it."""


class SelfTestFailed(CryptoError):
    """A known answer did not come out, or the library is too old; the process must not serve."""


class NoteInvalid(CryptoError):
    """A signed note or a public key is malformed, or the signature is wrong or missing."""


class TransferKeyInvalid(CryptoError):
    """A transfer key's public half is malformed or was damaged, or nothing can be sealed for it."""


class ExportForOther(CryptoError):
    """An export is sealed for another deployment's transfer key.

    Attributes:
        recipient: That key's fingerprint, as the export says in the clear.
    """

    def __init__(self, recipient: str) -> None:
        super().__init__("the export is sealed for another transfer key")
        self.recipient = recipient


class ExportForOtherTenant(CryptoError):
    """An export is sealed for this deployment, and for another tenant of it."""


class ExportUnbound(CryptoError):
    """An export is of a format that names a deployment and no tenant; nobody answered for this one."""

    def __init__(self, export_id: UUID) -> None:
        super().__init__(f"export {export_id} names no tenant")
        self.export_id = export_id
