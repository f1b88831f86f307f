"""Everything storage can refuse, as classes; the docstring is the default message.

Errors carry identifiers and numbers, never state, keys or SQL.
"""

from datetime import datetime
from typing import Literal
from uuid import UUID


class StorageError(Exception):
    """Storage refused the operation."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (self.__doc__ or "").splitlines()[0])


class NotFound(StorageError):
    """There is no such thing in this scope."""


class ThreadNotFound(NotFound):
    """There is no such thread in this scope."""


class CheckpointNotFound(NotFound):
    """There is no such checkpoint in this scope."""


class TenantNotFound(NotFound):
    """There is no such tenant."""


class ApiKeyNotFound(NotFound):
    """There is no such API key."""


class SubjectNotFound(NotFound):
    """The tenant has no such subject: it never had a key, hence no state."""


class JobNotFound(NotFound):
    """There is no such job."""


class ArtifactNotFound(NotFound):
    """There is no such artifact in this scope."""


class UploadNotFound(NotFound):
    """There is no such upload in this scope; it ended, expired or was removed. Begin another one."""


class AnchorNotFound(NotFound):
    """The audit log has no anchor yet, or there is no object store to keep one."""


class Conflict(StorageError):
    """The operation contradicts what is stored; nothing was changed."""


class CheckpointExists(Conflict):
    """A checkpoint with this id is stored with other content; checkpoints are written once."""


class ThreadExists(Conflict):
    """The target thread exists already; choose another id or delete it first."""


class ThreadArchived(Conflict):
    """The thread is in the archive tier; restore it before writing to it."""

    def __init__(
        self,
        thread_id: str | None = None,
        state: Literal["archived", "frozen", "thawing"] = "archived",
        retry_after_seconds: float | None = None,
        progress: float | None = None,
        segment: int | None = None,
        *,
        needs_room: bool = True,
    ) -> None:
        """Say how far away the thread's rows are.

        Args:
            thread_id: Which thread.
            state: ``archived``: its object can be read now; ``frozen``: it must be thawed first, which nobody asked
                for yet (`storage.archive.moving.Archives.begin_restore` does); ``thawing``: somebody did.
            retry_after_seconds: When it is worth asking again.
            progress: Of a thaw, from 0 to 1, going by how long one takes at most; None where nobody knows.
            segment: The number of the segment that has the rows; None: the whole thread is to come back.
            needs_room: Whether rows come back only to a tenant that may store some. One that is over its quota has to
                be able to remove what it has, and to be told that what it repeats is stored.
        """
        messages = {
            "archived": None,
            "frozen": "The thread is in the archive tier, in a storage class that must be thawed; begin to restore it.",
            "thawing": "The thread is in the archive tier and being thawed; ask again later.",
        }
        super().__init__(messages[state])
        self.thread_id = thread_id
        self.state = state
        self.retry_after_seconds = retry_after_seconds
        self.progress = progress
        self.segment = segment
        self.needs_room = needs_room


class ThreadActive(Conflict):
    """The thread was written to while it was being archived; it stays in the hot tier."""


class ArchiveUnavailable(Conflict):
    """This deployment has no bucket for archived threads (STATEROOM_ARCHIVE_URL)."""


class ArchiveTooLarge(Conflict):
    """The thread has more bytes than one archive may hold; it stays in the hot tier. Thin or prune it first."""


class RestoreNeeded(Conflict):
    """What a read needs of the thread's archive and segments is more than it may hold; restore the thread first."""

    def __init__(self, found: int, allowed: int) -> None:
        super().__init__(
            f"what is needed of the thread's archive takes about {found:,} bytes, and {allowed:,} are read there;"
            " restore the thread, then read it"
        )


class ChannelUnchangedUnknown(Conflict):
    """A channel was sent as unchanged, but the parent does not hold it at that version; send its data."""

    def __init__(self, channel: str) -> None:
        super().__init__()
        self.channel = channel


class DeltaChainNeeded(Conflict):
    """A surviving checkpoint is rebuilt from the writes of a run that should be removed."""


class WritesPending(Conflict):
    """Tasks have written to the head, and no checkpoint has taken up what they wrote; compact after the next save."""


class TenantNameTaken(Conflict):
    """Another tenant has this name."""


class LastAdminKey(Conflict):
    """It is the last key that administers this; without it nobody here makes or revokes keys."""


class ItemPathsExceeded(Conflict):
    """The subject has as many paths of items as it may; delete the items of some, or use fewer paths."""


class ItemModelsExceeded(Conflict):
    """The item would have vectors by more models than it may; put it again with those that are needed."""


