"""The store as agents and graphs of LangGraph get it: injected into tools and nodes, for whoever is acting."""

from typing import Annotated, TypedDict

import pytest
from langchain_core.tools import tool
from langgraph.config import get_store
from langgraph.graph import END, START, StateGraph
from langgraph.prebuilt import InjectedStore, create_react_agent
from langgraph.runtime import Runtime
from langgraph.store.base import BaseStore

from stateroom import acting_for
from stateroom.langgraph import StateroomSaver, StateroomStore
from stateroom.testing.stores import CharacterEmbeddings
from tests.support.scripted_model import calling, scripted

# The agent of LangChain that took its place is in the suite beside others' packages (make ecosystem).
pytestmark = pytest.mark.filterwarnings("ignore:create_react_agent has been moved")
INDEX = {"dims": 48, "embed": CharacterEmbeddings(), "fields": ["text"]}


@pytest.fixture
async def memory(gateway_env):
    async with StateroomStore(gateway_env.url, gateway_env.api_key, index=INDEX) as opened:
        yield opened


@tool
async def remember(text: str, store: Annotated[BaseStore, InjectedStore()]) -> str:
    """Remember something."""
    await store.aput(("memories",), text, {"text": text})
    return "noted"


@tool
async def recall(about: str, store: Annotated[BaseStore, InjectedStore()]) -> str:
    """Recall something."""
    found = await store.asearch(("memories",), query=about, limit=1)
    return found[0].value["text"] if found else "nothing"


@tool
def recall_blocking(about: str, store: Annotated[BaseStore, InjectedStore()]) -> str:
    """Recall something, in a worker thread."""
    found = store.search(("memories",), query=about, limit=1)
    return found[0].value["text"] if found else "nothing"


def agent(memory, saver, *said, tools=(remember, recall)):
    return create_react_agent(scripted(*said), [*tools], store=memory, checkpointer=saver)


async def ask(built, thread_id):
    answered = await built.ainvoke({"messages": [("user", "go on")]}, {"configurable": {"thread_id": thread_id}})
    return [each.content for each in answered["messages"] if each.type == "tool"]


async def test_what_a_tool_remembers_in_one_thread_is_recalled_in_another(memory, shared_saver, subject):
    with acting_for(subject):
        for text in ("likes window seats", "speaks Quechua"):
            assert await ask(agent(memory, shared_saver, calling("remember", text=text), "ok"), text) == ["noted"]
        told = await ask(agent(memory, shared_saver, calling("recall", about="window seat"), "ok"), "later")
        assert told == ["likes window seats"]
        blocking = agent(
            memory, shared_saver, calling("recall_blocking", about="Quechua?"), "ok", tools=[recall_blocking]
        )
        assert await ask(blocking, "much-later") == ["speaks Quechua"]
    with acting_for(f"{subject}-other"):
        told = await ask(agent(memory, shared_saver, calling("recall", about="window seat"), "ok"), "later")
        assert told == ["nothing"]


async def test_tools_that_are_called_at_once_share_a_store(memory, shared_saver, subject):
    both = calling("remember", text="one")
    both.tool_calls.append({**calling("remember", text="two").tool_calls[0], "id": "call-2"})
    with acting_for(subject):
        assert await ask(agent(memory, shared_saver, both, "ok"), "t") == ["noted", "noted"]
        assert sorted(each.key for each in await memory.asearch(("memories",))) == ["one", "two"]


class Total(TypedDict):
    total: int


async def test_nodes_get_the_store_that_the_graph_was_compiled_with(memory, shared_saver, subject):
    async def add(state: Total, runtime: Runtime) -> Total:
        await runtime.store.aput(("totals",), str(state["total"]), {"n": state["total"]})
        return {"total": state["total"] + 1}

    async def count(state: Total) -> Total:
        return {"total": len(await get_store().asearch(("totals",)))}

    builder = StateGraph(Total)
    builder.add_node("add", add)
    builder.add_node("count", count)
    builder.add_edge(START, "add")
    builder.add_edge("add", "count")
    builder.add_edge("count", END)
    graph = builder.compile(checkpointer=shared_saver, store=memory)
    with acting_for(subject):
        for thread, expected in (("t1", 1), ("t2", 2), ("t3", 3)):
            config = {"configurable": {"thread_id": thread}}
            assert (await graph.ainvoke({"total": 10 * expected}, config))["total"] == expected


def test_a_graph_that_blocks_uses_the_blocking_methods(gateway_env, subject):
    def node(state: Total, runtime: Runtime) -> Total:
        runtime.store.put(("totals",), "k", {"n": state["total"]})
        return {"total": runtime.store.get(("totals",), "k").value["n"] + 1}

    builder = StateGraph(Total)
    builder.add_node("node", node)
    builder.add_edge(START, "node")
    with (
        StateroomStore(gateway_env.url, gateway_env.api_key, subject=subject) as memory,
        StateroomSaver(gateway_env.url, gateway_env.api_key, subject=subject) as saver,
    ):
        graph = builder.compile(checkpointer=saver, store=memory)
        assert graph.invoke({"total": 4}, {"configurable": {"thread_id": "t"}}) == {"total": 5}
