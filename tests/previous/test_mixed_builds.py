"""While a deploy rolls: the recorded earlier build and this one on one database, all verbs and rows, both ways.

What one build writes the other reads, goes on with, and ends; and neither takes the other's rows for damage. Last, the
upgrade is finished: refused while the earlier build runs, and then done. Every verb of either build is asked of it, and
every table has its tests (`KINDS`): a new verb or table without any fails here. Run by `make mixed`.
"""

import asyncio
import json
import re
import secrets
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from urllib.parse import urlsplit
from uuid import UUID, uuid4

import asyncpg
import httpx
import pytest

from gateway.authentication.principals import LISTING
from gateway.problems import KINDS as PROBLEMS
from storage.control.features import KNOWN_NAMES, LEAD_SECONDS
from tests.previous.conftest import NEW, OLD, writers
from tests.previous.earlier_words import NAMES, PERMISSIONS, earlier_path
from tests.support.operations import (
    AUTHENTICATED,
    CANARY,
    DECLARED,
    ITEM,
    OF_SUBJECTS,
    RECIPIENT,
    Declared,
    Request,
    Thread,
    has_files,
    key_id,
    register_schema,
    request_of,
    save_files,
    save_thread,
)
from tests.support.passing_time import PassingTime

pytestmark = pytest.mark.mixed

WAYS = [(OLD, NEW), (NEW, OLD)]
JOB_SECONDS_MAX = 120.0
# Refused until the upgrade is finished, and asked again then.
AFTER_FINISHING = {
    "adopt_state": "feature-off",
    "put_save_policy": "feature-off",
    "put_vector_policy": "feature-off",
    "put_event_settings": "feature-off",
    "read_events": "feature-off",
    "link_thread": "feature-off",
    "put_item": "feature-off",
    "delete_item": "feature-off",
    "run_item_batch": "feature-off",
    "export_trajectory": "permission-denied",  # no key may have its permission, which the earlier build cannot list
}
# Refused of what is sound, or of what nobody can have stored before the upgrade is finished.
REFUSED = {
    "supersede_job": "job-not-damaged",
    "supersede_deployment_job": "job-not-damaged",
    "get_item": "item-not-found",
}
BREAK_GLASS = {"decrypt"}
# What the build that made a thread says of it after the other one's verb, where that is not 200. It remembers for some
# seconds whose key it was.
AFTERWARDS = {
    "delete_thread": {404},
    "prune": {404},
    "delete_runs": {404},
    "shred_subject": {404, 410},
    "shred_tenant": {404, 410},
    "get_tenant_job": {404, 410},  # the only job that operators begin at a tenant is to shred it
    "suspend_tenant": {200, 403},
}
# Asked without a credential, and in no access log.
PROBES = {"livez", "readyz", "docs"}


@pytest.fixture(params=WAYS, ids=["old-then-new", "new-then-old"])
def builds(both: Any, request: pytest.FixtureRequest) -> tuple[Any, Any]:
    """Who begins, and who goes on."""
    first, second = request.param
    return both[first], both[second]


@pytest.fixture
def subject() -> str:
    return f"user-{uuid4()}"


def client_of(build: Any, subject: str | None = None, api_key: str | None = None) -> Any:
    return build.tenancy.client(api_key or build.deployment.api_key, subject)


def ok(answer: httpx.Response) -> Any:
    assert answer.status_code < 300, answer.text
    return answer.json() if answer.content else None


def refused(answer: httpx.Response, status: int, code: str) -> None:
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text


def sound(thread_id: str, *clients: httpx.Client) -> None:
    """Whoever verifies the thread finds nothing wrong with it."""
    for client in clients:
        assert ok(client.post("/v1/threads:verify", json={"thread_id": thread_id}))["findings"] == []


def exported(build: Any, source_key: str, target_key: str) -> bytes:
    """Everything of a tenant, for another one, by one of the builds."""
    RECIPIENT["text"] = build.tenancy.recipient(target_key)
    with client_of(build, None, source_key) as source:
        answer = request_of(DECLARED["export_tenant"]).send(source)
    assert answer.status_code == 200, answer.text[:300]
    return answer.content


def imported(build: Any, target_key: str, file: bytes) -> httpx.Response:
    """What one of the builds says to a file."""
    with client_of(build, None, target_key) as target:
        return _import(file).send(target)


def _import(file: bytes) -> Request:
    return Request("POST", DECLARED["import_threads"].path, content=file)


def ended(client: httpx.Client, job_id: str, prefix: str = "/v1/jobs") -> dict[str, Any]:
    """The job, once it ended."""
    until = time.monotonic() + JOB_SECONDS_MAX
    while True:
        job: dict[str, Any] = ok(client.get(f"{prefix}/{job_id}"))
        if job["state"] in {"done", "failed"}:
            assert job["state"] == "done", job
            return job
        assert time.monotonic() < until, job
        time.sleep(0.1)


# --- every verb ------------------------------------------------------------------------------------------------------


class Made(NamedTuple):
    """What a verb may name; all of it was made by one build."""

    thread: Thread
    named: dict[str, str]
    service_key: str


