"""Whom a run of a graph acts for, and under which claim.

LangGraph calls a saver back from pool threads whose context is empty, and from whatever context a stream is read on in.
So subject and client share are decided once, by the first call of a run, and put into the part of the config that
LangGraph made for this run, where they go along to every later call and to the subgraphs of the same thread. They end
with that config. A call that belongs to no run decides anew, and a config that a caller made is left as it was.

A claim goes the same way: who claims a thread for a run (``langgraph.running``) puts it into the config that the run
begins with, so that another run of the thread in this process does not write under it.
"""

from langchain_core.runnables import RunnableConfig

from stateroom._protocol.core import Endpoint, Pinned
from stateroom._thread_ledgers.held import Held

# LangGraph removes whatever begins so from the configs that it gives out.
_RUN = "__pregel_stateroom_run"
# Only LangGraph writes this name, into a copy that it made for one run.
_OF_A_RUN = "__pregel_runtime"
_CLAIM = "__pregel_stateroom_claim"


class _Run:
    """Whom one saver acts for in one thread; a plain object, which no serialiser writes."""

    __slots__ = ("endpoint", "pinned", "thread_id")

    def __init__(self, endpoint: Endpoint, thread_id: str, pinned: Pinned) -> None:
        self.endpoint, self.thread_id, self.pinned = endpoint, thread_id, pinned


def pin(endpoint: Endpoint, config: RunnableConfig | None) -> Pinned:
    """The subject and client share of a call: those its run began with, or those of this moment.

    Args:
        endpoint: Whose call it is; another saver's runs, inside of this one's or around them, are its own.
        config: What LangGraph gave to the call.

    Raises:
        SubjectRequired: No subject to act for was given.
        NotConfigured: The client share is not one.
    """
    configurable = (config or {}).get("configurable") or {}
    thread_id = str(configurable.get("thread_id"))
    run = configurable.get(_RUN)
    if isinstance(run, _Run) and run.endpoint is endpoint and run.thread_id == thread_id:
        return run.pinned
    pinned = endpoint.pin()
    if _OF_A_RUN in configurable:
        configurable[_RUN] = _Run(endpoint, thread_id, pinned)
    return pinned


class _Claimed:
    """The claim of a run; a plain object, which no serialiser writes."""

    __slots__ = ("endpoint", "held", "thread_id")

    def __init__(self, endpoint: Endpoint, thread_id: str, held: Held) -> None:
        self.endpoint, self.thread_id, self.held = endpoint, thread_id, held


def claimed(endpoint: Endpoint, config: RunnableConfig, held: Held) -> RunnableConfig:
    """The config of a run whose writes name a claim.

    Args:
        endpoint: Whose claim it is.
        config: The config of the run; it is left as it was.
        held: The claim, while it is held.
    """
    configurable = config.get("configurable") or {}
    claim = _Claimed(endpoint, str(configurable.get("thread_id")), held)
    return {**config, "configurable": {**configurable, _CLAIM: claim}}


def held_by(endpoint: Endpoint, config: RunnableConfig | None) -> Held:
    """What the run of a config holds of its thread; nothing, if it holds no claim.

    Args:
        endpoint: Whose thread it is.
        config: What LangGraph gave to the call.
    """
    configurable = (config or {}).get("configurable") or {}
    claim = configurable.get(_CLAIM)
    if not isinstance(claim, _Claimed) or claim.endpoint is not endpoint:
        return Held()
    return claim.held if claim.thread_id == str(configurable.get("thread_id")) else Held()
