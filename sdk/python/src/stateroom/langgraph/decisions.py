"""People decide what a LangGraph agent may do: questions outlive the process, and tools do only what was approved.

A saver with ``decisions=DecisionRules(...)`` stores an approval together with each interrupt. ``resume`` goes on with
what was decided, and a tool that is ``gated`` is called only with arguments that somebody approved. This module owns
the running of graphs with decisions; who may decide is the gateway's to say.
"""

import functools
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple, Protocol

from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.config import get_config
from langgraph.types import Command, StateSnapshot, interrupt

from stateroom._langgraph.decisions.asking import DecisionRules
from stateroom._langgraph.decisions.deciding import Decided, Deciding
from stateroom._langgraph.decisions.tools import ToolForm
from stateroom._threads.effect_calls import EffectPolicy, ToolCall
from stateroom.errors import NotConfigured
from stateroom.langgraph import StateroomSaver

__all__ = ["Decided", "DecisionRules", "adecided", "aresume", "decided", "gated", "resume", "strict"]

# LangGraph's word: what is not waited for is refused, instead of passed over.
_STRICT = "__pregel_strict_resume"
_REJECTED = "A person rejected this call of {}. It was not made."


class Graph(Protocol):
    """What is needed of a compiled graph."""

    def get_state(self, config: RunnableConfig) -> StateSnapshot:
        """The newest state."""

    async def aget_state(self, config: RunnableConfig) -> StateSnapshot:
        """The newest state."""

    # LangGraph has many more named parameters, which are passed on.
    def invoke(self, input: Any, config: RunnableConfig, **options: Any) -> Any:  # noqa: A002 - LangGraph's word
        """Run it."""

    async def ainvoke(self, input: Any, config: RunnableConfig, **options: Any) -> Any:  # noqa: A002 - LangGraph's word
        """Run it."""


def decided(graph: Graph, saver: StateroomSaver, config: RunnableConfig) -> Decided:
    """What was decided of what a thread waits for, and what is still waited for.

    Args:
        graph: The compiled graph.
        saver: Its checkpointer, made with ``decisions``.
        config: The thread.

    Returns:
        The values to resume with, by interrupt: for ``Command(resume=decided.values)`` with a ``strict`` config.

    Raises:
        NotConfigured: The saver was made without.
    """
    deciding = _deciding(saver)
    return deciding.run(config, deciding.decided(graph.get_state(config)))


async def adecided(graph: Graph, saver: StateroomSaver, config: RunnableConfig) -> Decided:
    """What was decided of what a thread waits for; as ``decided``."""
    deciding = _deciding(saver)
    return await deciding.arun(config, deciding.decided(await graph.aget_state(config)))


def resume(graph: Graph, saver: StateroomSaver, config: RunnableConfig, **options: Any) -> Any:
    """Go on with a thread that waits, with whatever was decided; questions that nobody answered stay open.

    Args:
        graph: The compiled graph.
        saver: Its checkpointer, made with ``decisions``.
        config: The thread.
        options: Passed on to the graph's ``invoke``.

    Returns:
        What the run returned; ``None``: nothing was decided, and nothing was run.

    Raises:
        NotConfigured: The saver was made without.
    """
    found = decided(graph, saver, config)
    return graph.invoke(Command(resume=found.values), strict(config), **options) if found.values else None


async def aresume(graph: Graph, saver: StateroomSaver, config: RunnableConfig, **options: Any) -> Any:
    """Go on with a thread that waits; as ``resume``."""
    found = await adecided(graph, saver, config)
    return await graph.ainvoke(Command(resume=found.values), strict(config), **options) if found.values else None


def strict(config: RunnableConfig) -> RunnableConfig:
    """The config with which a graph refuses answers that it does not wait for, as when two resume it at once."""
    return {**config, "configurable": {**config.get("configurable", {}), _STRICT: True}}