def make(build: Any, declared: Declared, subject: str) -> Made:
    service_key = build.tenancy.tenant()
    with client_of(build, None, service_key) as service:
        tenant_id = ok(service.get("/v1/whoami"))["tenant_id"]
        schema = register_schema(service)
    with client_of(build, subject, service_key) as client:
        thread = save_thread(client)
        if has_files(declared):
            thread = save_files(client, thread)
    if "audit_anchor" in declared.name:
        who = build.deployment.operator_key if "operator" in declared.name else service_key
        with client_of(build, None, who) as client:
            ok(
                request_of(
                    DECLARED[
                        declared.name.replace("get_audit_anchor", "anchor_audit").replace(
                            "get_operator_audit_anchor", "anchor_operator_audit"
                        )
                    ]
                ).send(client)
            )
    job_id = ""
    if declared.name in {"list_jobs", "supersede_job"}:
        with client_of(build, None, service_key) as service:
            job_id = ok(service.post("/v1/keys:rotate", json={"level": "subject", "subject_id": subject}))["job_id"]
    if declared.name in {"cancel_job", "get_job"}:
        with client_of(build, subject, service_key) as client:
            job_id = ok(client.post(f"/v1/threads/{save_thread(client).thread_id}/archive"))["job_id"]
    operators = {
        "get_tenant_job": f"/v1/admin/tenants/{tenant_id}/shred",
        "cancel_deployment_job": "/v1/admin/verify",
        "list_deployment_jobs": "/v1/admin/keys:rewrap",
        "get_deployment_job": "/v1/admin/keys:rewrap",
        "supersede_deployment_job": "/v1/admin/keys:rewrap",
    }
    if path := operators.get(declared.name):
        with client_of(build, None, build.deployment.operator_key) as operator:
            body = {"confirm": tenant_id} if path.endswith("/shred") else None
            job_id = ok(operator.post(path, json=body) if body else operator.post(path))["job_id"]
    api_key = (
        another_operator(build) if declared.name == "revoke_operator_key" else build.tenancy.key(service_key, subject)
    )
    named = {
        "tenant_id": tenant_id,
        "subject_id": subject,
        "key_id": key_id(api_key),
        "job_id": job_id,
        "state_schema": schema,
        "thread_id": thread.thread_id,
    }
    return Made(thread, named, service_key)


def another_operator(build: Any, *options: str) -> str:
    made = build.run("init", "--another", "--json", *options)
    assert made.returncode == 0, made.stderr
    return str(json.loads(made.stdout)["api_key"])


@pytest.fixture(scope="module")
def break_glass(both: Any) -> str:
    return another_operator(both[NEW], "--decrypt-any")


@pytest.mark.parametrize("name", AUTHENTICATED)
def test_a_verb_works_on_what_the_other_build_made(builds: Any, subject: str, name: str, break_glass: str) -> None:
    first, second = builds
    declared = AUTHENTICATED[name]
    name_there = name if second.name == NEW else NAMES.get(name, name)
    if name_there not in second.statuses:
        assert second.name == OLD
        pytest.skip("a verb of this build")
    made = make(first, declared, subject)
    RECIPIENT["text"] = second.tenancy.recipient(made.service_key)
    if name == "import_threads":
        request = _import(exported(second, second.tenancy.tenant(), made.service_key))
    else:
        request = request_of(declared, made.thread, **made.named)
    permission = (
        declared.operation.permission if second.name == NEW else PERMISSIONS.get(name, declared.operation.permission)
    )
    if name in BREAK_GLASS:
        api_key, who = break_glass, None
    elif permission == "operator":
        api_key, who = second.deployment.operator_key, None
    else:
        api_key, who = made.service_key, subject if name in OF_SUBJECTS or declared.operation.reach is LISTING else None
    with client_of(second, who, api_key) as client:
        answer = request.send(client)
    if expected := (AFTER_FINISHING | REFUSED).get(name):
        refused(answer, PROBLEMS[expected].status, expected)
    else:
        assert answer.status_code in second.statuses[name_there], answer.text
    with client_of(first, subject, made.service_key) as client:
        found = client.get(f"/v1/threads/{made.thread.thread_id}/checkpoints/latest")
        assert found.status_code in AFTERWARDS.get(name, {200}), found.text
        if has_files(declared) and found.status_code == 200:
            ok(client.get(f"/v1/threads/{made.thread.thread_id}/artifacts"))


# --- what SDKs do ----------------------------------------------------------------------------------------------------


def test_state_and_files_go_on_between_the_builds_each_with_its_sdk(builds: Any, subject: str) -> None:
    first, second = builds
    thread_id = f"t-{uuid4()}"
    with first.sdk(subject) as one, second.sdk(subject) as other:
        one.save(thread_id, {"long": [{"text": "x" * 3_000}] * 20, "n": 1})
        assert other.load(thread_id)["n"] == 1
        for number in range(3):
            assert other.grow(thread_id, [number]) == 21 + 2 * number
            assert one.grow(thread_id, [number]) == 22 + 2 * number
        assert one.load(thread_id) == other.load(thread_id)
        assert one.once(thread_id, "pay", "first") == "first"
        assert other.once(thread_id, "pay", "second") == "first"
        assert other.fork(thread_id, f"{thread_id}-copy") == one.fork(thread_id, f"{thread_id}-again")
        for size in (1_000, 9 * 1024 * 1024):
            file = one.put_file(thread_id, size)
            assert other.get_file(file) == size
            file = other.put_file(thread_id, size)
            assert one.get_file(file) == size
        assert one.files(thread_id) == other.files(thread_id)
        assert len(one.files(thread_id)) == 4


def test_a_graph_goes_on_between_the_builds_each_with_its_saver(builds: Any, subject: str) -> None:
    first, second = builds
    thread_id = f"t-{uuid4()}"
    with first.sdk(subject) as one, second.sdk(subject) as other:
        values: dict[str, Any] = {"messages": [{"text": "x" * 3_000}] * 20}
        for number, saver in enumerate((one, other, one, other)):
            values = {"messages": [*values["messages"], number], "n": number}
            saver.graph_save(thread_id, values)
            found = one.graph_load(thread_id)
            assert found == other.graph_load(thread_id)
            assert found[0] == values
            assert [each[1:] for each in found[1]] == [["note", ["messages", "n"]]]
            assert found[2] == [*range(number - 1, -2, -1)]


def test_pending_writes_of_both_builds_stand_at_one_checkpoint(builds: Any, subject: str) -> None:
    first, second = builds
    with client_of(first, subject) as one, client_of(second, subject) as other:
        thread = save_thread(one)
        path = f"/v1/threads/{thread.thread_id}/checkpoints/{thread.checkpoint_id}"
        ok(other.post(f"{path}/writes/task-2", json={"writes": [{"channel": "note", "idx": 0, "value": "2"}]}))
        for task, value in (("task-1", CANARY), ("task-2", "2")):
            for client in (one, other):
                (written,) = ok(client.get(f"{path}/writes/{task}"))["writes"]
                assert written["value"] == value
        sound(thread.thread_id, one, other)


