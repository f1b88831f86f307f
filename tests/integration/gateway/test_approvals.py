"""Approvals at real gateways: waited for at another one, and decided by whom they are left to."""

import asyncio
import base64
from uuid import uuid4

import httpx
import pytest

from stateroom import Action as HashedAction
from stateroom import Client, NewAction, NewApproval, Verdict, action_hash, approval_hash
from storage.control.features import DECISIONS
from tests.support.features import finish_upgrade
from tests.support.gateway import Tenant
from tests.support.operations import Tenancy, assert_problem, key_id
from tests.support.production import serving

SECONDS = 20
READ, DECIDE = "approval:read", "approval:decide"
AGENT = ["state:read", "state:write", "subject:act_as", READ]


@pytest.fixture(scope="module")
async def asking(deployment):
    """The module's deployment, in which people are asked."""
    await finish_upgrade(deployment, DECISIONS)
    return deployment


@pytest.fixture(scope="module")
async def gateway(launcher, asking):
    async with serving(launcher, asking) as made:
        yield made


@pytest.fixture(scope="module")
def tenancy(gateway, asking):
    return Tenancy(Tenant(gateway.url, asking.api_key, asking.operator_key))


@pytest.fixture(scope="module")
def admin(tenancy):
    return tenancy.tenant()


@pytest.fixture(scope="module")
def approvers(tenancy, admin):
    """The keys of two persons, made before anything is asked."""
    return [tenancy.person(admin, [READ, DECIDE]) for _ in range(2)]


def question(**more):
    return NewApproval(
        external_id="pay", actions=[NewAction(tool="pay", args={"amount": 1200}, **more)], message="Pay?",
        allowed=["approve", "reject", "edit"],
    )  # fmt: skip


def asked(gateway, admin, approval=None, thread_id=None, **options):
    thread_id = thread_id or f"t-{uuid4()}"
    with Client(gateway.url, admin, subject="ada", **options) as agent:
        agent.thread(thread_id, agent="payer").save({"n": 1}, status="waiting", approvals=[approval or question()])
        return next(agent.approvals.list(thread=thread_id))


def refusal(answer, status, code):
    return assert_problem(answer, status, code)


async def test_a_decision_at_one_gateway_ends_a_wait_at_another(launcher, asking, gateway, admin, approvers):
    approval = asked(gateway, admin)
    headers = {"Authorization": f"Bearer {approvers[0]}"}
    async with (
        serving(launcher, asking) as other,
        httpx.AsyncClient(base_url=other.url, headers=headers, timeout=60) as client,
    ):
        path = f"/v1/approvals/{approval.approval_id}"
        waiting = asyncio.create_task(client.get(path, params={"wait_seconds": 30}))
        await asyncio.sleep(1)  # it waits: there is nothing by which that could be seen
        assert not waiting.done()
        with Client(gateway.url, approvers[0]) as person:
            content = person.approvals.open(approval.approval_id)
            await asyncio.to_thread(
                person.approvals.decide, approval.approval_id, Verdict.approve(), action_hash=content.action_hash
            )
        async with asyncio.timeout(SECONDS):
            answer = await waiting
    assert answer.json()["status"] == "approved"


def test_the_hash_is_what_the_client_makes_of_what_it_asked(gateway, admin, approvers):
    approval = asked(gateway, admin)
    with Client(gateway.url, approvers[0]) as person:
        content = person.approvals.open(approval.approval_id)
    own = action_hash(
        HashedAction(tool="pay", args={"amount": 1200}, thread_id=approval.thread_id, subject_id="ada", agent="payer")
    )
    assert content.actions[0].action_hash == own.hex()
    assert content.action_hash == approval_hash([own]).hex()


def test_a_decision_is_about_what_was_shown_and_is_made_once(gateway, admin, approvers, tenancy):
    approval = asked(gateway, admin)
    path = f"/v1/approvals/{approval.approval_id}"
    with tenancy.client(approvers[0]) as person, tenancy.client(approvers[1]) as other:
        digest = person.get(f"{path}/content").json()["action_hash"]
        body = {"action_hash": digest, "verdicts": [{"verdict": "approve"}]}
        refusal(person.post(f"{path}/decisions", json={**body, "action_hash": "0" * 64}), 409, "action-changed")
        first = person.post(f"{path}/decisions", json=body)
        assert (first.status_code, first.json()["status"]) == (200, "approved")
        again = person.post(f"{path}/decisions", json=body)
        assert (again.status_code, again.json()["revision"]) == (200, first.json()["revision"])
        no = {**body, "verdicts": [{"verdict": "reject"}]}
        problem = refusal(other.post(f"{path}/decisions", json=no), 409, "approval-decided")
        assert "approved" in problem["detail"]


