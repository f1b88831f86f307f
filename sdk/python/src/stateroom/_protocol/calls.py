"""Every call of API v1 that the clients make, as steps without I/O.

This module owns paths, bodies and preconditions. Both clients and the LangGraph saver drive the same steps,
so that they cannot drift apart. It does not retry (``core.Attempts`` does) and keeps no state (``_threads``
does).
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Literal, TypeVar
from uuid import uuid4

import msgspec
from msgspec import structs

from stateroom._protocol.core import Answer, Call, Steps, asked, asked_or, encode_body, is_repeatable, path
from stateroom._protocol.wire import (
    ChannelHistories,
    ChannelsPage,
    CheckpointPage,
    CheckpointWithChannels,
    CheckpointWithState,
    CompactRequest,
    CopyRequest,
    HoledCheckpoint,
    Holes,
    JobInfo,
    ParentRequest,
    PruneRequest,
    RunsDeleteRequest,
    SaveRequest,
    ThreadPage,
    ThreadSettings,
    WritesPage,
    WritesReceipt,
    WritesRequest,
)
from stateroom.errors import CheckpointNotFound, InvalidRequest, ThreadArchived, ThreadNotFound
from stateroom.schema import ACCEPT_HEADER
from stateroom.types import (
    CheckpointInfo,
    CopyReceipt,
    RemovalReceipt,
    ResolveArtifacts,
    SaveReceipt,
    Status,
    ThreadInfo,
    ThreadMove,
    WhoAmI,
)

IDS_PER_REQUEST_MAX = 1000
PAGE_MAX = 1000
PAGE_DEFAULT = 100
WRITES_PER_REQUEST_MAX = 1000
# How often a thread that is being restored is asked how far it is, at first and at most.
_BEGUN = 202  # the status of an answer that names a job
FAMILY_SECONDS = 120.0  # a family is deleted in one request, a thread after the other
LOOK_SECONDS = 0.25
LOOK_SECONDS_MAX = 60.0

Each = TypeVar("Each")
R = TypeVar("R")


def plain_call(
    method: str,
    target: str,
    *,
    params: Mapping[str, str | int | None] | None = None,
    body: Any = None,
    headers: Mapping[str, str] | None = None,
    idempotency_key: str | None = None,
) -> Call:
    """A call to any path, for callers that know the API themselves."""
    sent = dict(headers or {})
    if idempotency_key is not None:
        sent["Idempotency-Key"] = idempotency_key
    return Call(
        method=method.upper(),
        path=target if target.startswith("/") else "/" + target,
        query=tuple((params or {}).items()),
        body=None if body is None else encode_body(body),
        headers=sent,
        repeatable=is_repeatable(method.upper()) or idempotency_key is not None,
        subject_optional=True,
    )


def whoami() -> Steps[WhoAmI]:
    """Who the credential is."""
    return asked(Call(method="GET", path="/whoami", repeatable=True, subject_optional=True), WhoAmI)


def save(
    thread_id: str,
    body: SaveRequest,
    *,
    if_match: str | None = None,
    if_new: bool = False,
) -> Steps[SaveReceipt]:
    """Save a checkpoint; without an id of its own it carries an Idempotency-Key, so no retry doubles it."""
    only_new = {"If-None-Match": "*"} if if_new and if_match is None else {}
    return asked(_save_call("checkpoints", thread_id, body, if_match, only_new), SaveReceipt)


def compact(thread_id: str, body: CompactRequest, *, if_match: str | None = None) -> Steps[SaveReceipt]:
    """Compact a list channel; without an id of its own it carries an Idempotency-Key, so no retry doubles it."""
    return asked(_save_call("compact", thread_id, body, if_match, {}), SaveReceipt)


def _save_call(
    verb: str, thread_id: str, body: SaveRequest | CompactRequest, if_match: str | None, headers: dict[str, str]
) -> Call:
    if body.checkpoint_id is msgspec.UNSET:
        headers["Idempotency-Key"] = str(uuid4())
    if if_match is not None:
        headers["If-Match"] = f'"{if_match}"'
    return Call(
        method="POST",
        path=path("threads", ":", thread_id, verb),
        body=encode_body(body),
        headers=headers,
        repeatable=True,
        seen=(thread_id, body.namespace),
    )


def show_head(thread_id: str, namespace: str) -> Steps[CheckpointInfo | None]:
    """The namespace's head without its state; ``None`` when there is none."""
    return asked_or(_load_call(thread_id, namespace, None, "none", None), CheckpointInfo, None)


