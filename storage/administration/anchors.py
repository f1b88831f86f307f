"""Anchors: signed statements, kept in the object store, of where an audit chain was.

An anchor is written once, at a place that names chain and event, and signed with a key that only the root key opens;
an equal anchor has equal bytes, whoever makes it. Before one is signed, everything since the newest one in the object
store is read and must continue it: a gateway does not sign a rewritten history, nor what a restored backup left of one,
until somebody with the server's settings accepts what is lost (`accept_restored`). It promises nothing about what was
written after the newest anchor, and nothing against a holder of the root key.
"""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass
from functools import partial
from uuid import UUID

from crypto import CryptoError, NoteKey, sign_note
from storage.administration.audit import Audit, chain_of, chain_scope
from storage.blobs.keyspace import ANCHORS_PREFIX, AnchorLocation, anchor_prefix
from storage.blobs.store import BlobExists, BlobNotFound, BlobStore
from storage.concurrency.queues import FairQueue
from storage.control.deployment_keys import AUDIT, Deployment, DeploymentKey
from storage.errors import AnchorNotFound, IntegrityFailure, StorageError, Unavailable
from storage.format.audit import OPERATOR_CHAIN, AnchorText, AuditInvalid, ChainVerifier, Gap, start_of
from storage.scope import OperatorScope, TenantScope
from storage.statements.deployment import audit as sql

ANCHOR_SECONDS = 60.0  # what may be cut off an audit log unnoticed by a reader of only the object store
_PAGE_ROWS = 1000
_KNOWN_MAX = 10_000  # chains whose newest anchor this process remembers
_LOOKS_AT_ONCE = 16  # listings of the object store that are under way together
_ASKED_AT_ONCE = 4  # for the newest anchor of one chain; each is a thread that the event loop shares its processor with
_ASKED_SECONDS_MAX = 5.0  # that one waits for its turn, well within a client's attempt timeout of 10 s
_WATCHED_ROWS = 20  # chains that a process looks at each minute
_AFTER_ALL_NUMBERS = "~"  # sorts behind every name below a chain's prefix


@dataclass(frozen=True, slots=True)
class Anchor:
    """A signed anchor; ``stored`` is False where there is no object store to keep it."""

    text: AnchorText
    note: str
    stored: bool


@dataclass(frozen=True, slots=True)
class Restored:
    """A chain that goes on behind a gap."""

    tenant_id: UUID
    gap: Gap


def _busy() -> Unavailable:
    return Unavailable("too many others ask for the newest anchor of this audit log")


