"""State that is converted on its way out, where its large parts or its artifacts are out of the ordinary."""

from uuid import uuid4

import httpx
import msgpack

from stateroom import Client
from tests.support.break_glass import decrypting_key
from tests.support.operations import Tenancy

RENAME = {
    "up": [{"op": "rename", "from": "/shot", "to": "/picture"}],
    "down": [{"op": "rename", "from": "/picture", "to": "/shot"}],
}
PACKED = "application/msgpack"
LARGE = bytes(range(256)) * 1024


def at(number, **more):
    return {"Accept-State-Version": str(number), **more}


def test_references_inlined_artifacts_and_searches_are_at_the_readers_version(running_gateway):
    tenancy = Tenancy(running_gateway)
    tenant = tenancy.tenant()
    with tenancy.client(tenant, "user-1") as client:
        for number, definition in ((1, {}), (2, RENAME)):
            answer = client.put(f"/v1/state-schemas/travel/versions/{number}", json=definition)
            assert answer.status_code == 201, answer.text
        body = {"state": {"shot": LARGE, "note": "n"}, "state_schema": "travel", "state_version": 1}
        headers = {"Content-Type": PACKED}
        path = "/v1/threads/t1/checkpoints"
        saved = client.post(path, content=msgpack.packb(body), headers=headers)
        assert saved.status_code == 201, saved.text
        for listing in (f"{path}/latest?", f"{path}?view=state&", "/v1/checkpoints?view=state&"):
            for pieces in ("refs", "resolved"):
                for resolve in ("inline", "pointers"):
                    url = f"{listing}pieces={pieces}&resolve={resolve}"
                    answer = client.get(url, headers=at(2, Accept=PACKED))
                    assert answer.status_code == 200, answer.text
                    shown = msgpack.unpackb(answer.content)
                    [found] = shown.get("checkpoints") or [shown]
                    assert (found["state_version"], set(found["state"])) == (2, {"picture", "note"})
                    assert found["state"]["picture"] == LARGE
                    assert "state_holes" not in found


def test_a_fork_is_converted_for_the_old_program(running_gateway):
    schema = f"travel_{uuid4().hex[:8]}"
    with Client(running_gateway.url, running_gateway.api_key, subject=f"user-{uuid4()}") as client:
        for number, definition in ((1, {}), (2, RENAME)):
            client.request("PUT", f"/state-schemas/{schema}/versions/{number}", body=definition)
        saved = client.thread("t", state_version=f"{schema}@1").save({"shot": "s"})
        client.thread("t", state_version=f"{schema}@2").fork(saved.checkpoint_id).save({"picture": "p"})
        assert client.thread("t", state_version=f"{schema}@1").load().state == {"shot": "p"}


def test_break_glass_is_at_the_operators_version(running_gateway):
    schema, subject = f"travel_{uuid4().hex[:8]}", f"user-{uuid4()}"
    with Client(running_gateway.url, running_gateway.api_key, subject=subject) as client:
        for number, definition in ((1, {}), (2, RENAME)):
            client.request("PUT", f"/state-schemas/{schema}/versions/{number}", body=definition)
        client.thread("t", state_version=f"{schema}@1").save({"shot": "s"})
        tenant_id = client.request("GET", "/whoami").decode()["tenant_id"]
    headers = {"Authorization": f"Bearer {decrypting_key(running_gateway)}"}
    url = f"{running_gateway.url}/v1/admin/tenants/{tenant_id}/decrypt"
    body = {"subject_id": subject, "thread_id": "t", "reason": "an incident"}
    for wanted, state in ((None, {"shot": "s"}), ("1", {"shot": "s"}), (f"{schema}=2", {"picture": "s"})):
        more = {} if wanted is None else {"Accept-State-Version": wanted}
        answer = httpx.post(url, json=body, headers=headers | more)
        assert (answer.status_code, answer.json().get("state")) == (200, state), answer.text
