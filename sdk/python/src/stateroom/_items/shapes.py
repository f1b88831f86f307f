"""Items as the client takes and returns them.

This module owns the shapes of items, of what is asked for them, and of what becomes of it. Unknown fields of a newer
gateway are ignored; the order of fields is not promised.
"""

import sys
from array import array
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from stateroom.errors import InvalidRequest, Problem, StateroomError, error_from_problem

Path = tuple[str, ...]
Metric = Literal["cosine", "dot", "l2"]
WriteStatus = Literal["created", "replaced", "deleted", "absent", "indexed", "refused", "undone"]


def labels(path: Iterable[str]) -> Path:
    """A path of its labels.

    Raises:
        InvalidRequest: It is a text, whose labels would be its letters.
    """
    if isinstance(path, str):
        raise InvalidRequest("a path is a sequence of labels, not a text")
    return tuple(path)


class Item(Struct, kw_only=True, frozen=True):
    """A value that was put under a key of a path.

    Attributes:
        path: The labels that it stands under.
        key: Its name there.
        value: What was put: a mapping.
        revision: A number that no other state of the key has, and that grows; for ``if_revision``.
        created_at: When the key was first put, or put anew after it was gone.
        updated_at: When this value was put.
        ttl_seconds: How long it lives after it was put or last read; ``None``: until it is deleted.
        expires_at: When its time is over, if nobody reads it before.
        score: How near it is to what was searched for; ``None``: it was not found by that.
    """

    path: Path
    key: str
    value: dict[str, Any]
    revision: int
    created_at: datetime
    updated_at: datetime
    ttl_seconds: int | None = None
    expires_at: datetime | None = None
    score: float | None = None


class ItemWritten(Struct, kw_only=True, frozen=True):
    """What became of a write.

    Attributes:
        status: ``created``, ``replaced``, ``deleted``, ``absent`` (there was nothing to delete), ``indexed`` (it got
            vectors), ``refused`` (``error`` says why) or ``undone`` (another write of a batch that is all or nothing
            was refused).
        revision: The item's revision now.
        created_at: When the key was first put, or put anew after it was gone.
        updated_at: When the value was put.
        expires_at: When its time is over, if nobody reads it before; ``None``: never.
        problem: Why it was refused, as the gateway says it.
    """

    status: WriteStatus
    revision: int | None = None
    created_at: datetime | None = None
    updated_at: datetime | None = None
    expires_at: datetime | None = None
    problem: Problem | None = None

    @property
    def error(self) -> StateroomError | None:
        """What refused the write, as an error to raise; ``None``: nothing did."""
        return None if self.problem is None else error_from_problem(self.problem, self.problem.status)


class ItemVectors(Struct, kw_only=True):
    """Vectors of an item by one model, by which it is found by what it means.

    Attributes:
        model: The model's name. Only vectors of one name and length are compared.
        packed: The vectors, each as 32-bit floats, little endian; see ``of``.
    """

    model: str
    packed: list[bytes]

    @classmethod
    def of(cls, model: str, vectors: Iterable[Sequence[float]]) -> "ItemVectors":
        """Vectors as numbers."""
        return cls(model=model, packed=[packed(each) for each in vectors])


class Near(Struct, kw_only=True):
    """What items are searched by: a vector, and how nearness is measured.

    Attributes:
        model: The model that made it.
        packed: The vector as 32-bit floats, little endian; see ``of``.
        metric: ``cosine`` of the angle, ``dot`` product, or negative Euclidean distance (``l2``).
    """

    model: str
    packed: bytes
    metric: Metric = "cosine"

    @classmethod
    def of(cls, model: str, vector: Sequence[float], metric: Metric = "cosine") -> "Near":
        """A vector as numbers."""
        return cls(model=model, packed=packed(vector), metric=metric)


def packed(vector: Sequence[float]) -> bytes:
    """A vector as 32-bit floats, little endian."""
    numbers = array("f", vector)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


