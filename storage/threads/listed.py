"""A thread as it is shown: by its clear columns, and by what its seal says of it.

Owns the comparison of both wherever threads are shown. What belongs to a thread is not looked at here.
"""

from collections.abc import Callable, Sequence

from crypto import Sealer
from storage.access.completeness import compare_listed
from storage.concurrency.turns import Pauses
from storage.errors import IntegrityFailure, ThreadNotFound
from storage.format.chain import ThreadSeal
from storage.format.record import open_thread_seal
from storage.model import Page, Thread
from storage.postgres.unit_of_work import Transaction
from storage.statements.threads import threads as sql

_COLUMNS = Thread.__dataclass_fields__.keys() - {"damaged", "link"}


def open_listed(sealer: Sealer, row: sql.ListedThread) -> ThreadSeal:
    """Open the seal of a thread that is shown by its clear columns, whether or not the sealer fits what belongs to it.

    Raises:
        IntegrityFailure: it does not authenticate, or does not say what the columns say.
    """
    thread = open_thread_seal(sealer, row.thread_id, row.created_at, row.seal)
    compare_listed(thread, client_share=row.client_share, parent_thread_id=row.parent_thread_id)
    return thread


def shown(row: sql.ListedThread, thread: ThreadSeal | None) -> Thread:
    """The record of a thread; ``thread`` None: it is damaged, and its columns are all there is."""
    columns = {name: getattr(row, name) for name in _COLUMNS}
    return Thread(**columns, damaged=thread is None, link=None if thread is None else thread.link)


async def shown_in(transaction: Transaction, sealer: Sealer, thread_id: str) -> Thread:
    """One thread, as a transaction sees it.

    Raises:
        ThreadNotFound: there is none.
        IntegrityFailure: as `open_listed`.
    """
    row = await transaction.fetch_one(sql.ONE, thread_id=thread_id)
    if row is None:
        raise ThreadNotFound
    return shown(row, open_listed(sealer, row))


async def page_of(
    rows: Sequence[sql.ListedThread], sealer: Sealer, limit: int, found_damage: Callable[[], None]
) -> Page[Thread]:
    """A page of threads, newest first; a damaged one is told to be, and hides no other."""
    pauses = Pauses()
    threads = []
    for row in rows:
        try:
            threads.append(shown(row, open_listed(sealer, row)))
        except IntegrityFailure:
            found_damage()
            threads.append(shown(row, None))
        await pauses.after(0)
    last = (rows[-1].created_at.isoformat(), rows[-1].thread_id) if len(rows) == limit else None
    return Page(threads, last)
