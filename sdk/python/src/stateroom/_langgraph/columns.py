"""What of a graph's config and metadata the gateway keeps in columns of its own.

This module owns which thread, namespace and checkpoint a config names, and which values fit a column, so that odd ones
stay mere metadata. It reads nothing else of a config.
"""

import re
from typing import Any

import msgspec
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import get_checkpoint_id

_WORD = re.compile(r"[A-Za-z0-9._:-]{1,64}")
_NAME_LENGTH_MAX = 255
_STEP_MIN, _STEP_MAX = -(2**31), 2**31 - 1


class ConfigIds(msgspec.Struct, frozen=True):
    """The only three things a request takes from a graph's config, which also holds live objects."""

    thread_id: str
    namespace: str
    checkpoint_id: str | None

    @classmethod
    def of(cls, config: RunnableConfig) -> "ConfigIds":
        """What a config names. Raises ``KeyError`` where it names no thread."""
        configurable = config["configurable"]
        return cls(
            str(configurable["thread_id"]),
            str(configurable.get("checkpoint_ns") or ""),
            get_checkpoint_id(config) or None,
        )

    def config(self, checkpoint_id: str) -> RunnableConfig:
        """What LangGraph calls a checkpoint of this thread and namespace."""
        return {
            "configurable": {
                "thread_id": self.thread_id,
                "checkpoint_ns": self.namespace,
                "checkpoint_id": checkpoint_id,
            }
        }


def word_of(value: Any) -> str | None:
    """The value, if it can be a source."""
    return value if isinstance(value, str) and _WORD.fullmatch(value) else None


def take_columns(matching: dict[str, Any]) -> dict[str, Any]:
    """Take out of a filter what the gateway keeps in columns of its own and can look up."""
    taken: dict[str, Any] = {}
    if is_step(matching.get("step")):
        taken["step"] = matching.pop("step")
    if word_of(matching.get("source")) is not None:
        taken["source"] = matching.pop("source")
    if name_of(matching.get("run_id")) is not None:
        taken["run_id"] = matching.pop("run_id")
    return taken


def is_step(value: Any) -> bool:
    """Whether the value can be a step."""
    return isinstance(value, int) and not isinstance(value, bool) and _STEP_MIN <= value <= _STEP_MAX


def name_of(value: Any) -> str | None:
    """The value, if it can be a run's or an agent's name."""
    return value if isinstance(value, str) and 0 < len(value) <= _NAME_LENGTH_MAX else None


def graph_name(config: RunnableConfig) -> str | None:
    """The graph's own name, where the config tells it."""
    metadata = config.get("metadata") or {}
    named = (metadata.get("lc_agent_name"), metadata.get("graph_id"), config.get("run_name"))
    return next(filter(None, map(name_of, named)), None)
