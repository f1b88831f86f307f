"""Items that are read live on: their times are set anew in the background, soon after they were read.

Reads write nothing, so what they keep alive is noted in memory and written by the same round as the audit log. A note
is lost with its process, within a second. It names the revision that was read, and time only ever moves forward; no
path is locked for it, so whoever writes to the database can end an item's time, or give it more. Nothing is noted of
what has more than nine tenths of its time left.
"""

from typing import Final, NamedTuple

from storage.errors import StorageError
from storage.postgres.unit_of_work import UnitOfWork
from storage.scope import Scope
from storage.statements.items import items as sql

NOTES_MAX: Final = 50_000
_WRITTEN_AT_ONCE: Final = 500


class _Read(NamedTuple):
    path_id: bytes
    key_id: bytes
    revision: int


class Keeping:
    """Notes of what was read."""

    def __init__(self, unit_of_work: UnitOfWork) -> None:
        self._unit_of_work = unit_of_work
        self._notes: dict[Scope, set[_Read]] = {}
        self._count = 0

    def note(self, scope: Scope, row: sql.ItemRow) -> None:
        """Note an item that was read; never waits and never fails. What cannot be noted lives as long as it would."""
        if not row.fading or self._count >= NOTES_MAX:
            return
        notes = self._notes.setdefault(scope, set())
        read = _Read(row.path_id, row.key_id, row.revision)
        self._count += read not in notes
        notes.add(read)

    async def flush(self) -> None:
        """Write what was noted, a transaction for each subject.

        Raises:
            StorageError: The first failure, after every subject was tried; what was not written is given up.
        """
        failure: StorageError | None = None
        while self._notes:
            scope, notes = self._notes.popitem()
            self._count -= len(notes)
            try:
                await self._write(scope, sorted(notes))
            except StorageError as reason:
                failure = reason
        if failure is not None:
            raise failure

    async def _write(self, scope: Scope, notes: list[_Read]) -> None:
        for start in range(0, len(notes), _WRITTEN_AT_ONCE):
            part = notes[start : start + _WRITTEN_AT_ONCE]
            async with self._unit_of_work.begin(scope) as transaction:
                await transaction.run_many(
                    sql.KEEP, [{"path_id": each[0], "key_id": each[1], "revision": each[2]} for each in part]
                )
