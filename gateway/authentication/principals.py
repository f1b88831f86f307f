"""Who calls, what it may do, and where: credential > `Principal` > scope.

Owns the check of API keys and permissions, and the derivation of scopes. Paths are never matched here, because parts of
them are chosen by clients. Scopes come from the principal and one header, never from a body or a row.
"""

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Generic, Literal, TypeVar
from uuid import UUID

import structlog

from gateway.authentication import api_keys
from gateway.authentication.strangers import Strangers
from gateway.http.exchange import PRINCIPAL_HEADER, SUBJECT_HEADER, Facts, decode_id, encode_id
from gateway.problems import (
    InvalidRequest,
    PermissionDenied,
    SubjectMismatch,
    SubjectRequired,
    TenantSuspended,
    Unauthenticated,
)
from gateway.wire.administration.api_keys import Permission
from gateway.wire.problems import Fault
from storage.administration.audit import BreakGlass
from storage.clock import Clock
from storage.errors import InvalidState, StorageError
from storage.format.audit import OPERATOR_CHAIN
from storage.keys.key_seals import Peppers
from storage.model import ApiKeyRecord
from storage.scope import SHARED_SUBJECT, OperatorScope, TenantListing, TenantScope, check_subject
from storage.scope import Scope as SubjectScope

VERIFIED_SECONDS_MAX = 5.0  # how long a revoked key may still work in another process; saves a query a request
VERIFIED_KEYS_MAX = 10_000  # about 5 MB
USED_AT_SECONDS = 60.0  # last_used_at says "when, to the minute"; more would be a write per request
_SCHEME = b"bearer "
_IMPLIED_BY: Final[dict[Permission, Permission]] = {"approval:open": "approval:decide"}  # who decides sees what about
_NEVER: Final = datetime.max.replace(tzinfo=UTC)  # a key that was made then is younger than every question
_HEARS: Final = frozenset({"event:read", "tenant:admin"})

_log = structlog.get_logger()

S = TypeVar("S")

