"""Tenants with events, as they are some time after they were switched on; and what is in their queues."""

from uuid import UUID

from storage.control.features import EVENTS
from storage.events.model import Event, EventPosition, EventQuery
from storage.scope import Scope, TenantRelay, TenantScope
from storage.service import Store
from storage.statements.events import events as sql
from tests.support.features import switch_on


async def events_on(store: Store, tenant_id: UUID) -> None:
    """Switch a tenant's events on, as if that were long ago: this store acts on it, and they are read at once."""
    await switch_on(store, EVENTS)
    await store.control.ready()
    async with store.unit_of_work.begin(TenantScope(tenant_id)) as transaction:
        await store.events.store(transaction, tenant_id, on=True, lead_seconds=-3600.0)
    async with store.unit_of_work.begin(TenantRelay(tenant_id)) as transaction:
        await transaction.run(sql.BEGIN_ANEW)
    store.emitting.learn(tenant_id, is_on=True)


async def all_events(store: Store, scope: Scope | TenantScope, limit: int = 100) -> list[Event]:
    """Every event that the scope sees, once all that waits was numbered."""
    await store.event_relay.drain(scope.tenant_id)
    first = await oldest(store, scope.tenant_id)
    query = EventQuery(EventPosition(first - 1, None), limit=limit)
    found: list[Event] = []
    while True:
        page = await store.events.read(scope, query)
        found += page.events
        if not page.more:
            return found
        query = EventQuery(page.position, limit=limit)


async def oldest(store: Store, tenant_id: UUID) -> int:
    """The number of the oldest event that is kept."""
    async with store.unit_of_work.begin(TenantRelay(tenant_id)) as transaction:
        return await transaction.fetch_only(sql.OLDEST)