def test_a_save_that_is_repeated_at_the_other_build_is_one_save(builds: Any, subject: str) -> None:
    first, second = builds
    thread_id, repeated = f"t-{uuid4()}", {"Idempotency-Key": secrets.token_hex(8)}
    path = f"/v1/threads/{thread_id}/checkpoints"
    with client_of(first, subject) as one, client_of(second, subject) as other:
        saved = [
            client.post(path, json={"state": {"n": 1}}, headers=repeated).json()["checkpoint_id"]
            for client in (one, other, one)
        ]
        assert len({*saved}) == 1
        assert len(ok(other.get(path))["checkpoints"]) == 1


def test_pages_and_heads_of_one_build_are_gone_on_from_in_the_other(builds: Any, subject: str) -> None:
    first, second = builds
    with client_of(first, subject) as one, client_of(second, subject) as other:
        thread = save_thread(one)
        path = f"/v1/threads/{thread.thread_id}/checkpoints"
        head = one.get(f"{path}/latest")
        known = {"If-Match": head.headers["etag"], "Stateroom-Known-Token": head.headers["stateroom-thread-token"]}
        assert other.post(path, json={"state": {"n": 2}}, headers=known).status_code == 201
        assert other.post(path, json={"state": {"n": 3}}, headers=known).status_code == 412
        for list_of, name in ((path, "checkpoints"), ("/v1/threads", "threads")):
            save_thread(one)
            page = ok(one.get(f"{list_of}?limit=1"))
            after = ok(other.get(f"{list_of}?limit=1&cursor={page['next_cursor']}"))
            assert page[name] != after[name] != []


def test_what_is_said_of_large_values_is_passed_over_by_the_earlier_build(both: Any, subject: str) -> None:
    path = f"/v1/threads/t-{uuid4()}/checkpoints"
    preview = b64encode(b"p" * 4096).decode()
    shots = [str(number) + "x" * 70_000 for number in range(6)]
    said = [{"path": f"/{number}", "media_type": "image/png", "preview": preview} for number in range(6)]
    with client_of(both[NEW], subject) as new, client_of(both[OLD], subject) as old:
        body = {
            "state": {"shots": shots},
            "state_leaves": {"shots": said},
            "checkpoint_id": "1f0c0000-0000-6000-8000-000000000001",
        }
        assert new.post(path, json=body).status_code == 201
        del body["state_leaves"]
        for client in (old, new):
            name = "id" if client is old else "checkpoint_id"
            answer = client.post(path, json={"state": body["state"], name: body["checkpoint_id"]})
            assert answer.status_code == 200, answer.text  # the same save
            assert ok(client.get(f"{path}/latest?view=state"))["state"] == {"shots": shots}
        assert [each["preview"] for each in ok(new.get(f"{path}/latest?view=state"))["state_leaves"]["shots"]] == [
            preview
        ] * 6
        for client in (old, new):
            head = client.get(f"{path}/latest").headers["etag"]
            shots.append(f"{len(shots)}" + "y" * 70_000)
            changes = {"append": {"shots": shots[-1:]}}
            answer = client.post(path, json={"changes": changes}, headers={"If-Match": head})
            assert answer.status_code == 201, answer.text
            for each in (old, new):
                assert ok(each.get(f"{path}/latest?view=state"))["state"] == {"shots": shots}
        leaves = ok(new.get(f"{path}/latest?view=state"))["state_leaves"]["shots"]
        # What the earlier build carried on has lost what was said; what came since is known.
        assert [each.get("path") for each in leaves] == [None] * 7 + ["/7"]
        sound(path.split("/")[3], new, old)


def test_a_thread_under_a_clients_share_is_one_for_both(builds: Any, subject: str) -> None:
    first, second = builds
    share = {"Stateroom-Client-Share": b64encode(secrets.token_bytes(32)).decode()}
    path = f"/v1/threads/t-{uuid4()}/checkpoints"
    with client_of(first, subject) as one, client_of(second, subject) as other:
        for number, client in enumerate((one, other, one)):
            assert client.post(path, json={"state": {"n": number}}, headers=share).status_code == 201
            for each in (one, other):
                assert ok(each.get(f"{path}/latest", headers=share))["state"] == {"n": number}
                refused(each.get(f"{path}/latest"), 400, "client-share-required")


def test_what_pruning_left_is_sound_for_both(builds: Any, subject: str) -> None:
    """The oldest that is left names a parent that is gone."""
    first, second = builds
    thread_id = f"t-{uuid4()}"
    path = f"/v1/threads/{thread_id}/checkpoints"
    with client_of(first, subject) as one, client_of(second, subject) as other:
        for number in range(4):
            assert (one, other)[number % 2].post(path, json={"state": {"n": number}}).status_code == 201
        ok(other.post("/v1/threads:prune", json={"thread_ids": [thread_id], "strategy": "keep_latest"}))
        histories = [ok(client.get(path))["checkpoints"] for client in (one, other)]
        assert [[each["checkpoint_id"] for each in history] for history in histories] == [
            [each["checkpoint_id"] for each in histories[0]]
        ] * 2
        assert len(histories[0]) == 1
        sound(thread_id, one, other)
        assert one.post(path, json={"state": {"n": 4}}).status_code == 201
        sound(thread_id, one, other)


