"""The headers of artifacts: names, metadata and digests as they travel, ranges, conditions, safe answers.

Owns their syntax: RFC 8187 (names), RFC 9530 (digests), RFC 9110 sections 13 and 14 (conditions, ranges), RFC 6266
(dispositions). Everything a client sends is checked before it can reach a header of an answer: a media type is of a
narrow grammar and a name is percent-encoded, so that neither can end a line or add a header.
"""

import base64
import binascii
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any, Literal
from urllib.parse import quote, unquote_to_bytes

import msgspec

from gateway.admission import limits
from gateway.problems import InvalidRequest, RangeNotSatisfiable
from gateway.wire.base import NAME_BYTES_MAX
from gateway.wire.problems import Fault
from storage.encoding import decode_json, encode_json, json_decoder

NAME_HEADER = "Stateroom-Artifact-Name"
METADATA_HEADER = "Stateroom-Artifact-Metadata"
PREVIEW_HEADER = "Stateroom-Artifact-Preview"
DIGEST_HEADER = "Content-Digest"
MEDIA_TYPE_DEFAULT = "application/octet-stream"
DIGEST_BYTES = 32
_WANTED = re.compile(r"sha-256\s*=\s*(?:[1-9]|10)")
# Nothing may run, load or be sent on, whatever a file says it is; see the Content-Security-Policy specification.
CONTENT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; media-src data:; sandbox"

_WORD = r"[A-Za-z0-9!#$&^_.+-]{1,127}"
_MEDIA_TYPE = re.compile(rf"{_WORD}/{_WORD}(?:; ?{_WORD}=(?:{_WORD}|\"[ !#-\[\]-~]{{0,127}}\")){{0,4}}\Z", re.ASCII)
_MEDIA_TYPE_CHARACTERS_MAX = 255
_EXTENDED = re.compile(r"utf-8'[A-Za-z0-9-]{0,32}'(.*)\Z", re.IGNORECASE | re.ASCII)
_EXTENDED_TEXT = re.compile(r"(?:[A-Za-z0-9!#$&+.^_`|~-]|%[0-9A-Fa-f]{2})+\Z", re.ASCII)  # RFC 8187 section 3.2.1
_VISIBLE = re.compile(r"[\x20-\x7e]+\Z", re.ASCII)
_SHA256 = re.compile(r"sha-256=:([A-Za-z0-9+/]{43}=):\Z", re.ASCII)
_RANGE = re.compile(r"bytes=([0-9]{0,19})-([0-9]{0,19})\Z", re.ASCII | re.IGNORECASE)
_ENTITY_TAG = re.compile(r'(W/)?("[\x21\x23-\x7e\x80-\xff]*")')
# RFC 9110 section 5.6.7: the form that is sent, and the two obsolete ones that a recipient must understand.
_IMF_DATE = "%a, %d %b %Y %H:%M:%S GMT"
_OBSOLETE_DATES = ("%A, %d-%b-%y %H:%M:%S GMT", "%a %b %d %H:%M:%S %Y")
_YEARS_AHEAD_MAX = 50  # RFC 9110 section 5.6.7, of a year of two digits
_SHOWN = ("image/", "audio/", "video/")
_SHOWN_WHOLE = frozenset({"application/pdf", "text/plain"})
_FORMS = frozenset({"multipart/form-data", "application/x-www-form-urlencoded"})
_json = json_decoder(dict[str, Any])


def check_media_type(text: str, fault: Fault) -> str:
    """Return ``text`` if it is a media type, perhaps with parameters, of at most 255 characters.

    Raises:
        InvalidRequest: with ``fault``, it is not.
    """
    if len(text) > _MEDIA_TYPE_CHARACTERS_MAX or not _MEDIA_TYPE.match(text):
        raise InvalidRequest(fault)
    return text


def is_form(media_type: str) -> bool:
    """Whether a media type is that of a form: how a browser or a tool sends a file, and never what the file is."""
    return media_type.partition(";")[0].strip().lower() in _FORMS


def check_name(text: str, fault: Fault) -> str:
    """Return ``text`` if it can name an artifact: 1 to 255 bytes of UTF-8 without control characters.

    Raises:
        InvalidRequest: with ``fault``, it cannot.
    """
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise InvalidRequest(fault) from None
    if not 1 <= size <= NAME_BYTES_MAX or any(character < " " or character == "\x7f" for character in text):
        raise InvalidRequest(fault)
    return text


