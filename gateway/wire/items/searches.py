"""Searches of items and of their paths, and the pages that they find."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Raw, UnsetType

from gateway.wire.base import Request, Response
from gateway.wire.items.items import Item, ModelName, Numbers, Path

_Limit = Annotated[int, Meta(ge=1, le=1000)]
_Offset = Annotated[int, Meta(ge=0, le=100_000)]


class Near(Request):
    """A vector that items are searched by, as numbers or (``packed``) as 32-bit floats, and the model that made it.

    Their ``score`` is the cosine of the angle, the dot product, or the negative Euclidean distance (``l2``).
    """

    model: ModelName
    vector: Numbers | UnsetType = UNSET
    packed: bytes | UnsetType = UNSET
    metric: Literal["cosine", "dot", "l2"] = "cosine"


class ItemSearch(Request):
    """Items whose paths begin with ``prefix`` and whose values are like ``filter``.

    They come the last changed first; with ``near`` the nearest first, and those without a vector not at all.
    """

    prefix: Path = []
    near: Near | UnsetType = UNSET
    filter: Raw | UnsetType = UNSET
    limit: _Limit = 100
    offset: _Offset = 0
    cursor: str | None = None
    refresh: bool = True


class PathSearch(Request):
    """Paths that begin with ``prefix`` and end with ``suffix``, in which ``*`` stands for any one label.

    Those that are longer than ``max_depth`` are cut to so many labels, and told once.
    """

    prefix: Path = []
    suffix: Path = []
    max_depth: Annotated[int, Meta(ge=1, le=16)] | None = None
    limit: _Limit = 100
    offset: _Offset = 0
    cursor: str | None = None


class ItemPage(Response):
    """The items that a search found. There may be more: ``next_cursor`` goes on, also where the page is not full."""

    items: list[Item]
    next_cursor: str | None


class PathPage(Response):
    """Paths in which there are items, in the order of their labels."""

    paths: list[list[str]]
    next_cursor: str | None
