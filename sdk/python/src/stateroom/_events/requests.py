"""How events are asked for, how long one waits after a failure, and which were seen.

Long polls, not a stream of server-sent events: a question and its answer go the way of every other call, with its
retries, time budgets and proxies, and nothing is open between two of them. A stream would save a request for each
answer, and would need a parser, a connection of its own and a second way to reconnect.
"""

from collections import OrderedDict
from secrets import SystemRandom

from stateroom._events.shapes import EventPage, Wanted
from stateroom._protocol.core import Call, Steps, asked
from stateroom.errors import StateroomError

WAIT_SECONDS = 25
BACKOFF_SECONDS_MAX = 30.0
SOON_SECONDS = 1.0
SEEN_MAX = 4096
_JITTER = SystemRandom()


def page(wanted: Wanted, cursor: str | None, after_seconds: float) -> Steps[EventPage]:
    """What happened behind a cursor, as soon as there is something if that is wanted; without one, where "now" is.

    Args:
        wanted: What is listened to.
        cursor: Where to go on.
        after_seconds: How long to wait before.
    """
    # Without a cursor nothing is waited for: where "now" is must be known before a connection can break.
    wait_seconds = WAIT_SECONDS if wanted.follow and cursor is not None else 0
    return asked(
        Call(
            method="GET",
            path="/events",
            query=(
                *(("types", each) for each in wanted.types),
                ("thread", wanted.thread),
                ("since", "now" if cursor is None else cursor),
                ("wait_seconds", wait_seconds),
            ),
            repeatable=True,
            extra_seconds=float(wait_seconds),
            after_seconds=after_seconds,
        ),
        EventPage,
    )


def pause_seconds(failures: int, error: StateroomError) -> float:
    """How long to wait after so many failures in a row: at least as long as the gateway said, and never all at once."""
    ceiling = min(BACKOFF_SECONDS_MAX, 0.5 * 2.0 ** min(failures, 10))
    return max(_JITTER.uniform(ceiling / 2, ceiling), error.retry_after_seconds or 0.0)


def idle_seconds(found: EventPage, lasted_seconds: float) -> float:
    """How long to wait after an answer to a question that was to wait.

    A gateway that stops answers who waits at once, and without an event: asked again at once, it would answer as soon.

    Args:
        found: The answer.
        lasted_seconds: How long it took.
    """
    if found.events or found.more or lasted_seconds >= SOON_SECONDS:
        return 0.0
    return _JITTER.uniform(SOON_SECONDS / 2, SOON_SECONDS * 1.5)


class Seen:
    """The ids of the last events that were handed out."""

    def __init__(self) -> None:
        self._ids: OrderedDict[str, None] = OrderedDict()

    def add(self, event_id: str) -> bool:
        """Note an event; whether it was not seen before."""
        if event_id in self._ids:
            return False
        self._ids[event_id] = None
        if len(self._ids) > SEEN_MAX:
            self._ids.popitem(last=False)
        return True
