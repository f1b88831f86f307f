"""An operator reads a subject's state only with the permission for it, and only once the tenant's audit log says so."""

import ast
import base64
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import httpx
import msgspec
import pytest

from crypto import MemoryRootKey, SecretKey, WrappedKey
from gateway.app import create_app
from gateway.authentication import api_keys, principals
from gateway.problems import PermissionDenied
from storage.administration.audit import BREAK_GLASS_ACTION, BreakGlass, Opening
from storage.clock import SystemClock
from storage.errors import TenantNotFound
from storage.model import ChannelValue, FullState, Save, Tenant, Value
from storage.scope import OperatorScope, Scope, TenantScope
from storage.service import Store
from tests.support.break_glass import decrypting_key
from tests.support.gateway import GatewayProcess
from tests.support.operations import CANARY, Tenancy, assert_problem, key_id, save_thread
from tests.support.stores import DEPLOYMENT_ID
from tests.unit.gateway.doubles import PEPPERS, settings

ROOT = Path(__file__).parents[2]
REASON = "ticket 4711: the customer asked us to look"


@pytest.fixture(scope="module")
def tenancy(running_gateway: GatewayProcess) -> Tenancy:
    return Tenancy(running_gateway)


@pytest.fixture(scope="module")
def opening_key(running_gateway: GatewayProcess) -> str:
    return decrypting_key(running_gateway)


