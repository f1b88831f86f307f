import asyncio
import inspect
import re
from dataclasses import replace
from datetime import timedelta
from uuid import uuid4

import pytest

from gateway.app import Gateway
from gateway.authentication import api_keys, principals
from gateway.authentication.strangers import Strangers
from gateway.http.exchange import encode_id
from gateway.problems import InvalidRequest, PermissionDenied, SubjectMismatch, SubjectRequired, Unauthenticated
from gateway.routes import GROUPS
from gateway.routing.operations import Operation
from tests.unit.gateway.conftest import Caller
from tests.unit.gateway.doubles import NOW, PEPPERS, MemoryStore


def bearer(key: str) -> bytes:
    return b"Bearer " + key.encode()


def authenticator(store: MemoryStore) -> principals.Authenticator:
    return principals.Authenticator(PEPPERS, store.tenants.look_up_key, store.clock, not_needed)


async def not_needed() -> bool:
    return False


def test_a_key_has_70_characters_and_reads_back():
    text = api_keys.generate(PEPPERS).reveal()
    assert len(text) == 70
    assert api_keys.parse(text).reveal() == text


def test_no_single_typo_passes_the_checksum():
    text = api_keys.generate(PEPPERS).reveal()
    for at in range(len(text)):
        assert api_keys.parse(text[:at] + ("0" if text[at] != "0" else "1") + text[at + 1 :]) is None


def test_a_key_never_shows_its_secret():
    key = api_keys.generate(PEPPERS)
    assert key.secret not in repr(key) + str(key)


async def test_a_typo_costs_no_database_work(store):
    checked = authenticator(store)
    with pytest.raises(Unauthenticated):
        await checked.verify(bearer(store.mint()[:-1] + "_"))
    assert store.tenants.look_ups == []


async def test_verified_keys_are_looked_up_once(store):
    checked = authenticator(store)
    header = bearer(store.mint())
    assert await checked.verify(header) == await checked.verify(header)
    assert len(store.tenants.look_ups) == 1


async def test_the_secret_counts_not_only_the_id(store):
    key = api_keys.parse(store.mint())
    with pytest.raises(Unauthenticated):
        await authenticator(store).verify(bearer(api_keys.PresentedKey(key.key_id, "0" * 43).reveal()))


async def test_a_cached_key_still_expires(store):
    checked = authenticator(store)
    header = bearer(store.mint(expires_at=NOW + timedelta(seconds=1)))
    await checked.verify(header)
    store.clock.set(NOW + timedelta(seconds=1))
    with pytest.raises(Unauthenticated):
        await checked.verify(header)


async def test_a_key_revoked_here_is_refused_at_once(call, store):
    victim = store.mint()
    async with call("service") as admin:
        header = {"Authorization": f"Bearer {victim}"}
        assert (await admin.get("/v1/whoami", headers=header)).status_code == 200
        assert (await admin.delete(f"/v1/api-keys/{api_keys.parse(victim).key_id}")).status_code == 204
        assert (await admin.get("/v1/whoami", headers=header)).status_code == 401


async def test_a_permission_that_only_a_newer_build_knows_is_neither_shown_nor_an_error(call, store):
    known = {"state:read", "state:write"}
    key = store.mint("service", (*known, "state:teleport"))
    record = store.tenants.api_keys[api_keys.parse(key).key_id]
    async with call("service") as admin:
        shown = await admin.get("/v1/whoami", headers={"Authorization": f"Bearer {key}"})
        assert (shown.status_code, {*shown.json()["permissions"]}) == (200, known)
        listed = (await admin.get("/v1/api-keys")).json()["api_keys"]
    assert {*next(each["permissions"] for each in listed if each["key_id"] == record.key_id)} == known


async def test_unknown_expired_and_revoked_keys_get_the_same_answer(call, store):
    unknown = api_keys.generate(PEPPERS).reveal()
    expired = store.mint(expires_at=NOW)
    revoked = store.mint()
    record = store.tenants.api_keys[api_keys.parse(revoked).key_id]
    store.tenants.api_keys[record.key_id] = replace(record, revoked_at=NOW)
    answers = []
    async with call(None) as client:
        for key in (unknown, expired, revoked, "nonsense"):
            headers = {"Authorization": f"Bearer {key}", "X-Request-Id": "same"}
            answer = await client.get("/v1/whoami", headers=headers)
            answers.append((answer.status_code, answer.content, answer.headers["www-authenticate"]))
    assert len(set(answers)) == 1
    assert answers[0][0] == 401


async def test_every_route_refuses_the_unauthenticated_unless_it_is_declared_public(app: Gateway, call: Caller):
    operations = [route.operation for found in GROUPS.values() for route in found]
    assert len(operations) > 20
    async with call(None) as client:
        for operation in operations:
            assert isinstance(operation, Operation)
            assert operation.public or operation.permission or operation.name == "whoami"
            path = re.sub(r"\{\w+\}", "docs", operation.path)
            signed = operation.name == "read_artifact_url"  # its URL is the credential, and this one is none
            answer = await client.request(operation.method.value, path)
            assert answer.status_code == (403 if signed else 200 if operation.public else 401), operation.name


