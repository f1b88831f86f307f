"""What others made for LangGraph's stores, on this one: LangMem, the file backend of deepagents, LangChain's agent.

They come from packages that the default environment does not have: ``make ecosystem``.
"""

import json
import re
from uuid import UUID

import pytest
from langchain_core.messages import HumanMessage

from stateroom import acting_for
from stateroom.langgraph import StateroomSaver, StateroomStore
from stateroom.testing.stores import CharacterEmbeddings
from tests.support.scripted_model import calling, scripted

pytestmark = pytest.mark.ecosystem
INDEX = {"dims": 48, "embed": CharacterEmbeddings(), "fields": ["content"]}


@pytest.fixture
async def memory(gateway_env):
    async with StateroomStore(gateway_env.url, gateway_env.api_key, index=INDEX) as opened:
        yield opened


def id_in(told):
    return UUID(re.search(r"[0-9a-f-]{36}", told).group())


@pytest.mark.filterwarnings("ignore:Importing Send from langgraph.constants")  # by a package that LangMem uses
class TestLangMem:
    """Its tools, given the store, and inside of an agent that has it."""

    @pytest.fixture
    def tools(self, memory):
        from langmem import create_manage_memory_tool, create_search_memory_tool

        path = ("memories", "{langgraph_user_id}")
        return create_manage_memory_tool(path, store=memory), create_search_memory_tool(path, store=memory)

    @staticmethod
    def user(name):
        return {"configurable": {"langgraph_user_id": name}}

    async def found(self, search, query, user, **options):
        return [
            each["value"]["content"] for each in json.loads(await search.ainvoke({"query": query, **options}, user))
        ]

    async def test_memories_are_made_changed_found_and_deleted(self, tools, acting):
        manage, search = tools
        ada, bob = self.user("ada"), self.user("bob")
        windows = id_in(await manage.ainvoke({"content": "likes windows"}, ada))
        quechua = id_in(await manage.ainvoke({"content": "speaks Quechua"}, ada))
        await manage.ainvoke({"content": "likes aisles"}, bob)
        assert await self.found(search, "windows", ada) == ["likes windows", "speaks Quechua"]
        assert await self.found(search, "Quechua", ada, limit=1) == ["speaks Quechua"]
        await manage.ainvoke({"content": "zzz", "action": "update", "id": windows}, ada)
        await manage.ainvoke({"action": "delete", "id": quechua}, ada)
        assert await self.found(search, "likes windows", ada) == ["zzz"]
        assert await self.found(search, "likes", bob) == ["likes aisles"]

    def test_the_blocking_tools_do_the_same(self, tools, acting):
        manage, search = tools
        ada = self.user("ada")
        made = id_in(manage.invoke({"content": "likes windows"}, ada))
        found = json.loads(search.invoke({"query": "windows", "filter": {"content": "likes windows"}}, ada))
        assert [(each["key"], each["namespace"]) for each in found] == [(str(made), ["memories", "ada"])]

    async def test_subjects_do_not_see_each_other_whatever_the_path_says(self, tools, subject):
        manage, search = tools
        ada = self.user("ada")
        with acting_for(subject):
            await manage.ainvoke({"content": "likes windows"}, ada)
        with acting_for(f"{subject}-other"):
            assert await self.found(search, "windows", ada) == []

    async def test_an_agent_remembers_from_one_thread_to_the_next(self, memory, shared_saver, acting):
        from langchain.agents import create_agent
        from langmem import create_manage_memory_tool, create_search_memory_tool

        tools = [create_manage_memory_tool(("memories",)), create_search_memory_tool(("memories",))]
        for thread, said in (
            ("t1", calling("manage_memory", content="likes windows", action="create")),
            ("t2", calling("search_memory", query="windows")),
        ):
            agent = create_agent(scripted(said, "ok"), tools, store=memory, checkpointer=shared_saver)
            answered = await agent.ainvoke(
                {"messages": [HumanMessage("go on")]}, {"configurable": {"thread_id": thread}}
            )
        assert "likes windows" in answered["messages"][-2].content