def test_a_pointer_to_a_file_and_searchable_metadata_are_found_by_the_other_build(
    builds: Any, tenant: Any, subject: str
) -> None:
    first, second = builds
    service_key, administrator, _ = tenant
    with client_of(first, subject, service_key) as one, client_of(second, subject, service_key) as other:
        schema = f"searched-{uuid4().hex[:8]}"
        ok(administrator.put(f"/v1/state-schemas/{schema}/versions/1", json={"searchable": ["tier"]}))
        files, thread_id, ids = save_files(one, save_thread(one)), f"t-{uuid4()}", []
        for client, tier in ((one, "gold"), (other, "silver"), (one, "gold"), (other, "gold")):
            body = {
                "state": {"file": f"stateroom:artifact:{files.artifact_id}"},
                "metadata": {"tier": tier},
                "state_schema": schema,
                "state_version": 1,
            }
            saved = ok(client.post(f"/v1/threads/{thread_id}/checkpoints", json=body))
            ids += [saved["checkpoint_id"]] * (tier == "gold")
        for client in (one, other):
            found = ok(
                client.get(f"/v1/threads/{thread_id}/checkpoints", params={"filter": json.dumps({"tier": "gold"})})
            )
            assert [each["checkpoint_id"] for each in found["checkpoints"]] == ids[::-1]
            refused(client.delete(f"/v1/artifacts/{files.artifact_id}"), 409, "artifact-referenced")
        sound(thread_id, one, other)


def test_an_upload_goes_on_in_the_other_build_and_its_urls_are_revoked_by_both(builds: Any, subject: str) -> None:
    first, second = builds
    with client_of(first, subject) as one, client_of(second, subject) as other:
        thread = save_thread(one)
        begun = ok(one.post(f"/v1/threads/{thread.thread_id}/uploads", json={"name": "file.bin"}))
        path, part_bytes = f"/v1/uploads/{begun['upload_id']}", begun["part_bytes"]
        ok(one.put(f"{path}/parts/0", content=b"x" * part_bytes))
        ok(other.put(f"{path}/parts/1", content=b"y"))
        artifact_id = ok(other.post(f"{path}/complete", json={"parts": 2}))["artifact_id"]
        path, whole = f"/v1/artifacts/{artifact_id}", b"x" * part_bytes + b"y"
        for client in (one, other):
            assert client.get(f"{path}/content").content == whole
        for maker, revoker in ((one, other), (other, one), (one, one), (other, other)):
            url = urlsplit(ok(maker.post(f"{path}/urls", json={}))["url"]).path
            for build in builds:
                assert httpx.get(f"{build.url}{url}").content == whole
            ok(revoker.delete(f"{path}/urls"))
            for build in builds:
                assert httpx.get(f"{build.url}{url}").status_code in {403, 404, 410}
        for client in (one, other):
            assert ok(client.get(path))["artifact_id"] == artifact_id


def test_removals_by_one_build_are_removals_for_the_other(builds: Any, subject: str) -> None:
    first, second = builds
    with client_of(first, subject) as one, client_of(second, subject) as other:
        for remove in ("prune", "delete_runs", "delete_thread"):
            thread = save_thread(one)
            ok(request_of(DECLARED[remove], thread).send(other))
            gone = one.get(f"/v1/threads/{thread.thread_id}/checkpoints/latest")
            assert gone.status_code == 404, (remove, gone.text)
            again = one.post(f"/v1/threads/{thread.thread_id}/checkpoints", json={"state": {"again": True}})
            assert again.status_code == 201, again.text
            assert ok(other.get(f"/v1/threads/{thread.thread_id}/checkpoints/latest"))["state"] == {"again": True}


# --- rows that steer -------------------------------------------------------------------------------------------------


@pytest.fixture
def tenant(builds: Any) -> Iterator[tuple[str, httpx.Client, httpx.Client]]:
    """A tenant that the first build made: its id, and its administrator at either build."""
    first, second = builds
    service_key = first.tenancy.tenant()
    with client_of(first, None, service_key) as one, client_of(second, None, service_key) as other:
        yield service_key, one, other


@pytest.mark.parametrize("level", ["tenant", "agent", "thread"])
def test_a_hold_of_one_build_binds_the_other_which_lifts_it(builds: Any, tenant: Any, subject: str, level: str) -> None:
    first, second = builds
    service_key, one, other = tenant
    with client_of(first, subject, service_key) as at_first, client_of(second, subject, service_key) as at_second:
        thread = save_thread(at_first)
        path = {
            "tenant": "/v1/retention",
            "agent": "/v1/retention?agent=tester",
            "thread": f"/v1/threads/{thread.thread_id}/retention",
        }[level]
        put_one, put_other = (at_first, at_second) if level == "thread" else (one, other)
        ok(put_one.put(path, json={"legal_hold": True, "idle_ttl_seconds": 86_400}))
        assert ok(put_other.get(path))["policy"]["legal_hold"] is True
        refused(at_second.delete(f"/v1/threads/{thread.thread_id}"), 409, "legal-hold")
        assert ok(other.get("/v1/retention/preview"))["threads"] == 1
        ok(put_other.put(path, json={"legal_hold": False}))
        assert not ok(put_one.get(path))["policy"].get("legal_hold")
        ok(at_first.delete(f"/v1/threads/{thread.thread_id}"))


def test_a_schema_of_one_build_converts_in_the_other_which_goes_on_with_it(
    builds: Any, tenant: Any, subject: str
) -> None:
    first, second = builds
    service_key, one, other = tenant
    schema = f"/v1/state-schemas/pay-{uuid4().hex[:8]}"
    name = schema.rsplit("/", 1)[1]
    ok(one.put(f"{schema}/versions/1", json={}))
    ok(other.put(f"{schema}/versions/2", json={"up": [{"op": "rename", "from": "/payee", "to": "/recipient"}]}))
    ok(one.put(f"{schema}/versions/3", json={"up": [{"op": "rename", "from": "/recipient", "to": "/to"}]}))
    with client_of(first, subject, service_key) as at_first, client_of(second, subject, service_key) as at_second:
        body = {"state": {"payee": "bob"}, "state_schema": name, "state_version": 1}
        ok(at_first.post("/v1/threads/t1/checkpoints", json=body))
        for client in (at_first, at_second):
            wanted = {"Accept-State-Version": f"{name}=3"}
            found = ok(client.get("/v1/threads/t1/checkpoints/latest", headers=wanted))
            assert found["state"] == {"to": "bob"}, found
    assert [each["state_version"] for each in ok(other.get(schema))["versions"]] == [1, 2, 3]


