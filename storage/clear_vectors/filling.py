"""The jobs of vector policies: putting what is there already into the table of clear vectors, or removing it.

A job belongs to what was said at one moment, and ends by itself when something else is said. It waits until every
transaction has ended that may have read what was said before; what begins later writes as the policy says. Then it goes
subject by subject, a page in each transaction: sealed rows are read under the locks of their paths, so that a put at
the same moment wins. What does not open is left out, and verification names it. When all is done the policy's row says
so: searches use the table, or, after a removal, nothing is said any more.
"""

import time
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Final

import msgspec

from crypto import KeyDestroyed, Sealer
from storage.access.sealing import Sealing
from storage.administration.audit import GATEWAY_ACTOR, Audit
from storage.administration.jobs import MORE, Lease, Slice, outlasting_refusals
from storage.clear_vectors.policies import BEGUN, CLEAR_KIND, VectorPolicies
from storage.clear_vectors.rows import put
from storage.concurrency.turns import Pauses
from storage.encoding import decode_json, encode_json
from storage.errors import ClearVectorsUnavailable, IntegrityFailure, NotFound
from storage.format.items.vectors import Vector, VectorColumns, open_vectors
from storage.keys.older_transactions import OlderTransactions
from storage.postgres.unit_of_work import Transaction
from storage.scope import Scope, TenantScope
from storage.statements.items import clear_filling as sql
from storage.statements.items import clear_vectors as clear_sql
from storage.statements.items.paths import LOCK_PATHS
from storage.statements.items.resealing import VECTORS
from storage.statements.keys.shred import SUBJECTS_AFTER
from storage.statements.rules import vector_policies as policies_sql

SLICE_SECONDS: Final = 2.0
SETTLE_SECONDS: Final = 0.2
PAGE_ROWS: Final = 8  # of which each may have as many vectors as an item
PURGE_ROWS: Final = 1_000
_SUPERSEDED: Final = "something else was said of the tenant's vectors meanwhile"
_SUBJECTS_PAGE: Final = 100


class Filling:
    """Does what a vector policy says with what is there already."""

    def __init__(
        self, access: Sealing, policies: VectorPolicies, audit: Audit, older_transactions: OlderTransactions
    ) -> None:
        self._access = access
        self._policies = policies
        self._audit = audit
        self._older_transactions = older_transactions

    @outlasting_refusals
    async def perform(self, lease: Lease) -> Slice:
        """A slice of a job. Position: the step, the subject that was last finished, and where in the next one."""
        if not await self._holds(lease):
            return Slice(ended=True, note=_SUPERSEDED)
        if lease.position == BEGUN:
            moment = await self._older_transactions.moment()
            async with self._access.unit_of_work.begin(TenantScope(lease.tenant_id)) as transaction:
                await lease.advance(transaction, _position("settle", moment.isoformat()))
        step, at, *place = decode_json(lease.position)
        if step == "settle":
            if not await self._older_transactions.have_ended(datetime.fromisoformat(at)):
                return Slice(ended=False, again_seconds=SETTLE_SECONDS, waits_for="older-transactions")
            at, place = "", []
        async with self._access.unit_of_work.snapshot(TenantScope(lease.tenant_id)) as transaction:
            schema = await transaction.fetch_one(policies_sql.EXTENSION_SCHEMA)
        if schema is None and lease.kind == CLEAR_KIND:
            raise ClearVectorsUnavailable("the table for clear vectors was removed")
        # Nothing is there to be removed where the table is not.
        if schema is not None and not await self._walk(lease, schema, at, _place(place)):
            return MORE
        return await self._finish(lease)

    async def _walk(self, lease: Lease, schema: str, after: str, at: sql.VectorsPlace) -> bool:
        """Do what is left of all subjects, as far as a slice goes; returns whether that was all."""
        until = time.monotonic() + SLICE_SECONDS
        subject = _Subject(self._access, lease, schema, until)
        tenant = TenantScope(lease.tenant_id)
        async for subject_id in self._access.unit_of_work.each(tenant, SUBJECTS_AFTER, after, _SUBJECTS_PAGE):
            if not await subject.run(Scope(lease.tenant_id, subject_id), after, at):
                return False
            after, at = subject_id, sql.VectorsPlace()
            async with self._access.unit_of_work.begin(tenant) as transaction:
                await lease.advance(transaction, _position("walk", after))
            if time.monotonic() > until:
                return False
        return True

    async def _holds(self, lease: Lease) -> bool:
        """Whether what a job was begun for is still what is said."""
        said = await self._policies.get(TenantScope(lease.tenant_id))
        return not said.damaged and said.updated_at is not None and said.updated_at.isoformat() == lease.target

    async def _finish(self, lease: Lease) -> Slice:
        """Say in the policy's row that all is done, unless something else was said at this moment."""
        tenant_id = lease.tenant_id
        async with self._access.unit_of_work.begin(TenantScope(tenant_id)) as transaction:
            said = await self._policies.lock(transaction, tenant_id)
            if said.damaged or said.updated_at is None or said.updated_at.isoformat() != lease.target:
                return Slice(ended=True, note=_SUPERSEDED)
            if lease.kind == CLEAR_KIND:
                await self._policies.store(transaction, tenant_id, replace(said, complete=True))
            else:
                await transaction.run(policies_sql.TAKE_BACK)
            await self._audit.append(
                transaction, tenant_id, GATEWAY_ACTOR, "vector-policy.complete", f"tenant:{tenant_id}",
                {"vectors": said.vectors, "job_id": str(lease.job_id)},
            )  # fmt: skip
        return Slice(ended=True)


