"""The audit log's bytes: canonical bodies, the hash chain, anchors, exports, and the verifier that needs nothing else.

Pure: no database, no clock, no network. The verifier trusts one thing, the public key it is given; what it reads from
an export is a claim. It proves that events up to an anchor are those that were there when the anchor was signed; what
came after the newest anchor it only finds consistent with itself. `docs/formats/audit.md` is the same in words.
"""

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Literal
from uuid import UUID

from crypto import NoteInvalid, NoteKey, open_note

FORMAT: Final = 1
HASH_BYTES: Final = 32
BODY_BYTES_MAX: Final = 256 * 1024  # a batch of accesses is the largest: 100 with the longest ids there are
OPERATOR_CHAIN: Final = UUID(int=0)  # whose chain holds what operators do; no tenant has this id

RESTORED_ACTION: Final = "audit.restored"  # the event that documents what a restored backup took from the log

_CHAIN: Final = b"stateroom/v1/audit\0"
_START: Final = b"stateroom/v1/audit-start\0"
_ORIGIN: Final = re.compile(r"stateroom/audit/([0-9a-f-]{36})/([0-9a-f-]{36})\Z")
_DECIMAL: Final = re.compile(r"[1-9][0-9]{0,18}\Z")
_SIGNED_63: Final = 2**63

Detail = Mapping[str, Any]
Kind = Literal["damaged", "edited", "reordered", "missing", "forked", "truncated", "foreign", "incomplete"]


class AuditInvalid(ValueError):
    """An anchor, an export or a body is not what it claims to be; the message says how."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What a body says: who did what to what, and when."""

    tenant_id: UUID
    sequence: int
    at: datetime
    actor: str
    action: str
    target: str
    detail: Detail


@dataclass(frozen=True, slots=True)
class Entry:
    """A link of the chain as it is stored."""

    sequence: int
    body: bytes
    previous: bytes
    hash: bytes


def encode_body(event: Event) -> bytes:
    """Return an event's canonical bytes: JSON in ASCII, members sorted, no spaces, numbers whole.

    Raises:
        AuditInvalid: The detail holds something else than texts, whole numbers, booleans, null, lists and objects of
            them; or the body is too long.
    """
    if not isinstance(event.detail, Mapping):
        raise AuditInvalid("the detail of an audit event is an object")
    _check_plain(event.detail)
    document = {
        "format": FORMAT,
        "tenant_id": str(event.tenant_id),
        "sequence": event.sequence,
        "at": event.at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "actor": event.actor,
        "action": event.action,
        "target": event.target,
        "detail": event.detail,
    }
    body = _canonical(document)
    if len(body) > BODY_BYTES_MAX:
        raise AuditInvalid(f"an audit event has more than {BODY_BYTES_MAX:,} bytes")
    return body


