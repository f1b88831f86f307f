"""Trajectories: the steps of a thread in clear, as JSON Lines, for analyses, tests and training.

What leaves here leaves in clear, so it takes a permission of its own beside the one to read, and the audit log has it
before the first line is out. A tenant reads one at a time, as it exports; its reader is waited for, and meanwhile a few
states are in memory. A trajectory that broke off goes on after the last step that arrived whole.
"""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from msgspec import UNSET

from gateway import wire
from gateway.admission.slices import Work
from gateway.authentication.principals import SUBJECT, check_permission
from gateway.bodies.codec import LINES_MEDIA_TYPE, encode_body, value_out
from gateway.http.content import stream
from gateway.http.exchange import Answer, path_id
from gateway.problems import InvalidRequest
from gateway.routes.checkpoints.conversion import write_out
from gateway.routes.checkpoints.leaves import leaves_out
from gateway.routes.places import check_namespace
from gateway.routing.operations import Call, Operation
from gateway.wire.problems import Fault
from storage import model
from storage.scope import Scope
from storage.transfer import trajectories
from storage.transfer.lines import TrajectoryQuery


@Operation(
    "POST /v1/threads/{thread_id}/trajectory",
    reach=SUBJECT,
    summary="The steps that led to a checkpoint, oldest first, in clear, a JSON line each: what changed, pending "
    "writes, model, usage; with namespaces=all those of the whole thread. The last line is of type end. Needs "
    "state:read, too.",
    permission="state:export",
    query=wire.trajectories.TrajectoryQuery,
    headers=("Accept-State-Version", "Stateroom-Client-Share"),
    problems=(
        "thread-not-found", "checkpoint-not-found", "integrity-failure", "key-destroyed", "limit-exceeded",
        "state-too-large", "blob-store-unavailable", "blobs-not-configured", "thread-archived", "restore-needed",
        "state-too-new", "state-schema-mismatch", "state-upcast-failed", "transfer-busy", "commit-unknown",
    ),
    lines=(wire.trajectories.TrajectoryBegin, wire.trajectories.TrajectoryStep, wire.trajectories.TrajectoryEnd),
)  # fmt: skip
async def export_trajectory(call: Call[Scope], thread_id: str) -> Answer:
    check_permission(call.principal, "state:read")
    asked = call.exchange.query(wire.trajectories.TrajectoryQuery)
    query = _wanted(path_id(thread_id, "thread_id"), asked)
    versions, share = call.exchange.state_versions(), call.exchange.client_share()

    async def read_page(page: model.HistoryQuery) -> model.Page[model.Checkpoint]:
        call.exchange.reservation.give()  # what was read before was told, or is of few enough steps
        return await call.store.states.history(call.scope, versions, page, share)

    with contextlib.ExitStack() as admitted:
        admitted.enter_context(call.services.admission.transfer(call.scope.tenant_id))
        found = await call.commit(call.store.trajectories.begin(call.scope, query, call.actor, read_page))
        lines = _lines(call, query, found, asked.view)
        headers = {"content-type": LINES_MEDIA_TYPE, "cache-control": "no-store"}
        return await stream(lines, status=200, headers=headers, size_bytes=None, held=admitted.pop_all())


def _wanted(thread_id: str, asked: wire.trajectories.TrajectoryQuery) -> TrajectoryQuery:
    """What a query wants.

    Raises:
        InvalidRequest: parameters do not go together.
    """
    is_whole = asked.namespaces == "all"
    if is_whole and asked.namespace and asked.checkpoint_id is None:
        raise _misfit("namespace", "with namespaces=all it is that of checkpoint_id, which is missing")
    if is_whole and asked.after is not None and asked.checkpoint_id is None:
        raise _misfit("after", "with namespaces=all it needs the checkpoint_id and namespace that the first line named")
    if asked.after_namespace is not None and not (is_whole and asked.after is not None):
        raise _misfit("after_namespace", "is the namespace of after, with namespaces=all")
    return TrajectoryQuery(
        thread_id=thread_id,
        namespace=check_namespace(asked.namespace, parameter="namespace"),
        checkpoint_id=asked.checkpoint_id,
        after=asked.after,
        after_namespace=check_namespace(asked.after_namespace or "", parameter="after_namespace"),
        all_namespaces=is_whole,
        all_writes=asked.view == "channels",
    )


def _misfit(parameter: str, detail: str) -> InvalidRequest:
    return InvalidRequest(Fault(detail=detail, parameter=parameter))


async def _lines(
    call: Call[Scope],
    query: TrajectoryQuery,
    found: trajectories.Trajectory,
    view: wire.trajectories.View,
) -> AsyncIterator[bytes]:
    begin = wire.trajectories.TrajectoryBegin(
        format=wire.trajectories.FORMAT if found.namespaces is None else wire.trajectories.WHOLE_FORMAT,
        view=view,
        thread_id=query.thread_id,
        namespace=found.namespace,
        namespaces=UNSET if found.namespaces is None else found.namespaces,
        checkpoint_id=found.checkpoint_id,
        steps=found.count,
    )
    yield _line(begin)
    count, status = 0, None
    async for step in found.steps:
        size_bytes = sum(len(each.channel.value.data) for each in step.changes.values() if each.channel is not None)
        size_bytes += sum(len(each.value.data) for each in step.writes)
        yield _line(await call.exchange.reservation.run(_step_out(step, view), size_bytes))
        count, status = count + 1, step.checkpoint.status
    yield _line(wire.trajectories.TrajectoryEnd(checkpoint_id=found.checkpoint_id, status=status, steps=count))


def _line(shown: Any) -> bytes:
    return encode_body("json", shown) + b"\n"


def _step_out(
    step: trajectories.TrajectoryStep, view: wire.trajectories.View
) -> Work[wire.trajectories.TrajectoryStep]:
    changes: dict[str, wire.trajectories.TrajectoryChange] = {}
    for name, change in step.changes.items():
        if view == "channels":
            changes[name] = yield from _channel_out(change)
        elif not name.startswith(wire.base.PRIVATE_PREFIX) and change.kind != "version":
            changes[name] = shown = wire.trajectories.TrajectoryChange(kind=change.kind)
            if change.channel is not None:
                shown.value = yield from value_out("json", change.channel.value)
                shown.leaves = yield from leaves_out(change.channel.value, None)
        yield
    writes = []
    for write in step.writes:
        writes.append((yield from write_out(write, view, "json")))
        yield
    saved = step.checkpoint
    return wire.trajectories.TrajectoryStep.of(
        saved,
        model=None if saved.model is None else wire.checkpoints.Model(**saved.model),
        usage=None if saved.usage is None else wire.checkpoints.Usage(**saved.usage),
        delta_channels=list(saved.delta_channels),
        changes=changes,
        writes=writes,
    )


def _channel_out(change: trajectories.Change) -> Work[wire.trajectories.TrajectoryChange]:
    """A change in the ``channels`` view: what is stored, as it is stored."""
    shown = wire.trajectories.TrajectoryChange(kind=change.kind)
    if change.channel is not None:
        shown.version = change.channel.version
        if change.kind != "version":
            shown.encoding, shown.data = change.channel.value.encoding, change.channel.value.data
            shown.leaves = yield from leaves_out(change.channel.value)
    return shown
