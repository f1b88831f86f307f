"""What of a folder is not stored: what its ``.gitignore`` files say, in each folder for what is below it.

The patterns are those of Git, as `pathspec` reads them: it knows no classes of characters by name, and takes
``a/**/`` for all that is in ``a``. A line that is no pattern is passed over, as Git does.
"""

import re
from collections.abc import Iterable
from typing import Self

from pathspec import GitIgnoreSpec

from stateroom.errors import InvalidRequest

IGNORE_FILE = ".gitignore"
IGNORE_BYTES_MAX = 1024 * 1024
PATTERNS_MAX = 10_000
STARS_MAX = 4

_STARS = re.compile(r"\*+")


class Rules:
    """What counts below a folder: its own patterns before those of the folders above.

    Args:
        specs: For each folder that has patterns, from the top on: how long its path is with the ``/`` behind it, and
            its patterns.
        first: Patterns that count before all others.
    """

    def __init__(self, specs: tuple[tuple[int, GitIgnoreSpec], ...], first: GitIgnoreSpec) -> None:
        self._specs = specs
        self._first = first

    @classmethod
    def of(cls, patterns: Iterable[str]) -> Self:
        """The rules of whoever stores; they are believed before what is found."""
        return cls((), _spec(patterns))

    def below(self, folder: str, ignore_file: str) -> Self:
        """The rules in a folder with this ignore file; ``folder`` is its path, empty at the top."""
        spec = _spec(line.removesuffix("\r") for line in ignore_file.removeprefix("\ufeff").split("\n"))
        return type(self)((*self._specs, (len(folder) + 1 if folder else 0, spec)), self._first)

    def ignores(self, path: str, *, is_folder: bool) -> bool:
        """Whether something is left out, with all that is in it."""
        path = f"{path}/" if is_folder else path
        for cut, spec in ((0, self._first), *reversed(self._specs)):
            said = spec.check_file(path[cut:]).include
            if said is not None:
                return said
        return False


def _spec(patterns: Iterable[str]) -> GitIgnoreSpec:
    """The patterns of some lines.

    Raises:
        InvalidRequest: There are too many, or one with too many stars.
    """
    usable: list[str] = []
    for each in patterns:
        # They become regular expressions: with five stars a long name can take seconds, with more for ever.
        if len(_STARS.findall(each)) > STARS_MAX and not each.startswith("#"):
            raise InvalidRequest(f"a pattern of what to ignore has more than {STARS_MAX} stars: {each[:80]!r}")
        try:
            GitIgnoreSpec.from_lines([each])
        except ValueError:
            continue
        usable.append(each)
        if len(usable) > PATTERNS_MAX:
            raise InvalidRequest(f"there are more than {PATTERNS_MAX:,} patterns of what to ignore in one place")
    return GitIgnoreSpec.from_lines(usable)
