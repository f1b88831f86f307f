"""Every operation the application declares, with a request for each that succeeds on real data.

The list comes from the routes themselves; an operation without a path parameter's value or a body here fails the
suites that use it, so that no route is left out unnoticed.
"""

import base64
import json
import re
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import quote
from uuid import UUID, uuid4

import httpx
import msgpack

from crypto import ExportSealer, SecretKey, TransferKey, TransferRecipient
from gateway import routes
from gateway.authentication.api_keys import SUBJECT_PERMISSIONS
from gateway.routing.operations import Operation
from storage.format import export
from tests.support.gateway import GatewayProcess
from tests.support.tenants import granted, new_tenant

STATE = ["state:read", "state:write", "state:delete"]
SUBJECT = "Stateroom-Subject"
CANARY = f"canary-{uuid4().hex}"
_NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # loading the system's certificates takes longer than a test
_PARAMETER = re.compile(r"\{(\w+)\}")
# What requests name, in their paths, queries and bodies.
NAMED = (
    "thread_id", "checkpoint_id", "task_id", "run_id", "key_id", "tenant_id", "subject_id", "job_id", "artifact_id",
    "upload_id", "part_number", "piece", "state_schema", "state_version", "path", "key",
)  # fmt: skip
NO_ID = str(UUID(int=0))


class Declared(NamedTuple):
    """An operation and its whole path."""

    path: str
    operation: Operation

    @property
    def name(self) -> str:
        return self.operation.name

    @property
    def parameters(self) -> list[str]:
        return _PARAMETER.findall(self.path)


DECLARED = {
    route.operation.name: Declared(route.operation.path, route.operation)
    for found in routes.GROUPS.values()
    for route in found
}
AUTHENTICATED = {name: one for name, one in DECLARED.items() if not one.operation.public}
OF_SUBJECTS = {name: one for name, one in AUTHENTICATED.items() if one.operation.subject}


# Where an item is that requests are about.
ITEM = {"path": "memories", "key": "seat"}
NO_APPROVAL = {"approval_id": NO_ID, "approval_hash": "0" * 64}


class Request(NamedTuple):
    """What to send."""

    method: str
    path: str
    body: Any = None
    query: str = ""
    content: bytes | None = None
    headers: Mapping[str, str] = MappingProxyType({})

    def send(self, client: httpx.Client, method: str | None = None) -> httpx.Response:
        body: dict[str, Any] = {} if self.body is None else {"json": self.body}
        if self.content is not None:
            body = {"content": self.content, "headers": dict(self.headers)}
        return client.request(method or self.method, self.path + self.query, **body)


class Thread(NamedTuple):
    """A thread that exists, and what is in it."""

    thread_id: str
    checkpoint_id: str
    task_id: str
    run_id: str
    artifact_id: str = NO_ID
    upload_id: str = NO_ID
    part_number: str = "0"
    piece: str = "AQAAAAAAAAAAAAAAAAAAAAA"
    job_id: str = NO_ID
    path: str = "memories"
    key: str = "seat"
    fence: str = "1"
    effect_name: str = "call-1"
    approval_id: str = NO_ID
    approval_hash: str = "0" * 64


def leaf(text: str) -> dict[str, str]:
    """The body that uploads a text as a piece."""
    return {"data": base64.b64encode(msgpack.packb(text)).decode()}


def has_files(declared: "Declared") -> bool:
    """Whether an operation works on artifacts or uploads, so that `save_files` is needed first."""
    return declared.name == "list_artifacts" or bool({"artifact_id", "upload_id"} & {*declared.parameters})


def has_items(declared: "Declared") -> bool:
    """Whether an operation works on items, so that `save_item` is needed first."""
    return declared.path.startswith("/v1/items")


def has_ledger(declared: "Declared") -> bool:
    """Whether an operation works on a claim or an effect, so that `save_ledger` is needed first."""
    found = "resume-claim" in declared.path or "/effects" in declared.path
    return found and declared.name != "start_effect"