class Owner:
    """A tenant of its own with one thread of one subject."""

    def __init__(self, tenancy: Tenancy) -> None:
        self.tenancy = tenancy
        self.service_key = tenancy.tenant()
        self.subject = f"user-{uuid4()}"
        with tenancy.client(self.service_key, self.subject) as client:
            self.thread = save_thread(client)
            self.tenant_id = client.get("/v1/whoami").json()["tenant_id"]
        self.path = f"/v1/admin/tenants/{self.tenant_id}/decrypt"

    def wish(self, **changes: Any) -> dict[str, Any]:
        return {"subject_id": self.subject, "thread_id": self.thread.thread_id, "reason": REASON, **changes}

    def events(self) -> list[dict[str, Any]]:
        with self.tenancy.client(self.service_key) as client:
            events = client.get("/v1/audit?limit=1000").json()["events"]
        return [event for event in events if event["action"] == BREAK_GLASS_ACTION]

    def operators_events(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        cursor = ""
        with self.tenancy.client(self.tenancy.gateway.operator_key) as client:
            while cursor is not None:
                page = client.get(f"/v1/admin/audit?limit=1000{cursor and '&cursor=' + cursor}").json()
                found += [event for event in page["events"] if event["action"] == BREAK_GLASS_ACTION]
                cursor = page["next_cursor"]
        return [event for event in found if event["detail"]["tenant_id"] == self.tenant_id]


@pytest.fixture
def owner(tenancy: Tenancy) -> Owner:
    return Owner(tenancy)


def test_the_permission_opens_one_checkpoint_and_leaves_a_record_with_the_tenant(
    owner: Owner, opening_key: str
) -> None:
    with owner.tenancy.client(owner.service_key, owner.subject) as client:
        path = f"/v1/threads/{owner.thread.thread_id}/checkpoints/latest"
        shown = client.get(path).json()
    with owner.tenancy.client(opening_key) as operator:
        latest = operator.post(owner.path, json=owner.wish())
        packed = operator.post(
            owner.path,
            json=owner.wish(checkpoint_id=owner.thread.checkpoint_id),
            headers={"Accept": "application/msgpack"},
        )
    assert (latest.status_code, latest.json()) == (200, shown)
    assert msgspec.msgpack.decode(packed.content)["state"] == shown["state"]
    assert CANARY in latest.text
    assert [(event["actor"], event["target"], event["detail"]) for event in owner.events()] == [
        (
            f"api-key:{key_id(opening_key)}",
            f"subject:{owner.subject}",
            {"thread_id": owner.thread.thread_id, "namespace": "", "checkpoint_id": named, "reason": REASON},
        )
        for named in (None, owner.thread.checkpoint_id)
    ]
    assert len(owner.operators_events()) == 2


def test_no_other_credential_opens_anything_or_leaves_an_event(owner: Owner) -> None:
    keys = [
        owner.tenancy.gateway.operator_key,
        owner.service_key,
        owner.tenancy.key(owner.service_key, owner.subject),
    ]
    for api_key in keys:
        with owner.tenancy.client(api_key) as client:
            answer = client.post(owner.path, json=owner.wish())
        problem = assert_problem(answer, 403, "permission-denied")
        assert "decrypt-any" in problem["detail"]
        assert CANARY not in answer.text
    assert owner.events() == owner.operators_events() == []


def test_nobody_gets_the_permission_over_http(owner: Owner) -> None:
    for kind in ("service", "operator"):
        wish = {"kind": kind, "permissions": ["decrypt-any"]}
        with owner.tenancy.client(owner.service_key) as client:
            assert_problem(client.post("/v1/api-keys", json=wish), 422, "invalid-request")
        with owner.tenancy.client(owner.tenancy.gateway.operator_key) as client:
            assert client.post("/v1/api-keys", json=wish).status_code == 403


def test_a_key_with_the_permission_is_made_on_the_record(tenancy: Tenancy, opening_key: str) -> None:
    with tenancy.client(tenancy.gateway.operator_key) as operator:
        events = operator.get("/v1/admin/audit?limit=1000").json()["events"]
    (made,) = [event for event in events if event["target"] == f"api-key:{key_id(opening_key)}"]
    assert (made["actor"], made["action"]) == ("local", "api-key.create")
    assert made["detail"]["permissions"] == ["decrypt-any", "operator"]


async def test_the_permission_written_into_the_database_ends_the_key_instead(owner: Owner) -> None:
    operator_key = owner.tenancy.gateway.operator_key
    connection = await asyncpg.connect(owner.tenancy.gateway.database_dsn)
    grant = "UPDATE stateroom.api_keys SET permissions = $2 WHERE key_id = $1"
    tampered = owner.tenancy.key(owner.service_key, None, ["state:read", "subject:act_as"])
    try:
        await connection.execute(grant, key_id(tampered), ["decrypt-any", "operator"])
        with owner.tenancy.client(tampered) as client:
            assert_problem(client.post(owner.path, json=owner.wish()), 401, "unauthenticated")
    finally:
        await connection.close()
    with owner.tenancy.client(operator_key) as client:
        assert client.get("/v1/whoami").json()["permissions"] == ["operator"]


def test_a_thread_under_a_client_held_share_stays_closed(owner: Owner, opening_key: str) -> None:
    share = base64.b64encode(bytes(range(32))).decode()
    with owner.tenancy.client(owner.service_key, owner.subject, **{"Stateroom-Client-Share": share}) as client:
        saved = client.post("/v1/threads/shared/checkpoints", json={"state": {"note": CANARY}})
        assert saved.status_code == 201, saved.text
    with owner.tenancy.client(opening_key, **{"Stateroom-Client-Share": share}) as operator:
        answer = operator.post(owner.path, json=owner.wish(thread_id="shared"))
    assert_problem(answer, 400, "client-share-required")
    assert CANARY not in answer.text
    assert [event["detail"]["thread_id"] for event in owner.events()] == ["shared"]


def test_an_attempt_that_finds_nothing_is_recorded_too(owner: Owner, opening_key: str) -> None:
    with owner.tenancy.client(opening_key) as operator:
        for wish in ({"thread_id": "none"}, {"subject_id": "nobody"}, {"checkpoint_id": "none"}, {"namespace": "none"}):
            assert_problem(operator.post(owner.path, json=owner.wish(**wish)), 404, "checkpoint-not-found")
        unknown = f"/v1/admin/tenants/{uuid4()}/decrypt"
        assert_problem(operator.post(unknown, json=owner.wish()), 404, "not-found")
    assert len(owner.events()) == len(owner.operators_events()) == 4


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"reason": ""}, "/reason"),
        ({"reason": " \t\n"}, "/reason"),
        ({"reason": "x" * 501}, "/reason"),
        ({"subject_id": "~other"}, "/subject_id"),
        ({"subject_id": "x" * 256}, "/subject_id"),
        ({"thread_id": ""}, "/thread_id"),
        ({"thread_id": "a\0b"}, "/thread_id"),
        ({"namespace": "é" * 600}, "/namespace"),
        ({"share": "x"}, "/share"),
    ],
)
def test_a_wish_that_is_wrong_or_gives_no_reason_is_refused_and_not_recorded(
    owner: Owner, opening_key: str, changes: Mapping[str, str], pointer: str
) -> None:
    with owner.tenancy.client(opening_key) as operator:
        answer = operator.post(owner.path, json=owner.wish(**changes))
        without = operator.post(owner.path, json={"subject_id": "u", "thread_id": "t"})
    assert assert_problem(answer, 422)["errors"][0].get("pointer", "") == pointer
    assert_problem(without, 422)
    assert owner.events() == []


