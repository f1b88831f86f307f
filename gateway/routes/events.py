"""Events: what happened, as pages, waited for, or as a stream; and whether a tenant has any.

Who waits gives back its places among requests, as it does nothing, and counts among waiters instead. Events are for
waking, the audit log is the record: it has a note of everyone who begins to listen, and none of each question.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Annotated
from uuid import UUID

from msgspec import Meta, Struct

from gateway import wire
from gateway.admission import limits
from gateway.admission.limits import Draining
from gateway.authentication.principals import HEARING, TENANT
from gateway.bodies.codec import accepts_events
from gateway.events.hub import BATCH_EVENTS
from gateway.events.listeners import Listener, Told, Wanted, event_out
from gateway.events.positions import Place
from gateway.events.stream import EventStream
from gateway.http.exchange import Answer
from gateway.problems import InvalidRequest
from gateway.routing.operations import Call, Operation
from gateway.wire.problems import Fault
from storage.encoding import encode_msgpack
from storage.events.model import EventPage, EventPosition, EventSettings
from storage.scope import Scope, TenantScope

NOW = "now"
_LAST_EVENT = "Last-Event-ID"
_NOT_OURS = "was not given for what this request listens to; begin again with since=now"


class EventsQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    """Which events, behind which one, and how long it may take until there is one."""

    types: list[wire.events.EventType] = []
    thread: wire.base.Name | None = None
    since: str | None = None
    wait_seconds: Annotated[int, Meta(ge=0, le=limits.WAIT_SECONDS_MAX)] = 0
    limit: Annotated[int, Meta(ge=1, le=limits.PAGE_ITEMS_MAX)] = limits.PAGE_ITEMS_DEFAULT


@Operation(
    "GET /v1/events",
    reach=HEARING,
    summary="Events behind a cursor, the oldest first; with wait_seconds as soon as there is one, and with Accept: "
    "text/event-stream as a stream of server-sent events, whose ids are cursors.",
    permission="state:read",
    query=EventsQuery,
    returns=wire.events.EventPage,
    headers=(_LAST_EVENT,),
    stream=True,
    problems=("events-expired", "events-off", "events-rewound", "feature-off", "integrity-failure",
              "too-many-waiters"),
)  # fmt: skip
async def read_events(call: Call[Scope | TenantScope]) -> Answer:
    exchange = call.exchange
    query = exchange.query(EventsQuery)
    accept = exchange.facts.headers.get(b"accept")
    as_stream = accepts_events(accept)
    if as_stream and query.wait_seconds:
        raise InvalidRequest(Fault(detail="a stream waits by itself; leave it out", parameter="wait_seconds"))
    tenant_id, subject_id = call.scope.tenant_id, call.scope.subject_id if isinstance(call.scope, Scope) else None
    wanted = Wanted(frozenset(query.types), query.thread)
    heard_by = encode_msgpack((exchange.route, tenant_id, subject_id, sorted(wanted.types), wanted.thread_id))
    place = Place(call.services.event_positions, heard_by)
    begin = _begin(call, place, query.since)
    access, exchange.facts.access = exchange.facts.access, None
    authorization = exchange.facts.headers[b"authorization"]
    listener = Listener(call.scope, wanted, authorization, begin)
    if not as_stream and not query.wait_seconds:
        await _check_subject(call)
        page = await call.store.events.read(call.scope, listener.query(query.limit))
        _note(call, access, heard_by, is_opened=begin is None)
        return exchange.reply(_page_of(page, place), compressed=True)
    if call.services.drain.draining:  # another process is to be asked, and not this one again and again
        raise Draining
    hub = call.services.hub
    with contextlib.ExitStack() as held:
        held.enter_context(call.services.waiters.enter(tenant_id))
        await _check_subject(call)
        held.enter_context(hub.listening(listener))
        heard: Sequence[Told] = await hub.read(listener, min(query.limit, BATCH_EVENTS))
        _note(call, access, heard_by, is_opened=as_stream or begin is None)
        if as_stream:
            return EventStream(listener, heard, place=place, hub=hub, exchange=exchange, held=held.pop_all())
        if not heard and not exchange.facts.bodiless:
            heard = await _waited(call, listener, query)
        return exchange.reply(_shown(heard, listener, place))


async def _check_subject(call: Call[Scope | TenantScope]) -> None:
    """Of a subject that was shredded nothing is heard any more.

    Raises:
        KeyDestroyed: it was.
    """
    if isinstance(call.scope, Scope):
        await call.store.keys.check_stored(call.scope)


def _begin(call: Call[Scope | TenantScope], place: Place, since: str | None) -> EventPosition | None:
    """Where it begins; None: now.

    Raises:
        InvalidRequest: the cursor is forged, damaged or another listener's.
    """
    last = call.exchange.header(_LAST_EVENT)
    cursor = since if last is None else last
    if cursor is None or cursor == NOW:
        return None
    position = place.read(cursor)
    if position is None:
        if last is None:
            raise InvalidRequest(Fault(detail=f"this cursor {_NOT_OURS}", parameter="since"))
        raise InvalidRequest(Fault(detail=f"this id {_NOT_OURS}", header=_LAST_EVENT))
    return position


def _note(
    call: Call[Scope | TenantScope], access: tuple[UUID, str, str] | None, heard_by: bytes, *, is_opened: bool
) -> None:
    """Note who begins to listen, or goes on where another caller was, and none of its own questions that go on."""
    if access is None:
        return
    of_chain, actor, target = access
    is_due = call.services.listeners_on_record.is_due(actor, heard_by)
    if is_opened or is_due:
        call.store.audit.note(of_chain, actor, "event.read", target, 200)


async def _waited(call: Call[Scope | TenantScope], listener: Listener, query: EventsQuery) -> Sequence[Told]:
    """What a listener hears within the time that it waits; nothing, if nothing came.

    Raises:
        Exception: why it may not listen any more.
    """
    exchange, clock = call.exchange, asyncio.get_running_loop().time
    exchange.leave()
    begun = clock()
    until = begun + query.wait_seconds
    gone = asyncio.create_task(exchange.hung_up())
    gone.add_done_callback(lambda _: listener.end())
    try:
        heard: Sequence[Told] = ()
        while not heard and not listener.is_ended and (left := until - clock()) > 0:
            heard = await call.services.hub.next(listener, min(query.limit, BATCH_EVENTS), left)
        if listener.reason is not None:
            raise listener.reason
        return heard
    finally:
        exchange.facts.waited_seconds += clock() - begun
        gone.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await gone


def _page_of(page: EventPage, place: Place) -> wire.events.EventPage:
    events = [event_out(each) for each in page.events]
    for shown, event in zip(events, page.events, strict=True):
        shown.cursor = place.write(EventPosition(event.sequence, event.event_id))
    return wire.events.EventPage(events=events, cursor=place.write(page.position), more=page.more)


def _shown(heard: Sequence[Told], listener: Listener, place: Place) -> wire.events.EventPage:
    assert listener.position is not None  # noqa: S101  for the type checker: it has read
    events = [each.event for each in heard]
    return _page_of(EventPage(events, listener.position, not listener.is_live or listener.has_pending), place)


def _settings_out(settings: EventSettings) -> wire.event_settings.EventSettings:
    return wire.event_settings.EventSettings(on=settings.on, on_since=settings.since, damaged=settings.damaged)


@Operation(
    "GET /v1/events/settings",
    reach=TENANT,
    summary="Whether the tenant has events.",
    permission="tenant:admin",
    returns=wire.event_settings.EventSettings,
)
async def get_event_settings(call: Call[TenantScope]) -> Answer:
    return call.exchange.reply(_settings_out(await call.store.events.settings(call.scope)))


@Operation(
    "PUT /v1/events/settings",
    reach=TENANT,
    summary="Switch the tenant's events on or off. None is left out of what happens from since on, which is some "
    "seconds after the answer.",
    permission="tenant:admin",
    body=wire.event_settings.EventSettingsChange,
    returns=wire.event_settings.EventSettings,
    problems=("feature-off", "commit-unknown"),
)
async def put_event_settings(call: Call[TenantScope]) -> Answer:
    request, _, _ = await call.exchange.body(wire.event_settings.EventSettingsChange)
    work = call.store.events.set_settings(call.scope, call.actor, on=request.on)
    return call.exchange.reply(_settings_out(await call.commit(work)))
