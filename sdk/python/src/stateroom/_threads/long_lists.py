"""Which lists of a state a program is asked about, to compact them.

This module owns the choice: the lists that a save policy finds long, and at every so-many-th step all of them. It
compacts nothing, and remembers nothing between saves.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from stateroom.errors import InvalidRequest
from stateroom.types import LongList


def is_due(step: int | None, every: int | None) -> bool:
    """Whether a step is one at which to ask about every list.

    Raises:
        InvalidRequest: Every so many steps are fewer than one.
    """
    if every is not None and every < 1:
        raise InvalidRequest("every so many steps: one, or more")
    return every is not None and step is not None and step > 0 and step % every == 0


def asked_about(
    long: Sequence[LongList], values: Mapping[str, Any], *, all_lists: bool
) -> list[tuple[LongList, list[Any]]]:
    """The lists to be asked about, each once, with what they hold; those that a policy finds long among them.

    Args:
        long: What the answer to the save says.
        values: The state that was saved, by top-level key.
        all_lists: Ask about the other lists, too. An empty one is never asked about.
    """
    lists = {name: value for name, value in values.items() if isinstance(value, list) and value}
    chosen = {each.channel: each for each in long}
    if all_lists:
        chosen = {name: LongList(channel=name, elements=len(value)) for name, value in lists.items()} | chosen
    return [(each, lists[name]) for name, each in chosen.items() if name in lists]