# --- before anything is opened ------------------------------------------------------------------------------------


class WatchfulRootKey(MemoryRootKey):
    """A root key that notes, whenever a tenant's key is unwrapped, which events others can see in the database."""

    def __init__(self, dsn: str) -> None:
        super().__init__()
        self._dsn = dsn
        self.seen: list[int] = []

    async def unwrap(self, wrapped: WrappedKey, context: Mapping[str, str]) -> SecretKey:
        connection = await asyncpg.connect(self._dsn)
        try:
            counting = "SELECT count(*) FROM stateroom.audit_log WHERE action = $1 AND tenant_id = $2"
            self.seen.append(await connection.fetchval(counting, BREAK_GLASS_ACTION, UUID(context["tenant"])))
        finally:
            await connection.close()
        return await super().unwrap(wrapped, context)


class Desk:
    """A gateway with cold caches whose root key is watched, and an operator who may open."""

    def __init__(self, store: Store, watched: WatchfulRootKey, tenant_id: UUID, api_key: str) -> None:
        self.store, self.watched, self.tenant_id = store, watched, tenant_id
        transport = httpx.ASGITransport(create_app(settings(), store=store))
        headers = {"Authorization": f"Bearer {api_key}"}
        self.client = httpx.AsyncClient(transport=transport, base_url="http://test", headers=headers)

    async def ask(self) -> httpx.Response:
        wish = {"subject_id": "user-1", "thread_id": "t1", "reason": REASON}
        return await self.client.post(f"/v1/admin/tenants/{self.tenant_id}/decrypt", json=wish)


@pytest.fixture
async def desk(database) -> AsyncIterator[Desk]:
    watched = WatchfulRootKey(database.dsn(database.superuser_url))

    async def opened() -> Store:
        return await Store.open(
            database.app_url, root_key=watched, deployment_id=DEPLOYMENT_ID, connections_max=3, durable=False
        )

    now = SystemClock().now()
    operator, api_key = api_keys.mint(
        PEPPERS, api_keys.NewKey(kind="operator", permissions=("decrypt-any", "operator"), now=now)
    )
    tenant = Tenant(tenant_id=uuid4(), name=uuid4().hex, created_at=now)
    service, _ = api_keys.mint(
        PEPPERS, api_keys.NewKey(kind="service", permissions=(), now=now, tenant_id=tenant.tenant_id)
    )
    filling = await opened()
    await filling.tenants.create(OperatorScope(founding=tenant.tenant_id), tenant, service)
    await filling.tenants.add_key(OperatorScope(), operator)
    content = FullState({"note": ChannelValue(None, Value("msgpack", msgspec.msgpack.encode(CANARY)))})
    await filling.checkpoints.save(
        Scope(tenant.tenant_id, "user-1"), Save(thread_id="t1", namespace="", content=content)
    )
    await filling.close()
    watched.seen.clear()
    cold = await opened()
    made = Desk(cold, watched, tenant.tenant_id, api_key)
    yield made
    await made.client.aclose()
    await cold.close()


async def test_the_event_is_committed_before_the_first_key_is_unwrapped(desk: Desk) -> None:
    answer = await desk.ask()
    assert (answer.status_code, answer.json()["state"]) == (200, {"note": CANARY})
    assert desk.watched.seen
    assert set(desk.watched.seen) == {1}


