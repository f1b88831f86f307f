"""Approvals of callers on an event loop: what people are asked, and what they decide.

This module owns the verbs on approvals. It promises that nothing is decided but what was shown: a decision names the
hash of that, and the gateway refuses any other.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Protocol, TypeVar

from stateroom._approvals import requests
from stateroom._approvals.shapes import Approval, ApprovalContent, Verdict
from stateroom._events.requests import pause_seconds
from stateroom._protocol.core import Pinned, Steps
from stateroom._protocol.wire import Page
from stateroom.errors import StateroomError

R = TypeVar("R")


class AsyncDriver(Protocol):
    """What approvals need of a client."""

    def monotonic(self) -> float:
        """Seconds since some fixed moment."""

    def pin(self) -> Pinned:
        """Decide the subject now, for several calls."""

    async def drive(self, steps: Steps[R], pinned: Pinned | None = None) -> R:
        """Carry out a procedure of calls."""

    def paged(self, page_of: Callable[[int, str | None], Steps[Page[R]]], limit: int | None) -> AsyncIterator[R]:
        """The items of a list, page by page."""


class AsyncApprovals:
    """What people are asked, made by ``AsyncClient.approvals``.

    Of the client's subject; of the whole tenant where the key is a service's and the client names no subject.
    """

    def __init__(self, client: AsyncDriver) -> None:
        self._client = client

    def list(
        self,
        *,
        status: str | None = None,
        agent: str | None = None,
        thread: str | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[Approval]:
        """Approvals, newest first, page by page; nothing of what they are about (see ``open``).

        Args:
            status: Only those that stand so, such as ``pending``.
            agent: Only what this program asks.
            thread: Only what is asked in the thread of this id.
            limit: At most so many; left out: all.
        """
        wanted = {"status": status, "agent": agent, "thread": thread}
        return self._client.paged(lambda size, cursor: requests.page(wanted, size, cursor), limit)

    async def get(self, approval_id: str) -> Approval:
        """How an approval stands.

        Args:
            approval_id: Its id.

        Raises:
            ApprovalNotFound: There is none.
        """
        return await self._client.drive(requests.get(approval_id))

    async def open(self, approval_id: str) -> ApprovalContent:
        """What exactly is asked: opens this approval and nothing else, and goes on the tenant's record.

        Args:
            approval_id: Its id.

        Raises:
            ApprovalNotFound: There is none.
            ClientShareRequired: It opens only with the share of its thread, and nothing was left to be shown without.
        """
        return await self._client.drive(requests.content(approval_id))

    async def decide(
        self,
        approval_id: str,
        verdicts: Verdict | Sequence[Verdict],
        *,
        action_hash: str,
        principal: str | None = None,
    ) -> Approval:
        """Decide about what was shown, once: the same decision again changes nothing.

        Args:
            approval_id: The approval's id.
            verdicts: One for each action, in their order; a single one for an approval with one action.
            action_hash: The ``action_hash`` of the content that was shown to whoever decides.
            principal: The person who decides, where a backend speaks for several; takes ``approval:assert``.

        Returns:
            How it stands now: still ``pending`` where more have to approve.

        Raises:
            ActionChanged: Something else is asked by now than what was shown.
            ApprovalDecided: It was decided otherwise, cancelled or superseded.
            ApprovalExpired: Nobody decided in time.
            ApprovalNotYours: Whoever asked does not approve, and nobody approves twice.
            EditInvalid: The edited arguments are not what the tool takes.
        """
        said = [verdicts] if isinstance(verdicts, Verdict) else verdicts
        return await self._client.drive(requests.decide(approval_id, action_hash, said, principal))

    async def cancel(self, approval_id: str) -> Approval:
        """Take a question back; takes ``state:write`` of its subject.

        Args:
            approval_id: The approval's id.

        Raises:
            ApprovalDecided: It was decided before.
        """
        return await self._client.drive(requests.cancel(approval_id))

    async def wait(self, approval_id: str, *, timeout_seconds: float | None = None) -> Approval:
        """Wait until an approval is decided, has expired, or was taken back.

        Args:
            approval_id: Its id.
            timeout_seconds: How long to wait; left out: as long as it takes.

        Returns:
            How it stands: ``pending`` if the time was over first. Whoever has several approvals is better off with
            ``client.events(types=["approval.decided"])``.

        Raises:
            ApprovalNotFound: There is none.
        """
        pinned, clock = self._client.pin(), self._client.monotonic
        end = None if timeout_seconds is None else clock() + timeout_seconds
        failures, pause, answered = 0, 0.0, False
        while True:
            seconds = requests.wait_seconds(end, clock())
            begun = clock() + pause
            try:
                approval = await self._client.drive(requests.get(approval_id, seconds, pause), pinned)
            except StateroomError as error:
                if not (error.retryable and answered) or (end is not None and clock() >= end):
                    raise
                pause = pause_seconds(failures, error)
                failures += 1
                continue
            if not approval.is_pending or (end is not None and clock() >= end):
                return approval
            failures, answered, pause = 0, True, requests.idle_seconds(seconds, clock() - begun)
