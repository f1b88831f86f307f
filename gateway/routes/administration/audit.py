"""The audit log: a tenant's own, and the operators'. Both are read the same way; only who may differs."""

from dataclasses import dataclass
from http import HTTPMethod
from typing import Annotated, Generic, TypeVar

from msgspec import Meta, Struct

from gateway import wire
from gateway.admission import limits
from gateway.authentication.principals import OPERATORS, TENANT, Reach
from gateway.http.exchange import Answer
from gateway.routing.operations import Call, Operation, Route, route
from gateway.wire.administration.api_keys import Permission
from storage.administration.anchors import Anchor
from storage.administration.audit import AuditRecord
from storage.encoding import encode_msgpack
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
    audit = call.services.store.audit
    origin = audit.origin(call.scope)
    binding = encode_msgpack((call.exchange.route, origin))
    after = call.services.cursors.read(binding, query.cursor)
    begin = int(after[0]) if after else 0
    reading = audit.page(call.scope, call.principal.actor, begin, query.limit, verify=query.verify)
    page = await call.services.commits.run(reading)
    return call.exchange.reply(
        wire.audit.AuditPage(
            origin=origin,
            events=[_event(record) for record in page.items],
            next_cursor=call.services.cursors.write(binding, page.after),
        )
    )


def _anchor(anchor: Anchor) -> wire.audit.AuditAnchor:
    return wire.audit.AuditAnchor(
        origin=anchor.text.origin,
        sequence=anchor.text.sequence,
        hash=anchor.text.hash.hex(),
        note=anchor.note,
        stored=anchor.stored,
    )


async def _latest(call: Call[AnyChain]) -> Answer:
    call.exchange.no_query()
    return call.exchange.reply(_anchor(await call.services.store.anchors.latest(call.scope)))


async def _now(call: Call[AnyChain]) -> Answer:
    call.exchange.no_query()
    return call.exchange.reply(_anchor(await call.services.commits.run(call.services.store.anchors.anchor(call.scope))))


async def _public_key(call: Call[AnyChain]) -> Answer:
    call.exchange.no_query()
    note_key = await call.services.store.anchors.public_key(call.scope)
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
        return [
            route(
                Operation(
                    name=f"read_{self.name}",
                    method=HTTPMethod.GET,
                    path=self.path,
                    reach=self.reach,
                    summary=f"Events of the {self.whose} audit log, oldest first; the beginning of a reading is "
                    "recorded itself.",
                    permission=self.permission,
                    query=AuditQuery,
                    returns=wire.audit.AuditPage,
                    problems=("integrity-failure",),
                )
            )(_page),
            route(
                Operation(
                    name=f"get_{self.name}_anchor",
                    method=HTTPMethod.GET,
                    path=f"{self.path}/anchor",
                    reach=self.reach,
                    summary=f"The newest anchor of the {self.whose} audit log in the object store.",
                    permission=self.permission,
                    returns=wire.audit.AuditAnchor,
                    problems=anchor_problems,
                )
            )(_latest),
            route(
                Operation(
                    name=f"anchor_{self.name}",
                    method=HTTPMethod.POST,
                    path=f"{self.path}/anchor",
                    reach=self.reach,
                    summary=f"Anchor the {self.whose} audit log where it is now; safe to repeat.",
                    permission=self.permission,
                    returns=wire.audit.AuditAnchor,
                    problems=anchor_problems,
                )
            )(_now),
            route(
                Operation(
                    name=f"get_{self.name}_key",
                    method=HTTPMethod.GET,
                    path=f"{self.path}/key",
                    reach=self.reach,
                    summary=f"The public key that the {self.whose} anchors are signed with.",
                    permission=self.permission,
                    returns=wire.audit.AuditKey,
                    problems=("integrity-failure", "key-unavailable"),
                )
            )(_public_key),
        ]


ROUTES = [
    *_Log("audit", "/v1/audit", "tenant's", TENANT, "tenant:admin").routes(),
    *_Log("operator_audit", "/v1/admin/audit", "operators'", OPERATORS, "operator").routes(),
]
