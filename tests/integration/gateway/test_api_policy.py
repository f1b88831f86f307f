"""The rules that hold for every operation, as docs/api-policy.md states them, on real engines."""

from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import httpx
import pytest

from gateway.documents.openapi import api_document
from tests.support.gateway import GatewayProcess
from tests.support.operations import OF_SUBJECTS, Tenancy, assert_problem, request_of, save_files, save_thread

REPLAYED = "Idempotency-Replayed"


@pytest.fixture(scope="module")
def tenancy(running_gateway: GatewayProcess) -> Tenancy:
    return Tenancy(running_gateway)


@pytest.fixture(scope="module")
def service_key(tenancy: Tenancy) -> str:
    return tenancy.tenant()


@pytest.fixture
def client(tenancy: Tenancy, service_key: str) -> Iterator[httpx.Client]:
    with tenancy.client(service_key, f"user-{uuid4()}") as opened:
        yield opened


@pytest.fixture(scope="module")
def operator(tenancy: Tenancy) -> Iterator[httpx.Client]:
    with tenancy.client(tenancy.gateway.operator_key) as opened:
        yield opened


def saved(client: httpx.Client, thread: str = "t", **members: Any) -> dict[str, Any]:
    answer = client.post(f"/v1/threads/{thread}/checkpoints", json={"state": {"n": 1}, **members})
    assert answer.status_code == 201, answer.text
    return answer.json()


def stored(client: httpx.Client) -> str:
    answer = client.post("/v1/threads/t/artifacts", content=b"x", headers={"Stateroom-Artifact-Name": "a"})
    assert answer.status_code == 201, answer.text
    return answer.json()["artifact_id"]


# --- what is missing -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", ["", "/checkpoints", "/checkpoints?status=done", "/artifacts", "/checkpoints/c/writes/w", "/retention"]
)
def test_a_thread_that_a_path_names_must_be_there(client: httpx.Client, path: str) -> None:
    saved(client, "other")
    assert_problem(client.get(f"/v1/threads/t{path}"), 404, "thread-not-found")
    with_keys = httpx.Headers(client.headers)
    with_keys["Stateroom-Subject"] = f"nobody-{uuid4()}"
    assert_problem(client.get(f"/v1/threads/t{path}", headers=with_keys), 404, "thread-not-found")
    saved(client)
    assert client.get(f"/v1/threads/t{path}").status_code == 200


def test_what_a_list_to_remove_names_need_not_be_there(client: httpx.Client) -> None:
    pruned = client.post("/v1/threads:prune", json={"thread_ids": ["nobody"], "strategy": "delete"})
    assert (pruned.status_code, pruned.json()["threads"]) == (200, 0)
    assert client.post("/v1/runs:delete", json={"run_ids": ["nobody"]}).json()["checkpoints"] == 0


@pytest.mark.parametrize("fork", [True, False])
@pytest.mark.parametrize("strict", [True, False])
def test_a_parent_that_is_not_there_is_refused(client: httpx.Client, *, fork: bool, strict: bool) -> None:
    body = {"state": {}, "parent_id": "gone", "fork": fork}
    first = client.post("/v1/threads/t/checkpoints", json=body)
    assert assert_problem(first, 422, "parent-unknown")["errors"][0]["pointer"] == "/parent_id"
    assert_problem(client.get("/v1/threads/t"), 404, "thread-not-found")  # nothing was made
    saved(client)
    client.patch("/v1/threads/t", json={"strict": strict})
    refused = client.post("/v1/threads/t/checkpoints", json=body)
    if strict and not fork:
        assert_problem(refused, 412, "head-moved")
    else:
        assert_problem(refused, 422, "parent-unknown")
    elsewhere = saved(client, "other")["checkpoint_id"]
    for namespace in ("", "sub"):  # a parent is in the same thread and namespace
        wish = {**body, "parent_id": elsewhere, "namespace": namespace, "fork": True}
        assert_problem(client.post("/v1/threads/t/checkpoints", json=wish), 422, "parent-unknown")
    assert len(client.get("/v1/threads/t/checkpoints").json()["checkpoints"]) == 1


