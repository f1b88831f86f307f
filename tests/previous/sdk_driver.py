"""Speaks to a gateway by the SDK of whichever build's environment runs this, one JSON line in and out for each call."""

import json
import sys
import traceback
from collections.abc import Callable
from typing import Any

from langgraph.checkpoint.base import empty_checkpoint

from stateroom import Client
from stateroom.langgraph import StateroomSaver


def save(client: Client, thread_id: str, state: dict[str, Any]) -> None:
    """Go on from the head, whoever saved it."""
    thread = client.thread(thread_id, agent="tester")
    thread.load()
    thread.save(state)


def load(client: Client, thread_id: str) -> Any:
    head = client.thread(thread_id).load()
    return None if head is None else head.state


def grow(client: Client, thread_id: str, by: list[Any]) -> Any:
    """Load, let a list of it grow, save: that goes by pieces that the gateway has."""
    thread = client.thread(thread_id, agent="tester")
    head = thread.load()
    assert head is not None
    thread.save({**head.state, "long": [*head.state["long"], *by]})
    return len(head.state["long"]) + len(by)


def once(client: Client, thread_id: str, name: str, result: Any) -> Any:
    """What a tool call came to: that of the first run, whoever ran it."""
    thread = client.thread(thread_id)
    thread.load()
    return thread.once(name, lambda: result)


def fork(client: Client, thread_id: str, target: str) -> Any:
    """Copy the thread, fork the copy at its oldest checkpoint, and tell how long its history is then."""
    thread = client.thread(thread_id)
    thread.copy(target)
    copied = client.thread(target, agent="tester")
    (*_, oldest) = copied.history()
    branch = copied.fork(getattr(oldest, "checkpoint_id", None) or oldest.id)  # as builds before 0.1.0 call it
    branch.save({"branch": True})
    return len(list(copied.history()))


def put_file(client: Client, thread_id: str, size: int) -> str:
    return client.artifacts.upload(thread_id, b"x" * size, name="file.bin").artifact_id


def get_file(client: Client, artifact_id: str) -> int:
    return len(client.artifacts.download(artifact_id))


def files(client: Client, thread_id: str) -> list[str]:
    return [each.artifact_id for each in client.artifacts.list(thread_id)]


def _saver() -> StateroomSaver:
    url, api_key, subject = sys.argv[1:]
    return StateroomSaver(url, api_key, subject=subject)


def graph_save(_: Client, thread_id: str, values: dict[str, Any]) -> None:
    """A step of a graph, on top of the newest, with a write that is pending."""
    config: Any = {"configurable": {"thread_id": thread_id, "checkpoint_ns": ""}}
    with _saver() as saver:
        newest = saver.get_tuple(config)
        before = {} if newest is None else newest.checkpoint["channel_versions"]
        versions = {name: saver.get_next_version(before.get(name), None) for name in values}
        checkpoint: Any = {**empty_checkpoint(), "channel_values": values, "channel_versions": {**before, **versions}}
        metadata: Any = {"source": "loop", "step": len(list(saver.list(config))) - 1, "parents": {}}
        saved = saver.put(config if newest is None else newest.config, checkpoint, metadata, versions)
        saver.put_writes(saved, [("note", sorted(values))], "task-1")


def graph_load(_: Client, thread_id: str) -> Any:
    """What a graph would go on from, and the steps of all its checkpoints."""
    config: Any = {"configurable": {"thread_id": thread_id, "checkpoint_ns": ""}}
    with _saver() as saver:
        newest, *older = saver.list(config)
        found = saver.get_tuple(config)
        assert found is not None
        assert found.checkpoint == newest.checkpoint
        return [
            found.checkpoint["channel_values"],
            [list(each) for each in found.pending_writes or ()],
            [each.metadata["step"] for each in (newest, *older)],
        ]


_ALL: tuple[Callable[..., Any], ...] = (
    save, load, grow, once, fork, put_file, get_file, files, graph_save, graph_load,
)  # fmt: skip
CALLS = {each.__name__: each for each in _ALL}


def main() -> None:
    """Serve calls until stdin ends."""
    url, api_key, subject = sys.argv[1:]
    with Client(url, api_key, subject=subject) as client:
        for line in sys.stdin:
            name, arguments = json.loads(line)
            try:
                answer = {"result": CALLS[name](client, *arguments)}
            except Exception:  # noqa: BLE001 - whatever it is, the test shows it
                answer = {"error": traceback.format_exc()}
            print(json.dumps(answer), flush=True)  # noqa: T201 - the answer


if __name__ == "__main__":
    main()