def test_ceilings_and_quotas_of_one_build_hold_in_the_other(builds: Any, tenant: Any) -> None:
    first, second = builds
    _, one, other = tenant
    tenant_id = ok(one.get("/v1/whoami"))["tenant_id"]
    with (
        client_of(first, None, first.deployment.operator_key) as at_first,
        client_of(second, None, second.deployment.operator_key) as at_second,
    ):
        path = f"/v1/admin/tenants/{tenant_id}/retention-ceilings"
        ok(at_first.put(path, json={"idle_ttl_seconds": 86_400}))
        assert ok(at_second.get(path))["ceilings"]["idle_ttl_seconds"] == 86_400
        assert ok(other.get("/v1/retention"))["ceilings"]["idle_ttl_seconds"] == 86_400
        ok(at_second.put(path, json={"idle_ttl_seconds": 2 * 86_400}))
        assert ok(one.get("/v1/retention"))["ceilings"]["idle_ttl_seconds"] == 2 * 86_400


def test_a_key_of_one_build_makes_keys_in_the_other_which_are_keys_of_both(
    builds: Any, tenant: Any, subject: str
) -> None:
    """A key has grants since revision a27, and an earlier build's have none that say more than its permissions."""
    first, second = builds
    service_key, _, _ = tenant
    handed_on = second.tenancy.key(first.tenancy.key(service_key), subject, ["state:read", "state:write"])
    with client_of(first, None, handed_on) as at_first, client_of(second, None, handed_on) as at_second:
        thread = save_thread(at_first)
        ok(at_second.get(f"/v1/threads/{thread.thread_id}/checkpoints/latest"))
        for client in (at_first, at_second):
            refused(client.delete(f"/v1/threads/{thread.thread_id}"), 403, "permission-denied")


def test_a_quota_of_rows_holds_here_and_is_passed_over_by_the_earlier_build(both: Any, subject: str) -> None:
    new, old = both["new"], both["old"]
    service_key = new.tenancy.tenant()
    body = {"state": {"n": 1}}
    with (
        client_of(new, None, new.deployment.operator_key) as operator,
        client_of(old, None, old.deployment.operator_key) as earlier_operator,
        client_of(new, subject, service_key) as here,
        client_of(old, subject, service_key) as there,
    ):
        path = f"/v1/admin/tenants/{ok(here.get('/v1/whoami'))['tenant_id']}/usage"
        ok(operator.patch(path, json={"rows_quota_bytes": 0}))
        assert here.post("/v1/threads/t1/checkpoints", json=body).status_code == 403
        ok(there.post("/v1/threads/t1/checkpoints", json=body))
        ok(earlier_operator.patch(path, json={"quota_bytes": 5_000_000}))
        shown = ok(operator.get(path))
        assert (shown["quota_bytes"], shown["rows_quota_bytes"]) == (5_000_000, 0)
        assert ok(here.get("/v1/threads/t1/checkpoints/latest"))["state"] == {"n": 1}


def test_keys_made_by_one_build_are_keys_of_the_other_which_revokes_them(
    builds: Any, tenant: Any, subject: str
) -> None:
    first, second = builds
    service_key, _, other = tenant
    for permissions in (None, ["state:read"]):
        made = first.tenancy.key(service_key, subject, permissions)
        with client_of(second, None, made) as client:
            assert ok(client.get("/v1/whoami"))["kind"] == "subject"
        assert key_id(made) in {each["key_id"] for each in ok(other.get("/v1/api-keys"))["api_keys"]}
        second.tenancy.revoke(service_key, made)
        with client_of(first, None, made) as client:
            # What a process looked up it believes for some seconds.
            until = time.monotonic() + 30
            while client.get("/v1/whoami").status_code != 401:
                assert time.monotonic() < until
                time.sleep(0.2)


# --- jobs ------------------------------------------------------------------------------------------------------------


def test_jobs_begun_by_one_build_are_ended_by_the_other(builds: Any, tenant: Any, subject: str) -> None:
    first, second = builds
    service_key, one, other = tenant
    with client_of(first, subject, service_key) as at_first:
        thread, archived = save_thread(at_first), save_thread(at_first)
        schema = register_schema(one)
        ok(one.put(f"/v1/state-schemas/{schema}/versions/2", json={"up": [{"op": "rename", "from": "/a", "to": "/b"}]}))
        body = {"state": {"a": 1}, "state_schema": schema, "state_version": 1}
        ok(at_first.post("/v1/threads/versioned/checkpoints", json=body))
        jobs = [
            ok(one.post("/v1/keys:rotate", json={"level": "subject", "subject_id": subject}))["job_id"],
            ok(one.post("/v1/keys:rotate", json={"level": "tenant"}))["job_id"],
            ok(one.post(f"/v1/state-schemas/{schema}/migrate", json={"target_version": 2, "idle_seconds": 0}))[
                "job_id"
            ],
            ok(request_of(DECLARED["verify_tenant"]).send(one))["job_id"],
            ok(at_first.post(f"/v1/threads/{archived.thread_id}/archive", json={}))["job_id"],
        ]
        with second.working():
            for job_id in jobs:
                ended(other, job_id)
        for client in (one, other):
            found = ok(client.get("/v1/jobs"))["jobs"]
            assert {each["state"] for each in found} == {"done"}
            assert not any(each.get("damaged") for each in found)
        assert ok(at_first.get(f"/v1/threads/{archived.thread_id}"))["tier"] == "archive"
        with client_of(second, subject, service_key) as at_second:
            assert ok(at_second.get(f"/v1/threads/{archived.thread_id}/checkpoints/latest"))["state"]["note"]
            restored = ok(at_second.post(f"/v1/threads/{archived.thread_id}/restore", json={}))
        if restored["job_id"] is not None:
            with first.working():
                ended(one, restored["job_id"])
        assert ok(at_first.get(f"/v1/threads/{archived.thread_id}"))["tier"] == "hot"
        assert ok(at_first.get(f"/v1/threads/{thread.thread_id}/checkpoints/latest"))["state"]["note"]


