"""Everything storage can refuse, as classes; the docstring is the default message.

Errors carry identifiers and numbers, never state, keys or SQL.
"""


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


class ChannelUnchangedUnknown(Conflict):
    """A channel was sent as unchanged, but the parent does not hold it at that version; send its data."""

    def __init__(self, channel: str) -> None:
        super().__init__()
        self.channel = channel


class DeltaChainNeeded(Conflict):
    """A surviving checkpoint is rebuilt from the writes of a run that should be removed."""


class IdempotencyKeyReused(StorageError):
    """The Idempotency-Key was used before with another request."""


class HeadMoved(StorageError):
    """Another writer moved the head first; load it, and save again on top of it."""

    def __init__(self, head_id: str | None) -> None:
        super().__init__()
        self.head_id = head_id


class PreconditionRequired(StorageError):
    """This thread is strict: send If-Match with the head you loaded (or If-None-Match: * for a new one)."""


class InvalidState(StorageError):
    """The state cannot be stored as it is."""

    def __init__(self, message: str, pointer: str = "") -> None:
        super().__init__(message)
        self.pointer = pointer


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


class RollbackDetected(IntegrityFailure):
    """The thread is older than, or another one than, what this client has seen; it was rolled back or replaced."""


class Unavailable(StorageError):
    """The database cannot serve this now; nothing was changed and the request may be repeated."""

    def __init__(self, message: str | None = None, retry_after_seconds: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class CommitUnknown(Unavailable):
    """The answer to COMMIT was lost; repeat the request with the same id to learn what happened."""


class LostRaceError(Unavailable):
    """A concurrent transaction changed what this one was built on; storage runs it again by itself."""


class SetupError(StorageError):
    """The database is not set up as the gateway requires."""
