"""Carrying out an effect, for callers on an event loop.

This module owns the order: started in the ledger, then done, then finished there. It promises that what happens once is
not done again where it is not certain that it did not happen. It does not make a service that is called keep that
promise; the provider key does, where the service takes one.
"""

import logging
from contextlib import suppress
from typing import Any, Final

import msgspec

from stateroom._artifacts.async_ranges import AsyncCarrier
from stateroom._io.on_loop import finished, shielded
from stateroom._protocol import calls
from stateroom._protocol.core import Pinned, Steps
from stateroom._protocol.wire import ThreadSettings
from stateroom._thread_ledgers import requests
from stateroom._thread_ledgers.shapes import Effect, EffectFinish, EffectResolve, EffectStart, EffectStarted
from stateroom._threads.effect_calls import (
    RESULT_MEDIA_TYPE,
    EffectPlace,
    EffectPolicy,
    Result,
    ToolCall,
    ended_by,
    outcome_of,
    running,
)
from stateroom._threads.plain import to_plain
from stateroom.async_artifacts import AsyncArtifacts
from stateroom.errors import (
    EffectNotUnknown,
    EffectSuperseded,
    EffectUnknown,
    ResultMissing,
    StateroomError,
    ThreadNotFound,
)

FAILED_SECONDS = 5.0
DONE_SECONDS = 60.0
_LOGGER: Final = logging.getLogger("stateroom")


def starting(place: EffectPlace, wanted: EffectStart) -> Steps[EffectStarted]:
    """Start an effect; its thread is made if there is none."""
    try:
        return (yield from requests.start(place.thread_id, place.name, wanted))
    except ThreadNotFound:
        yield from calls.change_thread(place.thread_id, ThreadSettings())
    return (yield from requests.start(place.thread_id, place.name, wanted))


async def async_run_effect(
    client: AsyncCarrier,
    pinned: Pinned,
    place: EffectPlace,
    policy: EffectPolicy,
    called: ToolCall,
    wanted: EffectStart | None = None,
) -> Any:
    """Call a function unless it is certain, or possible, that the same call happened before.

    Args:
        client: Makes the calls.
        pinned: Whose thread it is.
        place: Where the effect stands.
        policy: How it is kept.
        called: The function, and its arguments.
        wanted: What is started; ``None``: the call in its plain form.

    Returns:
        The result, or the one of the time before.

    Raises:
        EffectUnknown: It may have happened.
        EffectInProgress: Somebody does it now.
        EffectRepeats: The same was done before under another name.
        EffectMismatch: The name was used for something else.
        ResultMissing: It happened, and its result is lost.
    """
    started = await _started(client, pinned, place, policy, called, wanted or called.start(place, policy))
    effect = started.effect
    if not started.must_run:
        return called.typed(await _replayed(client, effect))
    try:
        with running(effect):
            value = await finished(called.run(effect))
    except BaseException as error:
        await _finish_failed(client, pinned, place, ended_by(effect, error, policy.definite))
        raise
    result = Result.of(value)
    await shielded(lambda: _say_done(client, pinned, place, effect, result), DONE_SECONDS)
    if result.is_large:
        await _keep_large(client, pinned, place, effect, result)
    return called.typed(result.plain)


async def _started(
    client: AsyncCarrier,
    pinned: Pinned,
    place: EffectPlace,
    policy: EffectPolicy,
    called: ToolCall,
    wanted: EffectStart,
) -> EffectStarted:
    """Start it; of one of unknown outcome, the check is asked first.

    Raises:
        EffectUnknown: There is no check, or it does not know.
        EffectInProgress: It found nothing, and whoever started it may still be at it.
    """
    try:
        return await client.drive(starting(place, wanted), pinned)
    except EffectUnknown as error:
        if policy.check is None or error.execution is None or error.attempt is None:
            raise
        outcome = outcome_of(await finished(policy.check(*called.args, **called.kwargs)))
        if outcome is None:
            raise
        found = EffectResolve(
            execution=error.execution,
            attempt=error.attempt,
            happened=outcome.happened,
            namespace=place.namespace,
            by_check=True,
        )
    if outcome.happened and outcome.result is not msgspec.UNSET:
        found.result = to_plain(outcome.result)
    # Where another one was faster, the ledger says by the next start what is true now.
    with suppress(EffectSuperseded, EffectNotUnknown):
        resolved = await client.drive(requests.resolve(place.thread_id, place.name, found), pinned)
        if outcome.happened:
            return EffectStarted(must_run=False, effect=resolved)
    return await client.drive(starting(place, wanted), pinned)


async def _replayed(client: AsyncCarrier, effect: Effect) -> Any:
    """The result of the time that it happened.

    Raises:
        ResultMissing: It was lost.
    """
    if effect.result_state == "missing":
        raise ResultMissing(f"the effect {effect.name!r} happened, and its result could not be kept")
    if effect.result_state == "artifact" and effect.artifact_id is not None:
        return msgspec.msgpack.decode(await AsyncArtifacts(client).download(effect.artifact_id))
    return effect.result


async def _say_done(client: AsyncCarrier, pinned: Pinned, place: EffectPlace, effect: Effect, result: Result) -> None:
    """Say that it is done, with its result if the ledger takes that: what happened is on record whatever it gave."""
    try:
        await client.drive(requests.finish(place.thread_id, place.name, result.finish(effect)), pinned)
    except EffectSuperseded:
        raise
    except StateroomError as error:
        if error.retryable or result.is_large or result.encoded is None:
            raise
        _LOGGER.warning("the result of the effect %r cannot be kept (%s)", effect.name, error.code)
        await client.drive(requests.finish(place.thread_id, place.name, result.finish_without(effect)), pinned)


async def _keep_large(client: AsyncCarrier, pinned: Pinned, place: EffectPlace, effect: Effect, result: Result) -> None:
    """Keep the result of what is done as an artifact; where that fails it stays missing."""
    try:
        uploaded = await AsyncArtifacts(client).upload(
            place.thread_id,
            result.encoded or b"",
            name=f"effect-{effect.name[:200]}-{effect.execution}",
            media_type=RESULT_MEDIA_TYPE,
        )
        ended = result.finish(effect, uploaded.artifact_id)
        await client.drive(requests.finish(place.thread_id, place.name, ended), pinned)
    except StateroomError as error:
        _LOGGER.warning("the result of the effect %r cannot be kept (%s)", effect.name, error.code)


async def _finish_failed(client: AsyncCarrier, pinned: Pinned, place: EffectPlace, ended: EffectFinish) -> None:
    """Say that it failed, or may have happened; if that cannot be said, the lease says so when it is over."""

    async def say() -> None:
        await client.drive(requests.finish(place.thread_id, place.name, ended), pinned)

    with suppress(StateroomError, TimeoutError):
        await shielded(say, FAILED_SECONDS)