def decode_body(body: bytes) -> Event:
    """Read canonical bytes.

    Raises:
        AuditInvalid: They are not what `encode_body` writes.
    """
    try:
        document = json.loads(body)
        names = {"format", "tenant_id", "sequence", "at", "actor", "action", "target", "detail"}
        if document.keys() != names or document["format"] != FORMAT or _canonical(document) != body:
            raise AuditInvalid("the body is not canonical, or of a newer format")
        event = Event(
            tenant_id=UUID(document["tenant_id"]),
            sequence=_whole(document["sequence"]),
            at=datetime.strptime(document["at"], "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=UTC),
            actor=document["actor"],
            action=document["action"],
            target=document["target"],
            detail=document["detail"],
        )
        canonical = encode_body(event) == body
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
        raise AuditInvalid("the body is not an audit event") from None
    if not canonical:
        raise AuditInvalid("the body is not canonical")
    return event


def _canonical(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, ensure_ascii=True, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _check_plain(value: Any) -> None:
    match value:
        case None | bool() | str():
            return
        case int() if -_SIGNED_63 <= value < _SIGNED_63:
            return
        case list() | tuple():
            for each in value:
                _check_plain(each)
            return
        case Mapping():
            for name, each in value.items():
                if not isinstance(name, str):
                    raise AuditInvalid("names in an audit event are text")
                _check_plain(each)
            return
        case _:
            raise AuditInvalid("an audit event holds texts, whole numbers, booleans, lists and objects only")


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < _SIGNED_63:
        raise AuditInvalid("a sequence is a whole number from 1")
    return value


def start_of(deployment_id: UUID, tenant_id: UUID) -> bytes:
    """What the first event of a chain follows: SHA-256 over the deployment's and the tenant's id."""
    return hashlib.sha256(_START + deployment_id.bytes + tenant_id.bytes).digest()


def link(previous: bytes, sequence: int, body: bytes) -> bytes:
    """The hash of an event: SHA-256(context || previous || u64 sequence || u32 length || body)."""
    parts = (_CHAIN, previous, sequence.to_bytes(8, "big"), len(body).to_bytes(4, "big"), body)
    return hashlib.sha256(b"".join(parts)).digest()


def origin_of(deployment_id: UUID, tenant_id: UUID) -> str:
    """The name of a chain, under which its anchors are signed."""
    return f"stateroom/audit/{deployment_id}/{tenant_id}"


def parse_origin(origin: str) -> tuple[UUID, UUID]:
    """The deployment and the tenant that a chain's name holds.

    Raises:
        AuditInvalid: It is no chain's name.
    """
    found = _ORIGIN.match(origin)
    try:
        if found is None:
            raise AuditInvalid("this is not the name of an audit chain")
        deployment_id, tenant_id = UUID(found[1]), UUID(found[2])
    except ValueError:
        raise AuditInvalid("this is not the name of an audit chain") from None
    if origin_of(deployment_id, tenant_id) != origin:
        raise AuditInvalid("this is not the name of an audit chain")
    return deployment_id, tenant_id


@dataclass(frozen=True, slots=True)
class AnchorText:
    """What an anchor says: the chain ``origin`` had ``sequence`` events, and the last one's hash was ``hash``."""

    origin: str
    sequence: int
    hash: bytes

    def render(self) -> str:
        """The text that is signed, laid out as a checkpoint of c2sp.org/tlog-checkpoint."""
        return f"{self.origin}\n{self.sequence}\n{base64.b64encode(self.hash).decode()}\n"

    @classmethod
    def open(cls, note: str, note_key: NoteKey) -> "AnchorText":
        """Read an anchor that ``note_key`` signed.

        Raises:
            AuditInvalid: It is none, or is not signed by this key, or is another chain's.
        """
        try:
            text = open_note(note, note_key)
        except NoteInvalid as reason:
            raise AuditInvalid(str(reason)) from None
        lines = text.split("\n")
        if len(lines) != 4 or not _DECIMAL.match(lines[1]):
            raise AuditInvalid("the note is not an anchor of an audit log")
        try:
            digest = base64.b64decode(lines[2], validate=True)
        except (ValueError, binascii.Error):
            digest = b""
        anchor = cls(lines[0], int(lines[1]), digest)
        if len(digest) != HASH_BYTES or anchor.render() != text or anchor.origin != note_key.name:
            raise AuditInvalid("the note is not an anchor of this audit log")
        return anchor


@dataclass(frozen=True, slots=True)
class Gap:
    """What a restored backup took from a log, as an event in the log says.

    Attributes:
        sequence: The event that says so. Its number is above all that ever were in use, and no number is used twice.
        kept: The newest anchored event that the restored log still held; 0: none. Nothing up to it is excused.
        found: The last event of the restored log.
        found_hash: That event's hash, which the event follows.
        anchored: The newest event that was anchored. Anchors after ``kept`` and up to it are of lost events.
        anchored_hash: That event's hash.
    """

    sequence: int
    kept: int
    found: int
    found_hash: bytes
    anchored: int
    anchored_hash: bytes

    @classmethod
    def after(cls, kept: int, found: int, found_hash: bytes, anchored: AnchorText) -> "Gap":
        """The gap between a restored log and the newest anchor."""
        return cls(max(found, anchored.sequence) + 1, kept, found, found_hash, anchored.sequence, anchored.hash)

    @property
    def detail(self) -> Detail:
        """The detail of the event."""
        return {
            "kept": self.kept,
            "found": self.found,
            "found_hash": self.found_hash.hex(),
            "anchored": self.anchored,
            "anchored_hash": self.anchored_hash.hex(),
        }

    @property
    def message(self) -> str:
        """The gap in words."""
        return (
            f"a backup was restored: events after {self.kept} and up to {self.anchored} that were anchored are lost;"
            f" the restored log ended at event {self.found} and goes on with event {self.sequence}"
        )

    @classmethod
    def of(cls, event: Event) -> "Gap":
        """Read an event.

        Raises:
            AuditInvalid: It documents no gap that could be.
        """
        detail = event.detail
        try:
            if detail.keys() != {"kept", "found", "found_hash", "anchored", "anchored_hash"}:
                raise AuditInvalid("the event does not document a restored log")
            found_hash, anchored_hash = bytes.fromhex(detail["found_hash"]), bytes.fromhex(detail["anchored_hash"])
            kept, found, anchored = detail["kept"], detail["found"], _whole(detail["anchored"])
            numbers = all(isinstance(each, int) and not isinstance(each, bool) for each in (kept, found))
            is_possible = (
                numbers and 0 <= kept <= found and kept < anchored and event.sequence == max(found, anchored) + 1
            )
        except (TypeError, ValueError):
            raise AuditInvalid("the event does not document a restored log") from None
        if not is_possible or len(found_hash) != HASH_BYTES or len(anchored_hash) != HASH_BYTES:
            raise AuditInvalid("the event does not document a restored log")
        return cls(event.sequence, kept, found, found_hash, anchored, anchored_hash)


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that does not verify.

    Attributes:
        kind: ``edited``: an event's bytes changed. ``reordered``, ``missing``: events are not where they were.
            ``forked``: consistent with itself, but another history than was anchored. ``truncated``: fewer events than
            were anchored. ``foreign``: another chain's. ``damaged``: not readable. ``incomplete``: the export itself
            was cut or changed after it was made.
        sequence: Where, as far as it can be said; 0: the whole.
        message: For a person.
    """

    kind: Kind
    sequence: int
    message: str


@dataclass(slots=True)
class Verification:
    """What a verifier found.

    Attributes:
        events: How many it read.
        anchored_through: Up to which event an anchor vouches; what follows only agrees with itself.
        findings: Empty: everything verified, but for the gaps.
        gaps: What restored backups took, each documented by an event that an anchor vouches for. Never nothing to
            look at: an operator who may restore a database said so.
    """

    events: int = 0
    anchored_through: int = 0
    findings: list[Finding] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether everything verified."""
        return not self.findings


class ChainVerifier:
    """Follows a chain event by event and remembers what does not fit, and which gaps are documented.

    A gap is documented by the writer of the chain; whether to believe it takes an anchor at or after its event.

    ``sequence`` is the last event known already (0 for none), and ``previous`` that event's hash (None for the start).
    """

    def __init__(
        self, deployment_id: UUID, tenant_id: UUID, *, sequence: int = 0, previous: bytes | None = None
    ) -> None:
        self.sequence = sequence
        self.hash = start_of(deployment_id, tenant_id) if previous is None else previous
        self.findings: list[Finding] = []
        self.gaps: list[Gap] = []
        self._tenant_id = tenant_id

    def follow(self, entry: Entry) -> None:
        """Take the next event."""
        try:
            event = decode_body(entry.body)
        except AuditInvalid:
            event = None
        gap = self._gap(entry, event)
        expected = self.sequence + 1 if gap is None else gap.sequence
        self.sequence = entry.sequence
        fits = entry.sequence == expected
        if entry.sequence > expected:
            self._record("missing", expected, f"events {expected} to {entry.sequence - 1} are missing")
        elif not fits:
            self._record("reordered", entry.sequence, f"event {entry.sequence} stands where {expected} should")
        is_linked = link(entry.previous, entry.sequence, entry.body) == entry.hash
        if not is_linked:
            self._record("edited", entry.sequence, f"event {entry.sequence} does not have the hash it is stored with")
        if fits and entry.previous != self.hash:
            self._record(
                "edited" if not is_linked else "forked",
                entry.sequence,
                f"event {entry.sequence} does not follow the event before it",
            )
        if event is None:
            self._record("damaged", entry.sequence, f"event {entry.sequence} cannot be read")
        elif event.sequence != entry.sequence:
            self._record("reordered", entry.sequence, f"event {event.sequence} stands at {entry.sequence}")
        # What an event says is believed only as far as it is what was stored.
        if is_linked and event is not None and event.tenant_id != self._tenant_id:
            self._record("foreign", entry.sequence, f"event {entry.sequence} belongs to another tenant")
        self.hash = entry.hash

    def _gap(self, entry: Entry, event: Event | None) -> Gap | None:
        if event is None or event.action != RESTORED_ACTION:
            return None
        try:
            gap = Gap.of(event)
        except AuditInvalid:
            gap = None
        if gap is None or (gap.sequence, gap.found, gap.found_hash) != (entry.sequence, self.sequence, self.hash):
            message = f"event {entry.sequence} tells of a restored backup, but not of this log's"
            self._record("forked", entry.sequence, message)
            return None
        self.gaps.append(gap)
        return gap

    def _record(self, kind: Kind, sequence: int, message: str) -> None:
        self.findings.append(Finding(kind, sequence, message))


def export_lines(origin: str, entries: Iterable[Entry]) -> Iterator[bytes]:
    """An export as lines, each with its line feed: one JSON object an event, then one about the whole file."""
    digest, count = hashlib.sha256(), 0
    for entry in entries:
        line = _line(
            {
                "sequence": entry.sequence,
                "previous": entry.previous.hex(),
                "hash": entry.hash.hex(),
                # A genuine body is ASCII. Any other was edited, and its hash will not fit whatever is shown here.
                "body": entry.body.decode("ascii", "replace"),
            }
        )
        digest.update(line)
        count += 1
        yield line
    yield _line({"origin": origin, "count": count, "sha256": digest.hexdigest()})


def _line(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, ensure_ascii=True, separators=(",", ":")).encode() + b"\n"


def _parse_entry(document: Any) -> Entry:
    try:
        if document.keys() != {"sequence", "previous", "hash", "body"}:
            raise AuditInvalid("a line of the export is not an event")
        entry = Entry(
            _whole(document["sequence"]),
            document["body"].encode("utf-8", "surrogatepass"),
            bytes.fromhex(document["previous"]),
            bytes.fromhex(document["hash"]),
        )
    except (AttributeError, TypeError, ValueError):
        raise AuditInvalid("a line of the export is not an event") from None
    if len(entry.previous) != HASH_BYTES or len(entry.hash) != HASH_BYTES:
        raise AuditInvalid("a line of the export is not an event")
    return entry


def verify_export(lines: Iterable[bytes], anchors: Iterable[str], public_key: str) -> Verification:
    """Verify an export against anchors, with nothing else at hand.

    ``lines`` are as `export_lines` gave them; ``anchors`` one or more of this chain, in any order. The public key comes
    from a source outside the control of those who could change the log.

    Raises:
        AuditInvalid: The public key is none of an audit log, there is no anchor, or an anchor is not signed by the
            key: nothing can be said then.
    """
    try:
        note_key = NoteKey.parse(public_key)
    except NoteInvalid as reason:
        raise AuditInvalid(str(reason)) from None
    chain = ChainVerifier(*parse_origin(note_key.name))
    wanted: dict[int, set[bytes]] = {}
    for note in anchors:
        anchor = AnchorText.open(note, note_key)
        wanted.setdefault(anchor.sequence, set()).add(anchor.hash)
    if not wanted:
        raise AuditInvalid("an export is verified against at least one anchor")
    result = Verification(findings=chain.findings)
    for sequence, hashes in wanted.items():
        if len(hashes) > 1:
            result.findings.append(Finding("forked", sequence, f"two anchors disagree about event {sequence}"))
    seen = _read(lines, note_key.name, chain, wanted, result)
    _compare(wanted, seen, chain, result)
    if result.ok:
        result.anchored_through = max(wanted)
    return result


def _compare(
    wanted: Mapping[int, set[bytes]], seen: Mapping[int, set[bytes]], chain: ChainVerifier, result: Verification
) -> None:
    """Compare anchors with the events that were there, and see which gaps an anchor vouches for."""
    vouched = max((sequence for sequence, hashes in wanted.items() if seen.get(sequence) == hashes), default=0)
    result.gaps.extend(gap for gap in chain.gaps if gap.sequence <= vouched)
    for gap in chain.gaps:
        if gap.sequence > vouched:
            message = f"event {gap.sequence} says that {gap.message}; no anchor given here vouches for it"
            result.findings.append(Finding("missing", gap.sequence, message))
        elif wanted.get(gap.anchored, {gap.anchored_hash}) != {gap.anchored_hash}:
            message = f"event {gap.sequence} names another event {gap.anchored} than was anchored"
            result.findings.append(Finding("forked", gap.anchored, message))
    for sequence in sorted(wanted):
        excused = any(gap.kept < sequence <= gap.anchored for gap in result.gaps)
        if excused or seen.get(sequence) == wanted[sequence]:
            continue
        if sequence > chain.sequence:
            message = f"event {sequence} was anchored, but the log ends at {chain.sequence}"
            result.findings.append(Finding("truncated", sequence, message))
            return
        if sequence in seen:
            message = f"event {sequence} is not the one that was anchored"
            result.findings.append(Finding("forked", sequence, message))
        else:
            message = f"event {sequence} was anchored, but is not in the log"
            result.findings.append(Finding("missing", sequence, message))


def _read(
    lines: Iterable[bytes], origin: str, chain: ChainVerifier, wanted: Collection[int], result: Verification
) -> dict[int, set[bytes]]:
    """Follow an export; returns the hashes of the ``wanted`` events."""
    digest, closing = hashlib.sha256(), None
    seen: dict[int, set[bytes]] = {}
    for number, line in enumerate(lines, 1):
        if closing is not None:
            result.findings.append(Finding("incomplete", 0, "the export goes on after its last line"))
            return seen
        try:
            document = json.loads(line)
        except (ValueError, RecursionError):
            document = None
        if isinstance(document, dict) and "count" in document:
            closing = document
            continue
        try:
            entry = _parse_entry(document)
        except AuditInvalid:
            result.findings.append(Finding("damaged", 0, f"line {number} of the export cannot be read"))
            digest.update(line)
            continue
        chain.follow(entry)
        result.events += 1
        digest.update(line)
        if entry.sequence in wanted:
            seen.setdefault(entry.sequence, set()).add(entry.hash)
    expected = {"origin": origin, "count": result.events, "sha256": digest.hexdigest()}
    if closing is None:
        result.findings.append(Finding("incomplete", 0, "the export has no last line: it was cut"))
    elif closing != expected:
        kind: Kind = "foreign" if closing.get("origin") != origin else "incomplete"
        result.findings.append(Finding(kind, 0, "the export's last line is about another export"))
    return seen