@pytest.mark.parametrize("refused", ["INSERT ON stateroom.audit_log", "UPDATE ON stateroom.audit_heads"])
async def test_nothing_is_opened_when_the_audit_log_cannot_be_written(desk: Desk, admin, refused: str) -> None:
    await admin.execute(f"REVOKE {refused} FROM gw_app")
    try:
        answer = await desk.ask()
    finally:
        await admin.execute(f"GRANT {refused} TO gw_app")
    assert answer.status_code == 500
    assert CANARY not in answer.text
    assert desk.watched.seen == []
    page = await desk.store.audit.page(TenantScope(desk.tenant_id), "api-key:auditor")
    assert BREAK_GLASS_ACTION not in {each.event.action for each in page.items if each.event}
    assert (await desk.ask()).status_code == 200


async def test_a_database_that_loses_the_event_at_the_last_moment_opens_nothing(desk: Desk, admin) -> None:
    """A deferred trigger refuses at COMMIT itself, after every statement succeeded."""
    await admin.execute(
        "CREATE FUNCTION stateroom.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'full'; END $$"
    )
    await admin.execute(
        "CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON stateroom.audit_log DEFERRABLE INITIALLY DEFERRED"
        " FOR EACH ROW EXECUTE FUNCTION stateroom.refuse()"
    )
    try:
        answer = await desk.ask()
    finally:
        await admin.execute("DROP FUNCTION stateroom.refuse CASCADE")
    assert answer.status_code == 500
    assert desk.watched.seen == []
    assert (await desk.ask()).status_code == 200


# --- the receipt is a type ----------------------------------------------------------------------------------------


def _principal(kind: Any, *permissions: str, key_id: str = "op") -> principals.Principal:
    return principals.Principal(key_id, kind, None, None, frozenset(permissions), None)


OPENING = Opening(UUID(int=7), "user-1", "t1", "", None, REASON)


def test_a_receipt_cannot_be_made_by_hand() -> None:
    with pytest.raises(TypeError):
        BreakGlass("api-key:op", OPENING, 1, committed=object())


async def test_a_receipt_gives_its_own_operator_the_recorded_subject_and_nobody_else_anything(desk: Desk) -> None:
    opening = Opening(desk.tenant_id, "user-1", "t1", "", None, REASON)
    receipt = await desk.store.audit.break_glass("api-key:op", opening)
    granted = _principal("operator", "operator", "decrypt-any")
    assert principals.break_glass_scope(granted, receipt) == Scope(desk.tenant_id, "user-1")
    for refused in (
        _principal("operator", "operator"),
        _principal("service", "decrypt-any"),
        _principal("operator", "operator", "decrypt-any", key_id="other"),
    ):
        with pytest.raises(PermissionDenied):
            principals.break_glass_scope(refused, receipt)
    with pytest.raises(TenantNotFound):
        await desk.store.audit.break_glass("api-key:op", OPENING)


def test_the_gateway_makes_subjects_scopes_in_these_functions_only() -> None:
    makers = set()
    for path in (ROOT / "gateway").rglob("*.py"):
        tree = ast.parse(path.read_text())
        names = {
            alias.asname or alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module == "storage.scope"
            for alias in node.names
            if alias.name == "Scope"
        }
        for function in ast.walk(tree):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                for node in ast.walk(function):
                    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names:
                        makers.add(f"{path.relative_to(ROOT)}:{function.name}")
    # The third names whose key a tenant's administrator rotates or shreds; nothing is opened with it. The fourth is
    # what a signed address of an artifact was made for, by somebody who had the scope. The fifth is for whom an
    # administrator who may act for subjects, and read, takes a thread elsewhere.
    assert makers == {
        "gateway/authentication/principals.py:subject_scope",
        "gateway/authentication/principals.py:break_glass_scope",
        "gateway/routes/keys.py:_subject",
        "gateway/routes/artifacts.py:read_artifact_url",
        "gateway/routes/transfer.py:export_thread",
    }
