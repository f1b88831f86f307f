"""Tools of LangGraph whose effects are kept in their thread's ledger.

This module owns which effect a call of a tool is: the thread and the checkpoint are those of the step that calls it,
the name is the id of the tool call. LangGraph runs a step again when it is resumed, retried or forked: a tool that acts
acts once all the same. It does not keep the results of steps, which the saver does.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, ParamSpec, TypeVar, Unpack, cast, get_type_hints

from langchain_core.runnables import RunnableConfig
from langchain_core.tools import InjectedToolCallId
from langgraph._internal._retry import default_retry_on
from langgraph.config import get_config

from stateroom._langgraph.connections import Connected
from stateroom._langgraph.effects.places import effect_place
from stateroom._langgraph.runs import pin
from stateroom._options import refuse_unknown
from stateroom._threads.async_effects import async_run_effect
from stateroom._threads.effect_calls import PROVIDER_KEY, EffectOptions, EffectPlace, EffectPolicy, ToolCall
from stateroom._threads.effects import run_effect
from stateroom.errors import (
    ClaimLost,
    EffectMismatch,
    EffectRepeats,
    EffectUnknown,
    InvalidRequest,
    ResultMissing,
)

P = ParamSpec("P")
R = TypeVar("R")

_CHECKPOINTER = "__pregel_checkpointer"
_CALL_ID = "stateroom_tool_call_id"
# What a retry does not mend: a person, a program that looks, or another run has to.
_FINAL = (EffectUnknown, EffectRepeats, EffectMismatch, ResultMissing, ClaimLost)


def retry_on(error: Exception) -> bool:
    """What a ``RetryPolicy`` of nodes with effects retries: LangGraph's default, but nothing of unknown outcome.

    Args:
        error: Why a node failed.
    """
    return not isinstance(error, _FINAL) and default_retry_on(error)


def effect_tool(
    *, name: str | Callable[..., str] | None = None, **options: Unpack[EffectOptions]
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Keep the calls of a tool's function in the ledger of the thread whose graph calls it.

        @tool
        @effect_tool(mode="once")
        def pay(to: str, amount: int) -> str: ...

    Function or coroutine function; beneath ``@tool``, or called in a node. A parameter ``provider_key`` is filled with
    what the service that is called tells repetitions by; no model sees it. The graph's checkpointer is a
    ``StateroomSaver``. Give ``retry_on`` to the ``RetryPolicy`` of nodes that call it.

    Args:
        name: The call's name, or what makes it of the arguments. Left out: the id of the tool call; for a function that
            is no tool, the id of the task and which call of it this is there.
        options: What ``EffectOptions`` lists.

    Raises:
        EffectUnknown: It may have happened. Raised, as the others, when the tool is called.
        EffectInProgress: Somebody does it now.
        EffectRepeats: The same was done a moment ago by another call.
        InvalidRequest: It is called outside of a graph with a ``StateroomSaver``.
    """
    refuse_unknown("effect_tool", options, EffectOptions)
    policy = EffectPolicy(**options)

    def decorate(fn: Callable[P, R]) -> Callable[P, R]:
        tool = policy.tool or str(getattr(fn, "__name__", "tool"))

        def place_of(saver: Connected, config: RunnableConfig, call_id: str | None, called: ToolCall) -> EffectPlace:
            named = name(*called.args, **called.kwargs) if callable(name) else name
            return effect_place(saver.endpoint, config, named or call_id, tool)

        if inspect.iscoroutinefunction(fn):

            async def arun(*args: Any, **kwargs: Any) -> Any:
                call_id = kwargs.pop(_CALL_ID, None)
                config, called = get_config(), ToolCall(fn, args, kwargs)
                saver = _saver(config)
                place, pinned = place_of(saver, config, call_id, called), pin(saver.endpoint, config)
                return await async_run_effect(await saver.connections.on_loop(), pinned, place, policy, called)

            return cast(Callable[P, R], _shown(fn, arun, is_named=name is not None))

        def run(*args: Any, **kwargs: Any) -> Any:
            call_id = kwargs.pop(_CALL_ID, None)
            config, called = get_config(), ToolCall(fn, args, kwargs)
            saver = _saver(config)
            place, pinned = place_of(saver, config, call_id, called), pin(saver.endpoint, config)
            return run_effect(saver.connections.blocking(), pinned, place, policy, called)

        return cast(Callable[P, R], _shown(fn, run, is_named=name is not None))

    return decorate


def _shown(fn: Callable[..., Any], run: Callable[..., Any], *, is_named: bool) -> Callable[..., Any]:
    """``run`` as it is shown to LangChain: as ``fn`` without the provider key, and with the id of the tool call."""
    functools.update_wrapper(run, fn)
    del run.__wrapped__  # type: ignore[attr-defined]  # its signature is another one
    signature = inspect.signature(fn)
    # Where they are texts, they are names of the function's own module.
    annotations = get_type_hints(fn, include_extras=True)
    annotations.pop(PROVIDER_KEY, None)
    parameters = [
        each.replace(annotation=annotations.get(each.name, each.annotation))
        for each in signature.parameters.values()
        if each.name != PROVIDER_KEY
    ]
    if not is_named:
        kind = Annotated[str | None, InjectedToolCallId]
        variadic = parameters[-1:] if parameters and parameters[-1].kind is inspect.Parameter.VAR_KEYWORD else []
        parameters = parameters[: len(parameters) - len(variadic)]
        parameters += [inspect.Parameter(_CALL_ID, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)]
        parameters += variadic
        annotations[_CALL_ID] = kind
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = annotations
    return run


def _saver(config: RunnableConfig) -> Connected:
    found = (config.get("configurable") or {}).get(_CHECKPOINTER)
    if not isinstance(found, Connected):
        raise InvalidRequest("an effect is kept of a graph whose checkpointer is a StateroomSaver")
    return found