def test_an_older_parent_and_none_at_all_are_accepted(client: httpx.Client) -> None:
    first = saved(client)
    saved(client)
    assert saved(client, parent_id=first["checkpoint_id"], fork=True)["parent_id"] == first["checkpoint_id"]
    assert saved(client, parent_id=first["checkpoint_id"], step=7)["step"] == 7
    assert saved(client, parent_id=None)["parent_id"] is None


def test_a_save_is_repeated_although_its_parent_was_removed_since(client: httpx.Client) -> None:
    first = saved(client)
    body = {"state": {}, "checkpoint_id": "zz", "parent_id": first["checkpoint_id"]}
    assert client.post("/v1/threads/t/checkpoints", json=body).status_code == 201
    assert client.post("/v1/threads:prune", json={"thread_ids": ["t"]}).json()["checkpoints"] == 1
    assert client.post("/v1/threads/t/checkpoints", json=body).status_code == 200


def test_a_namespace_that_must_be_empty_and_is_not_has_a_code_of_its_own(client: httpx.Client) -> None:
    head = saved(client)
    again = client.post("/v1/threads/t/checkpoints", json={"state": {}}, headers={"If-None-Match": "*"})
    assert assert_problem(again, 412, "head-exists")["head_id"] == head["checkpoint_id"]


# --- repeats ---------------------------------------------------------------------------------------------------------

Send = Callable[[httpx.Client, dict[str, str]], httpx.Response]


def _copy(client: httpx.Client, headers: dict[str, str]) -> httpx.Response:
    return client.post("/v1/threads/t/copy", json={"target_thread_id": "copy"}, headers=headers)


def _artifact(client: httpx.Client, headers: dict[str, str]) -> httpx.Response:
    named = {**headers, "Stateroom-Artifact-Name": "b"}
    return client.post("/v1/threads/t/artifacts", content=b"again", headers=named)


def _key(client: httpx.Client, headers: dict[str, str]) -> httpx.Response:
    return client.post("/v1/api-keys", json={"kind": "service"}, headers=headers)


REPEATED: dict[str, Send] = {
    "save": lambda client, headers: client.post("/v1/threads/t/checkpoints", json={"state": {}}, headers=headers),
    "copy": _copy,
    "artifact": _artifact,
    "upload": lambda client, headers: client.post("/v1/threads/t/uploads", json={"name": "c"}, headers=headers),
    "key": _key,
}


@pytest.mark.parametrize("name", REPEATED)
def test_a_repeat_is_200_and_says_that_it_is_one(client: httpx.Client, name: str) -> None:
    saved(client)
    headers = {"Idempotency-Key": str(uuid4())}
    first, again = (REPEATED[name](client, headers) for _ in range(2))
    assert (first.status_code, again.status_code) == (201, 200), again.text
    assert (first.headers.get(REPLAYED), again.headers.get(REPLAYED)) == (None, "true")
    assert first.headers["Location"] == again.headers["Location"]
    made, named = first.json(), again.json()
    for shown_once in ("created", "api_key"):
        assert made.pop(shown_once, None) in (None, True) or not named.get(shown_once)
        named.pop(shown_once, None)
    assert made == named


def test_an_artifact_copied_or_completed_twice_and_a_rotation_say_so_too(client: httpx.Client) -> None:
    artifact_id = stored(client)
    headers = {"Idempotency-Key": str(uuid4())}
    copies = [
        client.post(f"/v1/artifacts/{artifact_id}/copy", json={"thread_id": "u"}, headers=headers) for _ in range(2)
    ]
    upload = client.post("/v1/threads/t/uploads", json={"name": "c"}).json()["upload_id"]
    client.put(f"/v1/uploads/{upload}/parts/0", content=b"x").raise_for_status()
    completed = [client.post(f"/v1/uploads/{upload}/complete", json={"parts": 1}) for _ in range(2)]
    for first, again in (copies, completed):
        assert (first.status_code, again.status_code) == (201, 200)
        assert (first.headers.get(REPLAYED), again.headers.get(REPLAYED)) == (None, "true")
        assert first.json() == again.json()
    rotations = [client.post("/v1/keys:rotate", json={"level": "tenant"}, headers=headers) for _ in range(2)]
    assert [each.status_code for each in rotations] == [202, 202]
    assert [each.headers.get(REPLAYED) for each in rotations] == [None, "true"]