def save_ledger(client: httpx.Client, thread: Thread, *, unknown: bool = False) -> Thread:
    """Claim a thread and start an effect, with a canary in both; ``unknown``: nobody knows what became of that."""
    path = f"/v1/threads/{thread.thread_id}"
    claimed = client.post(f"{path}/resume-claim", json={"holder": "tester", "note": CANARY})
    assert claimed.status_code == 200, claimed.text
    body = {"tool": "note", "args": {"note": CANARY}, "mode": "once"}
    started = client.put(f"{path}/effects/{thread.effect_name}", json=body)
    assert started.status_code == 200, started.text
    if unknown:
        body = {"execution": 1, "attempt": 1, "status": "unknown"}
        ended = client.post(f"{path}/effects/{thread.effect_name}/finish", json=body)
        assert ended.status_code == 200, ended.text
    return thread._replace(fence=str(claimed.json()["fence"]))


def save_item(client: httpx.Client, thread: Thread) -> Thread:
    """Put an item with a canary in it, under a path of its own."""
    thread = thread._replace(path=f"memories-{uuid4()}")
    put = client.put(f"/v1/items/{thread.path}/{thread.key}", json={"value": {"note": CANARY}})
    assert put.status_code == 201, put.text
    return thread


def has_approvals(declared: "Declared") -> bool:
    """Whether an operation works on approvals, so that `save_approval` is needed first."""
    return declared.path.startswith("/v1/approvals")


def save_approval(client: httpx.Client, thread: Thread) -> Thread:
    """Ask about an action with a canary in it, in a namespace of its own."""
    action = {"tool": "pay", "args": {"note": CANARY}, "description": CANARY}
    question = {"external_id": "question", "message": CANARY, "display": CANARY, "actions": [action]}
    body = {"state": {"note": CANARY}, "namespace": "asking", "run_id": thread.run_id, "agent": "tester"}
    asked = client.post(f"/v1/threads/{thread.thread_id}/checkpoints", json={**body, "approvals": [question]})
    assert asked.status_code == 201, asked.text
    listed = client.get("/v1/approvals", params={"thread": thread.thread_id})
    assert listed.status_code == 200, listed.text
    [approval] = listed.json()["approvals"]
    opened = client.get(f"/v1/approvals/{approval['approval_id']}/content")
    assert opened.status_code == 200, opened.text
    return thread._replace(approval_id=approval["approval_id"], approval_hash=opened.json()["action_hash"])


def save_files(client: httpx.Client, thread: Thread) -> Thread:
    """Add an artifact and an upload with one part to a thread, with a canary in all of them."""
    path = f"/v1/threads/{thread.thread_id}"
    metadata = base64.urlsafe_b64encode(json.dumps({"note": CANARY}).encode()).decode()
    headers = {"Stateroom-Artifact-Name": f"{CANARY}.txt", "Stateroom-Artifact-Metadata": metadata}
    stored = client.post(
        f"{path}/artifacts", content=CANARY.encode(), headers={**headers, "Content-Type": "text/plain"}
    )
    assert stored.status_code == 201, stored.text
    begun = client.post(f"{path}/uploads", json={"name": f"{CANARY}.txt", "metadata": {"note": CANARY}})
    assert begun.status_code == 201, begun.text
    upload_id = begun.json()["upload_id"]
    part = client.put(f"/v1/uploads/{upload_id}/parts/0", content=CANARY.encode())
    assert part.status_code == 200, part.text
    return thread._replace(artifact_id=stored.json()["artifact_id"], upload_id=upload_id)


def register_schema(client: httpx.Client) -> str:
    """Register version 1 of a state schema of its own; returns its name."""
    schema = f"schema-{uuid4()}"
    registered = client.put(f"/v1/state-schemas/{schema}/versions/1", json={"label": "other"})
    assert registered.status_code == 201, registered.text
    return schema


