"""What a client is told when something is refused (RFC 9457)."""

from datetime import datetime
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from gateway.wire.base import Response


class Fault(Response, omit_defaults=True):
    """Where a request is at fault: a JSON pointer into the body, a query parameter, or a header."""

    detail: str
    pointer: str | UnsetType = UNSET
    parameter: str | UnsetType = UNSET
    header: str | UnsetType = UNSET


class Problem(Response, omit_defaults=True):
    """RFC 9457 problem details. ``code`` is stable; ``retryable``: the same request may succeed later.

    Of ``thread-archived``, ``state`` says how far away the thread is, and ``progress`` (0 to 1) how far its thaw, if a
    restore waits for it.
    """

    type: str
    title: str
    status: int
    code: str
    retryable: bool
    detail: str = ""
    request_id: str = ""
    errors: list[Fault] = []
    limit: str | UnsetType = UNSET
    head_id: str | UnsetType | None = UNSET
    revision: int | UnsetType | None = UNSET
    state: Literal["archived", "frozen", "thawing"] | UnsetType = UNSET
    progress: float | UnsetType = UNSET
    claimed_until: datetime | UnsetType = UNSET
    effect_name: str | UnsetType | None = UNSET
    execution: int | UnsetType | None = UNSET
    attempt: int | UnsetType = UNSET


def component_schemas(types: list[Any]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """JSON Schemas of ``types`` for OpenAPI, with shared components under ``#/components/schemas/``."""
    schemas, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    return list(schemas), components