def load_state(
    thread_id: str,
    namespace: str,
    checkpoint_id: str | None,
    *,
    accepts: str | None = None,
    resolve_artifacts: ResolveArtifacts = False,
) -> Steps[tuple[CheckpointWithState | HoledCheckpoint, str | None] | None]:
    """A checkpoint with its state and the namespace's head id; ``None`` when there is none.

    Large parts come as references, but with artifacts: the gateway looks for their names in what it sends.
    """
    resolve = "inline" if resolve_artifacts is True else resolve_artifacts or None
    pieces = None if resolve else "refs"
    call = _load_call(thread_id, namespace, checkpoint_id, "state", accepts, pieces=pieces, resolve=resolve)
    try:
        answer = yield call
    except (CheckpointNotFound, ThreadNotFound):
        return None
    return answer.decode(HoledCheckpoint if answer.decode(Holes) else CheckpointWithState), answer.etag


def load_channels(
    thread_id: str,
    namespace: str,
    checkpoint_id: str | None,
    *,
    accepts: str | None = None,
    history: Sequence[str] = (),
    mark: str | None = None,
) -> Steps[CheckpointWithChannels | None]:
    """A checkpoint with serialised channels, and with the ``history`` of channels; ``None`` when there is none.

    Raises:
        InvalidRequest: At ``history``: the gateway is too old to know it.
        StateTooLarge: Not all of it fits one answer.
    """
    call = _load_call(thread_id, namespace, checkpoint_id, "channels", accepts, pieces="refs")
    asked = (*(("history", name) for name in history), ("mark", mark))
    return asked_or(structs.replace(call, query=(*call.query, *asked)), CheckpointWithChannels, None)


def _accepting(accepts: str | None) -> dict[str, str]:
    return {} if accepts is None else {ACCEPT_HEADER: accepts}


def _load_call(
    thread_id: str,
    namespace: str,
    checkpoint_id: str | None,
    view: str,
    accepts: str | None,
    pieces: str | None = None,
    resolve: str | None = None,
) -> Call:
    place = ("latest",) if checkpoint_id is None else (":", checkpoint_id)
    return Call(
        method="GET",
        path=path("threads", ":", thread_id, "checkpoints", *place),
        query=(("namespace", namespace), ("view", view), ("pieces", pieces), ("resolve", resolve)),
        headers=_accepting(accepts),
        repeatable=True,
        seen=(thread_id, namespace),
    )


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """Which checkpoints to list.

    Attributes:
        thread_id: One thread, or ``None`` for all of the subject's.
        namespace: One namespace, or ``None`` for all.
        before: Only checkpoints with smaller ids.
        status: Only this status.
        step: Only this step.
        run_id: Only this run.
        source: Only this source.
        agent: Only this agent; across threads only.
        since: Not stored before this time; across threads only.
        until: Stored before this time; across threads only.
        matching: Metadata that must be contained.
    """

    thread_id: str | None = None
    namespace: str | None = None
    before: str | None = None
    status: Status | None = None
    step: int | None = None
    run_id: str | None = None
    source: str | None = None
    agent: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    matching: Mapping[str, Any] | None = None

    def call(
        self, *, view: str, limit: int, cursor: str | None, pieces: str | None = None, accepts: str | None = None
    ) -> Call:
        """The call for one page.

        Raises:
            InvalidRequest: The metadata to match has no JSON form, or a time has no time zone.
        """
        for moment in (self.since, self.until):
            if moment is not None and moment.tzinfo is None:
                raise InvalidRequest("since and until need a time zone")
        try:
            wanted = msgspec.json.encode(dict(self.matching)).decode() if self.matching else None
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidRequest(f"the metadata to match has no JSON form: {type(error).__name__}") from None
        return Call(
            method="GET",
            path="/checkpoints" if self.thread_id is None else path("threads", ":", self.thread_id, "checkpoints"),
            query=(
                ("namespace", self.namespace),
                ("before", self.before),
                ("limit", limit),
                ("cursor", cursor),
                ("view", view),
                ("pieces", pieces),
                ("status", self.status),
                ("step", self.step),
                ("run_id", self.run_id),
                ("source", self.source),
                ("agent", self.agent),
                ("since", self.since.isoformat() if self.since else None),
                ("until", self.until.isoformat() if self.until else None),
                ("filter", wanted),
            ),
            headers=_accepting(accepts),
            repeatable=True,
            seen=None if self.thread_id is None else (self.thread_id, self.namespace or ""),
        )


