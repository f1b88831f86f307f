"""What can go wrong, as exceptions.

This module owns the mapping from a problem's stable ``code`` (RFC 9457 problem details) to an exception
class. It promises that no exception carries state, a credential or a request body; it does not promise that a
``detail`` text stays the same between releases. Catch classes or compare ``code``, never texts.
"""

import re
from datetime import datetime
from typing import Any, TypedDict, Unpack

import msgspec

from stateroom._options import refuse_unknown


class Fault(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a request is at fault.

    Attributes:
        detail: What is wrong there.
        pointer: JSON Pointer (RFC 6901) into the body, when the body is at fault.
        parameter: Name of the query parameter at fault.
        header: Name of the header at fault.
    """

    detail: str
    pointer: str | None = None
    parameter: str | None = None
    header: str | None = None


class Problem(msgspec.Struct, omit_defaults=True):
    """Problem details as the gateway sends them (RFC 9457 with extension members)."""

    code: str = ""
    title: str = ""
    detail: str = ""
    status: int = 0
    retryable: bool = False
    request_id: str = ""
    errors: list[Fault] = []
    limit: str | None = None
    head_id: str | None = None
    revision: int | None = None
    state: str | None = None
    progress: float | None = None
    claimed_until: datetime | None = None
    effect_name: str | None = None
    execution: int | None = None
    attempt: int | None = None


class ErrorMembers(TypedDict, total=False):
    """What an error says beside its text; ``StateroomError`` documents each."""

    code: str
    status: int
    retryable: bool
    request_id: str
    errors: tuple[Fault, ...]
    limit: str | None
    head_id: str | None
    revision: int | None
    upload_id: str | None
    retry_after_seconds: float | None
    state: str | None
    progress: float | None
    claimed_until: datetime | None
    effect_name: str | None
    execution: int | None
    attempt: int | None


_CAPITAL = re.compile(r"(?<=[a-z])(?=[A-Z])")
_BY_NAME: dict[str, type["StateroomError"]] = {}


class StateroomError(Exception):
    """Base of everything this package raises about the gateway.

    Attributes:
        code: Stable name of the problem; compare this, not the text.
        detail: One sentence for people.
        status: HTTP status, or 0 when no answer was received.
        retryable: Whether the same request may succeed later. The client has retried already.
        request_id: What to quote to an operator; empty when no answer was received.
        errors: Where the request is at fault.
        limit: Name of the limit that was exceeded.
        head_id: The namespace's head when the request was refused because it moved.
        revision: The item's revision when a write was refused because it moved; ``None``: there is no item.
        upload_id: What ``artifacts.upload(..., resume=)`` goes on with, when an upload was interrupted.
        retry_after_seconds: When the gateway says that it is worth asking again; ``None``: it does not say.
        state: Of a thread that is in the archive: ``archived``, ``frozen`` or ``thawing``.
        progress: Of its thaw, from 0 to 1; ``None``: it is not known.
        claimed_until: Of a thread that another run holds, when its claim is over unless it is renewed.
        effect_name: The name of the effect that did the same before; ``None``: it was of a thread that was deleted.
        execution: The number of that effect's execution, or of the one of unknown outcome.
        attempt: Which attempt at that execution it is of which nobody knows.
    """

    default_code = "stateroom-error"

    code: str
    status: int = 0
    retryable: bool = False
    request_id: str = ""
    errors: tuple[Fault, ...] = ()
    limit: str | None = None
    head_id: str | None = None
    revision: int | None = None
    upload_id: str | None = None
    retry_after_seconds: float | None = None
    state: str | None = None
    progress: float | None = None
    claimed_until: datetime | None = None
    effect_name: str | None = None
    execution: int | None = None
    attempt: int | None = None

    def __init_subclass__(cls) -> None:
        """Take the code of a class from its name: ``HeadMoved`` is what the gateway calls ``head-moved``."""
        if cls.__module__ == __name__:  # a caller's own subclass stands for no problem of the gateway
            cls.default_code = vars(cls).get("default_code") or _CAPITAL.sub("-", cls.__name__).lower()
            _BY_NAME[cls.default_code] = cls

    def __init__(self, detail: str = "", **members: Unpack[ErrorMembers]) -> None:
        refuse_unknown(type(self).__name__, members, ErrorMembers)
        self.detail = detail
        vars(self).update(members)
        self.code = members.get("code") or self.default_code
        super().__init__(detail)

    def __str__(self) -> str:
        parts = [self.code]
        if self.detail:
            parts.append(f": {self.detail}")
        parts.extend(f" [{_place(fault)}{fault.detail}]" for fault in self.errors)
        if self.request_id:
            parts.append(f" (request {self.request_id})")
        return "".join(parts)

    def __reduce__(self) -> tuple[Any, ...]:
        members = {name: getattr(self, name) for name in ErrorMembers.__optional_keys__}
        return (_rebuild, (type(self), self.detail, members))


def _rebuild(kind: type[StateroomError], detail: str, members: ErrorMembers) -> StateroomError:
    """Recreate an error in another process, so that worker pools can carry it."""
    return kind(detail, **members)


def _place(fault: Fault) -> str:
    place = fault.pointer or fault.parameter or fault.header
    return f"{place}: " if place else ""


class NotConfigured(StateroomError):
    """The client lacks its URL or API key, or one of them cannot be used."""


class ClientClosed(StateroomError, RuntimeError):
    """The client was closed, here or by another thread or task, and sends nothing any more."""


class GatewayUnavailable(StateroomError):
    """No usable answer within the time budget, or the gateway says that it cannot serve now.

    Nothing was acknowledged. A save may nevertheless have been stored if the connection broke after it was
    sent; sending the same save again is safe.
    """


class CommitUnknown(GatewayUnavailable):
    """The gateway lost the answer to its COMMIT; the same save may be sent again."""


class EventsOff(StateroomError):
    """The tenant has no events, or none yet; ``PUT /v1/events/settings`` switches them on."""


class EventsExpired(StateroomError):
    """Events behind the cursor are not kept any more: list what there is, then listen without ``since``."""


class EventsRewound(StateroomError):
    """The cursor is of a history that a restore took back: list what there is, then listen without ``since``."""


class KeyUnavailable(StateroomError):
    """The tenant's key cannot be reached now, so nothing can be sealed or opened."""


class KeyDestroyed(StateroomError):
    """The subject was shredded; its state can never be opened again."""


class IntegrityFailure(StateroomError):
    """Stored state failed authentication: it was damaged or tampered with, and was not returned."""


class RollbackDetected(IntegrityFailure):
    """The thread is older than what this client has seen of it, or another one under its name."""


class InternalError(StateroomError):
    """The gateway has a defect; quote ``request_id``."""

    default_code = "internal"


class Unauthenticated(StateroomError):
    """The API key is missing, malformed, unknown, expired or revoked."""


class PermissionDenied(StateroomError):
    """The credential lacks the permission."""


class ApprovalNotYours(PermissionDenied):
    """Whoever asked does not approve, nor does who approved already, nor a key younger than the question."""


class SubjectMismatch(PermissionDenied):
    """The credential is bound to another subject than the one named."""


class SubjectRequired(StateroomError):
    """Nobody said for which subject to act; raised before a request is sent whenever the client can tell."""


class NotFound(StateroomError):
    """There is no such thing in this scope."""


class ThreadNotFound(NotFound):
    """The subject has no such thread."""


class CheckpointNotFound(NotFound):
    """The thread's namespace has no such checkpoint."""


class ItemNotFound(NotFound):
    """The subject has no such item, or its time is over."""


class ApprovalNotFound(NotFound):
    """There is no such approval that the credential may see."""


class ArtifactNotFound(NotFound):
    """The subject has no such artifact."""


class StateSchemaNotFound(NotFound):
    """The tenant has no state schema of this name."""


class UploadNotFound(NotFound):
    """There is no such upload, or no more: it was completed, given up, or nothing arrived for too long."""


class Conflict(StateroomError):
    """The request contradicts what is stored."""


class HeadMoved(Conflict):
    """Somebody else saved first; ``head_id`` is the head now. Load, apply the change again, save."""


class ClaimLost(Conflict):
    """The claim is over, or another run has the thread: stop this one, or claim the thread again and load it."""


class ThreadClaimed(Conflict):
    """The thread is written to under a claim only."""


class ClaimNotFound(NotFound):
    """Nobody ever claimed the thread."""


class ClaimHeld(Conflict):
    """Another run goes on with the thread, until ``claimed_until`` unless it renews its claim."""


class ClaimSuperseded(Conflict):
    """The claim that this one was to take the place of was released, or another run has the thread."""


class ThreadStuck(Conflict):
    """One run after the other died with the thread and none got on: look into why, then take it over on purpose."""


class EffectNotFound(NotFound):
    """The thread has no effect of this name."""


class EffectInProgress(Conflict):
    """Somebody does it now; after ``retry_after_seconds``, whoever does it is taken for dead."""


class EffectUnknown(Conflict):
    """It may have happened or not; not done again before ``execution`` and ``attempt`` are resolved."""


class EffectRepeats(Conflict):
    """The same was done before, as ``effect_name``; say ``repeat`` if it is meant to happen once more."""


class EffectMismatch(Conflict):
    """The name was used for something else: each call needs a name of its own."""


class EffectSuperseded(Conflict):
    """Another attempt at the effect was begun since, or this one ended otherwise."""


class EffectNotUnknown(Conflict):
    """It is known whether the effect happened; only what is unknown is resolved."""


class EffectOwnKey(PermissionDenied):
    """Whoever started an effect does not say whether it happened; another key does, or a program that looked."""


class EffectsExceeded(Conflict):
    """The thread has as many effects as it may: go on in a new one."""


class ResultMissing(StateroomError):
    """The effect happened, and its result could not be kept; nothing is done again."""


class ActionChanged(Conflict):
    """What is asked, or about to be done, is another action than the one that was decided about."""


class ApprovalDecided(Conflict):
    """The approval was decided otherwise before, was cancelled, or superseded by another question."""


class ApprovalConsumed(Conflict):
    """What was approved was begun before; another time takes another approval."""


class ApprovalUndecided(Conflict):
    """Nobody has decided yet."""


class ApprovalRejected(Conflict):
    """A person said no."""


class ApprovalRequired(Conflict):
    """The tenant's policy lets this tool act only with an approval."""


class ApprovalsExceeded(Conflict):
    """The thread has as many approvals that wait as it may."""


class ApprovalExpired(StateroomError):
    """Nobody decided in time."""


class ApprovalLapsed(StateroomError):
    """It was approved, and not begun in time: ask again."""


class ItemMoved(Conflict):
    """The item is not at the revision that was named; ``revision`` is the one it is at, ``None``: there is none."""


class ItemExists(ItemMoved):
    """There is such an item, and none was to be there; ``revision`` is its own."""


class ItemModelsExceeded(Conflict):
    """The item would have vectors by more models than it may; put it again with those that are needed."""


class ItemPathsExceeded(Conflict):
    """The subject has as many paths of items as it may."""


class CheckpointExists(Conflict):
    """A checkpoint with this id and other content is stored; checkpoints are write-once."""


class ThreadExists(Conflict):
    """The target thread of a copy exists."""


class OnceKeyReused(Conflict):
    """A once-call of this name finished with other arguments; its result was not returned, and nothing was called."""


class ThreadArchived(Conflict):
    """The thread is in the archive tier, in a storage class that must be thawed before it can be read or written to.

    ``thread.restore()`` asks for the thaw; ``state``, ``progress`` and ``retry_after_seconds`` say how far it is.
    """


class RestoreNeeded(Conflict):
    """The thread's archive is too large to be read where it is: ``thread.restore()``, then read."""


class ArchiveUnavailable(Conflict):
    """The deployment has no archive."""


class LegalHold(Conflict):
    """A legal hold keeps the thread, its agent or the tenant: nothing is removed before it is lifted."""


class ChannelUnchangedUnknown(Conflict):
    """A channel was sent without data, but the parent does not hold that version of it."""


class PieceUnknown(Conflict):
    """A save refers to a large part of a value that the gateway does not have any more; the saver sends it again."""


class DeltaChainNeeded(Conflict):
    """What was to be removed is needed to rebuild a surviving checkpoint's delta channels."""


class WritesPending(Conflict):
    """Tasks have written to the head, and no checkpoint has taken up what they wrote; compact after the next save."""


class IdempotencyInFlight(Conflict):
    """The same save is still being worked on."""


class ArtifactReferenced(Conflict):
    """A stored state still refers to the artifact."""


class ArtifactShared(Conflict):
    """The artifact opens only with a client-held share, which no URL can carry."""


class UploadIncomplete(Conflict):
    """Parts of the upload are missing."""


class FixtureUnreadable(StateroomError):
    """A file is no fixture, only a part of one, or of a newer format."""


class DigestMismatch(StateroomError):
    """The bytes are not those that the digest was made of: damaged on the way, or changed meanwhile."""


class StateTooNew(Conflict):
    """State and program are of different versions, and nothing leads from one to the other.

    A load: the state was saved at a version that this program cannot be shown; deploy the newer program, or give the
    step a way back. A save: the state's schema is not registered at this version.
    """


class StateSchemaMismatch(Conflict):
    """The state was saved under another schema than the one that this program names."""


class StateVersionRequired(StateroomError):
    """Unversioned state of this agent was adopted at a version; what is saved since has to name one."""


class StateUpcastFailed(StateroomError):
    """A step between two versions cannot be applied to the state; what is stored is untouched."""


class StateSchemaExists(Conflict):
    """The version is registered with another definition; register the next one."""


class PreconditionRequired(StateroomError):
    """The thread is strict, or a save policy of its tenant or agent is: load it before saving, or use ``strict=True``.

    Then the save names the head it follows (``If-Match``).
    """


class InvalidRequest(StateroomError):
    """The request is not understood; ``errors`` says where."""


class EditInvalid(InvalidRequest):
    """Edited arguments are not what the tool takes, or change what is hidden."""


class ParentUnknown(InvalidRequest):
    """The checkpoint that a save continues is not in its thread and namespace (any more)."""


class ArtifactUnknown(InvalidRequest):
    """A state points to an artifact that its subject does not have; ``errors`` says where."""


class RangeNotSatisfiable(InvalidRequest):
    """An artifact is shorter than the range asked for."""


class LimitExceeded(StateroomError):
    """A named limit was exceeded; see ``limit``."""


class BodyTooLarge(LimitExceeded):
    """The request body is larger than the gateway accepts."""


class StateTooLarge(LimitExceeded):
    """The state does not fit one answer. The LangGraph saver fetches such states in parts."""


class QuotaExceeded(LimitExceeded):
    """The tenant has no room for so many bytes."""


class Busy(StateroomError):
    """Too much at once; the client already waited and tried again."""


class TenantBusy(Busy):
    """The tenant has as many requests in flight as it may have."""


class ThreadBusy(Busy):
    """One thread has as many requests in flight as it may have."""


class TooManyWaiters(Busy):
    """The tenant, or the gateway, has as many requests that wait for events as it may."""


class ClientShareRequired(InvalidRequest):
    """The thread was made with a client-held share, and none was sent."""


class ClientShareWrong(PermissionDenied):
    """The thread was made with another client-held share. If that one is lost, so is what the thread holds."""


class ClientShareUnexpected(Conflict):
    """The thread was made without a client-held share, and cannot be given one."""


_BY_CODE: dict[str, type[StateroomError]] = _BY_NAME | {
    "overloaded": GatewayUnavailable,
    "database-unavailable": GatewayUnavailable,
    "draining": GatewayUnavailable,
    "blob-store-unavailable": GatewayUnavailable,
    "blobs-not-configured": GatewayUnavailable,
    "head-exists": HeadMoved,
    "part-invalid": InvalidRequest,
    "malformed-body": InvalidRequest,
    "unsupported-media-type": InvalidRequest,
    "not-acceptable": InvalidRequest,
    "method-not-allowed": InvalidRequest,
    "idempotency-key-reused": InvalidRequest,
}

_BY_STATUS: dict[int, type[StateroomError]] = {
    401: Unauthenticated,
    403: PermissionDenied,
    404: NotFound,
    409: Conflict,
    412: HeadMoved,
    413: BodyTooLarge,
    428: PreconditionRequired,
    429: Busy,
    500: InternalError,
}


def error_from_problem(problem: Problem, status: int) -> StateroomError:
    """The exception for a problem; unknown codes of a newer gateway fall back to the status.

    Args:
        problem: Problem details as decoded from the body.
        status: HTTP status of the response.

    Returns:
        An exception to raise.
    """
    kind = _BY_CODE.get(problem.code) or _BY_STATUS.get(status)
    if kind is None:
        kind = GatewayUnavailable if status >= 500 else InvalidRequest
    return kind(
        problem.detail or problem.title,
        code=problem.code,
        status=status,
        retryable=problem.retryable,
        request_id=problem.request_id,
        errors=tuple(problem.errors),
        limit=problem.limit,
        head_id=problem.head_id,
        revision=problem.revision,
        state=problem.state,
        progress=problem.progress,
        claimed_until=problem.claimed_until,
        effect_name=problem.effect_name,
        execution=problem.execution,
        attempt=problem.attempt,
    )
