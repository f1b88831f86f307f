"""The audit log: a tenant's own, and the operators'. Both are read the same way; only who may differs."""

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Generic, TypeVar

from msgspec import Meta, Struct

from gateway import wire
from gateway.admission import limits
from gateway.authentication.principals import OPERATORS, TENANT, Reach
from gateway.http.exchange import Answer
from gateway.routing.operations import Call, Operation, Route
from gateway.wire.administration.api_keys import Permission
from storage.administration.anchors import Anchor
from storage.administration.audit import AuditRecord
from storage.scope import OperatorScope, TenantScope

AnyChain = TenantScope | OperatorScope
S = TypeVar("S", TenantScope, OperatorScope)


class AuditQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    """Which page; ``verify`` false gives the rows as they are, as evidence, where the log does not verify."""

    limit: Annotated[int, Meta(ge=1, le=limits.PAGE_ITEMS_MAX)] = limits.PAGE_ITEMS_DEFAULT
    cursor: str | None = None
    verify: bool = True


def _event(record: AuditRecord) -> wire.audit.AuditEvent:
    entry, event = record.entry, record.event
    return wire.audit.AuditEvent(
        sequence=entry.sequence,
        at=event.at if event else None,
        actor=event.actor if event else None,
        action=event.action if event else None,
        target=event.target if event else None,
        detail=dict(event.detail) if event else None,
        body=entry.body.decode("ascii", "replace"),
        previous=entry.previous.hex(),
        hash=entry.hash.hex(),
    )


async def _page(call: Call[AnyChain]) -> Answer:
    query = call.exchange.query(AuditQuery)
    audit = call.store.audit
    origin = audit.origin(call.scope)
    cursor = call.cursor(query.cursor, origin)
    begin = int(cursor.after[0]) if cursor.after else 0
    reading = audit.page(call.scope, call.actor, begin, query.limit, verify=query.verify)
    page = await call.commit(reading)
    events = [_event(record) for record in page.items]
    return call.exchange.reply(wire.audit.AuditPage(origin=origin, events=events, next_cursor=cursor.next(page.after)))


def _anchor(anchor: Anchor) -> wire.audit.AuditAnchor:
    return wire.audit.AuditAnchor(
        origin=anchor.text.origin,
        sequence=anchor.text.sequence,
        hash=anchor.text.hash.hex(),
        note=anchor.note,
        stored=anchor.stored,
    )


async def _latest(call: Call[AnyChain]) -> Answer:
    return call.exchange.reply(_anchor(await call.store.anchors.latest(call.scope)))


async def _now(call: Call[AnyChain]) -> Answer:
    return call.exchange.reply(_anchor(await call.commit(call.store.anchors.anchor(call.scope))))


async def _public_key(call: Call[AnyChain]) -> Answer:
    note_key = await call.store.anchors.public_key(call.scope)
    return call.exchange.reply(wire.audit.AuditKey(origin=note_key.name, public_key=str(note_key)))


@dataclass(frozen=True, slots=True)
class _Log(Generic[S]):
    """One of the two logs: whose it is, in names, paths and words, and who may."""

    name: str
    path: str
    whose: str
    reach: Reach[S]
    permission: Permission

    def routes(self) -> list[Route]:
        """The operations on it."""
        anchor_problems = ("blob-store-unavailable", "integrity-failure", "key-unavailable", "not-found")
        declared = partial(Operation, reach=self.reach, permission=self.permission)
        return [
            declared(
                f"GET {self.path}",
                name=f"read_{self.name}",
                summary=f"Events of the {self.whose} audit log, oldest first; the beginning of a reading is "
                "recorded itself.",
                query=AuditQuery,
                returns=wire.audit.AuditPage,
                problems=("integrity-failure",),
            )(_page),
            declared(
                f"GET {self.path}/anchor",
                name=f"get_{self.name}_anchor",
                summary=f"The newest anchor of the {self.whose} audit log in the object store.",
                returns=wire.audit.AuditAnchor,
                problems=anchor_problems,
            )(_latest),
            declared(
                f"POST {self.path}/anchor",
                name=f"anchor_{self.name}",
                summary=f"Anchor the {self.whose} audit log where it is now; safe to repeat.",
                returns=wire.audit.AuditAnchor,
                problems=anchor_problems,
            )(_now),
            declared(
                f"GET {self.path}/key",
                name=f"get_{self.name}_key",
                summary=f"The public key that the {self.whose} anchors are signed with.",
                returns=wire.audit.AuditKey,
                problems=("integrity-failure", "key-unavailable"),
            )(_public_key),
        ]


ROUTES = [
    *_Log("audit", "/v1/audit", "tenant's", TENANT, "tenant:admin").routes(),
    *_Log("operator_audit", "/v1/admin/audit", "operators'", OPERATORS, "operator").routes(),
]