def list_infos(selection: Selection, limit: int, cursor: str | None) -> Steps[CheckpointPage]:
    """A page of checkpoints without state; an unknown thread has none."""
    call = selection.call(view="none", limit=limit, cursor=cursor)
    return asked_or(call, CheckpointPage, CheckpointPage(items=[]))


def list_channels(
    selection: Selection, limit: int, cursor: str | None, *, accepts: str | None = None
) -> Steps[ChannelsPage]:
    """A page of checkpoints with serialised channels; an unknown thread has none."""
    call = selection.call(view="channels", limit=limit, cursor=cursor, pieces="refs", accepts=accepts)
    return asked_or(call, ChannelsPage, ChannelsPage(checkpoints=[]))


def channel_history(
    thread_id: str,
    namespace: str,
    checkpoint_id: str | None,
    channels: Sequence[str],
    *,
    accepts: str | None = None,
    mark: str | None = None,
) -> Steps[ChannelHistories]:
    """What ancestors wrote to channels; nothing when the checkpoint does not exist."""
    query = [("namespace", namespace), ("pieces", "refs"), *(("channel", name) for name in channels)]
    if mark is not None:
        query.append(("mark", mark))
    place = ("latest",) if checkpoint_id is None else (":", checkpoint_id)
    call = Call(
        method="GET",
        path=path("threads", ":", thread_id, "checkpoints", *place, "channel-history"),
        query=tuple(query),
        headers=_accepting(accepts),
        repeatable=True,
        seen=(thread_id, namespace),
    )
    return asked_or(call, ChannelHistories, ChannelHistories(channels={}))


def trajectory(thread_id: str, query: tuple[tuple[str, str | None], ...], *, accepts: str | None) -> Call:
    """The call for the steps that led to a checkpoint, which is answered with lines."""
    return Call(
        method="POST",
        path=path("threads", ":", thread_id, "trajectory"),
        query=query,
        headers=_accepting(accepts),
        repeatable=True,
    )


def write(thread_id: str, checkpoint_id: str, task_id: str, body: WritesRequest) -> Steps[WritesReceipt]:
    """Store a task's pending writes; more than a request may hold go in several."""
    target = path("threads", ":", thread_id, "checkpoints", ":", checkpoint_id, "writes", ":", task_id)
    stored = unchanged = 0
    for start in range(0, len(body.writes), WRITES_PER_REQUEST_MAX):
        part = structs.replace(body, writes=body.writes[start : start + WRITES_PER_REQUEST_MAX])
        answer = yield Call(
            method="POST", path=target, body=encode_body(part), repeatable=True, seen=(thread_id, body.namespace)
        )
        receipt = answer.decode(WritesReceipt)
        stored += receipt.stored
        unchanged += receipt.unchanged
    return WritesReceipt(stored=stored, unchanged=unchanged)


def read_writes(thread_id: str, namespace: str, checkpoint_id: str, task_id: str) -> Steps[WritesPage]:
    """A task's pending writes as plain values; none when nothing was written."""
    call = Call(
        method="GET",
        path=path("threads", ":", thread_id, "checkpoints", ":", checkpoint_id, "writes", ":", task_id),
        query=(("namespace", namespace),),
        repeatable=True,
    )
    return asked_or(call, WritesPage, WritesPage(writes=[]))


def list_threads(
    limit: int, cursor: str | None, *, status: Status | None, agent: str | None, tier: str | None
) -> Steps[ThreadPage]:
    """A page of the subject's threads."""
    query = (("status", status), ("agent", agent), ("tier", tier), ("limit", limit), ("cursor", cursor))
    return asked(Call(method="GET", path="/threads", query=query, repeatable=True), ThreadPage)


def show_thread(thread_id: str) -> Steps[ThreadInfo | None]:
    """A thread, or ``None``."""
    return asked_or(Call(method="GET", path=path("threads", ":", thread_id), repeatable=True), ThreadInfo, None)


