"""Tags: keyed digests by which checkpoints are found by metadata that a tenant declared searchable.

A save under a state version that declares keys stores, for each of them that its metadata has with a plain value (null,
boolean, number, text), one tag: a digest under the subject's id key of the key's name and the value. So equal tags are
of one subject only, and say to a reader without keys that two values are equal, and not which they are. A thread under
a client-held share has no tags: nothing is to be told of it without the share.

A tag only says where to look: who searches opens what was found and compares. What was saved without tags is found by
opening it, as ever, so that a declaration makes a search faster and never changes what it finds. That holds for what
requests did; an editor of the database can take rows out of a filtered listing, by their tags as by their clear
columns, and is noticed only by a listing that has no filter.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from struct import pack
from typing import Any, Final

from crypto import Sealer
from storage.model import HistoryQuery, Save
from storage.statements.threads.tags import OPEN_THREADS_MAX
from storage.tiers.rows import Listing, Search

SEARCHABLE_KEYS_MAX: Final = 16
# With 16 of these, what all checkpoints of a thread are tagged by still fits an entry of a B-tree (2,704 bytes).
SEARCHABLE_KEY_BYTES_MAX: Final = 128
TAG_BYTES: Final = 17

_PURPOSE: Final = b"metadata-tag"
_VERSION: Final = b"\x01"


def can_be_searchable(name: str) -> bool:
    """Whether a metadata key can be declared: text of 1 to 128 bytes without NUL, which PostgreSQL does not store."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return False
    return 0 < size <= SEARCHABLE_KEY_BYTES_MAX and "\0" not in name


def tag_of(sealer: Sealer, name: str, value: Any) -> bytes | None:
    """The tag of a key with a value; None: what is no plain value has no tag.

    Values that a filter takes for equal have one tag, as in Python: ``1``, ``1.0`` and ``true``.
    """
    canonical = _canonical(value)
    if canonical is None:
        return None
    return _VERSION + sealer.without_share.mac(_PURPOSE, name.encode(), canonical)[: TAG_BYTES - 1]


def _canonical(value: Any) -> bytes | None:
    if value is None:
        return b"n"
    if isinstance(value, str):
        return b"s" + value.encode("utf-8", "surrogatepass")
    if isinstance(value, float) and not value.is_integer():
        return b"f" + pack(">d", value) if isfinite(value) else None
    if isinstance(value, int | float):
        return b"i" + str(int(value)).encode()
    return None


@dataclass(frozen=True, slots=True)
class Tagging:
    """What a save is tagged by: its keys in their order, and the tags of those it has a plain value for."""

    keys: list[str]
    tags: list[bytes]


def tagging_of(sealer: Sealer, save: Save) -> Tagging | None:
    """How a save is tagged; None: it is not."""
    if not save.searchable or sealer.shared:
        return None
    tags = {tag_of(sealer, name, save.metadata[name]): None for name in save.searchable if name in save.metadata}
    return Tagging(sorted(save.searchable), [each for each in tags if each is not None])


def _tags_sought(sealer: Sealer, metadata: Mapping[str, Any]) -> dict[str, bytes]:
    sought = {name: tag_of(sealer, name, value) for name, value in metadata.items() if can_be_searchable(name)}
    return {name: tag for name, tag in sought.items() if tag is not None}


async def search_for(rows: Listing, sealer: Sealer, query: HistoryQuery) -> Search:
    """By which tags to find what a query asks for, in the snapshot that it will be read in."""
    sought = _tags_sought(sealer, query.metadata)
    uses = await rows.tag_uses(list(sought), list(sought.values())) if sought else []
    # First the key by which the fewest threads have to be looked through, then the rarest value.
    uses.sort(key=lambda use: (len(use.untagged_threads), use.count))
    if not uses:
        return Search()
    untagged = uses[0].untagged_threads
    return Search(
        [use.name for use in uses], [use.tag for use in uses], None if len(untagged) > OPEN_THREADS_MAX else untagged
    )