class Reindexed(Struct, kw_only=True, frozen=True):
    """How far giving items vectors has come.

    Attributes:
        items: How many items were looked at.
        indexed: How many of them got vectors.
        moved: How many were changed or deleted meanwhile, and were left alone: who changed them gave them their own.
        cursor: Where to go on; ``None``: that was all.
    """

    items: int = 0
    indexed: int = 0
    moved: int = 0
    cursor: str | None = None


class ItemGet(Struct, kw_only=True, omit_defaults=True):
    """An item to read.

    Attributes:
        path: The labels that it stands under.
        key: Its name there.
        refresh: Whether one with a time to live gets that anew.
    """

    path: Path
    key: str
    refresh: bool = True


class ItemWrite(Struct, kw_only=True, omit_defaults=True):
    """An item to put or to delete, or (by ``vectors`` alone) one that is there to give vectors to.

    Attributes:
        path: The labels that it stands under.
        key: Its name there.
        value: What to put: a mapping, up to 256 KiB.
        delete: Whether to delete it instead.
        ttl_seconds: How long it lives; ``None``: until it is deleted.
        vectors: By which it is found by what it means, of each model. A put replaces all that there were.
        if_revision: Only if this is its revision.
        if_absent: Only if there is none.
    """

    path: Path
    key: str
    value: Mapping[str, Any] | UnsetType = UNSET
    delete: bool = False
    ttl_seconds: int | None = None
    vectors: list[ItemVectors] = []
    if_revision: int | None = None
    if_absent: bool = False


class ItemSearch(Struct, kw_only=True, omit_defaults=True):
    """Items to find, the last changed first, or the nearest.

    Attributes:
        prefix: The labels that their paths begin with.
        near: The vector that theirs are near to; those without any are left out.
        filter: What members of their values must be: a value, or ``$eq``, ``$ne``, ``$gt``, ``$gte``, ``$lt``,
            ``$lte``, ``$in``, joined by ``$and`` and ``$or``.
        limit: How many a page has at most.
        offset: How many to leave out first.
        cursor: Where an earlier page ended.
        refresh: As in ``ItemGet``.
    """

    prefix: Path = ()
    near: Near | UnsetType = UNSET
    filter: Mapping[str, Any] | UnsetType = UNSET
    limit: int = 100
    offset: int = 0
    cursor: str | None = None
    refresh: bool = True


class ItemPathSearch(Struct, kw_only=True, omit_defaults=True):
    """Paths to find, in the order of their labels.

    Attributes:
        prefix: The labels that they begin with; ``*`` stands for any one.
        suffix: The labels that they end with, likewise.
        max_depth: Longer ones are cut to so many labels, and told once.
        limit: How many a page has at most.
        offset: How many to leave out first.
        cursor: Where an earlier page ended.
    """

    prefix: Path = ()
    suffix: Path = ()
    max_depth: int | None = None
    limit: int = 100
    offset: int = 0
    cursor: str | None = None


class ItemPage(Struct, kw_only=True):
    """Items that a search found; ``next_cursor`` goes on, also where the page is not full."""

    items: list[Item]
    next_cursor: str | None = None


class ItemPathPage(Struct, kw_only=True):
    """Paths that a search found."""

    paths: list[Path]
    next_cursor: str | None = None

    @property
    def items(self) -> list[Path]:
        """The page's paths, by the name that all pages have for what is on them."""
        return self.paths


class ItemBatch(Struct, kw_only=True, omit_defaults=True):
    """Up to 100 operations together. The reads see what was there before the writes.

    Attributes:
        gets: Items to read.
        writes: Items to put and to delete, in this order. One that is refused fails alone.
        searches: Searches of items.
        paths: Searches of paths.
        atomic: Whether no write happens if one is refused.
    """

    gets: list[ItemGet] = []
    writes: list[ItemWrite] = []
    searches: list[ItemSearch] = []
    paths: list[ItemPathSearch] = []
    atomic: bool = False


class ItemBatchResults(Struct, kw_only=True):
    """What became of each operation of a batch, in the order of its list; ``None``: there is no such item."""

    gets: list[Item | None] = []
    writes: list[ItemWritten] = []
    searches: list[ItemPage] = []
    paths: list[ItemPathPage] = []