class ItemIndexTooLarge(Conflict):
    """The subject has more vectors by this model than are searched; delete items, or put fewer or shorter vectors."""

    def __init__(self, allowed: int) -> None:
        super().__init__(f"the vectors of one subject by one model may take {allowed:,} bytes (ITEM_INDEX_BYTES_MAX)")
        self.limit = "ITEM_INDEX_BYTES_MAX"


class ClearVectorsUnavailable(Conflict):
    """The tenant's policy says that vectors are in clear, but no operator made the table for them, or removed it."""


class LeakageNotAccepted(StorageError):
    """A tenant asked for vectors in clear without accepting what that leaks."""

    def __init__(self) -> None:
        super().__init__(
            "vectors in clear leak the content of items: texts can be got back from embeddings by whoever reads the"
            " database, a replica or a backup, which a shred does not reach; accept_leakage: content accepts that"
        )


class LegalHold(Conflict):
    """A legal hold keeps this: nothing of it can be removed before the hold is lifted. Nothing was changed."""


class RetentionPoliciesExceeded(Conflict):
    """The tenant has as many policies for agents as it may; take some back, or wait for the next round of retention."""


class SavePoliciesExceeded(Conflict):
    """The tenant has as many save policies for agents as it may; take one back first."""


class ArtifactReferenced(Conflict):
    """A checkpoint names the artifact; it stays as long as one does."""


class ArtifactShared(Conflict):
    """The artifact takes a client-held share, which an URL cannot carry; download it with the share."""


class UploadIncomplete(Conflict):
    """The upload does not have all of its parts; send what is missing, then complete it."""


class ArtifactUnknown(StorageError):
    """A pointer in the state names no artifact of this scope."""

    def __init__(self, pointer: str = "") -> None:
        super().__init__()
        self.pointer = pointer


class ParentUnknown(StorageError):
    """The checkpoint that a save names as its parent is not in its thread and namespace (any more)."""

    pointer = "/parent_id"


class DigestMismatch(StorageError):
    """The content does not have the digest that was sent with it; nothing was stored."""


class PartInvalid(StorageError):
    """The part has another length, or another number, than a part of this upload can have."""


class QuotaExceeded(StorageError):
    """The tenant's blobs would take more bytes than its quota; delete artifacts, or ask the operator for more."""

    limit = "quota_bytes"


class RowQuotaExceeded(QuotaExceeded):
    """The tenant has as many rows in the database as its quota lets it; prune, delete or archive threads."""

    limit = "rows_quota_bytes"


class PieceUnknown(StorageError):
    """A placeholder names a piece that the thread does not have; upload it and send the same again."""


class PieceNotFound(NotFound):
    """The thread has no such piece: it was never uploaded, or removed because nothing named it."""


class StateTooLarge(StorageError):
    """The values that were asked for, put together, do not fit one answer."""

    limit = "RESOLVED_BYTES_MAX"

    def __init__(self, allowed: int) -> None:
        super().__init__(f"an answer holds at most {allowed:,} bytes of values ({self.limit})")


class BlobsNotConfigured(StorageError):
    """This deployment has no object store, and so no artifacts (STATEROOM_S3_URL)."""


class IdempotencyKeyReused(StorageError):
    """The Idempotency-Key was used before with another request."""


class ItemNotFound(NotFound):
    """There is no such item in this scope."""


class ItemMoved(StorageError):
    """The item is not at the revision that the request names; read it, apply your change again, put it."""

    def __init__(self, revision: int | None) -> None:
        super().__init__()
        self.revision = revision


class ItemExists(ItemMoved):
    """There is an item of this path and key, and the request asks that there be none."""


class HeadMoved(StorageError):
    """Another writer moved the head first; load it, and save again on top of it."""

    def __init__(self, head_id: str | None) -> None:
        super().__init__(None if head_id else "There is no head; a save without If-Match makes the first one.")
        self.head_id = head_id


class HeadExists(HeadMoved):
    """The namespace has a checkpoint, and the save was meant for one that has none."""


class ApprovalNotFound(NotFound):
    """There is no such approval in this scope."""


class ApprovalExpired(StorageError):
    """Nobody decided in time; the agent has to ask anew."""


class ApprovalLapsed(StorageError):
    """The approval was given, but what it allows was not begun in time; the agent has to ask anew."""


class ApprovalNotYours(StorageError):
    """Whoever asked does not approve, nor does a key that is younger than the question; somebody else has to."""


class ApprovalDecided(Conflict):
    """The approval does not wait for a decision any more."""

    def __init__(self, status: str, decided_by: str | None = None, decided_at: datetime | None = None) -> None:
        by = "" if decided_by is None else f" by {decided_by}"
        at = "" if decided_at is None else f" at {decided_at:%Y-%m-%d %H:%M:%S} UTC"
        super().__init__(f"the approval is {status}{by}{at}")
        self.status = status
        self.decided_by = decided_by
        self.decided_at = decided_at