# --- PATCH, PUT and Location ------------------------------------------------------------------------------------------


def test_settings_are_merged_and_a_new_thread_is_201(client: httpx.Client) -> None:
    made = client.patch("/v1/threads/a|b", json={"strict": True})
    assert (made.status_code, made.headers["Location"]) == (201, "/v1/threads/a%7Cb")
    again = client.patch(made.headers["Location"], json={"agent": "travel"})
    assert (again.status_code, again.json()["strict"], again.json()["agent"]) == (200, True, "travel")
    assert client.patch(made.headers["Location"], json={"agent": None}).json()["agent"] is None


def test_what_was_made_is_where_its_location_says(client: httpx.Client, operator: httpx.Client) -> None:
    thread = "ü & co"
    encoded = "~w7wgJiBjbw"
    save = client.post(f"/v1/threads/{encoded}/checkpoints", json={"state": {}, "namespace": "a&b/ü"})
    assert client.get(save.headers["Location"]).json()["checkpoint_id"] == save.json()["checkpoint_id"]
    copied = client.post(f"/v1/threads/{encoded}/copy", json={"target_thread_id": f"{thread} 2"})
    assert client.get(copied.headers["Location"]).json()["thread_id"] == f"{thread} 2"
    artifact_id = stored(client)
    copy = client.post(f"/v1/artifacts/{artifact_id}/copy", json={"thread_id": "u"})
    assert client.get(copy.headers["Location"]).json()["artifact_id"] == copy.json()["artifact_id"]
    upload = client.post("/v1/threads/t/uploads", json={"name": "c"})
    assert client.get(upload.headers["Location"]).json()["upload_id"] == upload.json()["upload_id"]
    tenant = operator.post("/v1/admin/tenants", json={"name": "another"})
    assert operator.get(tenant.headers["Location"]).json()["tenant_id"] == tenant.json()["tenant_id"]


# --- jobs -------------------------------------------------------------------------------------------------------------


def test_whoever_began_a_job_follows_it_and_nobody_else_of_the_tenant_does(
    tenancy: Tenancy, service_key: str, client: httpx.Client
) -> None:
    subject = f"user-{uuid4()}"
    writer = tenancy.key(service_key, subject, ["state:write"])
    with tenancy.client(writer) as own, tenancy.client(service_key) as tenant:
        saved(own)
        begun = own.post("/v1/threads/t/archive")
        assert begun.status_code == 202, begun.text
        job, location = begun.json(), begun.headers["Location"]
        assert (job["kind"], job["target"]) == ("archive", {"subject_id": subject, "thread_id": "t"})
        assert location == f"/v1/jobs/{job['job_id']}"
        shown = own.get(location).json()
        assert shown.keys() == job.keys()
        assert shown["job_id"] == tenant.get(location).json()["job_id"] == job["job_id"]
        reseal = tenant.post("/v1/keys:rotate", json={"level": "subject", "subject_id": subject})
        assert (reseal.status_code, reseal.json()["target"]) == (202, {"subject_id": subject})
        unknown = own.get(f"/v1/jobs/{uuid4()}").json() | {"request_id": ""}
        for foreign in (client.get(location), own.get(reseal.headers["Location"])):
            assert_problem(foreign, 404, "not-found")
            assert foreign.json() | {"request_id": ""} == unknown
        assert tenant.get(reseal.headers["Location"]).json()["kind"] == "reseal"