class _Subject:
    """One subject after the other, in a slice."""

    def __init__(self, access: Sealing, lease: Lease, schema: str, until: float) -> None:
        self._access = access
        self._lease = lease
        self._sql = clear_sql.of(schema)
        self._schema = schema
        self._until = until

    async def run(self, scope: Scope, before: str, at: sql.VectorsPlace) -> bool:
        """Do what is left of a subject; returns whether that was all.

        Args:
            scope: The subject.
            before: The subject that was finished before.
            at: Where to go on.
        """
        if self._lease.kind != CLEAR_KIND:
            return await self._purge(scope, before, strays=False)
        if at == sql.VectorsPlace() and not await self._purge(scope, before, strays=True):
            return False
        try:
            while True:
                page = await self._access.run(scope, partial(self._fill, scope, before, at), NotFound())
                if len(page) < PAGE_ROWS:
                    return True
                at = page[-1]
                if time.monotonic() > self._until:
                    return False
        except (NotFound, KeyDestroyed):  # nothing of it opens any more, and a shred removes it
            return True

    async def _purge(self, scope: Scope, before: str, *, strays: bool) -> bool:
        while True:
            async with self._access.unit_of_work.begin(scope) as transaction:
                statement = self._sql.purge_strays if strays else self._sql.purge
                gone = await transaction.run(statement, page_rows=PURGE_ROWS)
                await self._lease.advance(transaction, _position("walk", before), 0 if strays else gone)
            if gone < PURGE_ROWS:
                return True
            if time.monotonic() > self._until:
                return False

    async def _fill(self, scope: Scope, before: str, at: sql.VectorsPlace, sealer: Sealer) -> list[sql.VectorsPlace]:
        async with self._access.unit_of_work.begin(scope) as transaction:
            await self._access.check_keys_in(transaction, scope, sealer)
            places = await transaction.fetch_all(sql.PLACES_AFTER, page_rows=PAGE_ROWS, **msgspec.structs.asdict(at))
            if places:
                await transaction.fetch_all(LOCK_PATHS, path_ids=sorted({each.path_id for each in places}))
                await put(transaction, self._schema, await _opened(transaction, sealer, places))
                last = places[-1]
                position = _position("walk", before, last.path_id.hex(), last.key_id.hex(), last.model_id.hex())
                await self._lease.advance(transaction, position, len(places))
            return places


async def _opened(
    transaction: Transaction, sealer: Sealer, places: list[sql.VectorsPlace]
) -> list[tuple[VectorColumns, list[Vector]]]:
    rows = await transaction.fetch_all(
        VECTORS,
        path_ids=[each.path_id for each in places],
        key_ids=[each.key_id for each in places],
        model_ids=[each.model_id for each in places],
    )
    pauses = Pauses()
    found = []
    for row in rows:
        await pauses.after(len(row.envelope))
        try:
            _, vectors = open_vectors(sealer, row.columns, row.envelope, row.member)
            found.append((row.columns, vectors))
        except (IntegrityFailure, KeyDestroyed):
            continue
    return found


def _position(*parts: str) -> str:
    return encode_json(parts).decode()


def _place(place: list[str]) -> sql.VectorsPlace:
    return sql.VectorsPlace(*map(bytes.fromhex, place))