def test_another_action_under_the_same_name_takes_the_place_of_what_was_approved(gateway, admin, approvers, tenancy):
    approval = asked(gateway, admin)
    with Client(gateway.url, approvers[0]) as person:
        content = person.approvals.open(approval.approval_id)
        person.approvals.decide(approval.approval_id, Verdict.approve(), action_hash=content.action_hash)
    other = NewApproval(external_id="pay", actions=[NewAction(tool="pay", args={"amount": 1500})])
    newer = asked(gateway, admin, other, approval.thread_id)
    assert newer.approval_id != approval.approval_id
    with tenancy.client(approvers[0]) as person:
        stands = [person.get(f"/v1/approvals/{each.approval_id}").json()["status"] for each in (approval, newer)]
    assert stands == ["superseded", "pending"]


def test_what_is_hidden_is_hashed_and_shown_to_nobody(gateway, admin, approvers, tenancy):
    approval = asked(gateway, admin, question(hide=["/amount"]))
    with tenancy.client(approvers[0]) as person:
        shown = person.get(f"/v1/approvals/{approval.approval_id}/content")
    assert shown.json()["actions"][0]["args"] == {"amount": "hidden, 3 bytes"}
    assert "1200" not in shown.text


def test_two_have_to_approve_where_a_policy_says_so_and_whoever_asks_is_none_of_them(gateway, tenancy):
    admin = tenancy.tenant()
    persons = [tenancy.person(admin, [READ, DECIDE]) for _ in range(2)]
    with tenancy.client(admin) as client:
        set_ = client.put("/v1/approval-policies", params={"tool": "pay"}, json={"decisions_needed": 2})
        assert set_.status_code == 200, set_.text
    approval = asked(gateway, admin)
    path = f"/v1/approvals/{approval.approval_id}"
    late = tenancy.person(admin, [READ, DECIDE])
    with tenancy.client(admin) as asker:
        digest = asker.get(f"{path}/content").json()["action_hash"]
        body = {"action_hash": digest, "verdicts": [{"verdict": "approve"}]}
        refusal(asker.post(f"{path}/decisions", json=body), 403, "approval-not-yours")
    with tenancy.client(late) as person:
        refusal(person.post(f"{path}/decisions", json=body), 403, "approval-not-yours")
    stands = []
    for each in (persons[0], persons[0], persons[1]):
        with tenancy.client(each) as person:
            stands.append(person.post(f"{path}/decisions", json=body).json()["status"])
    assert stands == ["pending", "pending", "approved"]


def test_two_keys_of_one_person_are_one_vote(gateway, tenancy):
    admin = tenancy.tenant()
    ann, again, bob = (tenancy.person(admin, [READ, DECIDE], each) for each in ("ann", "ann", "bob"))
    with tenancy.client(admin) as client:
        assert client.put("/v1/approval-policies", json={"decisions_needed": 2}).status_code == 200
        shown = {each["key_id"]: each for each in client.get("/v1/api-keys").json()["api_keys"]}
    assert [shown[key_id(each)]["principal"] for each in (ann, again, bob)] == ["ann", "ann", "bob"]
    assert {shown[key_id(each)]["made_by"] for each in (ann, again, bob)} < shown.keys()
    approval = asked(gateway, admin)
    path = f"/v1/approvals/{approval.approval_id}"
    stands = []
    for each in (ann, again, bob):
        with tenancy.client(each) as person:
            digest = person.get(f"{path}/content").json()["action_hash"]
            body = {"action_hash": digest, "verdicts": [{"verdict": "approve"}]}
            stands.append(person.post(f"{path}/decisions", json=body).json()["status"])
    assert stands == ["pending", "pending", "approved"]


def test_a_key_that_decides_makes_keys_of_its_own_principal_alone(tenancy):
    admin = tenancy.tenant()
    boss = tenancy.person(admin, [READ, DECIDE, "tenant:admin"], "boss", ["tenant:admin"])
    with tenancy.client(boss) as client:
        body = {"kind": "service", "permissions": ["tenant:admin"], "grants": []}
        made = client.post("/v1/api-keys", json=body)
        assert made.json()["principal"] == "boss"
        refusal(client.post("/v1/api-keys", json=body | {"principal": "ann"}), 403, "permission-denied")


def test_whoever_made_the_key_that_asks_does_not_approve(gateway, tenancy):
    admin = tenancy.tenant()
    ann = tenancy.person(admin, [READ, DECIDE], "ann")
    maker = tenancy.person(admin, ["tenant:admin"], "ann", grants=AGENT)
    with tenancy.client(maker) as client:
        body = {"kind": "service", "permissions": AGENT}
        agent = client.post("/v1/api-keys", json=body | {"principal": "robot"}).json()["api_key"]
    approval = asked(gateway, agent)
    path = f"/v1/approvals/{approval.approval_id}"
    with tenancy.client(ann) as person:
        digest = person.get(f"{path}/content").json()["action_hash"]
        body = {"action_hash": digest, "verdicts": [{"verdict": "approve"}]}
        refusal(person.post(f"{path}/decisions", json=body), 403, "approval-not-yours")
        body["verdicts"] = [{"verdict": "reject"}]
        assert person.post(f"{path}/decisions", json=body).json()["status"] == "rejected"


