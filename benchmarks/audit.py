"""What the record of ordinary access costs: the same requests with no record, with batched notes, and with a row each.

The application runs in this process, without sockets, so that what is compared is the record and not HTTP. All three
share one database of their own beside the gateway's. *Batched* is the product as it is; *one row each* appends an event
to the tenant's hash chain, durably, before the answer, which is what operations that change credentials or keys do.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import msgspec

from benchmarks.engines import Engines
from crypto import MemoryRootKey
from gateway.app import Gateway, create_app
from gateway.authentication import api_keys
from gateway.cli.local.instance import Identity
from gateway.http.asgi import Message
from gateway.settings import Settings
from gateway.telemetry import configure_logging
from storage.administration.audit import FLUSH_SECONDS, Audit
from storage.clock import SystemClock
from storage.errors import StorageError
from storage.keys.key_seals import Pepper, Peppers
from storage.model import Tenant
from storage.postgres.setup import prepare
from storage.postgres.unit_of_work import Silent
from storage.scope import OperatorScope, TenantScope
from storage.service import Store

UNRECORDED = "no record"
BATCHED = "batched notes"
ROW_EACH = "one row each"
AUDITED = (UNRECORDED, BATCHED, ROW_EACH)

DATABASE = "audited"
CONNECTIONS = 17  # of 16 at once, and one for what runs beside them
_PEPPER = bytes(32)


class _Unrecorded(Audit):
    """Forgets accesses: what the other two are compared with."""

    def note(self, tenant_id: UUID, actor: str, action: str, target: str, status: int) -> None:
        """Forget."""


class Desk:
    """One application and a service key of its tenant."""

    def __init__(self, app: Gateway, store: Store, tenant_id: UUID, api_key: str, *, row_each: bool) -> None:
        self._app, self._store, self._tenant_id, self._row_each = app, store, tenant_id, row_each
        self._headers = [
            (b"host", b"127.0.0.1"),
            (b"authorization", f"Bearer {api_key}".encode()),
            (b"stateroom-subject", b"user-1"),
            (b"content-type", b"application/msgpack"),
            (b"accept", b"application/msgpack"),
        ]

    async def request(self, method: str, path: str, body: bytes = b"") -> bytes:
        """Send one request and give the answer's body; it must have succeeded."""
        scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": self._headers,
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
        }
        status, parts = 0, []

        async def receive() -> Message:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            elif message["type"] == "http.response.body":
                parts.append(message["body"])

        if self._row_each:
            await self._record(method, path)
        await self._app(scope, receive, send)
        assert status in {200, 201}, parts
        return b"".join(parts)

    async def _record(self, method: str, path: str) -> None:
        store = self._store
        async with store.unit_of_work.begin(TenantScope(self._tenant_id)) as transaction:
            await store.audit.append(transaction, self._tenant_id, "api-key:bench", method, path)


async def _flush(store: Store) -> None:
    while True:
        await asyncio.sleep(FLUSH_SECONDS)
        with contextlib.suppress(StorageError):  # as the gateway: what was not written is, the next time
            await store.audit.flush()


@asynccontextmanager
async def audited(engines: Engines) -> AsyncIterator[dict[str, Desk]]:
    """The three desks, each with a tenant of its own."""
    identity = msgspec.json.decode((engines.folder / "embedded.json").read_bytes(), type=Identity)
    _, app_url = await prepare(
        engines.dsn("postgres").replace("postgresql://", "postgresql+asyncpg://", 1),
        database=DATABASE,
        owner_password=identity.owner_password,
        app_password=identity.app_password,
    )
    configure_logging("warning")  # a line for each request would be measured, too
    deployment_id, root_key, desks = uuid4(), MemoryRootKey(), {}
    async with AsyncExitStack() as stack:
        for name in AUDITED:
            store = await Store.open(
                app_url, root_key=root_key, deployment_id=deployment_id, connections_max=CONNECTIONS
            )
            stack.push_async_callback(store.close)
            now = datetime.now(UTC)
            tenant = Tenant(tenant_id=uuid4(), name=name, created_at=now)
            service, api_key = api_keys.mint(
                Peppers(Pepper(1, _PEPPER)),
                api_keys.NewKey(
                    kind="service",
                    permissions=("state:read", "state:write", "subject:act_as"),
                    now=now,
                    tenant_id=tenant.tenant_id,
                ),
            )
            await store.tenants.create(OperatorScope(founding=tenant.tenant_id), tenant, service)
            if name == BATCHED:
                flushing = asyncio.create_task(_flush(store))
                stack.push_async_callback(_end, flushing)
            else:
                store.audit = _Unrecorded(store.unit_of_work, deployment_id, SystemClock(), Silent())
            settings = Settings(
                database_url=app_url, root_key="file:none", api_key_pepper=_PEPPER, deployment_id=deployment_id
            )
            app = create_app(settings, store=store)
            desks[name] = Desk(app, store, tenant.tenant_id, api_key, row_each=name == ROW_EACH)
        yield desks


async def _end(task: "asyncio.Task[None]") -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
