"""Carrying out a once-call, for callers on an event loop.

This module owns the order: the ledger of effects is asked, then what earlier releases kept, then the function is
called. A gateway that keeps no effects, because it is older or not every process of it is upgraded, is asked for the
pending writes alone. It promises what ``AsyncThread.once`` does: a call that finished is not repeated.
"""

from contextlib import suppress
from typing import Any, Final

from stateroom._artifacts.async_ranges import AsyncCarrier
from stateroom._io.on_loop import finished
from stateroom._protocol.core import Pinned
from stateroom._thread_ledgers import requests
from stateroom._threads.async_effects import async_run_effect
from stateroom._threads.effect_calls import EffectPlace, EffectPolicy, ToolCall
from stateroom._threads.once.intents import intent_of
from stateroom._threads.once.records import ONCE_ANCHOR, OnceRecord, effect_name, recall, record, started
from stateroom._threads.plain import to_plain
from stateroom.errors import (
    EffectInProgress,
    EffectMismatch,
    EffectSuperseded,
    NotFound,
    OnceKeyReused,
    StateroomError,
)

# What a gateway says that keeps no effect of this call, for whatever reason.
_WITHOUT_LEDGER: Final = frozenset({"not-found", "feature-off", "effects-exceeded"})
_POLICY: Final = EffectPolicy(mode="idempotent")


async def async_call_once(
    client: AsyncCarrier, pinned: Pinned, place: EffectPlace, once_key: str, called: ToolCall
) -> Any:
    """Call a function unless a call of this name finished; returns the result in its plain form.

    Args:
        client: Makes the calls.
        pinned: Whose thread it is.
        place: Of which thread and namespace, under which claim.
        once_key: The call's name.
        called: The function, and its arguments.

    Raises:
        OnceKeyReused: A call of this name finished with other arguments.
        InvalidRequest: The name, or the result, is none that can be kept.
        ResultMissing: It finished, and its result is lost.
    """
    intent = intent_of(once_key, called.args, called.kwargs)
    place = place._replace(name=effect_name(place.namespace, once_key), checkpoint_id=ONCE_ANCHOR)
    kept = await _AsyncOnceCall(client, pinned, place, once_key, intent, called).kept()
    if kept["intent"] not in {None, intent}:
        raise OnceKeyReused("a call of this name finished with other arguments; each call needs a name of its own")
    return kept["value"]


class _AsyncOnceCall:
    """A once-call while it is carried out: what it came to is told again where its attempt was not the newest."""

    def __init__(
        self, client: AsyncCarrier, pinned: Pinned, place: EffectPlace, once_key: str, intent: str, called: ToolCall
    ) -> None:
        self._client = client
        self._pinned = pinned
        self._place = place
        self._once_key = once_key
        self._intent = intent
        self._called = called
        self._record: OnceRecord | None = None
        self._is_older = False
        self._failure: BaseException | None = None

    async def kept(self) -> OnceRecord:
        """What is kept of it, in the end."""
        while True:
            try:
                return await self._in_ledger()
            except EffectMismatch as error:
                self._raise_own(error)
                raise OnceKeyReused("the name is that of an effect; each call needs a name of its own") from None
            except EffectInProgress as error:
                self._raise_own(error)
                await self._wait(error.retry_after_seconds)
            except EffectSuperseded as error:
                self._raise_own(error)  # somebody took this one for dead; what was kept first is told by the next start
            except StateroomError as error:
                self._raise_own(error)
                if error.code not in _WITHOUT_LEDGER:
                    raise
                return await self._in_writes()

    async def _in_ledger(self) -> OnceRecord:
        call, wanted = ToolCall(self._finished, (), {}), started(self._place, self._once_key)
        kept: OnceRecord = await async_run_effect(self._client, self._pinned, self._place, _POLICY, call, wanted)
        return kept

    async def _in_writes(self) -> OnceRecord:
        mine: OnceRecord = await self._finished()
        if self._is_older:
            return mine
        return await self._client.drive(record(self._place, self._once_key, mine), self._pinned)

    async def _finished(self) -> Any:
        """What it came to, now or before there was a ledger; called once."""
        if self._record is None:
            try:
                older = await self._client.drive(recall(self._place, self._once_key), self._pinned)
                self._is_older = older is not None
                self._record = older or OnceRecord(intent=self._intent, value=to_plain(await self._result()))
            except BaseException as error:
                self._failure = error
                raise
        return self._record

    async def _result(self) -> Any:
        return await finished(self._called.fn(*self._called.args, **self._called.kwargs))

    async def _wait(self, seconds: float | None) -> None:
        """Let whoever is at it finish, or be taken for dead."""
        look = requests.show(self._place.thread_id, self._place.name, self._place.namespace, after_seconds=seconds or 0)
        with suppress(NotFound):
            await self._client.drive(look, self._pinned)

    def _raise_own(self, error: StateroomError) -> None:
        """Raise what the function itself raised: it is nothing that the ledger said of this call."""
        if error is self._failure:
            raise error
