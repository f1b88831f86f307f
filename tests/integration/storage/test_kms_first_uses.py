"""However many requests a tenant begins with, its key costs one call to AWS KMS (moto, counted at the socket)."""

import asyncio
from uuid import uuid4

import pytest

from crypto.roots.aws_kms import AwsKmsRootKey
from storage.scope import Scope
from storage.service import Store
from tests.support.root_keys import kms
from tests.support.states import contents, load, save, state
from tests.support.stores import DEPLOYMENT_ID

REQUESTS = 500
SUBJECTS = 10


class Counted:
    """A KMS root key, and what its client really sent."""

    def __init__(self, service, name):
        self.sent = []
        self.root_key = AwsKmsRootKey.open(name, {"region": "eu-central-1", "endpoint": service.url})
        self.root_key._client.meta.events.register("before-send.kms", self._count)

    def _count(self, request, **_):
        self.sent.append(request.headers["X-Amz-Target"].decode().partition(".")[2])


@pytest.fixture
async def counted(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    with kms() as service:
        made = Counted(service, service.make_key())
        yield made
        await made.root_key.aclose()


async def opened(database, counted):
    return await Store.open(
        database.app_url, root_key=counted.root_key, deployment_id=DEPLOYMENT_ID, connections_max=8, durable=False
    )


async def test_500_concurrent_first_uses_make_one_call(database, counted):
    tenant_id = uuid4()
    scopes = [Scope(tenant_id, f"user-{number}") for number in range(SUBJECTS)]
    store = await opened(database, counted)
    try:
        await asyncio.gather(
            *(
                save(store, scopes[number % SUBJECTS], f"t{number}", content=state(n=number))
                for number in range(REQUESTS)
            )
        )
        assert counted.sent == ["Encrypt"]
        counted.sent.clear()
    finally:
        await store.close()
    cold = await opened(database, counted)
    try:
        loaded = await asyncio.gather(
            *(load(cold, scopes[number % SUBJECTS], f"t{number}") for number in range(REQUESTS))
        )
        assert [contents(each) for each in loaded] == [{"n": number} for number in range(REQUESTS)]
        assert counted.sent == ["Decrypt"]
        # Another tenant is another call: the count does count.
        await save(cold, Scope(uuid4(), "user-1"))
        assert counted.sent == ["Decrypt", "Encrypt"]
    finally:
        await cold.close()
