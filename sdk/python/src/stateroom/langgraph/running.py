"""Runs of a graph under a claim of their thread.

This module owns claiming a thread around a run of a graph, and nothing of the run. A checkpointer is told of neither
the beginning nor the end of a run, so that the saver never claims; what is called here does.
"""

from collections.abc import AsyncIterator, Iterator
from typing import Any, Unpack
from uuid import uuid4

from langchain_core.runnables import RunnableConfig

from stateroom._langgraph.connections import Connected
from stateroom._langgraph.runs import claimed, pin
from stateroom._options import refuse_unknown
from stateroom._thread_ledgers import requests
from stateroom._thread_ledgers.async_claims import RUN_SECONDS_MAX, AsyncClaim
from stateroom._thread_ledgers.claims import Claim
from stateroom._thread_ledgers.held import Held
from stateroom._thread_ledgers.shapes import ClaimOptions, ClaimRequest
from stateroom.errors import InvalidRequest


class RunOptions(ClaimOptions, total=False):
    """How runs claim their thread: the options of ``thread.claim``, each of which may be left out."""


class ClaimedGraph:
    """A graph whose runs claim their thread: it is claimed when a run begins, and released when it ends.

    Only one run of a thread goes on at a time, in whatever process. A run whose process died is noticed when its lease
    is over, and another may go on then. A run whose thread was taken over fails with ``ClaimLost`` at its next step. A
    run that waits for somebody (``interrupt``) has ended: nothing is held meanwhile.

    Args:
        graph: A compiled graph.
        saver: Its checkpointer; left out, it is the graph's own.
        options: What ``RunOptions`` lists.

    Raises:
        InvalidRequest: The graph has another checkpointer than a ``StateroomSaver``.
    """

    def __init__(self, graph: Any, saver: Connected | None = None, **options: Unpack[RunOptions]) -> None:
        refuse_unknown(type(self).__name__, options, RunOptions)
        connected = getattr(graph, "checkpointer", None) if saver is None else saver
        if not isinstance(connected, Connected):
            raise InvalidRequest("runs are claimed of a graph whose checkpointer is a StateroomSaver")
        self._graph, self._saver, self._options = graph, connected, options

    def invoke(self, input: Any, config: RunnableConfig, **options: Any) -> Any:  # noqa: A002  LangGraph's word
        """Run the graph as its own ``invoke`` does, under a claim.

        Args:
            input: The graph's input.
            config: Its config, which names the thread; its ``run_id`` is the claim's.
            options: As the graph's own.

        Raises:
            ClaimHeld: Another run of the thread goes on.
            ThreadStuck: One run after the other died with the thread.
            ClaimLost: Another run went on with the thread meanwhile.
        """
        claim, under = self._claim(config)
        with claim:
            return self._graph.invoke(input, under, **options)

    async def ainvoke(self, input: Any, config: RunnableConfig, **options: Any) -> Any:  # noqa: A002  as above
        """Run the graph as its own ``ainvoke`` does, under a claim; see ``invoke``."""
        claim, under = await self._aclaim(config)
        async with claim:
            return await self._graph.ainvoke(input, under, **options)

    def stream(self, input: Any, config: RunnableConfig, **options: Any) -> Iterator[Any]:  # noqa: A002  as above
        """Run the graph as its own ``stream`` does, under a claim that ends with the iterator; see ``invoke``."""
        claim, under = self._claim(config)
        with claim:
            yield from self._graph.stream(input, under, **options)

    async def astream(self, input: Any, config: RunnableConfig, **options: Any) -> AsyncIterator[Any]:  # noqa: A002
        """Run the graph as its own ``astream`` does, under a claim that ends with the iterator; see ``invoke``."""
        claim, under = await self._aclaim(config)
        async with claim:
            async for part in self._graph.astream(input, under, **options):
                yield part

    def update_state(self, config: RunnableConfig, values: Any, as_node: str | None = None) -> RunnableConfig:
        """Change the state as the graph's own method does, under a claim: refused while a run of the thread goes on."""
        claim, under = self._claim(config)
        with claim:
            updated: RunnableConfig = self._graph.update_state(under, values, as_node)
            return updated

    async def aupdate_state(self, config: RunnableConfig, values: Any, as_node: str | None = None) -> RunnableConfig:
        """Change the state as the graph's own method does, under a claim: refused while a run of the thread goes on."""
        claim, under = await self._aclaim(config)
        async with claim:
            updated: RunnableConfig = await self._graph.aupdate_state(under, values, as_node)
            return updated

    def _claim(self, config: RunnableConfig) -> tuple[Claim, RunnableConfig]:
        pinned, held = pin(self._saver.endpoint, config), Held()
        wanted, seconds = self._wanted(config)
        claim = Claim(self._saver.connections.blocking(), pinned, _thread_id(config), wanted, held, seconds)
        return claim, claimed(self._saver.endpoint, config, held)

    async def _aclaim(self, config: RunnableConfig) -> tuple[AsyncClaim, RunnableConfig]:
        pinned, held = pin(self._saver.endpoint, config), Held()
        wanted, seconds = self._wanted(config)
        client = await self._saver.connections.on_loop()
        claim = AsyncClaim(client, pinned, _thread_id(config), wanted, held, seconds)
        return claim, claimed(self._saver.endpoint, config, held)

    def _wanted(self, config: RunnableConfig) -> tuple[ClaimRequest, float]:
        run_id = config.get("run_id")
        wanted = requests.wanted_claim(self._options, str(uuid4() if run_id is None else run_id))
        return wanted, self._options.get("run_seconds_max", RUN_SECONDS_MAX)


def _thread_id(config: RunnableConfig) -> str:
    thread_id = (config.get("configurable") or {}).get("thread_id")
    if thread_id is None:
        raise InvalidRequest("the config of a run under a claim names its thread")
    return str(thread_id)


def run(graph: Any, saver: Connected | None = None, **options: Unpack[RunOptions]) -> ClaimedGraph:
    """A graph whose runs claim their thread: ``run(graph).invoke(input, config)``.

    Args:
        graph: A compiled graph.
        saver: Its checkpointer; left out, it is the graph's own.
        options: What ``RunOptions`` lists.
    """
    return ClaimedGraph(graph, saver, **options)
