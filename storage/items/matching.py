"""Which paths a search is about, by their labels. It is pure."""

from collections.abc import Iterable
from typing import Final

from storage.items.model import ANY_LABEL, Labels, PathSearch

# Paths that are looked at in one slice of work.
SLICE_PATHS: Final = 2_000


def begins_with(labels: Labels, prefix: Labels) -> bool:
    """Whether a path begins with these labels, each as it is."""
    return labels[: len(prefix)] == prefix


def matches(labels: Labels, wanted: PathSearch) -> bool:
    """Whether a path begins and ends as it should; ``*`` stands for any one label."""
    return _alike(labels[: len(wanted.prefix)], wanted.prefix) and _alike(
        labels[max(len(labels) - len(wanted.suffix), 0) :], wanted.suffix
    )


def _alike(labels: Labels, pattern: Labels) -> bool:
    return len(labels) == len(pattern) and all(
        want in (ANY_LABEL, label) for label, want in zip(labels, pattern, strict=True)
    )


def page(found: Iterable[Labels], wanted: PathSearch) -> tuple[list[Labels], Labels | None]:
    """The page of the paths that were found, each told once, and the path that the next page begins after."""
    cut = [each for each in found if wanted.after is None or each > wanted.after]
    if wanted.after is None and wanted.offset >= len(cut):
        return [], None
    cut.sort()
    if wanted.after is None:
        cut = cut[wanted.offset :]
    shown = cut[: wanted.limit]
    return shown, shown[-1] if len(cut) > len(shown) else None
