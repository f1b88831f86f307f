"""Which of a graph's lists have become too long, as the saves of this process were told.

This module owns what is remembered of the last saves: the lists that a save policy finds long, and the steps at which a
program asks about every list. It compacts nothing; ``StateroomSaver.compact_if_needed`` does.
"""

from collections.abc import Mapping
from typing import Any

from stateroom._remembered.growth import Place
from stateroom._remembered.recent import Recent
from stateroom.types import LongList, SaveReceipt


class LongLists:
    """What the last saves said. Threads may share it."""

    def __init__(self) -> None:
        self._saved = Recent[SaveReceipt]()

    def note(self, place: Place, receipt: SaveReceipt) -> None:
        """Remember a save."""
        self._saved.note(place, receipt)

    def is_due(self, place: Place, every: int | None) -> bool:
        """Whether the last save makes it worth looking at the place's lists."""
        saved = self._saved.get(place)
        return saved is not None and (bool(saved.needs_compaction) or _at(saved.step, every))

    def of(
        self, place: Place, checkpoint_id: str, values: Mapping[str, Any], every: int | None
    ) -> list[tuple[LongList, list[Any]]]:
        """The lists of a checkpoint to be asked about, if it is the one that was saved last; each once."""
        saved = self._saved.get(place)
        if saved is None or saved.checkpoint_id != checkpoint_id:
            return []
        self._saved.forget(place)
        lists = {name: value for name, value in values.items() if isinstance(value, list) and value}
        long = {each.channel: each for each in saved.needs_compaction}
        if _at(saved.step, every):
            long = {name: LongList(channel=name, elements=len(value)) for name, value in lists.items()} | long
        return [(each, lists[name]) for name, each in long.items() if name in lists]


def _at(step: int, every: int | None) -> bool:
    return every is not None and step > 0 and step % every == 0