class ActionChanged(Conflict):
    """What is asked is not what the hash is of: look at it again, and decide about that."""


class ApprovalUndecided(Conflict):
    """The approval still waits for a decision."""


class ApprovalRejected(Conflict):
    """The action was not approved."""


class ApprovalConsumed(Conflict):
    """What the approval allows was begun before; it allows it once."""


class ApprovalRequired(Conflict):
    """A policy asks for an approval of this action, and none was named."""


class ApprovalsExceeded(Conflict):
    """The thread has as many waiting approvals as it may; decide or cancel some."""


class ApprovalPoliciesExceeded(Conflict):
    """The tenant has as many approval policies as it may; take some back."""


class EditInvalid(StorageError):
    """The edited arguments are not what the tool takes."""


class ClaimLost(StorageError):
    """The claim was released, or is another's now: stop, load the thread, and claim it again if you still may."""


class ThreadClaimed(Conflict):
    """This thread is written to under a claim only: claim it, and name the claim's fence."""


class ClaimNotFound(NotFound):
    """Nobody ever claimed this thread."""


class ClaimHeld(Conflict):
    """Somebody else goes on with this thread; wait until the claim is over, or take it over on purpose.

    Attributes:
        claimed_until: When it may be claimed, if its holder neither renews nor releases it.
        retry_after_seconds: The same, from now.
    """

    def __init__(self, claimed_until: datetime, retry_after_seconds: float) -> None:
        super().__init__()
        self.claimed_until = claimed_until
        self.retry_after_seconds = retry_after_seconds


class ClaimSuperseded(Conflict):
    """The claim that this one was to take the place of was released, or is another's now: look at the thread again."""


class ThreadStuck(Conflict):
    """One worker after the other died with this thread and wrote nothing; look into it, then take it over."""


class EffectNotFound(NotFound):
    """There is no such effect in this thread."""


class EffectMismatch(StorageError):
    """This name was used for something else: give each call a name of its own."""


class EffectInProgress(Conflict):
    """Somebody is doing this now; ask again later.

    Attributes:
        retry_after_seconds: When whoever does it is taken for dead.
    """

    def __init__(self, retry_after_seconds: float) -> None:
        super().__init__()
        self.retry_after_seconds = retry_after_seconds


class EffectUnknown(Conflict):
    """Nobody knows whether this happened; look whether it did and resolve it. It is not done again before that.

    Attributes:
        execution: The number of the execution to resolve.
        attempt: Which attempt at it that is.
    """

    def __init__(self, execution: int, attempt: int) -> None:
        super().__init__()
        self.execution = execution
        self.attempt = attempt


class EffectRepeats(Conflict):
    """The same was done before; say that it is meant to be done again, if it is.

    Attributes:
        name: The name of what was done; None: that thread was deleted.
        execution: The number of that execution.
        status: What became of it.
    """

    def __init__(self, name: str | None, execution: int | None = None, status: str | None = None) -> None:
        super().__init__()
        self.name = name
        self.execution = execution
        self.status = status


class EffectSuperseded(Conflict):
    """This attempt is not the current one any more, or ended otherwise; nothing was changed."""


class EffectNotUnknown(Conflict):
    """It is known whether this happened; only what nobody knows is resolved."""


class EffectResolverStarted(StorageError):
    """Whoever started this cannot say whether it happened; another principal has to, or a program that looked."""


class EffectsExceeded(Conflict):
    """The thread has as many effects as it may; go on in a new one."""


class PreconditionRequired(StorageError):
    """This thread is strict: send If-Match with the head you loaded (or If-None-Match: * for a new one)."""


class InvalidState(StorageError):
    """The state cannot be stored as it is."""

    def __init__(self, message: str, pointer: str = "") -> None:
        super().__init__(message)
        self.pointer = pointer


class StateSchemaNotFound(NotFound):
    """The tenant has no state schema of this name."""


class StateSchemaExists(Conflict):
    """This version is registered with another definition; versions are written once. Register the next one."""


class StateSchemaInvalid(InvalidState):
    """The definition of a state schema's version cannot be accepted.

    Attributes:
        parameter: What is at fault, where that is not in the definition.
    """

    def __init__(self, message: str, pointer: str = "", *, parameter: str | None = None) -> None:
        super().__init__(message, pointer)
        self.parameter = parameter


class StateTooNewToSave(Conflict):
    """State names a version that nobody registered."""

    def __init__(self, schema: str, number: int, newest: int | None) -> None:
        known = "the schema is not registered" if newest is None else f"the newest registered version is {newest}"
        super().__init__(f"version {number} of state schema {schema!r} is not registered: {known}")


class StateSchemaMismatch(Conflict):
    """State was saved under another schema than its reader knows, or nothing says under which."""


class StateVersionRequired(StorageError):
    """State without a version, of an agent whose state was adopted at one."""