def parse_name(text: str | None) -> str:
    """A name from its header: plain ASCII, or ``UTF-8''`` and percent-encoded.

    Raises:
        InvalidRequest: it is absent or neither.
    """
    fault = Fault(
        detail="must be 1 to 255 bytes: visible ASCII, or UTF-8'' and percent-encoded UTF-8 (RFC 8187)",
        header=NAME_HEADER,
    )
    if text is None:
        raise InvalidRequest(fault)
    extended = _EXTENDED.match(text)
    if extended is None:
        if not _VISIBLE.match(text):
            raise InvalidRequest(fault)
        return check_name(text, fault)
    if not _EXTENDED_TEXT.match(extended[1]):
        raise InvalidRequest(fault)
    try:
        name = unquote_to_bytes(extended[1]).decode("utf-8")
    except UnicodeDecodeError:
        raise InvalidRequest(fault) from None
    return check_name(name, fault)


def _unbase64url(text: str, fault: Fault) -> bytes:
    try:
        coded = text.encode("ascii")
        return base64.b64decode(
            coded.rstrip(b"=") + b"=" * (-len(coded.rstrip(b"=")) % 4), altchars=b"-_", validate=True
        )
    except (binascii.Error, UnicodeEncodeError, ValueError):
        raise InvalidRequest(fault) from None


def parse_metadata(text: str | None) -> dict[str, Any]:
    """Metadata from its header: base64url of a JSON object.

    Raises:
        InvalidRequest: it is not.
    """
    if text is None:
        return {}
    fault = Fault(detail="must be base64url of a JSON object", header=METADATA_HEADER)
    try:
        return _json(_unbase64url(text, fault))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise InvalidRequest(fault) from None


def check_metadata(metadata: dict[str, Any], fault: Fault) -> dict[str, Any]:
    """Return ``metadata`` if it is plain JSON of at most `limits.METADATA_BYTES_MAX` bytes.

    Raises:
        InvalidRequest: with ``fault``, it is not.
    """
    try:
        size = len(encode_json(metadata))
        plain = decode_json(encode_json(metadata)) == metadata
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError):
        raise InvalidRequest(fault) from None
    if size > limits.METADATA_BYTES_MAX or not plain:
        raise InvalidRequest(fault)
    return metadata


def parse_preview(text: str | None) -> bytes | None:
    """A preview from its header: base64url.

    Raises:
        InvalidRequest: it is not, or too long.
    """
    if text is None:
        return None
    fault = Fault(detail=f"must be base64url of at most {limits.PREVIEW_BYTES_MAX:,} bytes", header=PREVIEW_HEADER)
    preview = _unbase64url(text, fault)
    if len(preview) > limits.PREVIEW_BYTES_MAX:
        raise InvalidRequest(fault)
    return preview


def parse_digest(text: str | None, fault: Fault | None = None) -> bytes | None:
    """A SHA-256 as RFC 9530 writes it, ``sha-256=:<base64>:``, or None.

    Raises:
        InvalidRequest: it is anything else.
    """
    if text is None:
        return None
    fault = fault or Fault(detail="must be sha-256=:<base64 of 32 bytes>: (RFC 9530)", header=DIGEST_HEADER)
    match = _SHA256.match(text.strip())
    if match is None:
        raise InvalidRequest(fault)
    try:
        digest = base64.b64decode(match[1], validate=True)
    except binascii.Error:
        raise InvalidRequest(fault) from None
    if len(digest) != DIGEST_BYTES:
        raise InvalidRequest(fault)
    return digest


def format_digest(digest: bytes) -> str:
    """A SHA-256 as RFC 9530 writes it."""
    return f"sha-256=:{base64.b64encode(digest).decode('ascii')}:"


def entity_tag(tag: bytes) -> str:
    """The strong ETag of a content: opaque, and keyed, so that who sees it on the way cannot tell known contents."""
    return f'"{tag.hex()}"'


def wants_digest(text: str | None) -> bool:
    """Whether a ``Want-Repr-Digest`` or ``Want-Content-Digest`` (RFC 9530, section 4) asks for SHA-256."""
    members = (text or "").split(",")
    return any(_WANTED.fullmatch(member.strip()) for member in members)


