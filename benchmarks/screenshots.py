"""``python -m benchmarks.screenshots``: a LangGraph run whose messages hold screenshots of 1 MB.

Says what the run takes in PostgreSQL and in the object store, what saving took, and how long the newest state takes
to load with its large pieces left as references and with all of them. It promises nothing about other machines.
"""

import argparse
import asyncio
import base64
import json
import os
import time
from pathlib import Path
from statistics import median
from typing import Annotated, Any, TypedDict
from uuid import uuid4

import httpx2
from langchain_core.messages import AnyMessage, HumanMessage
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages

from benchmarks.engines import Engines, running
from stateroom.langgraph import StateroomSaver

SCREENSHOT_BYTES = 1024 * 1024
PER_STEP = 10
_LOADS = 5


class State(TypedDict):
    """A chat."""

    messages: Annotated[list[AnyMessage], add_messages]


def screenshot(number: int) -> HumanMessage:
    """A message with a picture of `SCREENSHOT_BYTES` as a data URI; each is another one."""
    picture = base64.b64encode(os.urandom(SCREENSHOT_BYTES * 3 // 4)).decode("ascii")
    content: list[str | dict[Any, Any]] = [
        {"type": "text", "text": f"screen {number}"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{picture}"}},
    ]
    return HumanMessage(content=content, id=str(number))


def _graph(saver: StateroomSaver) -> Any:
    def look(_state: State) -> State:
        return {"messages": []}

    graph: Any = StateGraph(State)
    graph.add_node("look", look)
    graph.add_edge(START, "look")
    graph.add_edge("look", END)
    return graph.compile(checkpointer=saver)


def _saver(engines: Engines) -> StateroomSaver:
    return StateroomSaver(engines.url, engines.api_key, subject="screens")


async def measure(engines: Engines, screenshots: int) -> dict[str, float]:
    """Run it in a thread of its own, and load what it left."""
    thread_id = f"screens-{uuid4()}"
    config: Any = {"configurable": {"thread_id": thread_id}}
    tables_before, objects_before = await engines.tables_size("stateroom"), engines.s3_size()
    steps: list[float] = []
    with _saver(engines) as saver:
        graph = _graph(saver)
        for first in range(0, screenshots, PER_STEP):
            messages = [screenshot(number) for number in range(first, min(first + PER_STEP, screenshots))]
            began = time.perf_counter()
            await asyncio.to_thread(graph.invoke, {"messages": messages}, config)
            steps.append(time.perf_counter() - began)
        kept = [each.id for each in graph.get_state(config).values["messages"]]
    if kept != [str(number) for number in range(screenshots)]:
        raise RuntimeError("the run did not come back whole")
    references, whole = [], []
    headers = {
        "Authorization": f"Bearer {engines.api_key}",
        "Stateroom-Subject": "screens",
        "Accept": "application/msgpack",
    }
    with httpx2.Client(base_url=engines.url, headers=headers, timeout=60) as client:
        for _ in range(_LOADS):
            began = time.perf_counter()
            answer = client.get(f"/v1/threads/{thread_id}/checkpoints/latest?view=channels&pieces=refs")
            references.append(time.perf_counter() - began)
            answer.raise_for_status()
    for _ in range(2):
        with _saver(engines) as saver:
            began = time.perf_counter()
            saver.get_tuple(config)
            whole.append(time.perf_counter() - began)
    return {
        "screenshots": screenshots,
        "MB of screenshots": screenshots * SCREENSHOT_BYTES / 1e6,
        "MB in PostgreSQL": (await engines.tables_size("stateroom") - tables_before) / 1e6,
        "MB in S3": (engines.s3_size() - objects_before) / 1e6,
        "KB of the answer with references": len(answer.content) / 1e3,
        "latest with references, ms": median(references) * 1e3,
        "latest with all pieces, ms": median(whole) * 1e3,
        f"a step that adds {PER_STEP}, first, s": steps[0],
        f"a step that adds {PER_STEP}, last, s": steps[-1],
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.screenshots", description=__doc__)
    parser.add_argument("--screenshots", type=int, default=200)
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    with running(arguments.folder) as engines_under_test:
        print(json.dumps(asyncio.run(measure(engines_under_test, arguments.screenshots)), indent=2))
