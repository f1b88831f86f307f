"""Items as verbs take and give them, and the limits of one."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Literal, NamedTuple

from storage.errors import InvalidState, LimitExceeded
from storage.format.items.vectors import Vector
from storage.items.filters import Filter
from storage.model import Value
from storage.scope import ID_BYTES_MAX

ITEM_LABELS_MAX: Final = 16
ITEM_PATH_BYTES_MAX: Final = 1024
ITEM_VALUE_BYTES_MAX: Final = 256 * 1024
ITEM_OPERATIONS_MAX: Final = 100
ITEM_PATHS_MAX: Final = 10_000
ITEM_TTL_SECONDS_MAX: Final = 10 * 366 * 86_400
ITEM_MODELS_MAX: Final = 8
ITEM_VECTORS_MAX: Final = 64
ITEM_DIMENSIONS_MAX: Final = 4096
ITEM_OFFSET_MAX: Final = 100_000
ANY_LABEL: Final = "*"

Labels = tuple[str, ...]


class ItemName(NamedTuple):
    """Where an item is: its path and its key."""

    path: Labels
    key: str


@dataclass(frozen=True, slots=True)
class Item:
    """An item as it was read.

    Attributes:
        name: Its path and key.
        value: Its value, a map.
        revision: A number that no other state of a key of the path has, and that grows.
        created_at: When the key was first put, or put anew after it was gone.
        updated_at: When this value was put.
        ttl_seconds: How long it lives after it was put or last read; None: until it is deleted.
        expires_at: When it is over, if nobody reads it before.
        score: How near it is to what was searched for; None: it was not found by that.
    """

    name: ItemName
    value: Value
    revision: int
    created_at: datetime
    updated_at: datetime
    ttl_seconds: int | None
    expires_at: datetime | None
    score: float | None = None


class ModelVectors(NamedTuple):
    """Vectors of one item by one model, all of the same dimensions: at least one."""

    model: str
    vectors: tuple[Vector, ...]

    @property
    def dimensions(self) -> int:
        """How many dimensions each has."""
        return len(self.vectors[0].codes)


@dataclass(frozen=True, slots=True)
class ItemWrite:
    """An item to put; without a value one to delete, or (with ``vectors``) to give vectors to and leave as it is.

    Attributes:
        name: Its path and key.
        value: Its value, a map.
        ttl_seconds: How long it lives; None: until it is deleted.
        if_revision: Only if this is its revision.
        if_absent: Only if there is none, or one that is over.
        vectors: By which it is found by what it means, a list of them for each model. Those of an item that is put
            replace all that it had; those that are given to one replace what it had by the same models.
    """

    name: ItemName
    value: Value | None
    ttl_seconds: int | None = None
    if_revision: int | None = None
    if_absent: bool = False
    vectors: tuple[ModelVectors, ...] = ()


WriteStatus = Literal["created", "replaced", "deleted", "absent", "indexed"]


@dataclass(frozen=True, slots=True)
class Written:
    """What became of a write: ``absent`` is a deletion of what was not there. ``revision`` is that of what was put."""

    status: WriteStatus
    revision: int | None = None
    created_at: datetime | None = None
    updated_at: datetime | None = None
    expires_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class ItemGet:
    """An item to read; ``refresh``: what has a time to live gets it anew."""

    name: ItemName
    refresh: bool = True


Metric = Literal["cosine", "dot", "l2"]


@dataclass(frozen=True, slots=True)
class Near:
    """What items are searched by: a vector, the model that made it, and how nearness is measured.

    ``metric``: the cosine of the angle, the dot product, or the negative Euclidean distance; greater is nearer.
    """

    model: str
    values: tuple[float, ...]
    metric: Metric = "cosine"


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemSearch:
    """Items to find, the last changed first.

    Attributes:
        prefix: The labels that their paths begin with.
        filter: What their values must be like; None: anything.
        limit: How many at most.
        offset: How many to leave out first.
        after: Where an earlier page ended.
        refresh: As in `ItemGet`.
        near: The vector that theirs are near to, the nearest first; None: the last changed come first.
    """

    prefix: Labels = ()
    near: Near | None = None
    filter: Filter | None = None
    limit: int = 100
    offset: int = 0
    after: tuple[str, ...] | None = None
    refresh: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class PathSearch:
    """Paths to find, in the order of their labels.

    Attributes:
        prefix: The labels that they begin with; ``*`` stands for any one.
        suffix: The labels that they end with, likewise.
        max_depth: Longer ones are cut to so many labels, and told once.
        limit: How many at most.
        offset: How many to leave out first.
        after: The last path of an earlier page.
    """

    prefix: Labels = ()
    suffix: Labels = ()
    max_depth: int | None = None
    limit: int = 100
    offset: int = 0
    after: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """Operations on one subject's items: the reads see what was there before the writes.

    ``atomic``: either all writes happen or none.
    """

    gets: list[ItemGet] = field(default_factory=list)
    writes: list[ItemWrite] = field(default_factory=list)
    searches: list[ItemSearch] = field(default_factory=list)
    paths: list[PathSearch] = field(default_factory=list)
    atomic: bool = False


def check_labels(labels: Labels, pointer: str, *, least: int = 0) -> None:
    """Refuse what cannot be a path, or the beginning or end of one.

    Raises:
        InvalidState: A label is empty, has too many bytes or is not Unicode; or there are too few of them.
        LimitExceeded: There are too many, or they are too long together.
    """
    if len(labels) < least:
        raise InvalidState("a path has at least one label", pointer)
    if len(labels) > ITEM_LABELS_MAX:
        raise LimitExceeded("ITEM_LABELS_MAX", ITEM_LABELS_MAX, len(labels), pointer)
    total = 0
    for number, label in enumerate(labels):
        size = _utf8_bytes(label, f"{pointer}/{number}")
        if not 1 <= size <= ID_BYTES_MAX:
            raise InvalidState(f"a label has 1 to {ID_BYTES_MAX} bytes", f"{pointer}/{number}")
        total += size
    if total > ITEM_PATH_BYTES_MAX:
        raise LimitExceeded("ITEM_PATH_BYTES_MAX", ITEM_PATH_BYTES_MAX, total, pointer)


def check_key(key: str, pointer: str) -> None:
    """Refuse what cannot be a key. An empty one can.

    Raises:
        InvalidState: It has too many bytes, or is not Unicode.
    """
    if _utf8_bytes(key, pointer) > ID_BYTES_MAX:
        raise InvalidState(f"a key has at most {ID_BYTES_MAX} bytes", pointer)


def _utf8_bytes(text: str, pointer: str) -> int:
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        raise InvalidState("it is not valid Unicode", pointer) from None
