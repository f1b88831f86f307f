"""Named options of a call that are more than a signature holds.

A ``TypedDict`` says once what they are, and a signature takes them as ``**options: Unpack[...]`` (PEP 692). Type
checkers refuse an option that does not exist, and this module refuses it at run time.
"""

from collections.abc import Iterable


def refuse_unknown(function: str, names: Iterable[str], options: type) -> None:
    """Refuse an option that does not exist.

    Args:
        function: Name of the function that was called.
        names: Names of its options.
        options: The ``TypedDict`` of what it takes, none of which is required.

    Raises:
        TypeError: There is no such option.
    """
    for name in names:
        if name not in options.__optional_keys__:  # type: ignore[attr-defined]
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}")
