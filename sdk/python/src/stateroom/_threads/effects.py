# Generated from async_effects.py by `make generate`: change that, not this.
"""Carrying out an effect, for callers that block.

This module owns the order: started in the ledger, then done, then finished there. It promises that what happens once is
not done again where it is not certain that it did not happen. It does not make a service that is called keep that
promise; the provider key does, where the service takes one.
"""

from contextlib import suppress
from typing import Any

import msgspec

from stateroom._artifacts.ranges import Carrier
from stateroom._io.blocking import finished, shielded
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
from stateroom.artifacts import Artifacts
from stateroom.errors import EffectUnknown, ResultMissing, StateroomError, ThreadNotFound

FAILED_SECONDS = 5.0
DONE_SECONDS = 60.0


def starting(place: EffectPlace, wanted: EffectStart) -> Steps[EffectStarted]:
    """Start an effect; its thread is made if there is none."""
    try:
        return (yield from requests.start(place.thread_id, place.name, wanted))
    except ThreadNotFound:
        yield from calls.change_thread(place.thread_id, ThreadSettings())
    return (yield from requests.start(place.thread_id, place.name, wanted))


def run_effect(
    client: Carrier,
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
    started = _started(client, pinned, place, policy, called, wanted or called.start(place, policy))
    effect = started.effect
    if not started.must_run:
        return called.typed(_replayed(client, effect))
    try:
        with running(effect):
            value = finished(called.run(effect))
    except BaseException as error:
        _finish_failed(client, pinned, place, ended_by(effect, error, policy.definite))
        raise
    return called.typed((shielded(lambda: _keep(client, pinned, place, effect, value), DONE_SECONDS)).plain)


def _started(
    client: Carrier,
    pinned: Pinned,
    place: EffectPlace,
    policy: EffectPolicy,
    called: ToolCall,
    wanted: EffectStart,
) -> EffectStarted:
    """Start it; of one of unknown outcome, the check is asked first.

    Raises:
        EffectUnknown: There is no check, or it does not know.
    """
    try:
        return client.drive(starting(place, wanted), pinned)
    except EffectUnknown as error:
        if policy.check is None or error.execution is None:
            raise
        outcome = outcome_of(finished(policy.check(*called.args, **called.kwargs)))
        if outcome is None:
            raise
        found = EffectResolve(
            execution=error.execution, happened=outcome.happened, namespace=place.namespace, by_check=True
        )
    if outcome.happened and outcome.result is not msgspec.UNSET:
        found.result = to_plain(outcome.result)
    resolved = client.drive(requests.resolve(place.thread_id, place.name, found), pinned)
    if outcome.happened:
        return EffectStarted(must_run=False, effect=resolved)
    return client.drive(starting(place, wanted), pinned)


def _replayed(client: Carrier, effect: Effect) -> Any:
    """The result of the time that it happened.

    Raises:
        ResultMissing: It was lost.
    """
    if effect.result_state == "missing":
        raise ResultMissing(f"the effect {effect.name!r} happened, and its result could not be kept")
    if effect.result_state == "artifact" and effect.artifact_id is not None:
        return msgspec.msgpack.decode(Artifacts(client).download(effect.artifact_id))
    return effect.result


def _keep(client: Carrier, pinned: Pinned, place: EffectPlace, effect: Effect, value: Any) -> Result:
    """Say that it is done, and keep its result."""
    result = Result.of(value)
    artifact_id: str | None = None
    if result.is_large and result.encoded is not None:
        name = f"effect-{effect.name[:200]}-{effect.execution}"
        try:
            uploaded = Artifacts(client).upload(
                place.thread_id, result.encoded, name=name, media_type=RESULT_MEDIA_TYPE
            )
            artifact_id = uploaded.artifact_id
        except StateroomError:  # it is done all the same, and its result is missing
            artifact_id = None
    ended = result.finish(effect, artifact_id)
    client.drive(requests.finish(place.thread_id, place.name, ended), pinned)
    return result


def _finish_failed(client: Carrier, pinned: Pinned, place: EffectPlace, ended: EffectFinish) -> None:
    """Say that it failed, or may have happened; if that cannot be said, the lease says so when it is over."""

    def say() -> None:
        client.drive(requests.finish(place.thread_id, place.name, ended), pinned)

    with suppress(StateroomError, TimeoutError):
        shielded(say, FAILED_SECONDS)
