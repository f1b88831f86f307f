"""Ed25519 signatures (RFC 8032) and the signed note they travel in.

Owns the signing key, the text form of the public key and the note: a text, an empty line, and a line for each
signature (https://c2sp.org/signed-note; interoperates with Go's golang.org/x/mod/sumdb/note). It does not say what a
text means, and it keeps no list of whom to trust: that is the caller's public key.
"""

import base64
import binascii
import hashlib
import re
from dataclasses import dataclass
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from crypto.errors import NoteInvalid
from crypto.keyring import SecretKey

PUBLIC_KEY_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64

_ED25519: Final = b"\x01"  # the signature type of c2sp.org/signed-note
_KEY_ID_BYTES: Final = 4
_NAME: Final = re.compile(r"[^\s+]+\Z")
_SIGNATURES_MAX: Final = 100  # as in Go's implementation: more is an attack on the reader
_NOTE_BYTES_MAX: Final = 1_000_000
_DASH: Final = "\N{EM DASH}"


class SigningKey:
    """An Ed25519 private key; its 32 byte seed is wiped as any `SecretKey`, the library's copy is not."""

    __slots__ = ("_private", "public_key")

    def __init__(self, seed: SecretKey) -> None:
        self._private = Ed25519PrivateKey.from_private_bytes(bytes(seed.borrow()))
        self.public_key: bytes = self._private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)

    def __repr__(self) -> str:
        return "SigningKey(...)"

    def sign(self, message: bytes) -> bytes:
        """Return the 64 byte signature of a message; the same message has the same signature."""
        return self._private.sign(message)


def verify_signature(public_key: bytes, message: bytes, signature: bytes) -> bool:
    """Whether the owner of ``public_key`` (32 bytes) signed ``message``."""
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


@dataclass(frozen=True, slots=True)
class NoteKey:
    """The public key of a note's signer, and the name it signs under.

    Attributes:
        name: Not empty, without white space and plus signs.
        public_key: 32 bytes.
    """

    name: str
    public_key: bytes

    def __post_init__(self) -> None:
        if not _NAME.match(self.name) or len(self.public_key) != PUBLIC_KEY_BYTES:
            raise NoteInvalid("a note's key has a name without white space and plus signs, and 32 bytes")

    @property
    def key_id(self) -> bytes:
        """Four bytes that tell keys of one name apart: SHA-256(name || 0A || 01 || public key)[:4]."""
        encoded = self.name.encode() + b"\n" + _ED25519 + self.public_key
        return hashlib.sha256(encoded).digest()[:_KEY_ID_BYTES]

    def __str__(self) -> str:
        encoded = base64.b64encode(_ED25519 + self.public_key).decode()
        return f"{self.name}+{self.key_id.hex()}+{encoded}"

    @classmethod
    def parse(cls, text: str) -> "NoteKey":
        """Read the text form ``name+key id in hex+base64``.

        Raises:
            NoteInvalid: It is none, is no Ed25519 key, or its key id is another key's.
        """
        parts = text.strip().split("+", 2)  # base64 may hold plus signs, a name does not
        if len(parts) != 3:
            raise NoteInvalid("a public key looks like name+key id+base64")
        name, key_id, encoded = parts
        raw = _decode(encoded)
        if raw is None or raw[:1] != _ED25519:
            raise NoteInvalid("the public key is no Ed25519 key")
        found = cls(name, raw[1:])
        if found.key_id.hex() != key_id:
            raise NoteInvalid("the public key was damaged: its key id does not match")
        return found


def sign_note(text: str, name: str, signing_key: SigningKey) -> str:
    """Return ``text`` as a note with one signature.

    Raises:
        NoteInvalid: The text is empty, does not end with a line feed or holds other control characters; or the name
            cannot be a signer's.
    """
    _check_text(text)
    note_key = NoteKey(name, signing_key.public_key)
    encoded = base64.b64encode(note_key.key_id + signing_key.sign(text.encode())).decode()
    return f"{text}\n{_DASH} {name} {encoded}\n"


def open_note(note: str, note_key: NoteKey) -> str:
    """Return the text of a note that ``note_key`` signed. Signatures of others are not looked at.

    Raises:
        NoteInvalid: It is no note, or this key's signature is missing or wrong.
    """
    if len(note.encode(errors="surrogatepass")) > _NOTE_BYTES_MAX:
        raise NoteInvalid("the note is too long")
    head, separator, signatures = note.rpartition("\n\n")
    lines = signatures.split("\n")
    if not separator or lines.pop() != "" or not 1 <= len(lines) <= _SIGNATURES_MAX:
        raise NoteInvalid("this is no signed note")
    text = head + "\n"
    _check_text(text)
    found = False
    for line in lines:
        name, signature = _signature(line)
        if name != note_key.name or signature[:_KEY_ID_BYTES] != note_key.key_id:
            continue
        if not verify_signature(note_key.public_key, text.encode(), signature[_KEY_ID_BYTES:]):
            raise NoteInvalid("the note's signature is wrong: the note was altered")
        found = True
    if not found:
        raise NoteInvalid("the note is not signed by this public key")
    return text


def _check_text(text: str) -> None:
    if not text.endswith("\n") or any(character < " " and character != "\n" for character in text):
        raise NoteInvalid("a note's text ends with a line feed and has no other control character")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise NoteInvalid("a note's text is not valid Unicode") from None


def _signature(line: str) -> tuple[str, bytes]:
    parts = line.split(" ")
    if len(parts) != 3 or parts[0] != _DASH or not _NAME.match(parts[1]):
        raise NoteInvalid("a signature line is malformed")
    raw = _decode(parts[2])
    if raw is None or len(raw) <= _KEY_ID_BYTES:
        raise NoteInvalid("a signature line is malformed")
    return parts[1], raw


def _decode(encoded: str) -> bytes | None:
    try:
        return base64.b64decode(encoded, validate=True)
    except (ValueError, binascii.Error):
        return None
