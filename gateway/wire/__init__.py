"""The shapes of requests and responses of API v1, and nothing else.

Every body may be JSON or MessagePack, chosen by ``Content-Type`` and ``Accept``; the structs are the same.
``bytes`` are base64 in JSON and native in MessagePack. Values of an agent's state are carried as raw slices
of the body, so that MessagePack extension types pass through without being looked at.

It does not validate meaning (limits, existence, permission) beyond what a type can say; it knows no
storage, no SQL and no cryptography.
"""

from typing import Final

from msgspec import Struct

from gateway.wire import (
    artifacts,
    base,
    checkpoints,
    jobs,
    keys,
    problems,
    retention,
    schemas,
    threads,
    trajectories,
    transfer,
    verification,
)
from gateway.wire.administration import api_keys, audit, tenants
from gateway.wire.events import event_settings, events
from gateway.wire.items import batches, items, searches, vector_policies
from gateway.wire.thread_ledgers import approval_policies, approvals, claims, effects

_MODULES = (
    api_keys,
    approval_policies,
    approvals,
    artifacts,
    audit,
    base,
    batches,
    checkpoints,
    claims,
    effects,
    event_settings,
    events,
    items,
    jobs,
    keys,
    problems,
    retention,
    schemas,
    searches,
    tenants,
    threads,
    trajectories,
    transfer,
    vector_policies,
    verification,
)
SHAPES: Final[dict[str, type[Struct]]] = {
    name: shape
    for module in _MODULES
    for name, shape in vars(module).items()
    if isinstance(shape, type) and issubclass(shape, Struct) and shape.__module__ == module.__name__
}
"""Every shape by its name, which no other one has."""
