"""A request that stores pieces, some of which may have to be uploaded first.

Owns what outlives the attempts of such a request: its uploads, which are given up at its end where nothing refers to
them. What an attempt does is the subclass's.
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Generic, Self, TypeVar

from crypto import Sealer
from storage.access.access import Access
from storage.access.offload import UploadNeeded, Uploads
from storage.errors import Unfinished
from storage.postgres.unit_of_work import Transaction
from storage.scope import ClientShare, Scope

T = TypeVar("T")
# What else is written in the transaction of a request, when that wrote what it is for.
Beside = Callable[[Transaction, Sealer], Awaitable[None]]


class Storing(ABC, Generic[T]):
    """A request, from its first attempt to its answer; a context, at whose end unused uploads are given up."""

    def __init__(self, access: Access, scope: Scope) -> None:
        self._access = access
        self._scope = scope
        self._request = access.offload.request(scope)
        self._uploads = Uploads()

    async def __aenter__(self) -> Self:
        self._uploads = await self._request.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._request.__aexit__(kind, error, trace)

    def stored(self, share: ClientShare | None) -> Awaitable[T]:
        """Make attempts until one is committed."""
        return self._access.with_keys(self._scope, self._attempt, share, self._answer)

    @abstractmethod
    async def _attempt(self, sealer: Sealer) -> T:
        """Try once, in a transaction of its own.

        Raises:
            Unfinished, LostRaceError: another attempt may succeed.
        """

    async def _answer(self, sealer: Sealer, reason: Unfinished) -> None:
        """Do what the next attempt needs; nothing is fetched or uploaded under a lock."""
        if not isinstance(reason, UploadNeeded):
            raise reason
        await self._access.offload.upload(self._scope, sealer, reason.pieces, self._uploads)
