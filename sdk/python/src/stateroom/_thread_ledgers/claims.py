# Generated from async_claims.py by `make generate`: change that, not this.
"""Going on with a thread under a claim, for callers that block.

This module owns the life of a claim: made, renewed in the background, released. It promises that nothing is written
under it by this object's thread once another one claimed it: the gateway refuses such writes, and ``ClaimLost`` is
raised to who wrote, or at the end of the block. Blocks of one run share its claim, which the last one to end releases.
"""

import contextlib
import logging
from types import TracebackType
from typing import Final, Protocol, Self, TypeVar

from stateroom._io.blocking import Beat, shielded
from stateroom._protocol import calls
from stateroom._protocol.core import Pinned, Steps
from stateroom._protocol.wire import ThreadSettings
from stateroom._thread_ledgers import requests
from stateroom._thread_ledgers.held import ClaimKey, Held, join, leave
from stateroom._thread_ledgers.shapes import ClaimInfo, ClaimRequest
from stateroom.errors import ClaimLost, InvalidRequest, StateroomError, ThreadNotFound

R = TypeVar("R")

_LOGGER: Final = logging.getLogger("stateroom")

RUN_SECONDS_MAX = 3600.0
RELEASE_SECONDS = 5.0
_BEATS = 3  # in a lease: two may be lost


class Driver(Protocol):
    """What a claim needs of a client."""

    def drive(self, steps: Steps[R], pinned: Pinned | None = None) -> R:
        """Carry out a procedure of calls."""


class Claim:
    """A claim of a thread, held within ``with``. ``Thread.claim`` makes it.

    Args:
        client: Makes the calls.
        pinned: Whose thread it is.
        thread_id: The thread's id.
        wanted: The claim to make.
        held: Takes the fence while it is held.
        run_seconds_max: For how long it is renewed at most: a run that hangs is dead after that.

    Attributes:
        thread_id: The thread's id.
        releases_on_error: Whether a run that fails gives the thread back at once; else it counts as dead, and is tried
            again when its lease is over.
    """

    def __init__(
        self,
        client: Driver,
        pinned: Pinned,
        thread_id: str,
        wanted: ClaimRequest,
        held: Held,
        run_seconds_max: float = RUN_SECONDS_MAX,
    ) -> None:
        self.thread_id = thread_id
        self.releases_on_error = True
        self._client, self._pinned, self._wanted, self._held = client, pinned, wanted, held
        self._run_seconds_max = run_seconds_max
        self._info: ClaimInfo | None = None
        self._key: ClaimKey | None = None
        self._beat: Beat | None = None
        self._is_lost = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.thread_id!r}, holder={self._wanted.holder!r})"

    @property
    def info(self) -> ClaimInfo:
        """The claim as the gateway last told.

        Raises:
            InvalidRequest: It was not made yet.
        """
        if self._info is None:
            raise InvalidRequest("the claim is made when its block is entered")
        return self._info

    @property
    def fence(self) -> int:
        """The number that proves the claim."""
        return self.info.fence

    @property
    def is_lost(self) -> bool:
        """Whether another run is known to have claimed the thread since."""
        return self._is_lost

    def check(self) -> None:
        """Return if no other run is known to have claimed the thread since.

        Raises:
            ClaimLost: One is.
        """
        if self._is_lost:
            raise ClaimLost("another run went on with the thread")

    def note(self, text: str) -> None:
        """Note how far the run is, for who asks about the claim; it is renewed, too.

        Args:
            text: At most 2 KiB.

        Raises:
            ClaimLost: Another run claimed the thread since.
        """
        self._info = self._client.drive(requests.renew(self.thread_id, self.fence, text), self._pinned)

    def begin(self) -> None:
        """Make the claim, and begin to renew it; entering the block does so, too, if this was not called.

        Raises:
            ClaimHeld: Another run holds the thread.
            ClaimSuperseded: The claim that ``if_fence`` names is over.
            ThreadStuck: One run after the other died with it.
            Conflict: An older gateway may still run (``feature-off``).
        """
        info = self._info = self._client.drive(self._claim(), self._pinned)
        self._is_lost = False
        self._key = ClaimKey(self._pinned.subject, self.thread_id, info.fence, info.run_id)
        join(self._key)
        self._held.add(info.fence, info.run_id)
        self._beat = Beat(info.lease_seconds / _BEATS, self._run_seconds_max, self._renew)

    def _claim(self) -> Steps[ClaimInfo]:
        try:
            return (yield from requests.claim(self.thread_id, self._wanted))
        except ThreadNotFound:
            if self._wanted.if_fence is not None:
                raise
            yield from calls.change_thread(self.thread_id, ThreadSettings())  # makes it
        return (yield from requests.claim(self.thread_id, self._wanted))

    def _renew(self) -> bool:
        """Renew it; whether to go on with that."""
        try:
            self._info = self._client.drive(requests.renew(self.thread_id, self.fence), self._pinned)
        except ClaimLost:
            self._is_lost = True
        except StateroomError:  # the next one may come through
            pass
        except Exception as error:  # noqa: BLE001  as above: a claim that nobody renews any more is another's soon
            _LOGGER.warning("a claim was not renewed, because of %s", type(error).__name__)
        return not self._is_lost

    def end(self, *, release: bool = True) -> None:
        """Stop to renew the claim, and release it, unless another block of its run goes on in this process.

        Leaving the block does so, too.

        Args:
            release: Whether another run may have the thread at once; else it is taken for dead when the lease is over,
                and is handed to who recovers threads.
        """
        beat, self._beat = self._beat, None
        if beat is None or self._key is None:
            return
        try:
            beat.end()
        finally:
            self._held.remove(self._key.fence)
            if leave(self._key) and release and not self._is_lost:
                with contextlib.suppress(TimeoutError):  # the lease ends it
                    shielded(self._release, RELEASE_SECONDS)

    def _release(self) -> None:
        try:
            self._info = self._client.drive(requests.release(self.thread_id, self.fence), self._pinned)
        except ClaimLost:
            self._is_lost = True
        except StateroomError:  # the lease ends it
            pass

    def __enter__(self) -> Self:
        if self._beat is None:
            self.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end(release=error is None or self.releases_on_error)
        if error is None:
            self.check()