LookUp = Callable[[str], Awaitable[ApiKeyRecord | None]]
Touch = Callable[[dict[tuple[UUID | None, str], datetime]], Awaitable[None]]
SealsNeeded = Callable[[], Awaitable[bool]]
Restamp = Callable[[list[tuple[ApiKeyRecord, ApiKeyRecord]]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated caller.

    ``grants`` is what keys that it makes may be allowed. ``principal`` is who stands behind the key, by whom votes are
    counted; ``made_by`` is the key that made it, where that is known.
    """

    key_id: str
    kind: Literal["subject", "service", "operator"]
    tenant_id: UUID | None
    subject_id: str | None
    permissions: frozenset[str]
    expires_at: datetime | None
    grants: frozenset[str] = frozenset()
    suspended: bool = False
    principal: str = ""
    created_at: datetime = _NEVER
    made_by: str | None = None

    @property
    def actor(self) -> str:
        """How the audit log names this caller."""
        return f"api-key:{self.key_id}"


class Authenticator:
    """Turns an Authorization header into a `Principal`, remembering verified keys for a few seconds.

    A key that was right here before, and one that says by itself that this deployment made it, are looked up at once;
    any other waits for its turn among `Strangers`. So the holder of such a key does not wait for those who try keys.

    Args:
        peppers: The secrets that stored keys are mixed with.
        look_up: The stored key of an id, or None.
        clock: The clock that expiry is compared with.
        seals_needed: Whether every gateway seals keys by now, so that a key without a seal is damaged.
        monotonic: Seconds that only go forward.

    Attributes:
        strangers: The limits on callers who are not known.
    """

    def __init__(
        self,
        peppers: Peppers,
        look_up: LookUp,
        clock: Clock,
        seals_needed: SealsNeeded,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._peppers = peppers
        self._monotonic = monotonic
        self.strangers = Strangers(monotonic)
        self._look_up = look_up
        self._clock = clock
        self._seals_needed = seals_needed
        self._verified: OrderedDict[bytes, tuple[Principal, float]] = OrderedDict()
        self._used: dict[tuple[UUID | None, str], datetime] = {}
        self._restamped: dict[str, tuple[ApiKeyRecord, ApiKeyRecord]] = {}

    async def verify(self, authorization: bytes | None, *, anew: bool = False) -> Principal:
        """The caller behind ``authorization``.

        Args:
            authorization: The header Authorization.
            anew: Whether it is looked up now, whatever is remembered of it.

        Raises:
            Unauthenticated: whatever is wrong with the credential; it does not say what.
            TooManyFailures: it was not looked at, because too many that open nothing are tried.
            TenantSuspended: nothing is wrong with it, but its tenant's keys are refused for now.
            StorageError: the key could not be looked up.
        """
        if authorization is None or authorization[:7].lower() != _SCHEME:
            raise Unauthenticated
        token = authorization[7:].strip()
        digest = hashlib.sha256(token).digest()  # so that no key lies around in memory
        cached = self._verified.get(digest)
        if cached is not None and cached[1] > self._monotonic() and not anew:
            principal = cached[0]
        else:
            try:
                principal = await self._check(token, digest, vouched=cached is not None)
            except Unauthenticated:
                self._verified.pop(digest, None)
                raise
            self._verified[digest] = (principal, self._monotonic() + VERIFIED_SECONDS_MAX)
            self._verified.move_to_end(digest)
            if len(self._verified) > VERIFIED_KEYS_MAX:
                self._verified.popitem(last=False)
        now = self._clock.now()
        if principal.expires_at is not None and principal.expires_at <= now:
            raise Unauthenticated
        if principal.suspended:
            raise TenantSuspended
        self._used[principal.tenant_id, principal.key_id] = now
        return principal

    def tenant_of(self, authorization: bytes | None) -> UUID | None:
        """The tenant of a credential that was right here before, whether it is now or not; None: nobody knows it."""
        if authorization is None:
            return None
        known = self._verified.get(hashlib.sha256(authorization[7:].strip()).digest())
        return None if known is None else known[0].tenant_id

    async def _check(self, token: bytes, digest: bytes, *, vouched: bool) -> Principal:
        presented = api_keys.parse(token.decode("latin-1"))
        if presented is None or self.strangers.was_refused(digest):
            raise Unauthenticated
        try:
            if vouched or api_keys.was_made_here(self._peppers, presented):
                return await self._compare(presented)
            if self.strangers.was_refused(presented.key_id.encode()):
                raise Unauthenticated  # noqa: TRY301  as everything that is refused
            async with self.strangers.turn():
                return await self._compare(presented)
        except Unauthenticated:
            self.strangers.refuse(digest)
            raise

    async def _compare(self, presented: api_keys.PresentedKey) -> Principal:
        record = await self._look_up(presented.key_id)
        if record is None:  # of an id that exists, a wrong secret says nothing about the right one
            self.strangers.refuse(presented.key_id.encode())
        valid = api_keys.matches(self._peppers, presented, record)
        if record is None or not valid or record.revoked_at is not None:
            raise Unauthenticated
        if record.seal is None and await self._seals_needed():
            raise Unauthenticated
        if record.seal is None or record.pepper_version != self._peppers.active.version:
            # Only now is the secret here that a MAC under the active pepper takes.
            fresh = api_keys.sealed(self._peppers, presented.secret, record, record.grants)
            self._restamped[record.key_id] = (record, fresh)
        return Principal(
            record.key_id,
            record.kind,
            record.tenant_id,
            record.subject_id,
            frozenset(record.permissions),
            record.expires_at,
            frozenset(record.grants),
            record.suspended,
            record.principal,
            record.created_at,
            record.made_by,
        )

    def forget(self, key_id: str) -> None:
        """Stop trusting a key that was revoked here."""
        for digest in [d for d, (principal, _) in self._verified.items() if principal.key_id == key_id]:
            del self._verified[digest]

    def forget_tenant(self, tenant_id: UUID) -> None:
        """Ask again about every key of a tenant that was suspended or resumed here."""
        for digest in [d for d, (principal, _) in self._verified.items() if principal.tenant_id == tenant_id]:
            del self._verified[digest]

    async def flush_used(self, touch: Touch) -> None:
        """Store when keys were last used; what could not be stored is kept for the next time."""
        used, self._used = self._used, {}
        if not used:
            return
        try:
            await touch(used)
        except StorageError as reason:
            self._used = used | self._used
            _log.warning("last use of keys not stored", error=type(reason).__name__, keys=len(used))

    async def flush_restamped(self, restamp: Restamp) -> None:
        """Store the MACs of used keys under the active pepper; what could not be stored is made at the next use."""
        stamped, self._restamped = self._restamped, {}
        if not stamped:
            return
        try:
            await restamp([*stamped.values()])
        except StorageError as reason:
            _log.warning("keys not sealed under the active pepper", error=type(reason).__name__, keys=len(stamped))

    async def keep_flushing(self, touch: Touch, restamp: Restamp) -> None:
        """Run `flush_used` and `flush_restamped` once a minute until cancelled, and once more then."""
        try:
            while True:
                await asyncio.sleep(USED_AT_SECONDS)
                await self._flush(touch, restamp)
        finally:
            await self._flush(touch, restamp)

    async def _flush(self, touch: Touch, restamp: Restamp) -> None:
        await self.flush_used(touch)
        await self.flush_restamped(restamp)


def check_permission(principal: Principal, permission: Permission) -> None:
    """Let only a principal with ``permission`` pass.

    Raises:
        PermissionDenied: it has not.
    """
    if principal.permissions.isdisjoint({permission, _IMPLIED_BY.get(permission, permission)}):
        raise PermissionDenied(f"this needs the permission {permission}")


def asserted_principal(principal: Principal, facts: Facts) -> str | None:
    """The person whom a backend names in Stateroom-Principal; None: it names nobody.

    Raises:
        PermissionDenied: The key may not name anybody.
        InvalidRequest: It is no id.
    """
    named = facts.headers.get(PRINCIPAL_HEADER.lower().encode())
    if named is None:
        return None
    check_permission(principal, "approval:assert")
    fault = Fault(detail="is not the id of a person, plain or ~ and base64url", header=PRINCIPAL_HEADER)
    return decode_id(named.decode("latin-1"), fault)


def lists_tenant(principal: Principal, named: str | None) -> bool:
    """Whether a listing is of the whole tenant: a service key with ``tenant:admin`` that names no subject."""
    return principal.kind == "service" and named is None and "tenant:admin" in principal.permissions


def hears_tenant(principal: Principal, named: str | None) -> bool:
    """Whether who asks for events hears those of all subjects: a service key that may, and that names no subject.

    An event says nothing that a listing of the tenant does not show, so ``tenant:admin`` is enough, too.
    """
    allowed = not _HEARS.isdisjoint(principal.permissions)
    return principal.kind == "service" and named is None and allowed


def named_subject(facts: Facts) -> str | None:
    """The header Stateroom-Subject as it was sent."""
    named = facts.headers.get(SUBJECT_HEADER.lower().encode())
    return None if named is None else named.decode("latin-1")


def listing_scope(principal: Principal, named: str | None) -> SubjectScope | TenantListing:
    """Return the scope whose checkpoints a listing over threads shows.

    Raises:
        GatewayError: as `subject_scope`, unless the principal lists the whole tenant.
    """
    if lists_tenant(principal, named) and principal.tenant_id is not None:
        return TenantListing(principal.tenant_id)
    return subject_scope(principal, named)


def subject_scope(principal: Principal, named: str | None) -> SubjectScope:
    """The subject whose state a principal reaches; ``named`` is the header Stateroom-Subject.

    Raises:
        PermissionDenied: an operator, or a service key without ``subject:act_as``.
        SubjectRequired: a service key that names no subject.
        SubjectMismatch: a subject's key that names another subject.
        InvalidRequest: the header is not a subject id.
    """
    if principal.kind == "operator" or principal.tenant_id is None:
        raise PermissionDenied("operator credentials open no state")
    if principal.kind == "subject":
        if principal.subject_id is None:
            raise PermissionDenied("this key has no subject")
        if named is not None and _subject(named) != principal.subject_id:
            raise SubjectMismatch
        return SubjectScope(principal.tenant_id, principal.subject_id)
    if "subject:act_as" not in principal.permissions:
        raise PermissionDenied("this needs the permission subject:act_as")
    if named is None:
        raise SubjectRequired
    return SubjectScope(principal.tenant_id, _subject(named))


def _subject(named: str) -> str:
    fault = Fault(detail="is not a subject id, plain or ~ and base64url, nor ~shared", header=SUBJECT_HEADER)
    if named == SHARED_SUBJECT:
        return named
    subject = decode_id(named, fault)
    try:
        if subject == SHARED_SUBJECT:
            raise InvalidRequest(fault)  # it has one spelling, the literal one
        return check_subject(subject)
    except InvalidState:
        raise InvalidRequest(fault) from None


def tenant_scope(principal: Principal) -> TenantScope:
    """The tenant a principal belongs to.

    Raises:
        PermissionDenied: an operator.
    """
    if principal.kind == "operator" or principal.tenant_id is None:
        raise PermissionDenied("operator credentials belong to no tenant")
    return TenantScope(principal.tenant_id)


def break_glass_scope(principal: Principal, receipt: BreakGlass) -> SubjectScope:
    """The one way of an operator to a subject's state: what the receipt of a committed audit event names.

    Raises:
        PermissionDenied: anybody but the operator who was recorded, or one without ``decrypt-any``.
    """
    if principal.kind != "operator" or "decrypt-any" not in principal.permissions:
        raise PermissionDenied("this needs an operator's key with the permission decrypt-any")
    if receipt.actor != principal.actor:
        raise PermissionDenied("another operator was recorded")
    return SubjectScope(receipt.opening.tenant_id, receipt.opening.subject_id)


def operator_scope(principal: Principal) -> OperatorScope:
    """The list of tenants.

    Raises:
        PermissionDenied: anybody but an operator.
    """
    if principal.kind != "operator" or "operator" not in principal.permissions:
        raise PermissionDenied("this needs the permission operator")
    return OperatorScope()


@dataclass(frozen=True, slots=True)
class Reach(Generic[S]):
    """The rows that an operation works on, and the way to them.

    Attributes:
        enter: Finds the scope of a principal by what is known of the request, and notes it there for the audit log.
        whole_tenant: Whether a principal that names this subject, or none, is let in to all of its tenant, without the
            operation's permission; None: nobody is.
    """

    enter: Callable[[Principal, Facts], S]
    whole_tenant: Callable[[Principal, str | None], bool] | None = None


def _enter_subject(principal: Principal, facts: Facts) -> SubjectScope:
    scope = subject_scope(principal, named_subject(facts))
    facts.access = (scope.tenant_id, principal.actor, f"subject/{encode_id(scope.subject_id)}")
    return scope


def _enter_listing(principal: Principal, facts: Facts) -> SubjectScope | TenantListing:
    scope = listing_scope(principal, named_subject(facts))
    whose = "tenant" if isinstance(scope, TenantListing) else f"subject/{encode_id(scope.subject_id)}"
    facts.access = (scope.tenant_id, principal.actor, whose)
    return scope


def _enter_hearing(principal: Principal, facts: Facts) -> SubjectScope | TenantScope:
    if hears_tenant(principal, named_subject(facts)):
        return _enter_tenant(principal, facts)
    return _enter_subject(principal, facts)


def _enter_inbox(principal: Principal, facts: Facts) -> SubjectScope | TenantListing:
    if principal.kind == "service" and named_subject(facts) is None:
        return TenantListing(_enter_tenant(principal, facts).tenant_id)
    return _enter_subject(principal, facts)


def _enter_tenant(principal: Principal, facts: Facts) -> TenantScope:
    scope = tenant_scope(principal)
    facts.access = (scope.tenant_id, principal.actor, "tenant")
    return scope


def _enter_operators(principal: Principal, facts: Facts) -> OperatorScope:
    scope = operator_scope(principal)
    facts.access = (OPERATOR_CHAIN, principal.actor, "operators")
    return scope


SUBJECT: Final = Reach(_enter_subject)
LISTING: Final = Reach(_enter_listing, lists_tenant)
"""A subject, or with ``tenant:admin`` and without a subject the whole tenant; the operation decides what that gives."""
HEARING: Final = Reach(_enter_hearing, hears_tenant)
"""A subject, or with ``event:read`` or ``tenant:admin`` and without a subject the whole tenant."""
INBOX: Final = Reach(_enter_inbox)
"""A subject, or for a service key that names none the whole tenant: what is asked of whoever may decide about it."""
TENANT: Final = Reach(_enter_tenant)
OPERATORS: Final = Reach(_enter_operators)
CALLER: Final[Reach[None]] = Reach(lambda _principal, _facts: None)
"""No rows at all: the operation tells of the caller."""