def save_thread(client: httpx.Client) -> Thread:
    """Save a thread with a canary in its state, its metadata and a pending write."""
    thread = Thread(f"t-{uuid4()}", "", "task-1", f"run-{uuid4()}")
    body = {
        "state": {"note": CANARY, "long": [CANARY * 40] * 8},
        "metadata": {"note": CANARY},
        "run_id": thread.run_id,
        "agent": "tester",
    }
    saved = client.post(f"/v1/threads/{thread.thread_id}/checkpoints", json=body)
    assert saved.status_code == 201, saved.text
    thread = thread._replace(checkpoint_id=saved.json()["checkpoint_id"])
    beside = {"state": {"long": [CANARY] * 8}, "namespace": "beside", "run_id": thread.run_id, "agent": "tester"}
    assert client.post(f"/v1/threads/{thread.thread_id}/checkpoints", json=beside).status_code == 201
    path = f"/v1/threads/{thread.thread_id}/checkpoints/{thread.checkpoint_id}/writes/{thread.task_id}"
    wrote = client.post(path, json={"writes": [{"channel": "note", "idx": 0, "value": CANARY}]})
    assert wrote.status_code == 200, wrote.text
    sent = client.post(f"/v1/threads/{thread.thread_id}/pieces", json=leaf(CANARY))
    assert sent.status_code == 201, sent.text
    piece = base64.urlsafe_b64encode(base64.b64decode(sent.json()["piece"])).decode().rstrip("=")
    return thread._replace(piece=piece)


def request_of(declared: Declared, thread: Thread | None = None, **named: str) -> Request:
    """A valid request of an operation, on ``thread`` or on what is ``named``."""
    values = {
        "state_schema": "s",
        "state_version": "1",
        "fence": "1",
        "effect_name": "call-1",
        **NO_APPROVAL,
        **ITEM,
        **(thread._asdict() if thread else {}),
        **named,
    }
    bodies: dict[str, Any] = {
        "save_checkpoint": lambda: {"state": {"note": "other"}},
        "put_writes": lambda: {"writes": [{"channel": "note", "idx": 7, "value": "other"}]},
        "put_event_settings": lambda: {"on": True},
        # Whoever asked may say no.
        "decide_approval": lambda: {"action_hash": values["approval_hash"], "verdicts": [{"verdict": "reject"}]},
        "put_approval_policy": lambda: {"decisions_needed": 2},
        "update_thread": lambda: {"strict": True},
        "claim_thread": lambda: {"holder": "other", "note": "other", "take_over": True},
        "renew_claim": lambda: {"fence": int(values["fence"]), "note": "other"},
        "release_claim": lambda: {"fence": int(values["fence"])},
        "require_claims": lambda: {"required": False},
        "start_effect": lambda: {"tool": "note", "args": {"note": "other"}, "mode": "once", "repeat": True},
        "finish_effect": lambda: {"execution": 1, "attempt": 1, "status": "done", "result": "other"},
        "resolve_effect": lambda: {"execution": 1, "attempt": 1, "happened": True, "by_check": True},
        "put_item": lambda: {"value": {"note": "other"}, "ttl_seconds": 3600},
        "search_items": lambda: {"prefix": [], "filter": {"note": {"$ne": ""}}, "limit": 10},
        "list_item_paths": lambda: {"suffix": ["*"], "max_depth": 2},
        "run_item_batch": lambda: {
            "gets": [{"path": [values["path"]], "key": values["key"]}],
            "writes": [{"path": [values["path"]], "key": values["key"], "value": {"note": "other"}}],
            "searches": [{"prefix": [values["path"]]}],
            "paths": [{"prefix": [values["path"]]}],
        },
        "put_piece": lambda: leaf("other" * 20),
        "compact_thread": lambda: {"channel": "long", "keep_last": 2, "summary": "other", "namespace": "beside"},
        "link_thread": lambda: {"thread_id": f"parent-{uuid4()}"},
        "copy_thread": lambda: {"target_thread_id": f"copy-{uuid4()}"},
        "prune": lambda: {"thread_ids": [values["thread_id"]], "strategy": "delete"},
        "delete_runs": lambda: {"run_ids": [values["run_id"]]},
        "create_api_key": lambda: {"kind": "service", "name": "other"},
        "create_tenant": lambda: {"name": f"other-{uuid4()}"},
        "rename_tenant": lambda: {"name": f"other-{uuid4()}"},
        "suspend_tenant": lambda: {"reason": "did not pay"},
        "recover_tenant": lambda: {"reason": "lost its keys"},
        "verify": lambda: {"thread_id": values["thread_id"]},
        "decrypt": lambda: {
            "subject_id": values["subject_id"],
            "thread_id": values["thread_id"],
            "reason": "asked by the owner",
        },
        "begin_upload": lambda: {"name": "other"},
        "complete_upload": lambda: {"parts": 1},
        "copy_artifact": lambda: {"thread_id": f"copy-{uuid4()}"},
        "set_tenant_quota": lambda: {"quota_bytes": None},
        "put_retention": lambda: {"idle_ttl_seconds": 3600},
        "put_thread_retention": lambda: {"idle_ttl_seconds": 3600, "on_expiry": "archive"},
        "put_save_policy": lambda: {"strict": False},
        "put_vector_policy": lambda: {"vectors": "sealed"},
        "put_retention_ceilings": lambda: {"archive_ttl_seconds": 7 * 366 * 86_400},
        "export_thread": lambda: {"recipient": RECIPIENT["text"], "subject_id": values["subject_id"]},
        "export_tenant": lambda: {"recipient": RECIPIENT["text"]},
        "accept_unbound_import": lambda: {"export_id": str(uuid4())},
        "create_artifact_url": dict,
        "rotate_key": lambda: {"level": "subject", "subject_id": values["subject_id"]},
        "shred_subject": lambda: {"confirm": values["subject_id"]},
        "shred_tenant": lambda: {"confirm": values["tenant_id"]},
        "put_state_schema_version": lambda: {"label": "other"},
        "adopt_state": lambda: {"agent": f"of-{values['state_schema']}", "state_version": 1},
        "plan_state_migration": dict,
        "migrate_state": dict,
        "roll_back_state": dict,
    }
    queries: dict[str, Any] = {
        "channel_history": lambda: "?channel=note",
        "get_keys": lambda: f"?subject_id={quote(values['subject_id'], safe='')}",
        "list_state_schemas": lambda: "?limit=1000",  # those of a whole suite
    }
    path = _PARAMETER.sub(
        lambda found: encoded(values[found[1]]) if found[1] == "subject_id" else values[found[1]], declared.path
    )
    body = bodies[declared.name]() if declared.operation.body is not None else None
    query = queries[declared.name]() if declared.name in queries else ""
    content = b"other" if declared.operation.raw_body else None
    if declared.name == "import_threads":
        content = empty_export(values["tenant_id"])
    headers = {"Stateroom-Artifact-Name": "other"} if declared.name == "create_artifact" else {}
    return Request(declared.operation.method.value, path, body, query, content, headers)


