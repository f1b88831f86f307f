"""Items, and what is read and written of them one by one."""

from datetime import datetime
from typing import Annotated, Literal

from msgspec import UNSET, Meta, Raw, UnsetType

from gateway.wire.base import Integer, Request, Response
from gateway.wire.problems import Problem

Label = Annotated[str, Meta(min_length=1, max_length=255)]
Path = Annotated[list[Label], Meta(max_length=16)]
Key = Annotated[str, Meta(max_length=255)]
ModelName = Annotated[str, Meta(min_length=1, max_length=255)]
Numbers = Annotated[list[float], Meta(min_length=1, max_length=4096)]
TtlSeconds = Annotated[int, Meta(ge=1, le=10 * 366 * 86_400)]


class Item(Response, omit_defaults=True):
    """A value under a key of a path.

    No other state of the key has its ``revision``. ``ttl_seconds`` is how long it lives after it was put or last read,
    and ``expires_at`` when that is over; both are absent where it lives until it is deleted.
    """

    path: list[str]
    key: str
    value: Raw
    revision: int
    created_at: datetime
    updated_at: datetime
    ttl_seconds: int | UnsetType = UNSET
    expires_at: datetime | UnsetType = UNSET
    score: float | UnsetType = UNSET


class ItemVectors(Request):
    """Vectors of an item by one model, all of the same dimensions: lists of numbers, or (``packed``) 32-bit floats.

    A packed vector is little endian, four bytes a dimension; in JSON it is base64.
    """

    model: ModelName
    vectors: Annotated[list[Numbers], Meta(max_length=64)] = []
    packed: Annotated[list[bytes], Meta(max_length=64)] = []


_Vectors = Annotated[list[ItemVectors], Meta(max_length=8)]


class ItemPut(Request):
    """A value, which is a map, to put under the key that the path of the request names.

    ``vectors`` are those by which it is found by what it means; they replace all that the item had.
    """

    value: Raw
    ttl_seconds: TtlSeconds | None = None
    vectors: _Vectors = []


class WrittenItem(Response, omit_defaults=True):
    """What became of a write.

    ``absent``: there was nothing to delete. ``refused``: ``problem`` says why. ``undone``: another write of a batch
    that is ``atomic`` was refused.
    """

    status: Literal["created", "replaced", "deleted", "absent", "indexed", "refused", "undone"]
    revision: int | UnsetType = UNSET
    created_at: datetime | UnsetType = UNSET
    updated_at: datetime | UnsetType = UNSET
    expires_at: datetime | UnsetType = UNSET
    problem: Problem | UnsetType = UNSET


class ItemGet(Request):
    """An item to read. ``refresh``: one with a time to live gets it anew."""

    path: Path
    key: Key
    refresh: bool = True


class ItemWrite(Request):
    """An item to put, by its ``value``, or to ``delete``; or, by ``vectors`` alone, to give vectors to.

    ``if_revision``: only if the item is at it. ``if_absent``: only if there is none.
    """

    path: Path
    key: Key
    value: Raw | UnsetType = UNSET
    delete: bool = False
    ttl_seconds: TtlSeconds | None = None
    vectors: _Vectors = []
    if_revision: Integer | None = None
    if_absent: bool = False
