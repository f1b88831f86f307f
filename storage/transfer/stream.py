"""The records of an import, one after another, and the digests that they are compared with."""

from collections.abc import AsyncGenerator, AsyncIterator

from storage.format.export import Data, End, Ending, PathEnding, Record, RunningDigest, digested
from storage.transfer.rows import refuse


class Stream:
    """The records of a file, and what is known when it ends.

    Attributes:
        whole: The digest of everything so far.
        thread: The digest of the thread, or of the path of items, that began; None: none did.
        thread_id: The id of that thread.
    """

    def __init__(self, records: AsyncGenerator[tuple[Record, bytes], None]) -> None:
        self._records = records
        self.whole = RunningDigest()
        self.thread: RunningDigest | None = None
        self.thread_id = ""

    async def next(self) -> Record:
        """The next record.

        Raises:
            ImportRefused: there is none.
        """
        try:
            record, encoded = await anext(self._records)
        except StopAsyncIteration:
            refuse("the export ends without its last record")
        if isinstance(record, End):
            if record.digest != self.whole.digest():
                refuse("the export is not what its end says")
            return record
        self.whole.add(encoded)
        if self.thread is not None and not isinstance(record, Ending | PathEnding):
            self.thread.add(digested(record, encoded, self.thread_id))
        return record

    async def end(self) -> None:
        """Read past the last record.

        Raises:
            ImportRefused: there is more.
        """
        async for _ in self._records:
            refuse("something follows the end of the export")

    async def data(self, size: int) -> AsyncIterator[bytes]:
        """Content of so many bytes.

        Raises:
            ImportRefused: it is shorter or longer, or cut otherwise than it must be.
        """
        left = size
        while left:
            record = await self.next()
            if not isinstance(record, Data) or len(record.data) > left:
                refuse("the export has other content than a record says")
            left -= len(record.data)
            yield record.data
