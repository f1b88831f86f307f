"""Which paths a search is about, by their labels. It is pure."""

from collections.abc import Callable
from typing import Final

from storage.items.model import ANY_LABEL, Labels, PathSearch

# Paths that are looked at in one slice of work.
SLICE_PATHS: Final = 1_000
# Paths whose first label begins so belong to adapters, as channels of such names do.
ADAPTERS_PREFIX: Final = "~"


def begins_with(labels: Labels, prefix: Labels) -> bool:
    """Whether a path begins with these labels, each as it is; an adapter's own only if its first label is named."""
    return labels[: len(prefix)] == prefix and (bool(prefix) or not labels[0].startswith(ADAPTERS_PREFIX))


def matcher(wanted: PathSearch) -> Callable[[Labels], bool]:
    """Whether a path begins and ends as it should; ``*`` stands for any one label, but for no adapter's first one."""
    least = max(len(wanted.prefix), len(wanted.suffix))
    # Only what is said of labels is compared; those of a suffix are counted from the end.
    said = [(number, label) for number, label in enumerate(wanted.prefix) if label != ANY_LABEL]
    said += [(number, label) for number, label in enumerate(wanted.suffix, -len(wanted.suffix)) if label != ANY_LABEL]
    names_first = bool(wanted.prefix) and wanted.prefix[0] != ANY_LABEL

    def matches(labels: Labels) -> bool:
        if len(labels) < least or not (names_first or not labels[0].startswith(ADAPTERS_PREFIX)):
            return False
        for number, label in said:  # noqa: SIM110  a generator would take three times as long
            if labels[number] != label:
                return False
        return True

    return matches


class PathsPage:
    """The page of a search, put together of paths in the order of their labels.

    Attributes:
        is_full: Whether the page is, and another path is known that comes after it.
    """

    def __init__(self, wanted: PathSearch) -> None:
        self._wanted = wanted
        self._left_out = 0 if wanted.after is not None else wanted.offset
        self._last: Labels | None = None
        self._shown: list[Labels] = []
        self.is_full = False

    def may_show(self, labels: Labels) -> bool:
        """Whether a path is not one that an earlier page told."""
        return self._wanted.after is None or labels[: self._wanted.max_depth] > self._wanted.after

    def add(self, labels: Labels) -> None:
        """Add a path in which something is, cut to the depth; each is told once."""
        cut = labels[: self._wanted.max_depth]
        if cut == self._last or self.is_full:
            return
        self._last = cut
        if self._left_out:
            self._left_out -= 1
        elif len(self._shown) == self._wanted.limit:
            self.is_full = True
        else:
            self._shown.append(cut)

    def end(self) -> tuple[list[Labels], Labels | None]:
        """The paths, and the one that the next page begins after."""
        return self._shown, self._shown[-1] if self.is_full else None
