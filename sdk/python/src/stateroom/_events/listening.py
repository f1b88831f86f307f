# Generated from async_listening.py by `make generate`: change that, not this.
"""Listening to events, for callers that block.

This module owns going on: after a failure, and behind the last event that was handed out. It promises that none is
skipped between the first and the last that it hands out, and that none of the last 4,096 comes twice.
"""

from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar

from stateroom._events import requests
from stateroom._events.shapes import Event, Wanted
from stateroom._protocol.core import Pinned, Steps
from stateroom.errors import StateroomError

R = TypeVar("R")


class Driver(Protocol):
    """What listening needs of a client."""

    def drive(self, steps: Steps[R], pinned: Pinned | None = None) -> R:
        """Carry out a procedure of calls."""


def listen(
    client: Driver, wanted: Wanted, since: str | None, pinned: Pinned, monotonic: Callable[[], float]
) -> Iterator[Event]:
    """Events as they happen, for as long as the caller takes them.

    Args:
        client: Makes the calls.
        wanted: What is listened to.
        since: A cursor; ``None``: from the first step of the iterator on.
        pinned: Whose events.
        monotonic: Seconds since some fixed moment.

    Raises:
        StateroomError: What no other attempt can mend; and, before the first answer, what none has mended.
    """
    cursor, seen = since, requests.Seen()
    failures, wait, answered = 0, 0.0, False
    while True:
        waits, begun = cursor is not None, monotonic() + wait
        try:
            page = client.drive(requests.page(wanted, cursor, wait), pinned)
        except StateroomError as error:
            if not (error.retryable and answered):
                raise
            wait = requests.pause_seconds(failures, error)
            failures += 1
            continue
        failures, answered = 0, True
        wait = requests.idle_seconds(page, monotonic() - begun) if waits else 0.0
        for event in page.events:
            if seen.add(event.event_id):
                yield event
        cursor = page.cursor
        if not (page.more or wanted.follow):
            return
