"""What the OpenAPI document gives as an example of a request works as it stands there, at a gateway that is new.

The examples tell a story of a thread ``trip-7``. What comes before each of them in the story is done here first, for a
tenant of its own. Put in are only what nobody can know beforehand: a tenant's id, and the digest of what was uploaded.
"""

import hashlib
import json
import os
from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

import httpx
import pytest
from jsonschema import Draft202012Validator, FormatChecker

from gateway.embedded.s3 import EmbeddedS3
from storage.control.features import KNOWN
from tests.support.features import finish_upgrade
from tests.support.gateway import Tenant
from tests.support.operations import DECLARED, Tenancy, request_of
from tests.support.production import Deployment, Launcher, serving

SUBJECT, THREAD, EFFECT = "user-42", "trip-7", "pay-i-17"
PART_BYTES = 8 * 1024**2
# What needs a table that only an operator makes is shown with it, in `test_vector_policies`.
ELSEWHERE = {"put_vector_policy"}
WITH_EXAMPLE = [name for name, one in DECLARED.items() if one.operation.body is not None and name not in ELSEWHERE]


class World(NamedTuple):
    tenancy: Tenancy
    document: dict[str, Any]
    decrypting_key: str


@pytest.fixture(scope="module")
async def world(launcher: Launcher, deployment: Deployment, s3_server: EmbeddedS3) -> AsyncIterator[World]:
    async with serving(launcher, deployment.with_buckets(s3_server.url(), s3_server.archive_url())) as gateway:
        environ = {"PATH": os.environ["PATH"], **gateway.deployment.environ}
        await finish_upgrade(deployment, *KNOWN)
        made = launcher.run(environ, "init", "--another", "--json", "--decrypt-any")
        assert made.returncode == 0, made.stderr
        tenancy = Tenancy(Tenant(gateway.url, gateway.deployment.api_key, gateway.deployment.operator_key))
        async with httpx.AsyncClient(base_url=gateway.url) as client:
            document = done(await client.get("/openapi.json"))
        yield World(tenancy, document, json.loads(made.stdout)["api_key"])


def done(answer: httpx.Response) -> dict[str, Any]:
    assert answer.is_success, answer.text
    found: dict[str, Any] = answer.json()
    return found


def example(world: World, name: str) -> Any:
    path, method = DECLARED[name].path, DECLARED[name].operation.method.value.lower()
    described = world.document["paths"][path][method]
    return described["requestBody"]["content"]["application/json"]["example"]


def saved(client: httpx.Client, **members: Any) -> dict[str, str]:
    messages = [{"role": "user", "text": f"message {number}"} for number in range(30)]
    state = {"plan": ["book the flight"], "messages": messages, "user_pref": {"seat": "aisle"}}
    body = {"state": state, "agent": "travel", "run_id": "run-1"} | members
    checkpoint_id = done(client.post(f"/v1/threads/{THREAD}/checkpoints", json=body))["checkpoint_id"]
    return {"thread_id": THREAD, "checkpoint_id": checkpoint_id}


def saved_twice(client: httpx.Client) -> dict[str, str]:
    saved(client)
    return saved(client, run_id="run-2")


def begun_from_another(client: httpx.Client) -> dict[str, str]:
    done(client.post("/v1/threads/trip-7-hotels/checkpoints", json={"state": {}}))
    return {"thread_id": "trip-7-hotels"}


def registered(client: httpx.Client) -> dict[str, str]:
    done(client.put("/v1/state-schemas/travel/versions/1", json={"label": "1.0.0"}))
    return {"state_schema": "travel", "state_version": "2"}


def filed(client: httpx.Client) -> dict[str, str]:
    headers = {"Stateroom-Artifact-Name": "boarding pass.pdf", "Content-Type": "application/pdf"}
    made = done(client.post(f"/v1/threads/{THREAD}/artifacts", content=b"%PDF-1.7", headers=headers))
    return {"artifact_id": made["artifact_id"]}


def uploaded(client: httpx.Client) -> dict[str, str]:
    begun = done(client.post(f"/v1/threads/{THREAD}/uploads", json={"name": "walkthrough.mp4"}))
    for number in range(3):
        done(client.put(f"/v1/uploads/{begun['upload_id']}/parts/{number}", content=bytes(PART_BYTES)))
    return {"upload_id": begun["upload_id"]}


def migrating(client: httpx.Client, example_of_version: Any) -> dict[str, str]:
    named = registered(client)
    done(client.put("/v1/state-schemas/travel/versions/2", json=example_of_version))
    saved(client, state_schema="travel", state_version=1)
    return named


def claimed(client: httpx.Client) -> dict[str, str]:
    made = done(client.post(f"/v1/threads/{saved(client)['thread_id']}/resume-claim", json={"holder": "worker-3"}))
    return {"fence": made["fence"]}


def begun(client: httpx.Client) -> dict[str, str]:
    saved(client)
    body = {"tool": "pay_invoice", "args": {"to": "bob", "amount": 1200}, "mode": "once"}
    done(client.put(f"/v1/threads/{THREAD}/effects/{EFFECT}", json=body))
    return {"effect_name": EFFECT}


def unknown(client: httpx.Client) -> dict[str, str]:
    named = begun(client)
    ended = {"execution": 1, "attempt": 1, "status": "unknown"}
    done(client.post(f"/v1/threads/{THREAD}/effects/{EFFECT}/finish", json=ended))
    return named


def asked(client: httpx.Client) -> dict[str, str]:
    question = {"external_id": "q", "actions": [{"tool": "book_flight", "args": {"to": "LIS"}}]}
    saved(client, approvals=[question])
    [waiting] = done(client.get("/v1/approvals"))["approvals"]
    content = done(client.get(f"/v1/approvals/{waiting['approval_id']}/content"))
    return {"approval_id": waiting["approval_id"], "action_hash": content["action_hash"]}


