"""What every round in the background has in common: its result, or the reason it failed, is reported."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


async def telling(
    work: Callable[[], Awaitable[T]], ended: Callable[[T], None], failed: Callable[[Exception], None]
) -> None:
    """Run ``work`` and report its result or its failure; only a cancellation gets out."""
    try:
        ended(await work())
    except Exception as reason:  # noqa: BLE001  whatever it is, the next round must come
        failed(reason)
