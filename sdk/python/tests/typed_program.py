"""What a user's program looks like to a strict type checker; it is checked and never run."""

from collections.abc import Awaitable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, assert_type

from stateroom import AsyncClient, Client, Head, Thread

T = TypeVar("T")


@dataclass
class Trip:
    """A state."""

    plan: list[str]


class Ticket:
    """Has effects as methods."""

    def book(self, seat: int, *, upgrade: bool = False) -> str:
        """Plain."""
        return f"{seat}{upgrade}"

    async def cancel(self, seat: int) -> bool:
        """A coroutine."""
        return seat > 0


def first(several: list[T]) -> T:
    """Generic."""
    return several[0]


async def first_later(several: list[T]) -> T:
    """Generic, a coroutine."""
    return several[0]


def promised(seat: int) -> Awaitable[bool]:
    """Returns something to wait for that is no coroutine."""
    return Ticket().cancel(seat)


def anything(seat: int) -> Any:
    """Says nothing of its result."""
    return seat


def blocking() -> None:
    """The blocking client."""
    with Client.from_env(subject="u") as client:
        thread = client.thread("t", state_type=Trip)
        assert_type(thread, Thread[Trip])
        assert_type(thread.load(), Head[Trip] | None)
        assert_type(thread.once("a", Ticket().book, 1, upgrade=True), str)
        assert_type(thread.once("b", first, ["x"]), str)
        assert_type(thread.once("c", partial(Ticket().book, 1)), str)
        assert_type(thread.once("d", lambda: 1), int)
        thread.once("e", Ticket().book, "one")  # type: ignore[arg-type]
        thread.save(Trip([]), status="done", state_version=2)
        thread.save(Trip([]), step="one")  # type: ignore[arg-type]
        thread.patch(set={}, state_version=2)  # type: ignore[call-arg]


async def on_loop() -> None:
    """The asynchronous client."""
    async with AsyncClient.from_env(subject="u") as client:
        thread = client.thread("t")
        assert_type(await thread.load(), Head[dict[str, Any]] | None)
        assert_type(await thread.once("a", Ticket().book, 1, upgrade=True), str)
        assert_type(await thread.once("b", Ticket().cancel, 1), bool)
        assert_type(await thread.once("c", first, ["x"]), str)
        assert_type(await thread.once("d", first_later, ["x"]), str)
        assert_type(await thread.once("e", promised, 1), bool)
        assert_type(await thread.once("f", anything, 1), Any)
        kept: int = await thread.once("g", lambda: 1)
        await thread.once("h", Ticket().cancel, str(kept))  # type: ignore[call-overload]