def match(header: str | None, tag: str) -> bool:
    """Whether If-Match allows the request: it is absent, ``*`` or names ``tag`` (RFC 9110 section 13.1.1).

    The comparison is strong: a weak tag never matches.
    """
    if header is None or header.strip() == "*":
        return True
    return any(each[1] is None and each[2] == tag for each in _ENTITY_TAG.finditer(header))


def none_match(header: str | None, tag: str) -> bool:
    """Whether If-None-Match names ``tag``, so that the answer is 304 (weak comparison, RFC 9110 section 13.1.2)."""
    if header is None:
        return False
    return header.strip() == "*" or any(each[1] == tag for each in _ENTITY_TAG.findall(header))


def last_modified(modified_at: datetime) -> str:
    """The header Last-Modified; contents never change, so it is when the artifact was made, to the second."""
    return format_datetime(modified_at.astimezone(UTC).replace(microsecond=0), usegmt=True)


def unmodified_since(header: str | None, modified_at: datetime) -> bool:
    """Whether If-Unmodified-Since allows the request (RFC 9110 section 13.1.4); what is no date is ignored.

    Only asked when there is no If-Match.
    """
    since = None if header is None else _parse_date(header.strip(), modified_at)
    return since is None or modified_at.replace(microsecond=0) <= since


def modified_since(header: str | None, modified_at: datetime) -> bool:
    """Whether If-Modified-Since lets the content be sent, else it is 304 (RFC 9110 section 13.1.3); as above.

    Only asked when there is no If-None-Match.
    """
    since = None if header is None else _parse_date(header.strip(), modified_at)
    return since is None or modified_at.replace(microsecond=0) > since


def _parse_date(text: str, modified_at: datetime) -> datetime | None:
    """An HTTP-date, or None; ``modified_at`` says which century a year of two digits is in."""
    for form in (_IMF_DATE, *_OBSOLETE_DATES):
        try:
            date = datetime.strptime(text, form).replace(tzinfo=UTC)
        except ValueError:
            continue
        if "%y" in form and date.year > modified_at.year + _YEARS_AHEAD_MAX:
            date = date.replace(year=date.year - 100)
        return date
    return None


def range_condition(header: str | None, tag: str) -> bool:
    """Whether If-Range allows a range: it is absent or this strong tag (RFC 9110 section 13.1.5); dates never match."""
    return header is None or header.strip() == tag


@dataclass(frozen=True, slots=True)
class ByteRange:
    """A part of a content: ``length`` bytes from ``start``."""

    start: int
    length: int

    def content_range(self, size_bytes: int) -> str:
        """The header Content-Range."""
        return f"bytes {self.start}-{self.start + self.length - 1}/{size_bytes}"


def parse_range(header: str | None, size_bytes: int) -> ByteRange | None:
    """The one range that is asked for, or None for all of it: also where several or other units are asked for.

    Raises:
        RangeNotSatisfiable: none of the content is in it.
    """
    match = None if header is None else _RANGE.match(header.strip())
    if match is None or match[1] == match[2] == "":
        return None
    if match[1] == "":
        length = min(int(match[2]), size_bytes)
        start = size_bytes - length
    else:
        start = int(match[1])
        last = size_bytes - 1 if match[2] == "" else min(int(match[2]), size_bytes - 1)
        if match[2] and int(match[2]) < start:
            return None  # not a range at all (RFC 9110 section 14.1.1)
        length = last - start + 1
    if length < 1:
        raise RangeNotSatisfiable(size_bytes)
    return ByteRange(start, length)


def may_show(media_type: str) -> bool:
    """Whether a browser may show such a file in place: pictures except SVG, sound, video, PDF and plain text."""
    base = media_type.partition(";")[0].strip().lower()
    return base in _SHOWN_WHOLE or (base.startswith(_SHOWN) and not base.endswith(("+xml", "/xml", "svg")))


def content_headers(
    name: str, media_type: str, tag: bytes, modified_at: datetime, disposition: Literal["attachment", "inline"]
) -> dict[str, str]:
    """What goes with every answer that carries a content."""
    plain = re.sub(r"[^A-Za-z0-9 ._-]", "_", name)
    return {
        "content-type": media_type,
        "content-disposition": f"{disposition}; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}",
        "content-security-policy": CONTENT_POLICY,
        "referrer-policy": "no-referrer",
        "etag": entity_tag(tag),
        "last-modified": last_modified(modified_at),
        "accept-ranges": "bytes",
    }