BEFORE: dict[str, Callable[[httpx.Client], dict[str, str]]] = {
    "update_thread": saved,
    "link_thread": begun_from_another,
    "copy_thread": saved,
    "prune": saved_twice,
    "delete_runs": saved_twice,
    "compact_thread": saved,
    "put_writes": saved,
    "verify": saved,
    "rotate_key": saved,
    "shred_subject": saved,
    "decrypt": saved,
    "put_thread_retention": saved,
    "export_thread": saved,
    "export_tenant": saved,
    "put_state_schema_version": registered,
    "adopt_state": lambda client: saved(client) | registered(client),
    "complete_upload": uploaded,
    "copy_artifact": filed,
    "create_artifact_url": filed,
    "claim_thread": saved,
    "renew_claim": claimed,
    "release_claim": claimed,
    "require_claims": claimed,
    "start_effect": lambda client: saved(client) | {"effect_name": EFFECT},
    "finish_effect": begun,
    "resolve_effect": unknown,
    "decide_approval": asked,
}
# What of a body nobody can know beforehand.
SUBSTITUTED = ("fence", "action_hash")
# What somebody else does, whose key is older than what he is asked.
PERSON = ["state:read", "approval:read", "approval:decide", "subject:act_as"]
OF_ANOTHER = {"resolve_effect", "decide_approval"}
MIGRATING = {"plan_state_migration", "migrate_state", "roll_back_state"}


@pytest.mark.parametrize("name", WITH_EXAMPLE)
def test_the_example_of_a_request_has_the_status_that_is_documented(world: World, name: str) -> None:
    declared, body = DECLARED[name], example(world, name)
    operation = declared.operation
    service_key = world.tenancy.tenant()
    own_key = world.tenancy.person(service_key, PERSON) if name in OF_ANOTHER else service_key
    with world.tenancy.client(service_key, SUBJECT) as client, world.tenancy.client(service_key) as service:
        tenant_id = done(service.get("/v1/whoami"))["tenant_id"]
        named = {"tenant_id": tenant_id, "subject_id": SUBJECT, "thread_id": THREAD, "task_id": "book-flight"}
        if name in MIGRATING:
            named |= migrating(client, example(world, "put_state_schema_version"))
        elif name in BEFORE:
            named |= BEFORE[name](client)
        body |= {member: named[member] for member in SUBSTITUTED if member in named and member in body}
        if name == "shred_tenant":
            body["confirm"] = tenant_id
        if name == "complete_upload":
            body["digest"] = f"sha-256=:{b64encode(hashlib.sha256(bytes(3 * PART_BYTES)).digest()).decode()}:"
        key = {"operator": world.tenancy.gateway.operator_key, "decrypt-any": world.decrypting_key}.get(
            operation.permission or "", own_key
        )
        with world.tenancy.client(key, SUBJECT if operation.subject else None) as caller:
            answer = request_of(declared, **{"run_id": "", **named})._replace(body=body).send(caller)

    assert answer.status_code == operation.statuses[0], answer.text
    described = world.document["paths"][declared.path][operation.method.value.lower()]
    content = described["responses"][str(answer.status_code)].get("content", {})
    if "application/json" in content:
        schema = {**content["application/json"]["schema"], "components": world.document["components"]}
        Draft202012Validator(schema, format_checker=FormatChecker()).validate(answer.json())
    if name in {"prune", "delete_runs", "compact_thread"}:  # which do nothing, and say 200, where nothing is
        assert 0 not in [answer.json().get("checkpoints"), answer.json().get("threads")]


def test_the_examples_of_headers_are_read_as_it_is_said_of_them(world: World) -> None:
    parameters = world.document["components"]["parameters"].values()
    examples = {each["name"]: each["example"] for each in parameters if "example" in each}
    assert examples["Stateroom-Subject"] == SUBJECT
    with world.tenancy.client(world.tenancy.tenant(), SUBJECT) as client:
        named = migrating(client, example(world, "put_state_schema_version"))
        assert named["state_schema"] == "travel"
        latest = f"/v1/threads/{THREAD}/checkpoints/latest"
        at = done(client.get(latest, headers={"Accept-State-Version": examples["Accept-State-Version"]}))
        assert (at["state_version"], at["state"]["user_profile"]) == (2, {"seat": "aisle"})

        save = client.post(
            f"/v1/threads/{THREAD}/checkpoints", json={"state": {}}, headers={"If-Match": examples["If-Match"]}
        )
        assert (save.status_code, save.json()["code"]) == (412, "head-moved")  # it is an ETag, of another head

        headers = {"Stateroom-Artifact-Name": examples["Stateroom-Artifact-Name"]}
        made = done(client.post(f"/v1/threads/{THREAD}/artifacts", content=bytes(2048), headers=headers))
        assert made["name"] == "screen shot.png"
        content = f"/v1/artifacts/{made['artifact_id']}/content"
        part = client.get(content, headers={"Range": examples["Range"]})
        assert (part.status_code, part.headers["content-range"]) == (206, "bytes 0-1023/2048")
        for name, status in (("If-Modified-Since", 200), ("If-Unmodified-Since", 412)):
            assert client.get(content, headers={name: examples[name]}).status_code == status
    told = {"Stateroom-Subject", "Accept-State-Version", "If-Match", "Stateroom-Artifact-Name", "Range"}
    assert examples.keys() == told | {"If-Modified-Since", "If-Unmodified-Since"}
