"""An effect's row: what its MAC covers, and what is sealed in it.

Two envelopes: what was **asked** (the name, the tool, its arguments), written once, and the **outcome** (the result,
its digest, the name of an error). The MAC covers every clear column, the thread's life, and keyed tags of both; never
an envelope, so that sealing them again leaves it as it is. Both envelopes take the client's share of their thread, if
that has one.
"""

import hmac
from datetime import datetime
from uuid import UUID

import msgspec

from crypto import Kind, OpenError, Sealer
from storage.encoding import encode_msgpack
from storage.errors import IntegrityFailure
from storage.format.thread_ledgers.names import member_of
from storage.format.thread_ledgers.seal import row_mac


class EffectColumns(msgspec.Struct, frozen=True):
    """The clear columns of an effect's row.

    Attributes:
        thread_id: The thread.
        namespace: The root of the namespace.
        name_mac: The tag of its name.
        execution: The number of the execution under that name.
        attempt: How often it was started.
        mode: What may be repeated.
        status: How it stands.
        intent_mac: The tag of what is meant.
        provider_key: What a provider tells repetitions by.
        anchor_checkpoint_id: The checkpoint that it was started at.
        run_id: The id of the run.
        fence: That of the claim under which it was started; 0: none.
        created_at: When its first attempt was started.
        started_at: When its newest attempt was started.
        leased_until: When whoever started it is taken for dead.
        finished_at: When it ended.
        started_by: The id of the key that started it.
        resolved_by: Who said whether it happened.
        result_state: Whether there is a result, and where.
        result_bytes: The size of the result.
        artifact_id: The artifact that holds it.
        approval_id: The approval that its start consumed.
        approval_position: Which action of that.
        copied: Whether it came with a copy of its thread.
        client_share: Whether the envelopes take the client's share.
        asked_member: The tag of what was asked.
        outcome_member: The tag of the outcome; None: there is none.
    """

    thread_id: str
    namespace: str
    name_mac: bytes
    execution: int
    attempt: int
    mode: str
    status: str
    intent_mac: bytes
    provider_key: UUID
    anchor_checkpoint_id: str | None
    run_id: str | None
    fence: int
    created_at: datetime
    started_at: datetime
    leased_until: datetime
    finished_at: datetime | None
    started_by: str
    resolved_by: str | None
    result_state: str
    result_bytes: int | None
    artifact_id: UUID | None
    approval_id: UUID | None
    approval_position: int | None
    copied: bool
    client_share: bool
    asked_member: bytes
    outcome_member: bytes | None

    def proof(self, sealer: Sealer, incarnation: bytes) -> bytes:
        """The MAC of the row, in this life of its thread."""
        values = msgspec.structs.astuple(self)
        plain = [int(each) if isinstance(each, bool) else each for each in values]
        return row_mac(sealer, "effect", (incarnation, *plain))

    def check(self, sealer: Sealer, incarnation: bytes, mac: bytes) -> None:
        """Return if the row is as a gateway wrote it.

        Raises:
            IntegrityFailure: It was edited, or is another's.
        """
        if not hmac.compare_digest(self.proof(sealer, incarnation), mac):
            raise IntegrityFailure("an effect of this thread was altered outside the gateway")

    def location(self, part: str) -> tuple[str, bytes, int, str]:
        """The context fields of an envelope: its place, and which of the two it is."""
        return (self.thread_id, self.name_mac, self.execution, part)


class Asked(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What was asked.

    Attributes:
        name: The name of the call.
        tool: The name of the tool.
        args: The arguments, as MessagePack.
        identity: The pointers into them that say what is the same.
        tool_digest: A digest of what the tool is.
        repeats: The number of the earlier execution of the same intent.
        repeats_name: The name of that one, if it is another.
    """

    name: str
    tool: str
    args: bytes
    identity: tuple[str, ...]
    tool_digest: str | None = None
    repeats: int | None = None
    repeats_name: str | None = None


class Outcome(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What became of it.

    Attributes:
        result: The result, as MessagePack; None: there is none here.
        result_digest: The digest of the result that its finish named.
        error: The short name of the error's class.
    """

    result: bytes | None = None
    result_digest: bytes | None = None
    error: str | None = None


_NOTHING = Outcome()
_asked = msgspec.msgpack.Decoder(Asked)
_outcome = msgspec.msgpack.Decoder(Outcome)


def asked_member(sealer: Sealer, asked: Asked) -> bytes:
    """The tag of what was asked."""
    return member_of(sealer, b"effect-asked", encode_msgpack(asked))


def outcome_member(sealer: Sealer, outcome: Outcome) -> bytes | None:
    """The tag of an outcome; None: there is nothing to say."""
    return None if outcome == _NOTHING else member_of(sealer, b"effect-outcome", encode_msgpack(outcome))


def seal_asked(sealer: Sealer, columns: EffectColumns, asked: Asked) -> bytes:
    """The envelope of what was asked."""
    return sealer.seal(Kind.EFFECT, columns.location("asked"), encode_msgpack(asked))


def seal_outcome(sealer: Sealer, columns: EffectColumns, outcome: Outcome) -> bytes | None:
    """The envelope of an outcome; None: there is nothing to say."""
    if outcome == _NOTHING:
        return None
    return sealer.seal(Kind.EFFECT, columns.location("outcome"), encode_msgpack(outcome))


def open_asked(sealer: Sealer, columns: EffectColumns, envelope: bytes) -> Asked:
    """Undo `seal_asked`.

    Raises:
        IntegrityFailure: It is not this effect's.
    """
    plaintext = _opened(sealer, columns, "asked", envelope)
    if not hmac.compare_digest(member_of(sealer, b"effect-asked", plaintext), columns.asked_member):
        raise IntegrityFailure("what an effect asked for was altered")
    try:
        return _asked.decode(plaintext)
    except msgspec.DecodeError:
        raise IntegrityFailure from None


def open_outcome(sealer: Sealer, columns: EffectColumns, envelope: bytes | None) -> Outcome:
    """Undo `seal_outcome`.

    Raises:
        IntegrityFailure: It is not this effect's.
    """
    if (envelope is None) != (columns.outcome_member is None):
        raise IntegrityFailure("what became of an effect was altered")
    if envelope is None or columns.outcome_member is None:
        return _NOTHING
    plaintext = _opened(sealer, columns, "outcome", envelope)
    if not hmac.compare_digest(member_of(sealer, b"effect-outcome", plaintext), columns.outcome_member):
        raise IntegrityFailure("what became of an effect was altered")
    try:
        return _outcome.decode(plaintext)
    except msgspec.DecodeError:
        raise IntegrityFailure from None


def _opened(sealer: Sealer, columns: EffectColumns, part: str, envelope: bytes) -> bytes:
    try:
        return sealer.open(Kind.EFFECT, columns.location(part), envelope)
    except OpenError:
        raise IntegrityFailure from None