def test_nor_does_a_person_whom_a_backend_names_and_who_made_it(gateway, tenancy):
    admin = tenancy.tenant()
    with tenancy.client(admin) as client:
        assert client.put("/v1/approval-policies", json={"asserted_count": True}).status_code == 200
    maker = tenancy.person(admin, ["tenant:admin"], "ann", grants=AGENT)
    backend = tenancy.person(admin, [READ, DECIDE, "approval:assert"])
    with tenancy.client(maker) as client:
        body = {"kind": "service", "permissions": AGENT, "principal": "robot"}
        agent = client.post("/v1/api-keys", json=body).json()["api_key"]
    approval = asked(gateway, agent)
    path = f"/v1/approvals/{approval.approval_id}"
    for name, status in (("ann", 403), ("bob", 200)):
        with tenancy.client(backend, None, **{"Stateroom-Principal": name}) as client:
            digest = client.get(f"{path}/content").json()["action_hash"]
            body = {"action_hash": digest, "verdicts": [{"verdict": "approve"}]}
            assert client.post(f"{path}/decisions", json=body).status_code == status


def test_an_edit_of_what_takes_a_share_takes_it(gateway, admin, approvers):
    approval = asked(gateway, admin, client_share=b"s" * 32)
    path = f"/v1/approvals/{approval.approval_id}/decisions"
    with Client(gateway.url, approvers[0], client_share=b"s" * 32) as person:
        content = person.approvals.open(approval.approval_id)
        edited = Verdict.edit({"amount": 7})
        with httpx.Client(base_url=gateway.url, headers={"Authorization": f"Bearer {approvers[0]}"}) as without:
            body = {"action_hash": content.action_hash, "verdicts": [{"verdict": "edit", "edited_args": {"amount": 7}}]}
            refusal(without.post(path, json=body), 400, "client-share-required")
            wrong = {"Stateroom-Client-Share": base64.b64encode(b"x" * 32).decode()}
            refusal(without.post(path, json=body, headers=wrong), 403, "client-share-wrong")
        done = person.approvals.decide(approval.approval_id, edited, action_hash=content.action_hash)
        assert done.status == "approved"
        assert person.approvals.open(approval.approval_id).actions[0].edited_args == {"amount": 7}


def test_all_whom_a_backend_names_are_one_unless_the_policy_says_otherwise(gateway, tenancy):
    for counts, expected in ((False, "pending"), (True, "approved")):
        admin = tenancy.tenant()
        backend = tenancy.person(admin, [READ, DECIDE, "approval:assert"])
        with tenancy.client(admin) as client:
            policy = {"decisions_needed": 2, "asserted_count": counts}
            client.put("/v1/approval-policies", json=policy).raise_for_status()
        approval = asked(gateway, admin)
        path = f"/v1/approvals/{approval.approval_id}"
        with tenancy.client(backend) as client:
            digest = client.get(f"{path}/content").json()["action_hash"]
            body = {"action_hash": digest, "verdicts": [{"verdict": "approve"}]}
            for name in ("ann", "bob"):
                answer = client.post(f"{path}/decisions", json=body, headers={"Stateroom-Principal": name})
                assert answer.status_code == 200, answer.text
            shown = client.get(path).json()
        assert shown["status"] == expected
        assert {vote["principal"] for vote in shown["votes"]} == {"ann", "bob"}
        assert all(vote["asserted"] for vote in shown["votes"])


def test_content_under_a_share_opens_with_it_alone_and_the_display_without(gateway, admin, approvers, tenancy):
    share = bytes(range(32))
    shown = NewApproval(external_id="pay", actions=question().actions, message="secret", display="An invoice is due.")
    approval = asked(gateway, admin, shown, client_share=share)
    assert approval.client_share
    path = f"/v1/approvals/{approval.approval_id}/content"
    with tenancy.client(approvers[0]) as person:
        without = person.get(path).json()
        header = {"Stateroom-Client-Share": base64.b64encode(share).decode()}
        with_it = person.get(path, headers=header).json()
        wrong = person.get(path, headers={"Stateroom-Client-Share": base64.b64encode(bytes(32)).decode()})
    assert (without["withheld"], without["display"], without["actions"]) == (True, "An invoice is due.", [])
    assert without["message"] is None
    assert with_it["actions"][0]["args"] == {"amount": 1200}
    refusal(wrong, 403, "client-share-wrong")


def test_what_was_taken_back_is_not_decided(gateway, admin, approvers, tenancy):
    approval = asked(gateway, admin)
    path = f"/v1/approvals/{approval.approval_id}"
    with tenancy.client(admin, "ada") as agent, tenancy.client(approvers[0]) as person:
        digest = person.get(f"{path}/content").json()["action_hash"]
        assert agent.post(f"{path}/cancel").json()["status"] == "cancelled"
        assert agent.post(f"{path}/cancel").status_code == 200
        body = {"action_hash": digest, "verdicts": [{"verdict": "approve"}]}
        refusal(person.post(f"{path}/decisions", json=body), 409, "approval-decided")