class TestDeepAgents:
    """Files that are items: each a key of one path."""

    @pytest.fixture
    def files(self, memory):
        from deepagents.backends import StoreBackend

        return StoreBackend(store=memory, namespace=lambda _: ("files", "ada"))

    async def test_files_are_written_read_edited_listed_searched_and_deleted(self, files, acting):
        for name, text in (("/a.md", "one\ntwo\n"), ("/src/b.py", "import one\n"), ("/src/deep/c.py", "three")):
            assert (await files.awrite(name, text)).error is None
        assert (await files.aread("/a.md")).file_data["content"] == "one\ntwo\n"
        assert (await files.aread("/missing.md")).error is not None
        assert (await files.aedit("/a.md", "two", "zwei")).occurrences == 1
        assert (await files.aedit("/a.md", "two", "zwei")).error is not None
        assert (await files.aread("/a.md")).file_data["content"] == "one\nzwei\n"
        assert [each["path"] for each in (await files.als("/")).entries] == ["/a.md", "/src/"]
        assert [each["path"] for each in (await files.als("/src")).entries] == ["/src/b.py", "/src/deep/"]
        assert {each["path"] for each in (await files.agrep("one")).matches} == {"/a.md", "/src/b.py"}
        assert {each["path"] for each in (await files.aglob("*.py")).matches} == {"/src/b.py", "/src/deep/c.py"}
        assert (await files.adelete("/src")).error is None
        assert [each["path"] for each in (await files.als("/")).entries] == ["/a.md"]

    def test_the_blocking_methods_do_the_same(self, files, acting):
        files.write("/a.md", "one")
        files.edit("/a.md", "one", "two")
        assert files.read("/a.md").file_data["content"] == "two"
        assert [each["path"] for each in files.ls("/").entries] == ["/a.md"]
        assert [each["path"] for each in files.grep("two").matches] == ["/a.md"]
        assert [each["path"] for each in files.glob("*.md").matches] == ["/a.md"]
        files.delete("/a.md")
        assert files.ls("/").entries == []

    async def test_folders_of_several_pages_are_listed_whole(self, files, memory, acting):
        names = [f"/{number:03}.md" for number in range(230)]
        files.upload_files([(name, b"text") for name in names[:-1]] + [(names[-1], b"\xff\x00")])
        assert [each["path"] for each in (await files.als("/")).entries] == names
        (binary,) = files.download_files([names[-1]])
        assert binary.content == b"\xff\x00"

    async def test_an_agent_finds_its_files_in_another_thread(self, memory, shared_saver, acting):
        from deepagents import create_deep_agent
        from deepagents.backends import StoreBackend

        for thread, said in (
            ("t1", calling("write_file", file_path="/notes.md", content="likes windows")),
            ("t2", calling("read_file", file_path="/notes.md")),
        ):
            agent = create_deep_agent(
                model=scripted(said, "ok"),
                backend=StoreBackend(namespace=lambda _: ("files",)),
                store=memory,
                checkpointer=shared_saver,
            )
            answered = await agent.ainvoke(
                {"messages": [HumanMessage("go on")]}, {"configurable": {"thread_id": thread}}
            )
        assert "likes windows" in answered["messages"][-2].content


class TestLangChain:
    """Its agent hands the store to tools by the runtime."""

    async def test_a_tool_has_the_store_of_its_agent(self, memory, gateway_env, acting):
        from langchain.agents import create_agent
        from langchain.tools import ToolRuntime, tool

        @tool
        async def visits(runtime: ToolRuntime) -> str:
            """Count visits."""
            found = await runtime.store.aget(("visits",), "n")
            count = 1 + (found.value["n"] if found else 0)
            await runtime.store.aput(("visits",), "n", {"n": count})
            return str(count)

        async with StateroomSaver(gateway_env.url, gateway_env.api_key) as saver:
            for thread in ("t1", "t2"):
                agent = create_agent(scripted(calling("visits"), "ok"), [visits], store=memory, checkpointer=saver)
                answered = await agent.ainvoke(
                    {"messages": [HumanMessage("go on")]}, {"configurable": {"thread_id": thread}}
                )
        assert answered["messages"][-2].content == "2"
