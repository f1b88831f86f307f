"""What the client takes and returns, as plain values.

This module owns the shapes of options and of results. It promises that unknown fields of a newer gateway are ignored;
it does not promise an order of fields, so construct and match by name.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Generic, Literal, TypeAlias, TypedDict, TypeVar

import msgspec

Status = Literal["active", "waiting", "failed", "done"]
Disposition = Literal["attachment", "inline"]
# What of the artifacts that a state names comes along with a load: True, all of them; "previews", not their content.
ResolveArtifacts = bool | Literal["previews"]
StateT = TypeVar("StateT")


class Model(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Which model produced a step, so that a replay can be told from a re-run.

    Attributes:
        name: The model's name.
        hash: Digest of its weights or deployment.
        temperature: Sampling temperature.
        top_p: Nucleus sampling mass.
        seed: Sampling seed.
    """

    name: str
    hash: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None


class Usage(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What a step consumed.

    Attributes:
        input_tokens: Tokens read.
        output_tokens: Tokens written.
        cost_micros: Money, in millionths of the tenant's currency.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cost_micros: int = 0


class Preview(msgspec.Struct, frozen=True):
    """What a save says of a large value, so that a load shows it without its content.

    Attributes:
        data: A thumbnail or the beginning of a text, at most 4 KiB; a ``str`` is cut to that.
        media_type: What the value is, such as ``image/png``; guessed when left out.
    """

    data: bytes | str | None = None
    media_type: str | None = None


class LargeValue(msgspec.Struct, kw_only=True):
    """A large string, binary or extension value of a state, which is stored beside it.

    Attributes:
        piece: Its keyed digest: equal for equal values of a subject, and of no use to anybody else.
        size_bytes: Its size, with a MessagePack header of 5 bytes or so.
        media_type: What it is, as its saver said; else ``text/plain``, ``application/octet-stream`` or
            ``application/msgpack``. ``None``: not known.
        preview: What its saver gave as a thumbnail or a summary.
    """

    piece: bytes
    size_bytes: int
    media_type: str | None = None
    preview: bytes | None = None


class CheckpointOptions(TypedDict, total=False):
    """What a save says about its checkpoint; each may be left out.

    Attributes:
        status: ``active`` (when left out), ``waiting`` (for a person), ``failed`` or ``done``.
        step: The agent's step; one more than the last when left out.
        metadata: Anything JSON can say, up to 16 KiB.
        model: Which model produced the step.
        usage: What the step consumed.
        run_id: The run that makes it.
        source: What made it.
        checkpoint_id: An id of the caller's own; minted by the gateway when left out.
        items: Items to put in the same transaction (``ItemWrite``): all of them and the checkpoint, or nothing. One
            whose condition does not hold refuses the save.
        approvals: What a person is asked before the agent goes on (``NewApproval``), stored in the same transaction.
        previews: What large values are, by their paths in the state (JSON pointers, such as ``/page/html``): a
            ``Preview``, or only its data. What is said of a value is remembered, and said again with later saves of it.
    """

    status: Status
    step: int | None
    metadata: Mapping[str, Any] | None
    model: Model | None
    usage: Usage | None
    run_id: str | None
    source: str | None
    checkpoint_id: str | None
    items: Sequence[Any]
    approvals: Sequence[Any]
    previews: Mapping[str, Preview | bytes | str] | None


class SaveOptions(CheckpointOptions, total=False):
    """What a save of a whole state says about its checkpoint; each may be left out.

    Attributes:
        state_schema: Name of the state's schema, instead of the thread's.
        state_version: Version of the state within its schema, instead of the thread's.
    """

    state_schema: str | None
    state_version: int | None


class CheckpointFilter(TypedDict, total=False):
    """Which checkpoints are listed; what is left out lets all through.

    Attributes:
        namespace: Only this namespace.
        status: Only this status.
        step: Only this step.
        run_id: Only this run.
        source: Only this source.
        agent: Only this agent.
        since: Not stored before this time.
        until: Stored before this time.
        matching: Metadata that must be contained.
    """

    namespace: str | None
    status: Status | None
    step: int | None
    run_id: str | None
    source: str | None
    agent: str | None
    since: datetime | None
    until: datetime | None
    matching: Mapping[str, Any] | None


class ArtifactDescription(TypedDict, total=False):
    """What an upload says about its artifact; each may be left out.

    Attributes:
        name: Its name; a file's own when left out.
        media_type: Its media type; guessed from the name when left out.
        metadata: A JSON object, at most 16 KiB.
        preview: A thumbnail or summary, at most 4 KiB, that comes with every listing.
    """

    name: str | None
    media_type: str | None
    metadata: Mapping[str, Any] | None
    preview: bytes | None


class LongList(msgspec.Struct, kw_only=True, frozen=True):
    """A list of the state that may need compaction.

    Attributes:
        channel: Its channel; of a plain state, its top-level key.
        elements: How many elements it has.
        bytes: How large it is as MessagePack; ``None``: it was not counted.
    """

    channel: str
    elements: int
    bytes: int | None = None


class Summary(msgspec.Struct, frozen=True):
    """What stands for a list from now on: some elements, and behind them the newest ones it has.

    Attributes:
        elements: What is put in front, such as one message that tells what was said.
        keep_last: How many of its newest elements stay.
    """

    elements: Sequence[Any]
    keep_last: int


MaybeSummary: TypeAlias = Summary | None


class SaveReceipt(msgspec.Struct, kw_only=True):
    """A checkpoint is durable.

    Attributes:
        thread_id: The thread's id.
        namespace: The sub-agent's namespace; empty for the root.
        checkpoint_id: The checkpoint's id.
        parent_id: The checkpoint it follows.
        step: Its step.
        status: Its status.
        sequence: How many saves the namespace has seen.
        created_at: When it was stored.
        created: False when the very same save had been stored before.
        needs_compaction: The lists that are longer than a save policy of the tenant, or of the agent, wants them.
    """

    thread_id: str
    namespace: str
    checkpoint_id: str
    parent_id: str | None
    step: int
    status: Status
    sequence: int
    created_at: datetime
    created: bool
    needs_compaction: tuple[LongList, ...] = ()


class PendingWrite(msgspec.Struct, kw_only=True):
    """A write that a task made against a checkpoint, not yet part of a later one.

    Attributes:
        task_id: The id of the task that wrote it.
        idx: Its position among the task's writes.
        channel: The channel it is meant for.
        task_path: Where the task stands in the agent's plan.
        value: The value as a plain tree.
    """

    task_id: str
    idx: int
    channel: str
    task_path: str = ""
    value: Any = None


class CheckpointInfo(msgspec.Struct, kw_only=True):
    """A checkpoint without its state.

    Attributes:
        thread_id: The thread's id.
        namespace: The sub-agent's namespace; empty for the root.
        checkpoint_id: The checkpoint's id. Greater ids are newer, compared as bytes.
        parent_id: The checkpoint it follows; ``None`` for the first.
        step: The agent's step.
        status: The status it was saved with.
        created_at: When it was stored.
        source: What made it, for example ``input``, ``loop``, ``update`` or ``fork``.
        agent: The program's name.
        run_id: The run that made it.
        state_schema: Name of the state's schema.
        state_version: Version of the state within its schema.
        model: Which model produced the step.
        usage: What the step consumed.
        metadata: Whatever was saved with it.
        delta_channels: Channels whose value is rebuilt from ancestors' pending writes.
        withheld: Only the columns that are stored in clear are here, unverified: the thread is under a client share
            that was not sent, a whole tenant was listed, or it is damaged.
        damaged: It, or what belongs to it, does not authenticate; `stateroom verify` tells more.
        subject_id: The subject that owns it, in a listing of a whole tenant.
    """

    thread_id: str
    namespace: str
    checkpoint_id: str
    parent_id: str | None
    step: int
    status: Status
    created_at: datetime
    source: str | None = None
    agent: str | None = None
    run_id: str | None = None
    state_schema: str | None = None
    state_version: int | None = None
    model: Model | None = None
    usage: Usage | None = None
    metadata: dict[str, Any] = {}
    delta_channels: list[str] = []
    withheld: bool = False
    damaged: bool = False
    subject_id: str | None = None


class InlinedArtifact(msgspec.Struct, kw_only=True, omit_defaults=True):
    """An artifact that a state names, as ``resolve_artifacts`` brings it along.

    Attributes:
        name: Its name. It is whatever was uploaded: never use it as a path.
        media_type: Its media type.
        size_bytes: Size of its content.
        preview: What its uploader gave as a thumbnail or summary.
        data: Its content: at most 1 MiB each and 8 MiB together. ``None``: only previews were asked for, or one of the
            following.
        too_large: It is beyond these bounds; download it.
        missing: The subject has no such artifact.
        withheld: It needs a client-held share that this client does not have.
    """

    name: str | None = None
    media_type: str | None = None
    size_bytes: int | None = None
    preview: bytes | None = None
    data: bytes | None = None
    too_large: bool = False
    missing: bool = False
    withheld: bool = False


class Head(CheckpointInfo, Generic[StateT], kw_only=True):
    """A checkpoint with its state.

    Attributes:
        state: The state, converted to the thread's ``state_type``.
        pending_writes: Writes made against it, in (task_path, task_id, idx) order.
        artifacts: With ``resolve_artifacts``: the artifacts that both name, by id (the first 1,000). The state itself
            holds the pointers, as ever.
        large_values: The state's large values, by their paths in it, as far as those are known.
    """

    state: StateT
    pending_writes: list[PendingWrite] = []
    artifacts: dict[str, InlinedArtifact] = {}
    large_values: dict[str, LargeValue] = {}


class ThreadArchive(msgspec.Struct, kw_only=True):
    """Where an archived thread's rows are, and how far away.

    Attributes:
        state: ``ready``: it can be read where it is, and a save brings it back; ``frozen``: it must be thawed, which
            ``thread.restore`` asks for; ``thawing``: that was asked for; ``unknown``: the gateway cannot tell now.
        storage_class: S3's name of where the object is.
        checkpoints: How many it holds.
        pending_writes: How many it holds.
        hot_bytes: What its rows take in the database.
        size_bytes: What the object takes.
        archived_at: When it was archived.
        retry_after_seconds: When it is worth asking again.
        progress: Of the thaw, from 0 to 1; ``None``: it is not known.
        job_id: The restore that is under way.
    """

    state: Literal["ready", "frozen", "thawing", "unknown"]
    storage_class: str
    checkpoints: int
    pending_writes: int
    hot_bytes: int
    size_bytes: int
    archived_at: datetime
    retry_after_seconds: float = 0.0
    progress: float | None = None
    job_id: str | None = None


class ThreadSegment(msgspec.Struct, kw_only=True):
    """One of the objects that have older checkpoints of a thread.

    Attributes:
        segment: Its number in the thread.
        volume: The number of the first segment that has pieces for this one; those of a volume with greater numbers
            come back along with it.
        first_id: The least id of its checkpoints.
        last_id: The greatest id of its checkpoints.
        checkpoints: How many it holds.
    """

    segment: int
    volume: int
    first_id: str
    last_id: str
    checkpoints: int


class SegmentsRestoring(msgspec.Struct, kw_only=True):
    """The restore that brings segments back.

    Attributes:
        job_id: The id of the job that does it.
        state: Whether the next object can be read, as of a thread's archive.
        retry_after_seconds: When asking again tells more.
        progress: How far its thaw is, from 0 to 1; ``None``: there is none, or nobody knows.
    """

    job_id: str
    state: str
    retry_after_seconds: float
    progress: float | None


class ThreadSegments(msgspec.Struct, kw_only=True):
    """Older checkpoints of a thread, in objects of the archive: read where they are, and brought back by a write.

    Attributes:
        segments: How many objects there are.
        checkpoints: How many they hold.
        pending_writes: How many they hold.
        hot_bytes: What their rows took in the database.
        size_bytes: What the objects take.
        ranges: The objects by number, of more than 1,000 those with the greatest; empty from an older gateway.
        restoring: The restore that brings some back; ``None``: there is none.
    """

    segments: int
    checkpoints: int
    pending_writes: int
    hot_bytes: int
    size_bytes: int
    ranges: list[ThreadSegment] = []
    restoring: SegmentsRestoring | None = None


class ThreadParent(msgspec.Struct, kw_only=True):
    """The thread that another one was begun from.

    Attributes:
        thread_id: Its id.
        namespace: Where in it; empty is the root.
        checkpoint_id: Which checkpoint, whether or not it is there; ``None``: none in particular.
        absent: Whether there is no such thread now.
    """

    thread_id: str
    namespace: str = ""
    checkpoint_id: str | None = None
    absent: bool = False


class ThreadMove(msgspec.Struct, kw_only=True):
    """A thread on its way between the tiers.

    Attributes:
        thread_id: The thread's id.
        tier: Where it is now: ``hot`` (PostgreSQL) or ``archive`` (object storage).
        job_id: The job that moves it; ``None``: it is there already.
    """

    thread_id: str
    tier: Literal["hot", "archive"]
    job_id: str | None = None


class ThreadInfo(msgspec.Struct, kw_only=True):
    """A thread without its state.

    Attributes:
        thread_id: The thread's id.
        status: Status of the root namespace's newest checkpoint.
        tier: ``hot`` (PostgreSQL) or ``archive`` (object storage).
        strict: Whether a save must name the head it follows.
        created_at: When it was created.
        updated_at: When it last changed.
        head_id: Head of the root namespace.
        agent: The program's name.
        client_share: Whether it opens only with the client-held share it was made with.
        parent: The thread that it was begun from, if that was said.
        archive: What its archive is, where one thread was asked for and it has one.
        segments: What is in segments, likewise.
        damaged: In a listing: it was made or altered outside the gateway; `stateroom verify` tells more.
    """

    thread_id: str
    status: Status
    tier: Literal["hot", "archive"]
    strict: bool
    created_at: datetime
    updated_at: datetime
    head_id: str | None = None
    agent: str | None = None
    client_share: bool = False
    parent: ThreadParent | None = None
    archive: ThreadArchive | None = None
    segments: ThreadSegments | None = None
    damaged: bool = False


class CopyReceipt(msgspec.Struct, kw_only=True):
    """What a copied thread holds.

    Attributes:
        thread_id: The new thread.
        checkpoints: How many checkpoints it holds.
        pending_writes: How many pending writes it holds.
    """

    thread_id: str
    checkpoints: int
    pending_writes: int


class RemovalReceipt(msgspec.Struct, kw_only=True):
    """How much was removed.

    Attributes:
        threads: How many threads went whole.
        checkpoints: How many checkpoints went.
        pending_writes: How many pending writes went.
    """

    threads: int = 0
    checkpoints: int = 0
    pending_writes: int = 0


class WhoAmI(msgspec.Struct, kw_only=True):
    """Who the credential is.

    Attributes:
        key_id: The API key's public id.
        kind: ``subject``, ``service`` or ``operator``.
        tenant_id: Its tenant; ``None`` for an operator.
        subject_id: The subject requests act for.
        permissions: What it may do.
        expires_at: When it ends.
    """

    key_id: str
    kind: str
    tenant_id: str | None = None
    subject_id: str | None = None
    permissions: list[str] = []
    expires_at: datetime | None = None


class Artifact(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A file that belongs to a thread, without its content.

    Attributes:
        artifact_id: Its id.
        pointer: What to put into a state to refer to it; means nothing outside of its subject.
        thread_id: The thread's id.
        name: Its name. It is whatever was uploaded: never use it as a path.
        version: Which version of this name within the thread it is.
        media_type: Its media type, as uploaded.
        size_bytes: Size of its content.
        digest: SHA-256 of its content, as in ``Content-Digest``: ``sha-256=:<base64>:``.
        created_at: When it was stored.
        metadata: Whatever was stored with it.
        preview: A thumbnail or summary.
    """

    artifact_id: str
    pointer: str
    thread_id: str
    name: str
    version: int
    media_type: str
    size_bytes: int
    digest: str
    created_at: datetime
    metadata: dict[str, Any] = {}
    preview: bytes | None = None


class UploadedPart(msgspec.Struct, kw_only=True):
    """A part that has arrived.

    Attributes:
        part_number: Its place, from 0.
        size_bytes: Its size.
        digest: Its SHA-256, as in ``Content-Digest``; ``None`` when the gateway does not tell.
    """

    part_number: int
    size_bytes: int
    digest: str | None = None


class Upload(msgspec.Struct, kw_only=True):
    """A resumable upload.

    Attributes:
        upload_id: Keep it to go on after a crash.
        part_bytes: Size of every part but the last.
        expires_at: When it is given up, unless another part arrives.
        parts: What has arrived.
    """

    upload_id: str
    part_bytes: int
    expires_at: datetime
    parts: list[UploadedPart] = []


class SignedUrl(msgspec.Struct, kw_only=True):
    """A URL that shows one artifact to any client that has it.

    Attributes:
        url: The URL; treat it as a credential.
        expires_at: When it ends.
    """

    url: str
    expires_at: datetime

    def __repr__(self) -> str:
        return f"SignedUrl(expires_at={self.expires_at.isoformat()})"
