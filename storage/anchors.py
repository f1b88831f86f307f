"""Anchors: signed statements, kept in the object store, of where an audit chain was.

An anchor is written once, at a place that names chain and event, and signed with a key that only the root key opens;
an equal anchor has equal bytes, whoever makes it. Before one is signed, everything since the newest one in the object
store is read and must continue it: a gateway does not sign a rewritten history. It promises nothing about what was
written after the newest anchor, and nothing against whoever holds the root key.
"""

from collections import OrderedDict
from dataclasses import dataclass
from uuid import UUID

from crypto import CryptoError, NoteKey, RootKey, SecretKey, SigningKey, WrappedKey, sign_note
from storage.audit import Audit, chain_of, chain_scope
from storage.blobs.keyspace import AnchorLocation, anchor_prefix
from storage.blobs.store import BlobExists, BlobStore
from storage.clock import Clock
from storage.errors import AnchorNotFound, IntegrityFailure, StorageError, Unavailable
from storage.format.audit import AnchorText, AuditInvalid, ChainVerifier
from storage.postgres import audit as sql
from storage.postgres.unit_of_work import UnitOfWork
from storage.scope import OperatorScope, TenantScope

ANCHOR_SECONDS = 60.0  # what may be cut off an audit log unnoticed by whoever reads only the object store
SIGNING_KEY_VERSION = 1
_PAGE_ROWS = 1000
_KNOWN_MAX = 10_000  # chains whose newest anchor this process remembers


@dataclass(frozen=True, slots=True)
class Anchor:
    """A signed anchor; ``stored`` is False where there is no object store to keep it."""

    text: AnchorText
    note: str
    stored: bool