def change_thread(thread_id: str, settings: ThreadSettings) -> Steps[ThreadInfo]:
    """Change a thread's settings; creates the thread."""
    call = Call(method="PATCH", path=path("threads", ":", thread_id), body=encode_body(settings), repeatable=True)
    return asked(call, ThreadInfo)


def link_thread(thread_id: str, parent: ParentRequest) -> Steps[ThreadInfo]:
    """Say what a thread was begun from; creates the thread."""
    where, body = path("threads", ":", thread_id, "parent"), encode_body(parent)
    return asked(Call(method="PUT", path=where, body=body, repeatable=True), ThreadInfo)


def unlink_thread(thread_id: str) -> Steps[None]:
    """Say that a thread was begun from no other."""
    yield Call(method="DELETE", path=path("threads", ":", thread_id, "parent"), repeatable=True)


def list_children(thread_id: str, limit: int, cursor: str | None) -> Steps[ThreadPage]:
    """A page of the threads that were begun from one."""
    where, query = path("threads", ":", thread_id, "children"), (("limit", limit), ("cursor", cursor))
    return asked(Call(method="GET", path=where, query=query, repeatable=True), ThreadPage)


def delete_thread(thread_id: str, *, family: bool = False) -> Steps[bool]:
    """Delete a thread; false when there was none (which is also what a repeated attempt finds)."""
    call = Call(
        method="DELETE",
        path=path("threads", ":", thread_id),
        query=(("family", "true"),) if family else (),
        repeatable=True,
        extra_seconds=FAMILY_SECONDS if family else 0.0,
        forgets=(thread_id,),
    )
    try:
        yield call
    except ThreadNotFound:
        return False
    return True


def archive_thread(thread_id: str, storage_class: str | None) -> Steps[ThreadMove]:
    """Ask for a thread to be archived."""
    answer = yield Call(
        method="POST",
        path=path("threads", ":", thread_id, "archive"),
        query=(("storage_class", storage_class),),
        repeatable=True,
    )
    return _move(answer, thread_id, "hot")


def archive_old(
    thread_id: str, older_than_seconds: float, keep_last: int, storage_class: str | None
) -> Steps[ThreadMove]:
    """Ask for the older checkpoints of a thread to be moved into segments."""
    answer = yield Call(
        method="POST",
        path=path("threads", ":", thread_id, "archive"),
        query=(
            ("older_than_seconds", str(int(older_than_seconds))),
            ("keep_last", str(keep_last)),
            ("storage_class", storage_class),
        ),
        repeatable=True,
    )
    return _move(answer, thread_id, "hot")


def _move(answer: Answer, thread_id: str, tier: Literal["hot", "archive"]) -> ThreadMove:
    """What a request to move a thread was answered: the job that does it (202), or the thread, which is there."""
    if answer.status == _BEGUN:
        return ThreadMove(thread_id=thread_id, tier=tier, job_id=answer.decode(JobInfo).job_id)
    return ThreadMove(thread_id=thread_id, tier=answer.decode(ThreadInfo).tier)


def restore_thread(thread_id: str, wait_seconds: float | None, segment: int | None = None) -> Steps[ThreadMove]:
    """Ask for a thread, or a segment of it, to be brought back; with ``wait_seconds``, wait for so long at most.

    Raises:
        ThreadArchived: It is not back after so long, or the restore ended and it is not.
    """
    answer = yield Call(
        method="POST",
        path=path("threads", ":", thread_id, "restore"),
        query=() if segment is None else (("segment", segment),),
        repeatable=True,
    )
    move = _move(answer, thread_id, "archive")
    if wait_seconds is None:
        return move
    left, pause = wait_seconds, LOOK_SECONDS
    while move.tier != "hot":
        if left <= 0:
            raise ThreadArchived(
                f"the thread is not back after {wait_seconds:g} s; the restore goes on", retryable=True
            )
        pause = min(pause, left)
        answer = yield Call(method="GET", path=path("threads", ":", thread_id), repeatable=True, after_seconds=pause)
        left -= pause
        info: ThreadInfo = answer.decode(ThreadInfo)
        archive = info.archive
        if info.tier == "hot" and not _is_left(info, segment):
            return ThreadMove(thread_id=thread_id, tier="hot", job_id=move.job_id)
        if archive is None:  # what is in segments comes back, one after the other
            restoring = None if info.segments is None else info.segments.restoring
            is_thawing = restoring is not None and restoring.state == "thawing"
            pause = restoring.retry_after_seconds if restoring is not None and is_thawing else 2 * pause
            pause = min(max(pause, LOOK_SECONDS), LOOK_SECONDS_MAX)
            continue
        if archive.job_id is None and archive.state != "unknown":
            # The restore has ended: either the thread was archived anew at once, or it cannot be brought back.
            raise ThreadArchived("the restore ended, and the thread is in the archive", state=archive.state)
        # S3 says hours before a thaw began, and how often to look once it has.
        pause = archive.retry_after_seconds if archive.state == "thawing" else 2 * pause
        pause = min(max(pause, LOOK_SECONDS), LOOK_SECONDS_MAX)
    return move