def gated(
    tool: BaseTool, saver: StateroomSaver, *, asks: bool = True, definite: tuple[type[BaseException], ...] = ()
) -> BaseTool:
    """A tool that is called only with arguments that somebody approved, once for each approval.

    The arguments are read after the answer: a node runs again from its start when it goes on, and may then call the
    tool otherwise than it asked. What is not approved exactly so is refused, and the tool is not called.

    Args:
        tool: A tool that LangChain makes of a function.
        saver: The checkpointer of the graph that calls it, made with ``decisions``.
        asks: Whether the tool asks by itself. ``False``: something else did, such as LangChain's
            ``HumanInTheLoopMiddleware``, and the tool only sees that it was approved.
        definite: Exceptions of the tool that prove that nothing happened. After any other one nobody knows, and the
            call is not made again before somebody says so.

    Returns:
        A copy of it with the same name and arguments. A person's no, or a person's answer, is returned in its place.

    Raises:
        NotConfigured: The saver was made without ``decisions``.
        TypeError: It is another kind of tool.
        ValueError: The saver knows another tool of that name.
    """
    if not isinstance(tool, StructuredTool):
        raise TypeError(f"a {type(tool).__name__} is no tool that LangChain made of a function")
    gate = _Gate(tool, _deciding(saver), EffectPolicy(definite=definite), asks=asks)
    changed: dict[str, Any] = {}
    if tool.func is not None:
        changed["func"] = gate.around(tool.func)
    if tool.coroutine is not None:
        changed["coroutine"] = gate.around_coroutine(tool.coroutine)
    return tool.model_copy(update=changed)


class _Call(NamedTuple):
    """What is to be done after the answer: call with values, or return something in the place of a call."""

    values: dict[str, Any] | None
    instead: Any = None


class _Gate:
    def __init__(self, tool: StructuredTool, deciding: Deciding, policy: EffectPolicy, *, asks: bool) -> None:
        self._tool = tool
        self._form = ToolForm.of(tool)
        self._deciding = deciding
        self._policy = policy
        self._asks = asks
        deciding.rules.add(self._form)

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def run(**values: Any) -> Any:
            call = self._asked(values)
            if call.values is None:
                return call.instead
            called = ToolCall(function, (), call.values)
            return self._returned(self._deciding.act(get_config(), self._form, self._policy, called))

        return run

    def around_coroutine(self, function: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        @functools.wraps(function)
        async def run(**values: Any) -> Any:
            call = self._asked(values)
            if call.values is None:
                return call.instead
            called = ToolCall(function, (), call.values)
            return self._returned(await self._deciding.aact(get_config(), self._form, self._policy, called))

        return run

    def _returned(self, value: Any) -> Any:
        """What the function returned, or had returned the time before: of a plain form, in which no pair is left."""
        is_pair = self._tool.response_format == "content_and_artifact" and isinstance(value, list)
        return tuple(value) if is_pair else value

    def _asked(self, values: dict[str, Any]) -> _Call:
        """Ask, and read the answer; the run ends here until there is one."""
        if not self._asks:
            return _Call(values)
        request = {
            "type": "tool_approval",
            "name": self._form.name,
            "args": self._form.called(values),
            "description": self._tool.description,
        }
        decision = interrupt(request)
        kind = decision.get("type") if isinstance(decision, Mapping) else None
        if kind == "approve":
            return _Call(values)
        if kind == "edit":
            return _Call({**values, **self._form.values(decision["edited_action"]["args"])})
        if kind == "respond":
            return self._instead(decision.get("message", ""))
        # A no, and whatever is not understood.
        said = decision.get("message") if isinstance(decision, Mapping) else None
        return self._instead(" ".join(filter(None, [_REJECTED.format(self._form.name), said])))

    def _instead(self, text: str) -> _Call:
        with_artifact = self._tool.response_format == "content_and_artifact"
        return _Call(None, (text, None) if with_artifact else text)


def _deciding(saver: StateroomSaver) -> Deciding:
    if saver.decisions is None:
        raise NotConfigured("the saver needs decisions=DecisionRules(...)")
    return saver.decisions
