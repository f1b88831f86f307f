"""The verbs on events: whether a tenant has them, and reading them.

A reader goes on behind a position, the number and the id of the last event that it saw (or that was there). Numbers of
a tenant are given in the order of the relay (`storage.events.relay`), under one row's lock, so that whoever sees a
number sees all below it. What a page promises: in one stream the order of commits, each event at least once.

Owns what a position means. It does not wait: who waits asks `newest` now and then, or is `woken`.
"""

import asyncio
from uuid import UUID

from storage.events.model import EventPage, EventQuery, EventSettings
from storage.scope import Scope, TenantScope


class Events:
    """The verbs on events."""

    async def settings(self, scope: TenantScope) -> EventSettings:
        """Whether a tenant has events.

        Raises:
            CryptoError: The root key cannot be asked whether a gateway wrote it.
        """
        raise NotImplementedError

    async def set_settings(self, scope: TenantScope, actor: str, *, on: bool) -> EventSettings:
        """Switch a tenant's events on or off; the same again changes nothing. Returns what holds now.

        Raises:
            FeatureOff: An older build may run; finish the upgrade first.
            CryptoError: As `settings`; nothing changed.
        """
        raise NotImplementedError

    async def read(self, scope: Scope | TenantScope, query: EventQuery) -> EventPage:
        """Events behind a position: of a subject its own, of a tenant all.

        Raises:
            EventsOff: The tenant has none, or none yet.
            EventsExpired: Some behind the position are not kept any more.
            EventsRewound: Another event has the position's number, or none has got it yet.
            IntegrityFailure: What the tenant says of its events was not written by a gateway.
            FeatureOff: An older build may run; finish the upgrade first.
            CryptoError: As `settings`.
        """
        raise NotImplementedError

    async def newest(self, tenant_id: UUID) -> int:
        """The number of the newest event of a tenant; 0: it never had one."""
        raise NotImplementedError

    def woken(self, tenant_id: UUID) -> asyncio.Event:
        """What is set whenever this process numbered events of a tenant; who waits for it clears it before it reads.

        It is one per tenant, and lives as long as somebody holds it.
        """
        raise NotImplementedError