def _is_left(info: ThreadInfo, segment: int | None) -> bool:
    """Whether a hot thread has the segment still; with ``segment`` None, any."""
    if info.segments is None:
        return False
    return segment is None or any(each.segment == segment for each in info.segments.ranges)


def restoring(make: Callable[[], Steps[R]], thread_id: str, restore_seconds_max: float | None) -> Steps[R]:
    """Steps on one thread; if it has to be thawed, it is restored first, and they are taken again.

    Args:
        make: Begins the steps, which change nothing if they are refused.
        thread_id: The id of the thread.
        restore_seconds_max: How long to wait for it; ``None``: not at all.

    Raises:
        ThreadArchived: It is not back after so long.
    """
    try:
        return (yield from make())
    except ThreadArchived:
        if restore_seconds_max is None:
            raise
    with suppress(ThreadNotFound):  # deleted meanwhile: the steps say what that means to them
        yield from restore_thread(thread_id, restore_seconds_max)
    return (yield from make())


def copy_thread(thread_id: str, target_thread_id: str) -> Steps[CopyReceipt]:
    """Copy a whole thread to one that does not exist yet."""
    call = Call(
        method="POST",
        path=path("threads", ":", thread_id, "copy"),
        body=encode_body(CopyRequest(target_thread_id=target_thread_id)),
        headers={"Idempotency-Key": str(uuid4())},
        repeatable=True,
        forgets=(target_thread_id,),
    )
    return asked(call, CopyReceipt)


def listed(sequence: Sequence[Each]) -> list[Each]:
    """What a caller gave as a sequence of names or elements, as a list.

    Raises:
        TypeError: It is one text, of which each character would be taken for a name or an element.
    """
    if isinstance(sequence, (str, bytes)):
        raise TypeError("a sequence is needed, not one text: put it in a list")
    return list(sequence)


def prune(thread_ids: Sequence[str], strategy: str) -> Steps[RemovalReceipt]:
    """Prune threads, a thousand at a time; no thread, no request."""

    def call(ids: list[str]) -> Call:
        body = encode_body(PruneRequest(thread_ids=ids, strategy=strategy))
        forgets = tuple(ids) if strategy == "delete" else ()
        return Call(method="POST", path="/threads:prune", body=body, repeatable=True, forgets=forgets)

    return _removed(thread_ids, call)


def delete_runs(run_ids: Sequence[str]) -> Steps[RemovalReceipt]:
    """Remove runs, a thousand at a time; no run, no request."""

    def call(ids: list[str]) -> Call:
        return Call(
            method="POST", path="/runs:delete", body=encode_body(RunsDeleteRequest(run_ids=ids)), repeatable=True
        )

    return _removed(run_ids, call)


def _removed(sequence: Sequence[str], call: Callable[[list[str]], Call]) -> Steps[RemovalReceipt]:
    ids = [str(each) for each in listed(sequence)]
    threads = checkpoints = pending_writes = 0
    for start in range(0, len(ids), IDS_PER_REQUEST_MAX):
        answer = yield call(ids[start : start + IDS_PER_REQUEST_MAX])
        receipt: RemovalReceipt = answer.decode(RemovalReceipt)
        threads += receipt.threads
        checkpoints += receipt.checkpoints
        pending_writes += receipt.pending_writes
    return RemovalReceipt(threads=threads, checkpoints=checkpoints, pending_writes=pending_writes)