def path_of(declared: Declared) -> str:
    """A path of the right form, for requests that never get as far as the data."""
    nobody = {"thread_id": "t", "checkpoint_id": "c", "task_id": "w", "key_id": "k", "subject_id": "s"}
    nobody |= {"tenant_id": str(uuid4()), "job_id": str(uuid4()), "artifact_id": NO_ID, "upload_id": NO_ID}
    nobody |= {"part_number": "0", "token": "t", "piece": "p", "state_schema": "s", "state_version": "1"}
    nobody |= {"path": "p", "key": "k", "effect_name": "e", "approval_id": NO_ID}
    return _PARAMETER.sub(lambda found: nobody[found[1]], declared.path)


# What exports are sealed for: a tenant of the gateway, once there is one (`Tenancy.tenant`), and nobody until then.
RECIPIENT = {"text": str(TransferRecipient(TransferKey(SecretKey.generate()).public_key, uuid4()))}


def empty_export(tenant_id: str) -> bytes:
    """An export of no thread, for a tenant of the gateway; for the newest one where none is named."""
    export_id, recipient = uuid4(), TransferRecipient.parse(RECIPIENT["text"])
    with suppress(ValueError):
        recipient = TransferRecipient(recipient.public_key, UUID(tenant_id))
    sealer = ExportSealer(recipient, export_id)
    opening = export.encode(export.Opening(export.FORMAT, export_id, "tenant", uuid4(), uuid4(), datetime.now(UTC)))
    digest = export.RunningDigest()
    digest.add(opening)
    end = export.encode(export.End(0, 0, digest.digest()))
    return sealer.start + sealer.write(export.frame(opening) + export.frame(end)) + sealer.finish()