def test_a_shred_begun_at_one_build_is_one_at_the_other_which_ends_it(builds: Any, tenant: Any, subject: str) -> None:
    first, second = builds
    service_key, one, other = tenant
    with client_of(first, subject, service_key) as at_first, client_of(second, subject, service_key) as at_second:
        thread = save_thread(at_first)
        ok(at_second.get(f"/v1/threads/{thread.thread_id}/checkpoints/latest"))  # its keys are in that process
        shredded = ok(request_of(DECLARED["shred_subject"], subject_id=subject).send(one))
        gone = at_second.get(f"/v1/threads/{thread.thread_id}/checkpoints/latest")
        assert gone.status_code in {404, 410}, gone.text
        with second.working():
            ended(other, shredded["job_id"])


async def test_rounds_of_either_build_go_by_policies_of_the_other(
    builds: Any, tenant: Any, subject: str, admin: asyncpg.Connection
) -> None:
    first, second = builds
    service_key, one, other = tenant
    with client_of(first, subject, service_key) as at_first:
        kept, due = save_thread(at_first), save_thread(at_first)
        ok(one.put("/v1/retention", json={"idle_ttl_seconds": 3600, "on_expiry": "delete"}))
        ok(at_first.put(f"/v1/threads/{kept.thread_id}/retention", json={"legal_hold": True}))
        # An hour goes by for this tenant.
        await PassingTime(admin, UUID(ok(one.get("/v1/whoami"))["tenant_id"])).go_on(7200)
        assert [each["action"] for each in ok(other.get("/v1/retention/preview"))["actions"]] == ["delete"]
        with second.working():
            until = time.monotonic() + JOB_SECONDS_MAX
            while at_first.get(f"/v1/threads/{due.thread_id}").status_code != 404:
                assert time.monotonic() < until
                await asyncio.sleep(0.2)
        assert ok(at_first.get(f"/v1/threads/{kept.thread_id}"))["tier"] == "hot"


# --- moving, auditing, checking --------------------------------------------------------------------------------------


@pytest.fixture
def moving(builds: Any, tenant: Any, subject: str) -> tuple[str, str, str]:
    """A thread with a file, of the first build: its tenant's key, its id, and the key of the tenant that it goes to."""
    first, _ = builds
    service_key, _, _ = tenant
    with client_of(first, subject, service_key) as client:
        thread = save_files(client, save_thread(client))
    return service_key, thread.thread_id, first.tenancy.tenant()


def test_each_build_exports_what_the_other_made_and_imports_it(builds: Any, moving: Any, subject: str) -> None:
    """The thread is idle since then, whatever its file says: no round removes it for its age."""
    first, second = builds
    service_key, thread_id, target_key = moving
    report = ok(imported(second, target_key, exported(second, service_key, target_key)))
    assert (report["threads"], report["verified"]) == (1, 1)
    with client_of(first, subject, target_key) as at_first, client_of(second, subject, target_key) as at_second:
        sound(thread_id, at_first, at_second)
        for client in (at_first, at_second):
            assert ok(client.get(f"/v1/threads/{thread_id}/checkpoints/latest"))["state"]["note"] == CANARY
            assert len(ok(client.get(f"/v1/threads/{thread_id}/artifacts"))["artifacts"]) == 1
        assert at_first.post(f"/v1/threads/{thread_id}/checkpoints", json={"state": {}}).status_code == 201
        sound(thread_id, at_first, at_second)


