"""Whether what is sealed about a subject's objects is as it was written: pointers, open uploads, artifacts.

For verification. It opens rows and reads no object; that the objects are there is `storage.collection.fsck`'s to say.
What is under a client-held share is compared as far as that goes without the share. One damaged row does not hide the
next.
"""

from collections.abc import AsyncGenerator, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal
from uuid import UUID

from crypto import KeyDestroyed, Sealer
from storage.access.access import Access
from storage.artifacts.rows import check_row
from storage.errors import IntegrityFailure
from storage.ledger.ledger import ArtifactRow, check_blob, check_intent
from storage.postgres import artifacts as artifacts_sql
from storage.postgres import blobs as sql
from storage.scope import Scope

_PAGE = 100
_NIL = UUID(int=0)

Code = Literal["artifact", "blob", "upload"]


@dataclass(frozen=True, slots=True)
class BlobDamage:
    """A row that is not as it was written. ``thread_id``: of an artifact, as its row says."""

    code: Code
    detail: str
    thread_id: str | None = None


def _check_artifact(sealer: Sealer, row: Any) -> None:
    check_row(sealer, ArtifactRow(**dict(row)))


@dataclass(frozen=True, slots=True)
class _Table:
    code: Code
    column: str
    check: Callable[[Sealer, Any], None]

    def damage(self, sealer: Sealer, rows: Iterable[Any]) -> Iterable[BlobDamage]:
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
            thread_id = row["thread_id"] if self.code == "artifact" else None
            yield BlobDamage(self.code, f"{self.code} {row[self.column]}: {detail}", thread_id)


_BLOBS = _Table("blob", "blob_id", check_blob)
_UPLOADS = _Table("upload", "blob_id", check_intent)
_ARTIFACTS = _Table("artifact", "artifact_id", _check_artifact)


async def damage_of_subject(access: Access, scope: Scope, sealer: Sealer) -> AsyncGenerator[BlobDamage, None]:
    """What is damaged of all that a subject has, a page of rows in each snapshot.

    Raises:
        KeyDestroyed: the subject was shredded, or its key rotated: begin again.
    """
    for table, statement in (
        (_BLOBS, sql.LIVE_POINTERS_AFTER),
        (_UPLOADS, sql.OPEN_INTENTS_AFTER),
        (_ARTIFACTS, artifacts_sql.AFTER),
    ):
        after = _NIL
        while True:
            async with access.unit_of_work.snapshot(scope) as transaction:
                await access.check_keys_in(transaction, scope, sealer)
                rows = await transaction.fetch(statement, scope.tenant_id, scope.subject_id, after, _PAGE)
            for each in table.damage(sealer, rows):
                yield each
            if len(rows) < _PAGE:
                break
            after = rows[-1][table.column]


async def damage_of_thread(
    access: Access, scope: Scope, sealer: Sealer, thread_id: str
) -> AsyncGenerator[BlobDamage, None]:
    """What is damaged of a thread's artifacts and of what opens their content.

    Raises:
        KeyDestroyed: as `damage_of_subject`.
    """
    place = (scope.tenant_id, scope.subject_id)
    after = None
    while True:
        async with access.unit_of_work.snapshot(scope) as transaction:
            await access.check_keys_in(transaction, scope, sealer)
            rows = await transaction.fetch(artifacts_sql.LIST, *place, thread_id, None, after, _PAGE)
            named = {row["blob_id"] for row in rows}
            pointers = await transaction.fetch(sql.POINTERS, *place, list(named)) if named else []
        for each in (*_ARTIFACTS.damage(sealer, rows), *_BLOBS.damage(sealer, pointers)):
            yield each
        if len(rows) < _PAGE:
            return
        after = rows[-1]["artifact_id"]