class Anchors:
    """Makes and reads anchors of audit chains."""

    def __init__(
        self,
        unit_of_work: UnitOfWork,
        audit: Audit,
        root_key: RootKey,
        blobs: BlobStore | None,
        deployment_id: UUID,
        clock: Clock,
    ) -> None:
        self._unit_of_work = unit_of_work
        self._audit = audit
        self._root_key = root_key
        self._blobs = blobs
        self._deployment_id = deployment_id
        self._clock = clock
        self._signing_key: SigningKey | None = None
        self._known: OrderedDict[UUID, AnchorText] = OrderedDict()

    async def public_key(self, scope: TenantScope | OperatorScope) -> NoteKey:
        """The key that a chain's anchors verify with.

        Raises:
            CryptoError: The root key does not open the signing key now.
            IntegrityFailure: The stored public key is not the signing key's.
        """
        signing_key = await self._signer()
        return NoteKey(self._audit.origin(scope), signing_key.public_key)

    async def _signer(self) -> SigningKey:
        if self._signing_key is None:
            self._signing_key = await self._load_signing_key() or await self._create_signing_key()
        return self._signing_key

    async def _load_signing_key(self) -> SigningKey | None:
        async with self._unit_of_work.snapshot(OperatorScope()) as transaction:
            row = await transaction.fetchrow(sql.SIGNING_KEY, SIGNING_KEY_VERSION)
        if row is None:
            return None
        wrapped = WrappedKey(
            provider=row["provider"],
            root_key_id=row["root_key_id"],
            root_key_version=row["root_key_version"],
            ciphertext=row["wrapped"],
        )
        signing_key = SigningKey(await self._root_key.unwrap(wrapped, self._root_context()))
        if signing_key.public_key != row["public"]:
            raise self._audit.damage("the stored public key of the audit log is not the signing key's")
        return signing_key

    async def _create_signing_key(self) -> SigningKey:
        seed = SecretKey.generate()
        wrapped = await self._root_key.wrap(seed, self._root_context())
        async with self._unit_of_work.begin(OperatorScope()) as transaction:
            await transaction.execute(
                sql.ADD_SIGNING_KEY,
                SIGNING_KEY_VERSION,
                wrapped.provider,
                wrapped.root_key_id,
                wrapped.root_key_version,
                wrapped.ciphertext,
                SigningKey(seed).public_key,
                self._clock.now(),
            )
        stored = await self._load_signing_key()
        if stored is None:
            raise Unavailable("the signing key of the audit log was not stored")
        return stored

    def _root_context(self) -> dict[str, str]:
        return {
            "deployment": str(self._deployment_id),
            "tenant": str(UUID(int=0)),  # the deployment's own
            "purpose": "audit",
            "version": str(SIGNING_KEY_VERSION),
        }

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
        text = await self._checked(scope, chain, newest)
        note = sign_note(text.render(), text.origin, await self._signer())
        if self._blobs is None:
            return Anchor(text, note, stored=False)
        try:
            await self._blobs.put_if_absent(AnchorLocation(chain, text.sequence), note.encode())
        except BlobExists:
            raise self._audit.damage(f"event {text.sequence} of the audit log was anchored as another one") from None
        async with self._unit_of_work.begin(scope) as transaction:
            await transaction.execute(sql.ANCHORED, chain, text.sequence)
        self._remember(chain, text)
        return Anchor(text, note, stored=True)

    async def _checked(self, scope: TenantScope | OperatorScope, chain: UUID, newest: AnchorText | None) -> AnchorText:
        """Where the chain is now, if it continues ``newest``."""
        follower = ChainVerifier(self._deployment_id, chain)
        if newest is not None:
            follower = ChainVerifier(
                self._deployment_id, chain, sequence=newest.sequence, previous=newest.hash
            )  # fmt: skip
        async with self._unit_of_work.snapshot(scope) as transaction:
            head = await transaction.fetchrow(sql.HEAD, chain)
            if newest is not None:
                rows = await transaction.fetch(sql.EVENTS, chain, newest.sequence - 1, 1)
                if not rows or (rows[0]["sequence"], rows[0]["hash"]) != (newest.sequence, newest.hash):
                    raise self._audit.damage(
                        f"event {newest.sequence} of the audit log is not the one that was anchored"
                    )
            while rows := await transaction.fetch(sql.EVENTS, chain, follower.sequence, _PAGE_ROWS):
                self._audit.follow(follower, rows)
        if head is None and follower.sequence == 0:
            raise AnchorNotFound
        if head is None or (follower.sequence, follower.hash) != (head["sequence"], head["hash"]):
            raise self._audit.damage(f"the audit log ends at event {follower.sequence}, but its head says otherwise")
        return AnchorText(self._audit.origin(scope), follower.sequence, follower.hash)

    async def latest(self, scope: TenantScope | OperatorScope) -> Anchor:
        """The newest anchor in the object store.

        Raises:
            AnchorNotFound: There is none, or no object store.
            IntegrityFailure: It is not signed by this deployment.
            BlobUnavailable: The object store does not answer.
        """
        text, note = await self._stored(chain_of(scope), await self.public_key(scope))
        return Anchor(text, note, stored=True)

    async def _stored(self, chain: UUID, note_key: NoteKey) -> tuple[AnchorText, str]:
        if self._blobs is None:
            raise AnchorNotFound
        # The names of a chain's anchors count down, so that the newest comes first.
        found = await self._blobs.list_keys(anchor_prefix(chain), limit=1)
        if not found:
            raise AnchorNotFound
        location = AnchorLocation.parse(found[0])
        note = (await self._blobs.get(location)).decode("utf-8", "replace")
        try:
            text = AnchorText.open(note, note_key)
        except AuditInvalid as reason:
            raise self._audit.damage(f"the newest anchor in the object store does not verify: {reason}") from None
        if text.sequence != location.sequence:
            raise self._audit.damage("the newest anchor in the object store was moved there")
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
            own = await transaction.fetchrow(sql.HEAD, after)
            if own is not None and own["sequence"] > own["anchored"]:
                found.add(after)
            while rows := await transaction.fetch(sql.TO_ANCHOR, after, _PAGE_ROWS):
                found.update(row["tenant_id"] for row in rows)
                after = rows[-1]["tenant_id"]
        return found
