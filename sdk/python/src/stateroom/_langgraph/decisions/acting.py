"""Acting with an approval: a call of a gated tool as an effect in the ledger of its thread."""

from typing import Any, Protocol

from stateroom._langgraph.connections import Connections
from stateroom._protocol.core import Pinned
from stateroom._thread_ledgers.shapes import EffectStart
from stateroom._threads.async_effects import async_run_effect
from stateroom._threads.effect_calls import EffectPlace, EffectPolicy, ToolCall
from stateroom._threads.effects import run_effect


class Acting(Protocol):
    """Calls a function as an effect, unless it was called before."""

    def act(
        self, pinned: Pinned, place: EffectPlace, policy: EffectPolicy, called: ToolCall, wanted: EffectStart
    ) -> Any:
        """Call it, for callers that wait.

        Raises:
            ApprovalConsumed: The approval that is named was used by another effect.
            ApprovalRequired: None is named, and the effect was not begun with one.
            EffectUnknown: It may have happened.
        """

    async def aact(
        self, pinned: Pinned, place: EffectPlace, policy: EffectPolicy, called: ToolCall, wanted: EffectStart
    ) -> Any:
        """Call it, for callers on an event loop; raises as ``act``."""


class InLedger:
    """Acts with the clients of a saver."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    def act(
        self, pinned: Pinned, place: EffectPlace, policy: EffectPolicy, called: ToolCall, wanted: EffectStart
    ) -> Any:
        """As `Acting.act`."""
        return run_effect(self._connections.blocking(), pinned, place, policy, called, wanted)

    async def aact(
        self, pinned: Pinned, place: EffectPlace, policy: EffectPolicy, called: ToolCall, wanted: EffectStart
    ) -> Any:
        """As `Acting.aact`."""
        client = await self._connections.on_loop()
        return await async_run_effect(client, pinned, place, policy, called, wanted)
