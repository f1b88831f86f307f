"""Artifacts beside the state that names them: what ``resolve=previews`` and ``resolve=inline`` add to an answer.

Owns which pointers are resolved and how much of their content an answer holds. A pointer opens nothing by itself: it is
looked up among the artifacts of the scope that asks, and what it does not find there is missing. The state's own bytes
stay as they are. It does not promise that what is inlined is as old as the state: an artifact that was deleted
meanwhile is missing.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import aclosing
from typing import Any
from uuid import UUID

from msgspec import UNSET

from gateway import wire
from gateway.admission import limits
from storage.artifacts.model import ArtifactContent
from storage.artifacts.verbs import Artifacts
from storage.format.leaves import find_pointers
from storage.model import Checkpoint, Value
from storage.scope import ClientShare, Scope


def shown_values(checkpoints: Iterable[Checkpoint], view: wire.base.View) -> Iterator[Value]:
    """The values that an answer shows in ``view``: channels, then pending writes."""
    for checkpoint in checkpoints:
        if view == "none" or checkpoint.withheld:
            continue
        for name, channel in (checkpoint.channels or {}).items():
            if view == "channels" or not name.startswith(wire.base.PRIVATE_PREFIX):
                yield channel.value
        for write in checkpoint.writes or ():
            yield write.value


async def inlined(
    artifacts: Artifacts, scope: Scope, values: Iterable[Value], share: ClientShare | None, *, with_content: bool
) -> dict[str, wire.checkpoints.InlinedArtifact]:
    """The artifacts that these values name, by id, in the order in which they are named first.

    The first `limits.INLINED_ARTIFACTS_MAX` are looked up. If content is asked for, it comes with those of at most
    `limits.INLINED_BYTES_EACH_MAX`, as far as the answer's `limits.INLINED_BYTES_MAX` go, in that order; one that does
    not fit is passed over, and a smaller one after it may fit.

    Raises:
        BlobsNotConfigured: something is named, and there is no object store.
        BlobUnavailable: the object store does not answer.
        IntegrityFailure, BlobDamaged: an artifact is not as it was stored.
    """
    named = await _named(values)
    if not named:
        return {}
    contents = await artifacts.open_named(scope, named, share=share)
    shown: dict[str, wire.checkpoints.InlinedArtifact] = {}
    wanted: list[tuple[wire.checkpoints.InlinedArtifact, ArtifactContent]] = []
    room_bytes = limits.INLINED_BYTES_MAX
    for artifact_id in named:
        if artifact_id not in contents:
            shown[str(artifact_id)] = wire.checkpoints.InlinedArtifact(missing=True)
            continue
        content = contents[artifact_id]
        if content is None:
            shown[str(artifact_id)] = wire.checkpoints.InlinedArtifact(withheld=True)
            continue
        artifact = content.artifact
        one = shown[str(artifact_id)] = wire.checkpoints.InlinedArtifact(
            name=artifact.name,
            media_type=artifact.media_type,
            size_bytes=artifact.size_bytes,
            preview=UNSET if artifact.preview is None else artifact.preview,
        )
        if not with_content:
            continue
        if artifact.size_bytes <= min(limits.INLINED_BYTES_EACH_MAX, room_bytes):
            room_bytes -= artifact.size_bytes
            wanted.append((one, content))
        else:
            one.too_large = True
    await _fill(wanted)
    return shown


async def _named(values: Iterable[Value]) -> list[UUID]:
    named: dict[UUID, None] = {}
    for value in values:
        for each in find_pointers(value.encoding, value.data):
            if len(named) == limits.INLINED_ARTIFACTS_MAX:
                return list(named)
            named[each.artifact_id] = None
        await asyncio.sleep(0)
    return list(named)


async def _fill(wanted: list[tuple[wire.checkpoints.InlinedArtifact, ArtifactContent]]) -> None:
    """Read all contents, some at once; when one fails, stop the others and raise what it raised."""
    left = iter(wanted)

    async def work() -> None:
        for one, content in left:
            one.data = await _read(content.read(0, content.artifact.size_bytes))

    workers = [asyncio.ensure_future(work()) for _ in wanted[: limits.INLINED_AT_ONCE]]
    try:
        await asyncio.gather(*workers)
    finally:
        for each in workers:
            each.cancel()
        await asyncio.gather(*workers, return_exceptions=True)


async def _read(slices: AsyncIterator[bytes]) -> bytes:
    if not hasattr(slices, "aclose"):
        return b"".join([each async for each in slices])
    closing: Any = slices
    async with aclosing(closing):
        return b"".join([each async for each in slices])