def test_every_job_is_shown_as_it_was_begun(client: httpx.Client, operator: httpx.Client) -> None:
    tenant = httpx.Client(base_url=client.base_url, headers={"Authorization": client.headers["Authorization"]})
    with tenant:
        saved(client)
        assert tenant.put("/v1/state-schemas/s/versions/1", json={}).status_code in {200, 201}
        paths = ["/v1/verify", "/v1/keys:rewrap", "/v1/state-schemas/s/plan"]
        begun = [(tenant, tenant.post(path, json={} if path.endswith("plan") else None)) for path in paths]
        begun += [(operator, operator.post(path)) for path in ("/v1/admin/verify", "/v1/admin/keys:rewrap")]
        for asking, answer in begun:
            assert answer.status_code == 202, answer.text
            job = asking.get(answer.headers["Location"]).json()
            assert {"job_id", "kind", "state", "target", "progress", "error", "note"} <= answer.json().keys()
            assert (job["job_id"], job["kind"], job["target"]) == tuple(
                answer.json()[name] for name in ("job_id", "kind", "target")
            )


# --- what the document says -------------------------------------------------------------------------------------------


def test_what_a_shredded_subject_is_answered_is_in_the_document(tenancy: Tenancy, service_key: str) -> None:
    document = api_document("http://127.0.0.1:8080")
    documented = {one["operationId"]: one["responses"] for each in document["paths"].values() for one in each.values()}
    subject = f"user-{uuid4()}"
    with tenancy.client(service_key, subject) as client, tenancy.client(service_key) as tenant:
        thread = save_files(client, save_thread(client))
        assert tenant.post(f"/v1/subjects/{subject}/shred", json={"confirm": subject}).status_code == 202
        gone = set()
        for name, declared in OF_SUBJECTS.items():
            answer = request_of(declared, thread).send(client)
            assert str(answer.status_code) in documented[name], (name, answer.status_code, answer.text)
            if answer.status_code == 410:
                assert "key-destroyed" in documented[name]["410"]["description"]
                gone.add(name)
        assert {"list_threads", "get_thread", "update_thread", "save_checkpoint", "copy_thread"} <= gone


def test_a_form_is_no_file_a_missing_body_is_said_and_null_is_no_filter(client: httpx.Client) -> None:
    form = client.post(
        "/v1/threads/t/artifacts", files={"file": ("a.png", b"x")}, headers={"Stateroom-Artifact-Name": "a.png"}
    )
    assert "send the bytes as the body" in assert_problem(form, 415, "unsupported-media-type")["detail"]
    missing = client.post("/v1/threads/t/checkpoints")
    assert "a body is required" in assert_problem(missing, 400, "malformed-body")["detail"]
    words = ("threads?tier=null", "threads?status=null", "checkpoints?step=null", "checkpoints?since=null")
    others = ("threads?tier=NULL", "threads?status=Null", "checkpoints?step=nULL", "checkpoints?since=NULL")
    for path in words + others:
        problem = assert_problem(client.get(f"/v1/{path}"), 422, "invalid-request")
        assert problem["errors"][0]["parameter"] == path.split("?")[1].split("=")[0]
    assert client.get("/v1/checkpoints?run_id=null&step=5.0&agent=NULL").status_code == 200
    assert "instance" not in missing.json()


def test_no_file_is_stored_as_a_form(client: httpx.Client) -> None:
    for form in (
        "multipart/form-data; boundary=x",
        "Application/X-WWW-Form-Urlencoded",
        "application/x-www-form-urlencoded;a=b",
    ):
        begun = client.post("/v1/threads/t/uploads", json={"name": "a.png", "media_type": form})
        (fault,) = assert_problem(begun, 422, "invalid-request")["errors"]
        assert (fault["pointer"], "what the file is" in fault["detail"]) == ("/media_type", True)
        named = {"Stateroom-Artifact-Name": "a.png", "Content-Type": form}
        whole = client.post("/v1/threads/t/artifacts", content=b"x", headers=named)
        assert "not as a form" in assert_problem(whole, 415, "unsupported-media-type")["detail"]


def test_a_plus_in_a_time_of_a_query_is_told_to_be_a_blank(client: httpx.Client) -> None:
    problem = assert_problem(client.get("/v1/checkpoints?since=2026-01-01T00:00:00+02:00"), 422, "invalid-request")
    assert "write it %2B" in problem["errors"][0]["detail"]
    assert client.get("/v1/checkpoints?since=2026-01-01T00:00:00%2B02:00").status_code == 200