class AdoptionExists(Conflict):
    """The agent's unversioned state was adopted as something else."""


class AdoptionBuiltOn(Conflict):
    """What adopted state was taken for cannot be changed: something was saved on top of it."""

    def __init__(self) -> None:
        super().__init__("something was saved on top of what was adopted: what it was taken for cannot change any more")


class FeatureOff(Conflict):
    """What was asked for begins once no process of an older build runs."""


class EventsOff(Conflict):
    """The tenant has no events, or none yet: PUT /v1/events/settings switches them on."""


class EventsExpired(StorageError):
    """Events behind this position are not kept any more; list what there is, and begin again with since=now."""


class EventsRewound(StorageError):
    """This position is of events that are no more, as after a restore; list what there is, and begin with since=now."""


class LimitExceeded(StorageError):
    """A named limit was exceeded."""

    def __init__(self, limit: str, allowed: int, found: int | None = None, pointer: str = "") -> None:
        seen = f", found {found:,}" if found is not None else ""
        super().__init__(f"{limit} is {allowed:,}{seen}")
        self.limit = limit
        self.pointer = pointer


class ClientShareRequired(StorageError):
    """The thread was made with a share that only its client holds; send it."""


class ClientShareWrong(StorageError):
    """The thread was made with another client-held share than the one that was sent."""


class ClientShareUnexpected(StorageError):
    """The thread was made without a client-held share; it cannot be given one later."""


class IntegrityFailure(StorageError):
    """Stored state is missing pieces or does not authenticate; it was edited, lost or moved outside the gateway."""

    counted = False  # by whoever observes damage, which passes through several of them


class RollbackDetected(IntegrityFailure):
    """The thread is older than, or another one than, what this client has seen; it was rolled back or replaced."""


class BuildTooOld(StorageError):
    """A newer build stored this; this one does not know it. Ask a process of the newer build."""


class Unavailable(StorageError):
    """The database cannot serve this now; nothing was changed and the request may be repeated."""

    def __init__(self, message: str | None = None, retry_after_seconds: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class ClockOff(Unavailable):
    """This process's clock and the database's disagree; nothing was removed."""


class WorkersBusy(Unavailable):
    """No worker process could do this in time; the machine is busy, and the request may be repeated."""


class PlaceInLineRefused(Unavailable):
    """Too many requests of the tenant wait for a worker process; send fewer at once."""


class TooCostly(StorageError):
    """What is registered takes more time or memory on this than a request may; nothing was changed."""


class TenantTooCostly(StorageError):
    """Requests of the tenant took too much several times just now; those that need a worker process are refused.

    Attributes:
        retry_after_seconds: When they are served again.
    """

    def __init__(self, retry_after_seconds: float) -> None:
        super().__init__("requests of the tenant took too much several times; such requests are refused for a while")
        self.retry_after_seconds = retry_after_seconds


class DatabaseReadOnly(Unavailable):
    """The database takes no writes: it is a standby, or was set read-only, or has no room; nothing was stored."""


class CommitUnknown(Unavailable):
    """The answer to COMMIT was lost; repeat the request with the same id to learn what happened."""


class LostRaceError(Unavailable):
    """A concurrent transaction changed what this one was built on; storage runs it again by itself."""


class Unfinished(Exception):
    """Why an attempt ended that another one may complete, once this was answered (`storage.access.sealing`)."""


class UploadExpired(LostRaceError):
    """An upload was swept before it was settled; storage uploads again under a new id."""


class JobNotDamaged(Conflict):
    """A gateway wrote this job; only one that is damaged is put aside."""


class JobNotCancellable(Conflict):
    """A job of this kind goes on to its end: what it left behind half done could not stay so."""


class JobCancelled(Conflict):
    """Somebody cancelled the job of this transfer; what had come or gone before stays."""


class OlderProcess(Conflict):
    """A process of an older build runs, which would misread what is to be switched on."""


class SetupError(StorageError):
    """The database is not set up as the gateway requires."""


class DatabaseAway(Unavailable, SetupError):
    """The database cannot be reached, so that its set-up could not be looked at."""


class ImportRefused(StorageError):
    """The file is no whole, unaltered export; no thread of it was imported in part."""


class ImportForOther(ImportRefused):
    """The export is sealed for another deployment's transfer key, or for another tenant of this one."""


class ImportUnbound(ImportRefused):
    """The export is of a format that names a deployment and no tenant, and nobody answers for it here."""

    def __init__(self, export_id: UUID) -> None:
        super().__init__(f"export {export_id} names no tenant, so that every tenant here could take it in")


class LinkCircular(Conflict):
    """The thread would be its own ancestor: it is the parent that is named, or that one descends from it."""


class ImportConflict(Conflict):
    """The export holds something that exists here with other content."""
