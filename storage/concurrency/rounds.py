"""What every round in the background has in common: its end, or why it failed, is told, and the next one comes."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


async def telling(
    work: Callable[[], Awaitable[T]], told: Callable[[T], None], failed: Callable[[Exception], None]
) -> None:
    """Run ``work`` and tell what came of it; only being cancelled gets out."""
    try:
        told(await work())
    except Exception as reason:  # noqa: BLE001  whatever it is, the next round must come
        failed(reason)