class Tenancy:
    """A gateway's tenants as seen through HTTP."""

    def __init__(self, gateway: GatewayProcess) -> None:
        self.gateway = gateway
        self._founding_keys: dict[str, str] = {}

    @contextmanager
    def client(self, api_key: str | None, subject: str | None = None, **headers: str) -> Iterator[httpx.Client]:
        if api_key is not None:
            headers["Authorization"] = f"Bearer {api_key}"
        if subject is not None:
            headers[SUBJECT] = encoded(subject)
        with httpx.Client(base_url=self.gateway.url, headers=headers, timeout=30, verify=_NO_TLS) as client:
            yield client

    def tenant(self) -> str:
        """Make a tenant; returns a service key that may do everything in it."""
        made = new_tenant(self.gateway.url, self.gateway.operator_key)
        api_key = str(made["api_key"])
        self._founding_keys[api_key] = made["founding_key"]
        RECIPIENT["text"] = self.recipient(api_key)
        return api_key

    def recipient(self, service_key: str) -> str:
        """What exports for the service key's tenant are sealed for."""
        with self.client(service_key) as client:
            return str(client.get("/v1/transfer-key").raise_for_status().json()["public_key"])

    def person(
        self, service_key: str, permissions: list[str], principal: str | None = None, grants: list[str] | None = None
    ) -> str:
        """Make a key of the service key's tenant for somebody else."""
        body: dict[str, Any] = {"kind": "service", "permissions": permissions, "grants": grants or []}
        if principal is not None:
            body["principal"] = principal
        with self.client(self._founding_keys[service_key]) as client:
            made = client.post("/v1/api-keys", json=body)
        assert made.status_code == 201, made.text
        return str(made.json()["api_key"])

    def key(self, service_key: str, subject: str | None = None, permissions: list[str] | None = None) -> str:
        """Make a key of the service key's tenant: a subject's where ``subject`` is given."""
        body: dict[str, Any] = {"kind": "service" if subject is None else "subject", "name": "made by a test"}
        if subject is not None:
            body["subject_id"] = subject
        with self.client(service_key) as client:
            every = [each for each in granted(client) if subject is None or each in SUBJECT_PERMISSIONS]
            body["permissions"] = every if permissions is None else permissions
            made = client.post("/v1/api-keys", json=body)
        assert made.status_code == 201, made.text
        return made.json()["api_key"]

    def revoke(self, service_key: str, api_key: str) -> None:
        with self.client(service_key) as client:
            assert client.delete(f"/v1/api-keys/{key_id(api_key)}").status_code == 204


def key_id(api_key: str) -> str:
    return api_key.split("_")[2]


def encoded(identifier: str) -> str:
    """An id as it travels; see the API's documentation."""
    if identifier == "~shared" or re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._:@|+-]{0,254}", identifier):
        return identifier
    return "~" + base64.urlsafe_b64encode(identifier.encode()).rstrip(b"=").decode()


def assert_problem(answer: httpx.Response, status: int | None = None, code: str | None = None) -> dict[str, Any]:
    """The answer is a problem with every documented member; returns it."""
    assert 400 <= answer.status_code < 600, answer.text[:300]
    assert answer.headers["content-type"] == "application/problem+json"
    problem: dict[str, Any] = answer.json()
    assert {"type", "title", "status", "code", "retryable", "detail", "request_id"} <= problem.keys()
    assert problem["status"] == answer.status_code
    assert problem["request_id"] == answer.headers["x-request-id"]
    assert problem["type"].endswith(f"/docs#{problem['code']}")
    assert problem["retryable"] == ("retry-after" in answer.headers)
    if status is not None:
        assert (answer.status_code, code or problem["code"]) == (status, problem["code"]), answer.text[:500]
    return problem