class Anchors:
    """Makes and reads anchors of audit chains."""

    def __init__(
        self,
        deployment: Deployment,
        audit: Audit,
        blobs: BlobStore | None,
    ) -> None:
        self._unit_of_work = deployment.unit_of_work
        self._audit = audit
        self._blobs = blobs
        self._deployment_id = deployment.deployment_id
        self._signing_key = DeploymentKey(deployment, AUDIT)
        self._known: OrderedDict[UUID, AnchorText] = OrderedDict()
        self._queue = FairQueue(_ASKED_AT_ONCE, None, _ASKED_SECONDS_MAX, _busy)
        # Chains that lack what was anchored of them, as far as this process looked.
        self.lost: set[UUID] = set()
        self._watched = OPERATOR_CHAIN

    async def public_key(self, scope: TenantScope | OperatorScope) -> NoteKey:
        """The key that a chain's anchors verify with.

        Raises:
            CryptoError: The root key does not open the signing key now.
            IntegrityFailure: The stored public key is not the signing key's.
        """
        return NoteKey(self._audit.origin(scope), (await self._signing_key.newest()).public_key)

    async def ensure_signing_key(self) -> None:
        """Make the signing key where there is none yet. A backup taken before would know no anchor it had to continue.

        Raises:
            CryptoError: The root key does not wrap it now.
            StorageError: It could not be stored.
        """
        if await self._signing_key.stored_public() is None:
            await self._signing_key.newest()

    async def anchor(self, scope: TenantScope | OperatorScope) -> Anchor:
        """Anchor a chain where it is now; without change since the last time, the same anchor again.

        Raises:
            AnchorNotFound: The chain is empty.
            IntegrityFailure: What is stored does not continue what was anchored; nothing was signed.
            BlobUnavailable: The anchor could not be kept.
            CryptoError: The root key does not open the signing key now.
        """
        chain = chain_of(scope)
        note_key = await self.public_key(scope)
        newest = await self._newest(chain, note_key)
        try:
            text = await self._checked(scope, chain, newest)
        except IntegrityFailure:
            self._known.pop(chain, None)  # an accepted restore anchors another one
            raise
        return await self._keep(scope, chain, text)

    async def _keep(self, scope: TenantScope | OperatorScope, chain: UUID, text: AnchorText) -> Anchor:
        note = sign_note(text.render(), text.origin, await self._signing_key.newest())
        if self._blobs is None:
            return Anchor(text, note, stored=False)
        try:
            await self._blobs.put_if_absent(AnchorLocation(self._folder(chain), text.sequence), note.encode())
        except BlobExists:
            raise self._audit.damage(f"event {text.sequence} of the audit log was anchored as another one") from None
        async with self._unit_of_work.begin(scope) as transaction:
            await transaction.run(sql.ANCHORED, chain=chain, sequence=text.sequence)
        self._remember(chain, text)
        return Anchor(text, note, stored=True)

    async def _checked(
        self, scope: TenantScope | OperatorScope, chain: UUID, newest: AnchorText | None, *, gaps: bool = False
    ) -> AnchorText:
        """Where the chain is now, if it continues ``newest``.

        A documented gap is signed as it is accepted, together with the event. Any that stands after the newest anchor
        was not written by accepting, or its anchor could not be kept; only another acceptance reads over it.
        """
        follower = ChainVerifier(self._deployment_id, chain)
        if newest is not None:
            follower = ChainVerifier(
                self._deployment_id, chain, sequence=newest.sequence, previous=newest.hash
            )  # fmt: skip
        async with self._unit_of_work.snapshot(scope) as transaction:
            head = await transaction.fetch_one(sql.HEAD, chain=chain)
            if newest is not None:
                rows = await transaction.fetch_all(sql.EVENTS, chain=chain, after=newest.sequence - 1, page_rows=1)
                if not rows or (rows[0].sequence, rows[0].hash) != (newest.sequence, newest.hash):
                    raise self._audit.damage(
                        f"event {newest.sequence} of the audit log is not the one that was anchored"
                    )
            while rows := await transaction.fetch_all(
                sql.EVENTS, chain=chain, after=follower.sequence, page_rows=_PAGE_ROWS
            ):
                await self._audit.follow(follower, rows)
        if follower.gaps and not gaps:
            raise self._audit.damage(
                f"event {follower.gaps[0].sequence} of the audit log tells of a restored backup, but nobody signed it"
            )
        if head is None and follower.sequence == 0:
            raise AnchorNotFound
        if head is None or (follower.sequence, follower.hash) != (head.sequence, head.hash):
            raise self._audit.damage(f"the audit log ends at event {follower.sequence}, but its head says otherwise")
        return AnchorText(self._audit.origin(scope), follower.sequence, follower.hash)

    async def latest(self, scope: TenantScope | OperatorScope) -> Anchor:
        """The newest anchor in the object store.

        Raises:
            AnchorNotFound: There is none, or no object store.
            IntegrityFailure: It is not signed by this deployment.
            BlobUnavailable: The object store does not answer.
            Unavailable: Others have asked for it for too long.
        """
        async with self._queue.turn(chain_of(scope)):
            text, note = await self._stored(chain_of(scope), await self.public_key(scope))
        return Anchor(text, note, stored=True)

    async def _stored(self, chain: UUID, note_key: NoteKey) -> tuple[AnchorText, str]:
        if self._blobs is None:
            raise AnchorNotFound
        # The names of a chain's anchors count down, so that the newest comes first.
        found = await self._blobs.list_keys(anchor_prefix(self._folder(chain)), limit=1)
        if not found:
            raise AnchorNotFound
        return await self._opened(self._located(found[0]), note_key)

    def _located(self, object_key: str) -> AnchorLocation:
        try:
            return AnchorLocation.parse(object_key)
        except ValueError:
            raise self._audit.damage("something that is no anchor stands among the anchors in the bucket") from None

    def _folder(self, chain: UUID) -> UUID:
        """Below which id a chain's anchors are: a bucket may be shared, and every deployment has operators."""
        return self._deployment_id if chain == OPERATOR_CHAIN else chain

    async def _opened(self, location: AnchorLocation, note_key: NoteKey) -> tuple[AnchorText, str]:
        if self._blobs is None:
            raise AnchorNotFound
        note = (await self._blobs.get(location)).decode("utf-8", "replace")
        try:
            text = AnchorText.open(note, note_key)
        except AuditInvalid as reason:
            raise self._audit.damage(f"an anchor in the object store does not verify: {reason}") from None
        if text.sequence != location.sequence:
            raise self._audit.damage("an anchor in the object store was moved there")
        return text, note

    async def _newest(self, chain: UUID, note_key: NoteKey) -> AnchorText | None:
        if self._blobs is None:
            return None
        known = self._known.get(chain)
        if known is None:
            try:
                known, _ = await self._stored(chain, note_key)
            except AnchorNotFound:
                return None
            self._remember(chain, known)
        return known

    def _remember(self, chain: UUID, text: AnchorText) -> None:
        known = self._known.get(chain)
        if known is None or known.sequence < text.sequence:
            self._known[chain] = text
        self._known.move_to_end(chain)
        while len(self._known) > _KNOWN_MAX:
            self._known.popitem(last=False)

    async def behind(self) -> list[UUID]:
        """Chains without the newest event that was anchored of them: this database was restored, promoted, or cut.

        One listing and one read for each chain. An attacker who can add objects can keep a gateway from starting, as
        with tombstones, but not make it start.

        Raises:
            BlobUnavailable: The object store does not answer.
            IntegrityFailure: Something that is no anchor of this deployment stands among the anchors.
        """
        if self._blobs is None:
            return []
        blobs, turns = self._blobs, asyncio.Semaphore(_LOOKS_AT_ONCE)
        public = await self._signing_key.stored_public()

        async def look(chain: UUID) -> bool:
            async with turns:
                return await self._is_lost(blobs, chain, public)

        chains = list(await self._ends())
        try:
            async with asyncio.TaskGroup() as tasks:
                looks = {chain: tasks.create_task(look(chain)) for chain in chains}
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        return [chain for chain, look_ in looks.items() if look_.result()]

    async def _is_lost(self, blobs: BlobStore, chain: UUID, public: bytes | None) -> bool:
        """Whether the event that a chain's newest anchor is of is not there, or is another one."""
        found = await blobs.list_keys(anchor_prefix(self._folder(chain)), limit=1)
        if not found:
            return False
        location, scope = self._located(found[0]), chain_scope(chain)
        anchored = None
        if public is not None:
            anchored, _ = await self._opened(location, NoteKey(self._audit.origin(scope), public))
        # Read after the anchor: what another gateway anchored meanwhile was committed before.
        async with self._unit_of_work.snapshot(scope) as transaction:
            head = await transaction.fetch_one(sql.HEAD, chain=chain)
            rows = await transaction.fetch_all(sql.EVENTS, chain=chain, after=location.sequence - 1, page_rows=1)
        if head is None or head.sequence < location.sequence or not rows or rows[0].sequence != location.sequence:
            return True
        return anchored is not None and rows[0].hash != anchored.hash

    async def watch(self) -> None:
        """Look whether a running process is on a database that lost what was anchored: a stale replica was promoted.

        Some chains each time, the operators' and those found lost before among them, and in turn all of them; what is
        found is in ``lost`` until an accepted restore mended it.

        Raises:
            IntegrityFailure: Some chain lost what was anchored, or something that is no anchor stands among them.
            StorageError: The database or the object store cannot serve this now.
        """
        if self._blobs is None:
            return
        public = await self._signing_key.stored_public()
        async with self._unit_of_work.snapshot(OperatorScope()) as transaction:
            rows = await transaction.fetch_all(sql.ENDS, after=self._watched, page_rows=_WATCHED_ROWS)
        self._watched = rows[-1].tenant_id if len(rows) == _WATCHED_ROWS else OPERATOR_CHAIN
        for chain in {OPERATOR_CHAIN, *self.lost, *(row.tenant_id for row in rows)}:
            if await self._is_lost(self._blobs, chain, public):
                self.lost.add(chain)
            else:
                self.lost.discard(chain)
        if self.lost:
            raise self._audit.damage(
                f"{len(self.lost)} audit logs lack an event that was anchored: this database is older than, or another"
                " one than, what was acknowledged; see docs/operations/backup.md on fail-over"
            )

    async def _ends(self) -> dict[UUID, int]:
        """Where each chain ends, the operators' first; 0 for a tenant that has none."""
        async with self._unit_of_work.snapshot(OperatorScope()) as transaction:
            own = await transaction.fetch_one(sql.HEAD, chain=OPERATOR_CHAIN)
            found = {OPERATOR_CHAIN: 0 if own is None else own.sequence}
            after = OPERATOR_CHAIN
            while rows := await transaction.fetch_all(sql.ENDS, after=after, page_rows=_PAGE_ROWS):
                found.update((row.tenant_id, row.sequence) for row in rows)
                after = rows[-1].tenant_id
        return found

    async def missing_tenants(self) -> list[UUID]:
        """Tenants of which this deployment anchored audit events, and which the database does not have.

        One listing for each tenant that has anchors in the bucket, in turn. Anchors of another deployment in the same
        bucket are told by their signature and left out, and so is what is not signed: neither proves that a tenant of
        this deployment was there.

        Raises:
            BlobUnavailable: The object store does not answer.
            IntegrityFailure: The stored public key is not the signing key's.
            CryptoError: The root key does not open the signing key now.
        """
        if self._blobs is None:
            return []
        anchored: dict[UUID, AnchorLocation] = {}
        after = ""
        while found := await self._blobs.list_keys(ANCHORS_PREFIX, after=after, limit=1):
            try:
                location = AnchorLocation.parse(found[0])
            except ValueError:
                after = found[0]
                continue
            after = anchor_prefix(location.tenant_id) + _AFTER_ALL_NUMBERS
            anchored[location.tenant_id] = location
        # Read after the anchors, so that a tenant which is founded meanwhile is none of them.
        known = await self._tenants()
        missing = []
        for tenant_id, newest in anchored.items():
            if tenant_id in known or tenant_id == self._deployment_id:
                continue
            note_key = await self.public_key(TenantScope(tenant_id))
            try:
                AnchorText.open((await self._blobs.get(newest)).decode("utf-8", "replace"), note_key)
            except (AuditInvalid, BlobNotFound):
                continue
            missing.append(tenant_id)
        return missing

    async def _tenants(self) -> set[UUID]:
        found: set[UUID] = set()
        after = OPERATOR_CHAIN
        async with self._unit_of_work.snapshot(OperatorScope()) as transaction:
            while rows := await transaction.fetch_all(sql.TENANTS, after=after, page_rows=_PAGE_ROWS):
                found.update(rows)
                after = rows[-1]
        return found

    async def accept_restored(self, actor: str) -> list[Restored]:
        """Go on with every chain that a restored backup left behind its newest anchor. Repeating it changes nothing.

        Each such chain gets an event that names the newest anchor in the object store and the head that was found in
        the database, under a number above both, and that event is anchored before anything else happens. Call it only
        for an operator with the server's settings, on a database that no gateway serves.

        Raises:
            IntegrityFailure: A chain does not verify by itself, or an anchor is not signed by this deployment.
            BlobUnavailable: The object store does not answer.
            CryptoError: The root key does not open the signing key now.
        """
        if self._blobs is None:
            return []
        restored = []
        for chain in await self._ends():
            gap = await self._unit_of_work.retrying(partial(self._accept_chain, self._blobs, chain, actor))
            if gap is not None:
                restored.append(Restored(chain, gap))
        return restored

    async def _accept_chain(self, blobs: BlobStore, chain: UUID, actor: str) -> Gap | None:
        scope = chain_scope(chain)
        note_key = await self.public_key(scope)
        try:
            newest, _ = await self._stored(chain, note_key)
        except AnchorNotFound:
            return None
        newest_held = await self._newest_kept(blobs, scope, chain, note_key)
        if newest_held == newest:
            return None
        try:
            found = await self._checked(scope, chain, newest_held, gaps=True)
            gap = Gap.after(0 if newest_held is None else newest_held.sequence, found.sequence, found.hash, newest)
        except AnchorNotFound:
            gap = Gap.after(0, 0, start_of(self._deployment_id, chain), newest)
        async with self._unit_of_work.begin(scope) as transaction:
            entry = await self._audit.append_restored(transaction, chain, actor, gap)
        # Until this is kept nothing is signed after it, and accepting again makes another event.
        await self._keep(scope, chain, AnchorText(note_key.name, entry.sequence, entry.hash))
        return gap

    async def _newest_kept(
        self, blobs: BlobStore, scope: TenantScope | OperatorScope, chain: UUID, note_key: NoteKey
    ) -> AnchorText | None:
        """The newest anchor whose event is in the database, or None."""
        async with self._unit_of_work.snapshot(scope) as transaction:
            last = await transaction.fetch_one(sql.LAST_EVENT, chain=chain) or 0
        after = AnchorLocation(self._folder(chain), last + 1).object_key()  # names count down
        while True:
            object_keys = await blobs.list_keys(anchor_prefix(self._folder(chain)), after=after, limit=_PAGE_ROWS)
            for object_key in object_keys:
                after = object_key
                text, _ = await self._opened(self._located(object_key), note_key)
                async with self._unit_of_work.snapshot(scope) as transaction:
                    rows = await transaction.fetch_all(sql.EVENTS, chain=chain, after=text.sequence - 1, page_rows=1)
                if rows and (rows[0].sequence, rows[0].hash) == (text.sequence, text.hash):
                    return text
            if len(object_keys) < _PAGE_ROWS:
                return None

    async def anchor_due(self) -> int:
        """Anchor every chain that has grown since its last anchor; return how many were anchored.

        Raises:
            IntegrityFailure: Some chain does not verify; the others were anchored.
            StorageError: The database or the object store cannot serve this now; the rest is tried the next time.
            CryptoError: As before, for the root key.
        """
        if self._blobs is None:
            return 0
        due = self._audit.take_touched()
        anchored = 0
        damage: IntegrityFailure | None = None
        try:
            due |= await self._waiting()
            for chain in sorted(due):
                try:
                    await self.anchor(chain_scope(chain))
                    anchored += 1
                except AnchorNotFound:
                    pass  # the transaction that would have begun the chain was rolled back
                except IntegrityFailure as reason:
                    damage = damage or reason
                due.discard(chain)
        except (StorageError, CryptoError):
            self._audit.touch(due)
            raise
        if damage is not None:
            raise damage
        return anchored

    async def _waiting(self) -> set[UUID]:
        """Chains that a process added to which did not live to anchor them."""
        found: set[UUID] = set()
        after = UUID(int=0)
        async with self._unit_of_work.snapshot(OperatorScope()) as transaction:
            own = await transaction.fetch_one(sql.HEAD, chain=after)
            if own is not None and own.sequence > own.anchored:
                found.add(after)
            while rows := await transaction.fetch_all(sql.TO_ANCHOR, after=after, page_rows=_PAGE_ROWS):
                found.update(rows)
                after = rows[-1]
        return found