def test_no_request_pays_for_a_thread():
    for route in [route for found in GROUPS.values() for route in found]:
        assert inspect.iscoroutinefunction(route.handler)  # a plain one would run in a thread, at 0.5 ms a request


def principal(kind: str, *permissions: str, subject_id: str | None = None) -> principals.Principal:
    tenant_id = None if kind == "operator" else uuid4()
    return principals.Principal("id", kind, tenant_id, subject_id, frozenset(permissions), None)


def test_a_subject_key_is_its_own_subject():
    mine = principal("subject", subject_id="ann")
    assert principals.subject_scope(mine, None).subject_id == principals.subject_scope(mine, "ann").subject_id == "ann"
    for other in ("bob", "~shared"):
        with pytest.raises(SubjectMismatch):
            principals.subject_scope(mine, other)


def test_a_service_key_names_its_subject():
    service = principal("service", "subject:act_as")
    assert principals.subject_scope(service, "~shared").subject_id == "~shared"
    assert principals.subject_scope(service, encode_id("søren /1")).subject_id == "søren /1"
    with pytest.raises(SubjectRequired):
        principals.subject_scope(service, None)
    with pytest.raises(PermissionDenied):
        principals.subject_scope(principal("service", "state:read"), "ann")


def test_operators_reach_no_state_and_nobody_else_reaches_tenants():
    with pytest.raises(PermissionDenied):
        principals.subject_scope(principal("operator", "operator", "state:read"), "ann")
    with pytest.raises(PermissionDenied):
        principals.tenant_scope(principal("operator", "operator"))
    with pytest.raises(PermissionDenied):
        principals.operator_scope(principal("service", "operator"))


@pytest.mark.parametrize("spelling", ["", "a/b", "~", "~YW5u", "~_w", "~YQ=", "~fnNoYXJlZA", "~fmhpZGRlbg", "sø"])
def test_a_subject_has_one_spelling(spelling):
    with pytest.raises(InvalidRequest):
        principals.subject_scope(principal("service", "subject:act_as"), spelling)


async def test_a_permission_that_lacks_is_named(call):
    async with call("subject", permissions=["state:read"]) as client:
        answer = await client.patch("/v1/threads/t", json={})
    assert (answer.status_code, answer.json()["code"]) == (403, "permission-denied")
    assert "state:write" in answer.json()["detail"]


async def test_nobody_hands_out_operator_keys_or_keys_for_two_kinds(call):
    async with call("service") as client:
        for body in (
            {"kind": "service", "permissions": ["operator"]},
            {"kind": "subject", "subject_id": "ann", "permissions": ["tenant:admin"]},
            {"kind": "subject"},
            {"kind": "subject", "subject_id": "~shared"},
            {"kind": "service", "subject_id": "ann"},
            {"kind": "service", "expires_at": "2020-01-01T00:00:00Z"},
        ):
            assert (await client.post("/v1/api-keys", json=body)).status_code == 422, body


async def test_a_tenant_comes_with_a_key_that_administers_it(call):
    async with call("operator") as operator:
        made = (await operator.post("/v1/admin/tenants", json={"name": "Example"})).json()
        headers = {"Authorization": f"Bearer {made['api_key']}"}
        who = (await operator.get("/v1/whoami", headers=headers)).json()
    assert who["tenant_id"] == made["tenant_id"]
    assert who["permissions"] == ["tenant:admin"]
    approvals = ["approval:assert", "approval:decide", "approval:open", "approval:read"]
    state = ["state:delete", "state:export", "state:read", "state:write"]
    assert who["grants"] == [*approvals, "event:read", *state, "subject:act_as", "tenant:admin"]


async def test_last_use_is_stored_in_batches(store):
    checked = authenticator(store)
    await checked.verify(bearer(store.mint()))
    await checked.flush_used(store.tenants.touch_keys)
    assert list(store.tenants.touched.values()) == [NOW]


@pytest.mark.parametrize("path", ["/v1/whoami", "/v1/threads/t/checkpoints/latest"])  # by the router, and not
async def test_strangers_who_wait_for_a_refusal_take_no_slot(call, app, path):
    met = app.services.authenticator.strangers = Strangers(lambda: 0.0)  # nothing comes back while they wait
    while not met.refusals.delay_seconds():
        pass
    async with call(None) as stranger, call() as known:
        refused = [asyncio.create_task(stranger.get(path)) for _ in range(20)]
        for _ in range(1000):
            await asyncio.sleep(0)
        assert app.services.metrics.registry.get_sample_value("stateroom_in_flight") == len(refused)
        assert app.services.admission.requests == 0
        assert (await known.get("/v1/whoami")).status_code == 200
        assert not any(each.done() for each in refused)
        assert {each.status_code for each in await asyncio.gather(*refused)} == {401}
