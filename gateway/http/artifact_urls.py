"""Signed URLs of artifacts: who has one may read one artifact for a few minutes, without any credential.

A token binds the method, the tenant, the subject, the artifact, the artifact's URL epoch, the moment it expires and
how a browser is to show it; a MAC under a key derived from the pepper covers all of it, so that all processes of a
deployment agree and no one else can make one. It is a bearer capability: anyone who sees it can use it until it expires
or until the artifact's epoch is raised, which revokes every URL given for it so far. Nothing is hidden: a token shows
the subject's id to its holder.
"""

import base64
import binascii
import hashlib
import hmac
from datetime import datetime
from typing import Literal
from uuid import UUID

import msgspec
from msgspec import Struct

from gateway.problems import ArtifactUrlInvalid
from storage.encoding import encode_msgpack
from storage.keys.key_seals import Peppers

URL_SECONDS_MAX = 900  # as long as a page that shows a picture is looked at; a new one costs one request
TOKEN_CHARACTERS_MAX = 1024  # a subject of 255 bytes and the rest, in base64
_MAC_BYTES = 32
_METHOD = "GET"

Disposition = Literal["attachment", "inline"]


class Grant(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a token grants. ``expires_at`` is in seconds since 1970; ``method`` is one method of HTTP."""

    method: str
    tenant_id: UUID
    subject_id: str
    artifact_id: UUID
    epoch: int
    expires_at: int
    disposition: Disposition


_decoder = msgspec.msgpack.Decoder(Grant)


class ArtifactUrls:
    """Signs and reads tokens."""

    def __init__(self, peppers: Peppers) -> None:
        self._signing, *self._accepted = peppers.derive(b"stateroom/artifact-url/v1")

    def write(
        self,
        *,
        tenant_id: UUID,
        subject_id: str,
        artifact_id: UUID,
        epoch: int,
        expires_at: datetime,
        disposition: Disposition,
    ) -> str:
        """A token that reads one artifact until ``expires_at`` (rounded down to a second)."""
        grant = encode_msgpack(
            Grant(_METHOD, tenant_id, subject_id, artifact_id, epoch, int(expires_at.timestamp()), disposition)
        )
        return base64.urlsafe_b64encode(_mac(self._signing, grant) + grant).rstrip(b"=").decode("ascii")

    def read(self, token: str, *, method: str, now: datetime) -> Grant:
        """What a token grants now. Whether its epoch still stands is for the caller to ask.

        Raises:
            ArtifactUrlInvalid: it is forged, damaged, for another method, or has expired; it does not say which.
        """
        if len(token) > TOKEN_CHARACTERS_MAX:
            raise ArtifactUrlInvalid
        try:
            coded = token.encode("ascii")
            signed = base64.b64decode(coded + b"=" * (-len(coded) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, UnicodeEncodeError, ValueError):
            raise ArtifactUrlInvalid from None
        claimed, message = signed[:_MAC_BYTES], signed[_MAC_BYTES:]
        if not any(hmac.compare_digest(claimed, _mac(key, message)) for key in (self._signing, *self._accepted)):
            raise ArtifactUrlInvalid
        if base64.urlsafe_b64encode(signed).rstrip(b"=") != coded:
            raise ArtifactUrlInvalid  # one token has one spelling
        try:
            grant = _decoder.decode(message)
        except msgspec.DecodeError:
            raise ArtifactUrlInvalid from None
        if grant.method != method or grant.expires_at <= now.timestamp():
            raise ArtifactUrlInvalid
        return grant


def _mac(key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, hashlib.sha256)
