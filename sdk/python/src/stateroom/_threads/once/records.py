"""What is kept of a once-call that finished, and where: ``docs/formats/once-record.md``.

This module owns both forms: the result of an effect in the thread's ledger, and the two pending writes of before, which
a gateway without a ledger still keeps. It does not decide which is used.
"""

import hashlib
from typing import Final, TypedDict

from stateroom._protocol import calls
from stateroom._protocol.core import Steps
from stateroom._protocol.wire import WriteIn, WritesRequest
from stateroom._thread_ledgers.shapes import ALL_ARGUMENTS, EffectStart
from stateroom._threads.effect_calls import EffectPlace
from stateroom.errors import InvalidRequest

ONCE_ANCHOR = "stateroom:once"
"""The checkpoint id that once-calls of a namespace stand at. No checkpoint has it.

Writes may precede their checkpoint, and pruning removes writes of removed checkpoints only. The ledger takes a
checkpoint that nobody stored for an ancestor of every other one. So what stands here is found as long as its thread is
there, on every line of it, whatever was saved or pruned since.
"""
ONCE_TOOL: Final = "stateroom.once"
# How long a call of the same name waits for one that may be under way: of who died nobody says so.
ONCE_LEASE_SECONDS: Final = 5

_RESULT_IDX: Final = 0
_INTENT_IDX: Final = 1
_INTENT: Final = "stateroom:intent"
_NAME_BYTES_MAX: Final = 255


class OnceRecord(TypedDict):
    """A call that finished.

    Attributes:
        intent: What was asked; ``None``: a build before 0.1.0 kept it, and did not say.
        value: What it returned, in its plain form.
    """

    intent: str | None
    value: object


def once_place(once_key: str) -> tuple[str, str]:
    """Where the result of a once-call is kept as pending writes.

    Args:
        once_key: The call's name inside its thread and namespace.

    Returns:
        Task id and channel: a digest of the name (stable between processes and releases), and the name
        itself, or its digest when it is too long for a channel.

    Raises:
        InvalidRequest: The name is empty, holds a NUL, or is not a valid text.
    """
    if not isinstance(once_key, str) or not once_key:
        raise InvalidRequest("a once-call needs a name that is a non-empty text")
    if "\0" in once_key:
        raise InvalidRequest("a once-call's name must not hold a NUL")
    try:
        raw = once_key.encode()
    except UnicodeEncodeError:
        raise InvalidRequest("a once-call's name must be valid Unicode text") from None
    digest = hashlib.sha256(raw).hexdigest()
    channel = once_key if len(raw) <= _NAME_BYTES_MAX else f"sha256:{digest}"
    return f"once:{digest[:32]}", channel


def effect_name(namespace: str, once_key: str) -> str:
    """The name of a once-call in the ledger, which counts effects for the root of their namespace.

    Args:
        namespace: The namespace that the name is unique in.
        once_key: The call's name.

    Raises:
        InvalidRequest: As `once_place`.
    """
    channel = once_place(once_key)[1]
    if ":" not in namespace:
        return channel
    unique = f"{namespace}\0{once_key}"
    return f"sha256:{hashlib.sha256(unique.encode()).hexdigest()}"


def started(place: EffectPlace, once_key: str) -> EffectStart:
    """What the ledger is told of a once-call before it: its name, and not what was asked."""
    return EffectStart(
        tool=ONCE_TOOL,
        args={"name": once_key},
        mode="idempotent",
        namespace=place.namespace,
        identity=ALL_ARGUMENTS,
        checkpoint_id=place.checkpoint_id,
        run_id=place.run_id,
        fence=place.fence,
        lease_seconds=ONCE_LEASE_SECONDS,
    )


def recall(place: EffectPlace, once_key: str) -> Steps[OnceRecord | None]:
    """What pending writes say of a once-call; ``None``: nothing."""
    task_id, channel = once_place(once_key)
    page = yield from calls.read_writes(place.thread_id, place.namespace, ONCE_ANCHOR, task_id)
    kept = {each.idx: each for each in page.writes}
    result, asked = kept.get(_RESULT_IDX), kept.get(_INTENT_IDX)
    if result is None or result.channel != channel:
        return None
    return OnceRecord(intent=None if asked is None else asked.value, value=result.value)


def record(place: EffectPlace, once_key: str, finished: OnceRecord) -> Steps[OnceRecord]:
    """Keep a call that finished as pending writes; what was kept first wins and is returned."""
    task_id, channel = once_place(once_key)
    writes = [
        WriteIn(channel=channel, idx=_RESULT_IDX, value=finished["value"]),
        WriteIn(channel=_INTENT, idx=_INTENT_IDX, value=finished["intent"]),
    ]
    request = WritesRequest(writes=writes, namespace=place.namespace, fence=place.fence)
    receipt = yield from calls.write(place.thread_id, ONCE_ANCHOR, task_id, request)
    if receipt.stored < len(writes):
        return (yield from recall(place, once_key)) or finished
    return finished
