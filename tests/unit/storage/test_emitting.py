"""What a process remembers of which tenants have events."""

from uuid import uuid4

from storage.event_queue import emitting
from storage.event_queue.emitting import TENANTS_MAX, Emitting
from storage.format.audit import OPERATOR_CHAIN


def fresh():
    return Emitting(None, None)


def test_a_tenant_of_which_nobody_said_anything_has_no_events():
    known = fresh()
    tenant = uuid4()
    assert not known.is_on(tenant)
    assert known.fresh_id(tenant) is None
    known.learn(tenant, is_on=True)
    assert known.fresh_id(tenant).version == 7
    known.learn(tenant, is_on=False)
    assert known.fresh_id(tenant) is None


def test_of_tenants_at_work_none_is_forgotten_and_of_others_the_oldest():
    known = fresh()
    tenants = [uuid4() for _ in range(TENANTS_MAX + 10)]
    for tenant in tenants:
        known.learn(tenant, is_on=True)
    assert all(map(known.is_on, tenants))


def test_tenants_that_have_long_been_quiet_are_forgotten(monkeypatch):
    monkeypatch.setattr(emitting, "FORGET_SECONDS", -60.0)
    known = fresh()
    tenants = [uuid4() for _ in range(TENANTS_MAX + 10)]
    for tenant in tenants:
        known.learn(tenant, is_on=True)
    assert [known.is_on(tenant) for tenant in tenants].index(True) == 10


def test_ids_of_one_process_rise():
    known = fresh()
    tenant = uuid4()
    known.learn(tenant, is_on=True)
    made = [known.fresh_id(tenant) for _ in range(2000)]
    assert made == sorted(made)


async def test_the_deployment_itself_has_no_events():
    await fresh().ready(OPERATOR_CHAIN)
    assert not fresh().is_on(OPERATOR_CHAIN)
