"""LangGraph's store on Stateroom: what agents remember across threads.

This module owns the store and its connections. Values are plain data: what MessagePack can say, sealed by the gateway
under the subject's own key, with their namespaces and keys. It does not decide who may see what: tenant and subject
come from the API key and from ``subject``, never from a namespace.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Self, TypedDict, Unpack
from weakref import WeakKeyDictionary

import httpx2
from langgraph.store.base import BaseStore, Op, Result, TTLConfig

from stateroom._langgraph.connections import Connected
from stateroom._langgraph.embedding import Embedding, StoreIndex
from stateroom._langgraph.operations import check
from stateroom._langgraph.ticks import Ticks, all_of, prepared, together
from stateroom._options import refuse_unknown
from stateroom._protocol.core import Endpoint, Timeouts
from stateroom.share import ClientShare
from stateroom.subject import Subject


class StoreOptions(TypedDict, total=False):
    """How a store acts; each may be left out.

    Attributes:
        subject: Whose memory it is: a subject's id, ``"~shared"`` for the tenant's own, a callable that returns it
            (``current_subject`` by default, set by ``with acting_for(...)``), or ``None`` for the subject the key is
            bound to.
        ttl: How long items live, as LangGraph's ``TTLConfig`` says: ``default_ttl`` in minutes and ``refresh_on_read``.
            The gateway removes what is over and never returns it, so there is no sweeper to start.
        index: How items are found by what they mean; without one, the ``query`` of a search is passed over. Texts are
            embedded here, by the model that ``embed`` names, and vectors are sealed by the gateway like all else.
        timeouts: Time budgets of a request.
        transport: Makes another transport for the blocking methods, for tests and embedding.
        async_transport: Makes another transport for each event loop.
        client_share: 32 bytes of ``stateroom.new_client_share`` that only you keep, or a callable that returns them:
            what is stored with them is found with them only. Lost share, lost data.
    """

    subject: Subject
    ttl: TTLConfig | None
    index: StoreIndex | None
    timeouts: Timeouts | None
    transport: Callable[[], httpx2.BaseTransport] | None
    async_transport: Callable[[], httpx2.AsyncBaseTransport] | None
    client_share: ClientShare


class StateroomStore(Connected, BaseStore):
    """A LangGraph store whose items live in a Stateroom gateway.

    One store serves any number of subjects, threads of execution and event loops at once. Operations that are asked for
    in one tick of an event loop travel together; one that is refused fails alone. Reads of a batch see what was there
    before its writes, and the last write to a key wins. Results of ``search`` come the last changed first.

    Args:
        url: The gateway's URL.
        api_key: The API key that authenticates each request.
        options: The options that ``StoreOptions`` lists.

    Raises:
        NotConfigured: The URL or the key cannot be used.
    """

    supports_ttl = True

    def __init__(self, url: str, api_key: str, **options: Unpack[StoreOptions]) -> None:
        refuse_unknown(type(self).__name__, options, StoreOptions)
        self._connect(url, api_key, options)
        self.ttl_config = options.get("ttl")
        self.index_config = options.get("index")
        self._embedding = None if self.index_config is None else Embedding(self.index_config)
        self._ticks: WeakKeyDictionary[asyncio.AbstractEventLoop, Ticks] = WeakKeyDictionary()

    @classmethod
    def from_env(cls, **options: Unpack[StoreOptions]) -> Self:
        """A store configured by ``STATEROOM_URL`` and ``STATEROOM_API_KEY``.

        Args:
            options: The options that ``StoreOptions`` lists.

        Raises:
            NotConfigured: A variable is missing or unusable.
        """
        return cls(*Endpoint.read_env(), **options)

    async def __aenter__(self) -> Self:
        self._ticks_here()
        return self

    def _ticks_here(self) -> Ticks:
        return self._ticks.setdefault(asyncio.get_running_loop(), Ticks(self._embedding))

    def _refuse_on_its_loop(self) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return
        if loop in self._ticks:
            raise asyncio.InvalidStateError(
                "a blocking call would stop the event loop that this store is used on: await aput, aget, asearch and so"
                " on there, or call from another thread"
            )

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Carry operations out, in one request where they fit one.

        Raises:
            InvalidStateError: The running event loop is one that this store is used on: what waits there would wait
                for this call. Nothing was sent.
            StateroomError: The first that the gateway refused; the others were carried out.
            ValueError: A filter has an operator that there is none of; nothing was sent.
        """
        self._refuse_on_its_loop()
        asked = _checked(ops)
        embedded = [None] * len(asked) if self._embedding is None else self._embedding.of(asked)
        carried_out = together(prepared(asked, embedded), [self] * len(asked))  # one call
        return all_of(self._connections.blocking().drive(carried_out, self._endpoint.pin()))

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Carry operations out, together with others of the same tick of the event loop.

        Raises:
            StateroomError, ValueError: As ``batch``.
        """
        asked = _checked(ops)
        pinned = self._endpoint.pin()
        client = await self._connections.on_loop()
        return await self._ticks_here().run(asked, pinned, client.drive)


def _checked(ops: Iterable[Op]) -> list[Op]:
    asked = [*ops]
    for op in asked:
        check(op)
    return asked