def test_a_file_of_the_other_build_comes_in_only_as_documented(builds: Any, moving: Any, subject: str) -> None:
    """Files name a tenant since format 2: the earlier build knows none, and its own are for an operator to accept."""
    first, second = builds
    service_key, thread_id, target_key = moving
    file = exported(first, service_key, target_key)
    with client_of(second, subject, target_key) as at_second:
        if second.name == OLD:
            refused(imported(second, target_key, file), 422, "import-refused")
            refused(at_second.get(f"/v1/threads/{thread_id}/checkpoints/latest"), 404, "checkpoint-not-found")
            return
        answer = imported(second, target_key, file)
        refused(answer, 422, "import-unbound")
        with client_of(second, None, target_key) as service:
            tenant_id = ok(service.get("/v1/whoami"))["tenant_id"]
        with client_of(second, None, second.deployment.operator_key) as operator:
            body = {"export_id": re.search(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", answer.text)[0]}  # type: ignore[index]
            ok(operator.post(f"/v1/admin/tenants/{tenant_id}/unbound-imports", json=body))
        assert ok(imported(second, target_key, file))["verified"] == 1
        with client_of(first, subject, target_key) as at_first:
            sound(thread_id, at_first, at_second)


def test_one_audit_log_is_written_and_verified_by_both(builds: Any, tenant: Any, subject: str) -> None:
    first, second = builds
    _, one, other = tenant
    for client in (one, other, one):
        ok(client.put("/v1/retention", json={"idle_ttl_seconds": 86_400 + id(client) % 7}))
        register_schema(client)
    for client in (one, other):
        events = ok(client.get("/v1/audit?limit=1000"))["events"]
        assert [each["sequence"] for each in events] == list(range(1, len(events) + 1))
        ok(request_of(DECLARED["anchor_audit"]).send(client))
    assert first.name != second.name


@pytest.mark.parametrize("name", [OLD, NEW])
def test_the_object_store_and_the_rows_agree_for_both_builds(both: Any, name: str) -> None:
    for command in (["sweep", "--all"], ["fsck", "--all", "--json"], ["doctor", "--json"]):
        done = both[name].run(*command)
        assert done.returncode == 0, done.stdout + done.stderr


def test_jobs_of_operators_begun_by_one_build_are_ended_by_the_other(builds: Any) -> None:
    """The second reads everything that was written before, by either, and finds nothing wrong with it."""
    first, second = builds
    with (
        client_of(first, None, first.deployment.operator_key) as one,
        client_of(second, None, second.deployment.operator_key) as other,
    ):
        jobs = [
            ok(one.post("/v1/admin/keys:rewrap"))["job_id"],
            ok(request_of(DECLARED["verify_deployment"]).send(one))["job_id"],
        ]
        with second.working():
            for job_id in jobs:
                ended(other, job_id, "/v1/admin/jobs")
        for client in (one, other):
            shown = {each["job_id"]: each["state"] for each in ok(client.get("/v1/admin/jobs?limit=1000"))["jobs"]}
            assert [shown[job_id] for job_id in jobs] == ["done", "done"]
        found = ok((one if first.name == NEW else other).get(f"/v1/admin/jobs/{jobs[1]}"))
        assert found["verification"]["findings"] == []
        assert found["verification"]["checkpoints"] > 0


# --- the end of the roll ---------------------------------------------------------------------------------------------


def test_neither_build_took_anything_for_damage(both: Any) -> None:
    assert {name: build.serving.integrity_failures() for name, build in both.items()} == {OLD: 0, NEW: 0}


def test_every_verb_was_answered_by_both_builds(both: Any) -> None:
    """By their own access logs: a verb without a case here, or one that only ever failed, is a hole."""
    now = DECLARED.keys() | AUTHENTICATED.keys()
    assert both[NEW].statuses.keys() == now
    assert both[OLD].statuses.keys() <= now | set(NAMES.values())
    for build in both.values():
        for name in PROBES:
            assert httpx.get(f"{build.url}{DECLARED[name].path}").status_code == 200
        done = {(each["method"], _template(each["route"])) for each in build.serving.requests() if each["status"] < 400}
        missing = {
            name for name in now - PROBES if {name, NAMES.get(name)} & build.statuses.keys() and not _ways(name) & done
        }
        assert missing <= AFTER_FINISHING.keys() | REFUSED.keys(), (build.name, missing, sorted(done))


def _template(path: str) -> str:
    return re.sub(r"\{[^}]*\}", "{}", path)


def _ways(name: str) -> set[tuple[str, str]]:
    """How a verb is asked for, in the words of either build."""
    declared = DECLARED[name]
    now = (declared.operation.method.value, _template(declared.path))
    method, path = earlier_path(*now)
    return {now, (method, _template(path))}


_STATE = test_state_and_files_go_on_between_the_builds_each_with_its_sdk
_PENDING = test_pending_writes_of_both_builds_stand_at_one_checkpoint
_FILES = test_an_upload_goes_on_in_the_other_build_and_its_urls_are_revoked_by_both
_NAMED = test_a_pointer_to_a_file_and_searchable_metadata_are_found_by_the_other_build
_KEYS = test_a_key_of_one_build_makes_keys_in_the_other_which_are_keys_of_both
_JOBS = test_jobs_begun_by_one_build_are_ended_by_the_other
_HOLDS = test_a_hold_of_one_build_binds_the_other_which_lifts_it
_ROUNDS = test_rounds_of_either_build_go_by_policies_of_the_other


class Kind(NamedTuple):
    """What shows that a table's rows are of both builds, and who wrote some of them while it was shown."""

    shown_by: Callable[..., Any] | None
    by: tuple[str, ...] = (OLD, NEW)


WRITTEN_AFTER_FINISHING = (
    "deployment_features", "save_policies", "state_adoptions", "items", "item_paths", "item_scopes", "item_vectors",
    "event_settings", "event_queue", "events", "event_counters", "event_relays", "tenant_streams",
)  # fmt: skip
# A table of the database that is not here fails the test below.
KINDS = {
    "vector_policies": Kind(None, ()),  # of tenants of a deployment whose operator made the table for clear vectors
    "deployment": Kind(None, ()),  # made with the deployment, and read by both when they start
    "deployment_keys": Kind(test_one_audit_log_is_written_and_verified_by_both),
    "tenants": Kind(test_a_verb_works_on_what_the_other_build_made),
    "tenant_keys": Kind(_JOBS),
    "subject_keys": Kind(_JOBS),
    "api_keys": Kind(_KEYS),
    "threads": Kind(_STATE),
    "heads": Kind(_STATE),
    "checkpoints": Kind(_STATE),
    "checkpoint_tags": Kind(_NAMED),
    "chunks": Kind(_STATE),
    "pending_writes": Kind(_PENDING),
    "idempotency": Kind(test_a_save_that_is_repeated_at_the_other_build_is_one_save),
    "removed_threads": Kind(test_removals_by_one_build_are_removals_for_the_other),
    "audit_log": Kind(test_one_audit_log_is_written_and_verified_by_both),
    "audit_heads": Kind(test_one_audit_log_is_written_and_verified_by_both),
    "jobs": Kind(_JOBS),
    "blobs": Kind(_FILES),
    "blob_intents": Kind(_FILES),
    "blob_refs": Kind(_STATE),
    "blob_usage": Kind(_FILES),
    "upload_parts": Kind(_FILES),
    "artifacts": Kind(_FILES),
    "artifact_refs": Kind(_NAMED),
    "archives": Kind(_JOBS),
    "state_schemas": Kind(test_a_schema_of_one_build_converts_in_the_other_which_goes_on_with_it),
    "retention": Kind(_HOLDS),
    "thread_retention": Kind(_HOLDS),
    "retention_rounds": Kind(_ROUNDS),
    # Of this build alone: the earlier one goes on beside them.
    "processes": Kind(None, (NEW,)),
    "api_key_seals": Kind(_KEYS, (NEW,)),
    "unbound_imports": Kind(test_a_file_of_the_other_build_comes_in_only_as_documented, (NEW,)),
    "row_usage": Kind(test_a_quota_of_rows_holds_here_and_is_passed_over_by_the_earlier_build, (NEW,)),
    **dict.fromkeys(WRITTEN_AFTER_FINISHING, Kind(None, ())),
    # Written by `stateroom restore accept`, while no gateway runs.
    "accepted_losses": Kind(None, ()),
    "db_revision": Kind(None, ()),
}


async def test_every_table_was_written_by_both_builds_and_is_shown_to_be_of_both(both: Any, admin: Any) -> None:
    found = await writers(admin)
    assert found.keys() == KINDS.keys()
    assert both.keys() == {OLD, NEW}
    assert {name: (each.by, found[name]) for name, each in KINDS.items() if {*each.by} - found[name]} == {}


async def test_the_upgrade_is_finished_only_without_the_earlier_build(both: Any, subject: str, admin: Any) -> None:
    """What the earlier build wrote until then is as good as before: rows without what this one writes from now on."""
    old, new = both[OLD], both[NEW]
    service_key = old.tenancy.tenant()
    with client_of(old, None, service_key) as service, client_of(old, subject, service_key) as at_old:
        thread = save_files(at_old, save_thread(at_old))
        schema = register_schema(service)
        ok(service.put("/v1/retention", json={"idle_ttl_seconds": 86_400}))
        ok(at_old.put(f"/v1/threads/{thread.thread_id}/retention", json={"legal_hold": True}))
        job_id = ok(service.post("/v1/keys:rotate", json={"level": "subject", "subject_id": subject}))["job_id"]
    unsealed = old.tenancy.key(service_key, subject)

    failed = await asyncio.to_thread(new.run, "db", "finish-upgrade")
    assert failed.returncode == 6, failed.stdout + failed.stderr
    assert "enters no registry" in failed.stderr
    await asyncio.to_thread(old.stop)
    finished = await asyncio.to_thread(new.run, "db", "finish-upgrade", "--json")
    assert finished.returncode == 0, finished.stderr
    assert {json.loads(line)["feature"] for line in finished.stdout.splitlines()} == {*KNOWN_NAMES}
    shown = await asyncio.to_thread(new.run, "db", "processes", "--json")
    assert len(shown.stdout.splitlines()) == 1, shown.stdout

    with client_of(new, None, service_key) as service, client_of(new, subject, unsealed) as at_new:
        until = time.monotonic() + 2 * LEAD_SECONDS
        names = ("adopt_state", "put_save_policy", "put_vector_policy", "put_event_settings", "link_thread", "put_item")
        for name in names:
            waiting = request_of(DECLARED[name], state_schema=schema, thread_id="t-linked")
            asking = at_new if name in OF_SUBJECTS else service
            while (answer := waiting.send(asking)).status_code == 409:
                assert time.monotonic() < until, answer.text
                await asyncio.sleep(0.2)
            ok(answer)
        _items_of_a_subject_that_the_earlier_build_made(at_new)
        _export_after_recovery(new, ok(service.get("/v1/whoami"))["tenant_id"], subject, thread)
        with new.working():
            await asyncio.to_thread(ended, service, job_id)
        assert ok(at_new.get(f"/v1/threads/{thread.thread_id}/checkpoints/latest"))["state"]["note"] == CANARY
        refused(at_new.delete(f"/v1/threads/{thread.thread_id}"), 409, "legal-hold")
        assert ok(service.get("/v1/retention"))["policy"]["idle_ttl_seconds"] == 86_400
        assert [each["damaged"] for each in ok(service.get("/v1/jobs"))["jobs"]] == [False]
        sound(thread.thread_id, at_new)
    assert new.serving.integrity_failures() == 0
    async with asyncio.timeout(30):  # what the relay numbers, it numbers a moment later
        while NEW not in (found := await writers(admin))["events"]:  # noqa: ASYNC110  processes of their own
            await asyncio.sleep(0.1)
    assert {name for name in WRITTEN_AFTER_FINISHING if NEW not in found[name]} == set()


def _items_of_a_subject_that_the_earlier_build_made(client: httpx.Client) -> None:
    """They stand under keys that the earlier build made, and are found, and go."""
    (kept,) = ok(client.post("/v1/items:search", json={}))["items"]
    assert (kept["path"], kept["key"], kept["value"]) == ([ITEM["path"]], ITEM["key"], {"note": "other"})
    vectors = [{"model": "m", "vectors": [[0.25] * 8]}]
    for name in ("get_item", "run_item_batch", "delete_item"):
        ok(request_of(DECLARED[name]).send(client))
    ok(client.put("/v1/items/others/other", json={"value": {"note": "again"}, "vectors": vectors}))
    assert ok(client.post("/v1/items:paths", json={}))["paths"] == [["others"]]


def _export_after_recovery(build: Any, tenant_id: str, subject: str, thread: Thread) -> None:
    """A tenant from before exports in clear once an operator recovered it; until then no key of it grants that."""
    with client_of(build, None, build.deployment.operator_key) as operator:
        recovered = ok(request_of(DECLARED["recover_tenant"], tenant_id=tenant_id).send(operator))
    exporting = build.tenancy.key(recovered["api_key"], subject, ["state:export", "state:read"])
    with client_of(build, None, exporting) as client:
        answer = request_of(DECLARED["export_trajectory"], thread).send(client)
    assert answer.status_code == 200, answer.text
    assert json.loads(answer.text.splitlines()[-1])["type"] == "end"


async def test_an_earlier_build_that_is_started_again_is_named(both: Any) -> None:
    """It refuses nothing by itself: whoever asks the doctor hears of it."""
    old, new = both[OLD], both[NEW]
    examined = await asyncio.to_thread(new.run, "doctor", "--json")
    assert _check(examined.stdout, "processes")["outcome"] == "ok"
    with old.working():
        examined = await asyncio.to_thread(new.run, "doctor", "--json")
        refused_again = await asyncio.to_thread(new.run, "db", "processes")
    assert examined.returncode == 1
    assert "one that enters no registry" in _check(examined.stdout, "processes")["detail"]
    assert "enters no registry" in refused_again.stderr + refused_again.stdout


def _check(report: str, name: str) -> Any:
    return next(each for each in json.loads(report)["checks"] if each["check"] == name)
