"""Claims over HTTP: who goes on with a thread, and what becomes of the writes of those who do not any more."""

from uuid import uuid4

import httpx
import pytest


@pytest.fixture
def client(running_gateway):
    headers = {"Authorization": f"Bearer {running_gateway.api_key}", "Stateroom-Subject": f"user-{uuid4()}"}
    with httpx.Client(base_url=running_gateway.url, headers=headers, timeout=30) as opened:
        yield opened


def save(client, n, thread="t", **more):
    return client.post(f"/v1/threads/{thread}/checkpoints", json={"state": {"n": n, "m": ["a", "b"]}, **more})


def write(client, checkpoint_id, **more):
    body = {"writes": [{"channel": "n", "idx": 0, "value": 1}], **more}
    return client.post(f"/v1/threads/t/checkpoints/{checkpoint_id}/writes/task-{uuid4()}", json=body)


def compact(client, **more):
    return client.post("/v1/threads/t/compact", json={"channel": "m", "keep_last": 1, **more})


def refused(answer, status, code):
    return (answer.status_code, answer.json()["code"]) == (status, code)


def test_whoever_names_the_fence_of_no_claim_writes_nothing(client):
    assert refused(save(client, 1, fence=7), 412, "claim-lost")
    head = save(client, 1).json()["checkpoint_id"]
    assert refused(save(client, 2, fence=7), 412, "claim-lost")
    assert refused(write(client, head, fence=7), 412, "claim-lost")
    assert refused(compact(client, fence=7), 412, "claim-lost")
    shown = client.get("/v1/threads/t/checkpoints/latest").json()
    assert (shown["checkpoint_id"], shown["state"]["n"], shown["pending_writes"]) == (head, 1, [])


@pytest.mark.parametrize("fence", [0, -1, "7", 2**53 + 1])
def test_a_fence_is_a_positive_whole_number(client, fence):
    assert refused(save(client, 1, fence=fence), 422, "invalid-request")
