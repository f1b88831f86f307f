"""How a saver lists checkpoints.

This module owns which checkpoints a config, a filter, a limit and an older checkpoint select, page by page. It makes no
request and rebuilds no value.
"""

import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import get_checkpoint_id

from stateroom._langgraph.columns import take_columns
from stateroom._langgraph.values import is_plain
from stateroom._protocol import calls
from stateroom._protocol.core import Steps
from stateroom._protocol.wire import ChannelsPage, CheckpointWithChannels
from stateroom.errors import InvalidRequest

_PAGE = 100


class Listing:
    """The progress of one listing.

    Args:
        config: Thread and, if given, namespace and checkpoint; ``None`` for all of the subject's threads.
        matching: Metadata that must be equal.
        before: Only checkpoints with smaller ids than this one's.
        limit: At most so many.
        accepts: State versions that the saver understands.

    Raises:
        KeyError: The config names no thread.
        InvalidRequest: Metadata should be equal to what is no plain data.
    """

    def __init__(
        self,
        config: RunnableConfig | None,
        matching: dict[str, Any] | None,
        before: RunnableConfig | None,
        limit: int | None,
        accepts: str | None,
    ) -> None:
        self._accepts = accepts
        # As LangGraph's own: a config that names no thread is a mistake, never all threads.
        configurable: Mapping[str, Any] = {} if config is None else config["configurable"]
        self.thread_id = None if config is None else str(configurable["thread_id"])
        rest = dict(matching or {})
        columns = take_columns(rest)
        for name, value in rest.items():
            if not is_plain(value):
                raise InvalidRequest(
                    f"metadata can be filtered by plain data only, and what {name!r} should be is none"
                )
        self._only_id = None if config is None else get_checkpoint_id(config)
        self._before = get_checkpoint_id(before) if before else None
        self._left = limit
        self._cursor: str | None = None
        self._ended = False
        ceiling = self._before
        if self._only_id:
            # The smallest id above the wanted one: "+" is the least character an id can have.
            above = self._only_id + "+"
            ceiling = above if ceiling is None else min(ceiling, above, key=str.encode)
        self._selection = calls.Selection(
            thread_id=self.thread_id,
            namespace=configurable.get("checkpoint_ns"),
            before=ceiling,
            step=columns.get("step"),
            source=columns.get("source"),
            run_id=columns.get("run_id"),
            matching=rest or None,
        )

    @property
    def wants_more(self) -> bool:
        """Whether there may be another page, and it is wanted."""
        return not self._ended and (self._left is None or self._left > 0)

    def page(self) -> Steps[ChannelsPage]:
        """The next page."""
        size = _PAGE if self._left is None else min(self._left, calls.PAGE_MAX)
        return calls.list_channels(self._selection, size, self._cursor, accepts=self._accepts)

    def take(self, page: ChannelsPage) -> Iterator[CheckpointWithChannels]:
        """The checkpoints of a page that are wanted."""
        self._cursor = page.next_cursor
        self._ended = page.next_cursor is None
        for checkpoint in page.checkpoints:
            if self._only_id and checkpoint.checkpoint_id != self._only_id:
                if checkpoint.checkpoint_id < self._only_id:
                    self._ended = True
                continue
            if checkpoint.damaged:
                where = f"checkpoint {checkpoint.checkpoint_id} of thread {checkpoint.thread_id}"
                warnings.warn(f"{where} is damaged, and is left out", stacklevel=2)
            if checkpoint.withheld:
                continue
            if self._left is not None:
                if self._left <= 0:
                    return
                self._left -= 1
            yield checkpoint
