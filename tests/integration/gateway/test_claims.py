"""Claims over HTTP: who goes on with a thread, and what becomes of the writes of those who do not any more."""

import time
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


def claim(client, holder="w1", thread="t", **more):
    return client.post(f"/v1/threads/{thread}/resume-claim", json={"holder": holder, **more})


def test_one_goes_on_and_the_others_are_told_when_to_ask_again(client):
    save(client, 1)
    mine = claim(client, run_id="r1", note="1 of 2").json()
    assert (mine["status"], mine["holder"], mine["note"], mine["takeovers"]) == ("live", "w1", "1 of 2", 0)
    assert claim(client, run_id="r1").json()["fence"] == mine["fence"]
    held = claim(client, "w2")
    assert refused(held, 409, "claim-held")
    assert held.json()["claimed_until"] > mine["claimed_at"]
    assert 1 <= int(held.headers["retry-after"]) <= 60
    assert save(client, 2, fence=mine["fence"]).status_code == 201
    theirs = claim(client, "w2", take_over=True).json()
    assert theirs["fence"] > mine["fence"]
    for lost in (
        save(client, 3, fence=mine["fence"]),
        client.post("/v1/threads/t/resume-claim/renew", json={"fence": mine["fence"]}),
        client.post("/v1/threads/t/resume-claim/release", json={"fence": mine["fence"]}),
    ):
        assert refused(lost, 412, "claim-lost")
    noted = client.post("/v1/threads/t/resume-claim/renew", json={"fence": theirs["fence"], "note": "now I"})
    assert noted.json()["note"] == "now I"
    for _ in range(2):
        ended = client.post("/v1/threads/t/resume-claim/release", json={"fence": theirs["fence"]})
        assert ended.json()["status"] == "released"
    assert client.get("/v1/threads/t/resume-claim").json()["status"] == "released"


def test_a_thread_that_asks_for_claims_takes_no_write_without_one(client):
    head = save(client, 1).json()["checkpoint_id"]
    mine = claim(client, exclusive=True).json()
    assert mine["required"] is True
    for unclaimed in (save(client, 2), write(client, head), compact(client)):
        assert refused(unclaimed, 409, "thread-claimed")
    assert write(client, head, fence=mine["fence"]).status_code == 200
    assert save(client, 2, fence=mine["fence"]).status_code == 201
    assert compact(client, fence=mine["fence"]).status_code == 201
    lifted = client.put("/v1/threads/t/resume-claim/required", json={"required": False})
    assert lifted.status_code == 204
    assert save(client, 3).status_code == 201


def test_what_nobody_claimed_and_what_is_not_there_are_told_apart(client):
    assert refused(client.get("/v1/threads/t/resume-claim"), 404, "thread-not-found")
    assert refused(claim(client), 404, "thread-not-found")
    save(client, 1)
    assert refused(client.get("/v1/threads/t/resume-claim"), 404, "claim-not-found")


def test_a_silent_thread_is_listed_for_its_subject_and_for_the_tenant(client, running_gateway):
    save(client, 1, agent="travel")
    mine = claim(client, lease_seconds=5).json()

    def silent(**query):
        found = client.get("/v1/silent-threads", params=query).json()["threads"]
        return [each["thread_id"] for each in found]

    assert silent() == []
    poll(lambda: silent() == ["t"])
    assert silent(agent="other") == silent(silent_seconds=3600) == []
    headers = {"Authorization": f"Bearer {running_gateway.api_key}"}
    of_all = httpx.get(f"{running_gateway.url}/v1/silent-threads", headers=headers).json()["threads"]
    [found] = [each for each in of_all if each["fence"] == mine["fence"]]
    assert (found["subject_id"], found["agent"]) == (client.headers["Stateroom-Subject"], "travel")
    assert (found["holder"], found["stuck"]) == ("w1", False)


def test_a_claim_in_the_place_of_another_is_refused_when_that_is_over(client):
    save(client, 1)
    assert refused(claim(client, if_fence=0), 422, "invalid-request")
    assert refused(claim(client, if_fence=7), 409, "claim-superseded")
    mine = claim(client).json()["fence"]
    assert refused(claim(client, "w2", if_fence=mine), 409, "claim-held")
    theirs = claim(client, "w2", if_fence=mine, take_over=True)
    assert theirs.json()["holder"] == "w2"
    assert refused(claim(client, "w3", if_fence=mine, take_over=True), 409, "claim-superseded")


def poll(is_so, seconds=30):
    until = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.1)  # the database's clock goes on
