"""Short ways to write states, saves and what came back, for the storage suites."""

from typing import Any

import msgpack

from storage.format.pieces import GROUP_BYTES_MAX, INDEX_CHILDREN_MAX
from storage.model import (
    ChannelValue,
    Checkpoint,
    FullState,
    HistoryQuery,
    Load,
    NewWrite,
    Patch,
    Save,
    Saved,
    TaskWrites,
    Value,
)
from storage.scope import Scope
from storage.service import Store


def packed(content: Any) -> Value:
    return Value("msgpack", msgpack.packb(content))


def state(**channels: Any) -> FullState:
    return FullState({name: ChannelValue(None, packed(content)) for name, content in channels.items()})


def list_with_indexes() -> list[str]:
    """Elements of more groups than an index piece has children: there is one wherever the subject's key cuts."""
    element = 1500
    count = (INDEX_CHILDREN_MAX + 1) * (GROUP_BYTES_MAX // element + 1)
    return [f"{number}:" + "e" * element for number in range(count)]


def patch(
    *,
    put: dict[str, Any] | None = None,
    append: dict[str, list[Any]] | None = None,
    remove: list[str] | None = None,
) -> Patch:
    return Patch(
        set={name: packed(content) for name, content in (put or {}).items()},
        append={name: [msgpack.packb(each) for each in elements] for name, elements in (append or {}).items()},
        remove=remove or [],
    )


def write(idx: int, channel: str, content: Any) -> NewWrite:
    return NewWrite(idx=idx, channel=channel, value=packed(content))


def contents(checkpoint: Checkpoint) -> dict[str, Any]:
    assert checkpoint.channels is not None
    return {name: msgpack.unpackb(each.value.data) for name, each in checkpoint.channels.items()}


def writes_of(checkpoint: Checkpoint) -> list[tuple[str, int, str, Any]]:
    assert checkpoint.writes is not None
    return [(each.task_id, each.idx, each.channel, msgpack.unpackb(each.value.data)) for each in checkpoint.writes]


async def save(store: Store, scope: Scope, thread_id: str = "t1", **parts: Any) -> Saved:
    parts.setdefault("content", state(note="x"))
    return await store.checkpoints.save(scope, Save(thread_id=thread_id, **parts))


async def load(
    store: Store, scope: Scope, thread_id: str = "t1", checkpoint_id: str | None = None, namespace: str = ""
) -> Checkpoint:
    loaded = await store.checkpoints.load(scope, Load(thread_id, namespace, checkpoint_id, with_state=True))
    return loaded.checkpoint


async def history(store: Store, scope: Scope, **query: Any) -> list[Checkpoint]:
    return (await store.checkpoints.history(scope, HistoryQuery(**query))).items


async def put(
    store: Store,
    scope: Scope,
    checkpoint_id: str,
    *writes: NewWrite,
    task_id: str = "task",
    thread_id: str = "t1",
    namespace: str = "",
    task_path: str = "",
    status: Any = None,
    known_token: str | None = None,
    **state_version: Any,
) -> Any:
    return await store.checkpoints.put_writes(
        scope,
        TaskWrites(
            thread_id,
            namespace,
            checkpoint_id,
            task_id,
            task_path,
            writes,
            status,
            known_token=known_token,
            **state_version,
        ),
    )


def document(name: str, size: int = 6000) -> str:
    """A text of ``size`` characters that is stored as pieces and that no other name has."""
    return (f"{name}." * (size // (len(name) + 1) + 1))[:size]
