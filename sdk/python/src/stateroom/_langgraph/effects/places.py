"""Where an effect of a graph stands: in the root of its thread, behind the checkpoint that the step began at.

This module owns the names of calls that have no id of their own. A step that runs again names its calls as before.
"""

from collections import Counter, OrderedDict

from langchain_core.runnables import RunnableConfig

from stateroom._langgraph.runs import held_by
from stateroom._protocol.core import Endpoint
from stateroom._threads.effect_calls import EffectPlace

_RUNTIME = "__pregel_runtime"
_TASK_ID = "__pregel_task_id"
_ATTEMPTS_MAX = 1024


class _Ordinals:
    """The how-manieth call of a tool it is within an attempt at a task, where no tool call has an id."""

    def __init__(self) -> None:
        self._attempts: OrderedDict[int, tuple[object, Counter[str]]] = OrderedDict()

    def next(self, attempt: object, tool: str) -> int:
        """Count a call.

        Args:
            attempt: An object of the attempt and no other; it is kept, so that its identity stays its own.
            tool: The tool's name.
        """
        _, counted = self._attempts.setdefault(id(attempt), (attempt, Counter()))
        counted[tool] += 1
        if len(self._attempts) > _ATTEMPTS_MAX:
            self._attempts.popitem(last=False)
        return counted[tool]


_ordinals = _Ordinals()


def effect_place(endpoint: Endpoint, config: RunnableConfig, name: str | None, tool: str) -> EffectPlace:
    """Where a call stands: in the thread's root, behind the root's checkpoint that the step began at.

    Args:
        endpoint: Whose thread it is.
        config: That of the step.
        name: The name of the call; ``None``: the task, and which call of the tool this is there.
        tool: The tool, or what of it is counted by itself.
    """
    configurable = config.get("configurable") or {}
    held = held_by(endpoint, config)
    if name is None:
        ordinal = _ordinals.next(configurable.get(_RUNTIME), tool)
        name = f"{configurable.get(_TASK_ID)}/{tool}/{ordinal}"
    return EffectPlace(
        thread_id=str(configurable.get("thread_id")),
        name=name,
        checkpoint_id=(configurable.get("checkpoint_map") or {}).get(""),
        run_id=held.run_id,
        fence=held.fence,
    )
