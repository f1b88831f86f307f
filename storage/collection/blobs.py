"""Whether what is sealed about a subject's objects is as it was written: pointers, open uploads, artifacts.

For verification. It opens rows and reads no object; that the objects are there is `storage.collection.fsck`'s to say.
What is under a client-held share is compared as far as that goes without the share. One damaged row does not hide the
next.
"""

from collections.abc import AsyncGenerator, Callable, Iterable
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar
from uuid import UUID

from crypto import KeyDestroyed, Sealer
from storage.access.access import Access
from storage.artifacts.rows import check_row
from storage.errors import IntegrityFailure
from storage.ledger.ledger import check_blob, check_intent
from storage.postgres.statement import Statement
from storage.scope import Scope
from storage.statements.objects import artifacts as artifacts_sql
from storage.statements.objects import blobs as sql

R = TypeVar("R")

_PAGE = 100
_NIL = UUID(int=0)

Code = Literal["artifact", "blob", "upload"]


@dataclass(frozen=True, slots=True)
class BlobDamage:
    """A row that is not as it was written. ``thread_id``: of an artifact, as its row says."""

    code: Code
    detail: str
    thread_id: str | None = None


@dataclass(frozen=True, slots=True)
class _Table(Generic[R]):
    """Rows of one kind: how a page of a subject's is read, and how one is checked."""

    code: Code
    page: Statement[R]
    check: Callable[[Sealer, R], None]
    id_of: Callable[[R], UUID]
    thread_of: Callable[[R], str | None] = lambda _row: None

    def damage(self, sealer: Sealer, rows: Iterable[R]) -> Iterable[BlobDamage]:
        """The damage among these rows."""
        for row in rows:
            try:
                self.check(sealer, row)
            except IntegrityFailure as error:
                detail = str(error)
            except KeyDestroyed:
                detail = "sealed under a key that does not exist any more"
            else:
                continue
            yield BlobDamage(self.code, f"{self.code} {self.id_of(row)}: {detail}", self.thread_of(row))

    async def damage_of(self, access: Access, scope: Scope, sealer: Sealer) -> AsyncGenerator[BlobDamage, None]:
        """The damage among a subject's rows."""
        after = _NIL
        while True:
            async with access.unit_of_work.snapshot(scope) as transaction:
                await access.check_keys_in(transaction, scope, sealer)
                rows = await transaction.fetch_all(self.page, after=after, limit=_PAGE)
            for each in self.damage(sealer, rows):
                yield each
            if len(rows) < _PAGE:
                return
            after = self.id_of(rows[-1])


_BLOBS = _Table("blob", sql.LIVE_POINTERS_AFTER, check_blob, lambda row: row.blob_id)
_UPLOADS = _Table("upload", sql.OPEN_INTENTS_AFTER, check_intent, lambda row: row.blob_id)
_ARTIFACTS = _Table("artifact", artifacts_sql.AFTER, check_row, lambda row: row.artifact_id, lambda row: row.thread_id)


async def damage_of_subject(access: Access, scope: Scope, sealer: Sealer) -> AsyncGenerator[BlobDamage, None]:
    """What is damaged of all that a subject has, a page of rows in each snapshot.

    Raises:
        KeyDestroyed: the subject was shredded, or its key rotated: begin again.
    """
    for found in (each.damage_of(access, scope, sealer) for each in (_BLOBS, _UPLOADS, _ARTIFACTS)):
        async for damage in found:
            yield damage


async def damage_of_thread(
    access: Access, scope: Scope, sealer: Sealer, thread_id: str
) -> AsyncGenerator[BlobDamage, None]:
    """What is damaged of a thread's artifacts and of what opens their content.

    Raises:
        KeyDestroyed: as `damage_of_subject`.
    """
    after = None
    while True:
        async with access.unit_of_work.snapshot(scope) as transaction:
            await access.check_keys_in(transaction, scope, sealer)
            rows = await transaction.fetch_all(
                artifacts_sql.LIST, thread_id=thread_id, name_digest=None, after=after, limit=_PAGE
            )
            named = {row.blob_id for row in rows}
            pointers = await transaction.fetch_all(sql.POINTERS, blob_ids=list(named)) if named else []
        for each in (*_ARTIFACTS.damage(sealer, rows), *_BLOBS.damage(sealer, pointers)):
            yield each
        if len(rows) < _PAGE:
            return
        after = rows[-1].artifact_id
