"""Approvals in the client: what is sent, what it waits for, and what a plain agent is told."""

import httpx2
import msgspec
import pytest

from sdk.python.tests.fakes import API_KEY, URL, FakeAsyncClock, FakeClock, Script, packed, problem
from stateroom import (
    Action,
    ActionChanged,
    ApprovalDecided,
    ApprovalExpired,
    ApprovalNotFound,
    ApprovalNotYours,
    AsyncClient,
    Client,
    EditInvalid,
    GatewayUnavailable,
    InvalidRequest,
    NewAction,
    NewApproval,
    Verdict,
    action_hash,
)

ID = "01988d42-6f70-7182-9304-5e6f70819203"
HASH = "ab" * 32
ACTION = NewAction(tool="pay", args={"amount": 1200})
QUESTION = NewApproval(external_id="pay-1", actions=[ACTION], allowed=["approve", "reject", "edit"])


def approval(status="pending", **more):
    return packed(
        {
            "approval_id": ID, "subject_id": "u", "thread_id": "t", "namespace": "", "kind": "tool_call",
            "status": status, "created_at": "2026-11-21T10:00:00Z", "expires_at": "2026-11-28T10:00:00Z",
            "actions": [{"position": 0, "status": status}], "votes": [], "unknown": 1, **more,
        }
    )  # fmt: skip


ASKED = action_hash(Action(tool="pay", args={"amount": 1200}, thread_id="t", subject_id="u", agent=None)).hex()


def content(name="pay-1", **answer):
    action = {"tool": "pay", "args": {"amount": 1200}, "action_hash": ASKED, **answer}
    return packed({"approval_id": ID, "action_hash": HASH, "external_id": name, "actions": [action]})


def listed(*approvals):
    return packed({"approvals": [msgspec.msgpack.decode(each.content) for each in approvals], "next_cursor": None})


def saved(**more):
    return packed(
        {
            "thread_id": "t", "namespace": "", "checkpoint_id": "c1", "parent_id": None, "step": 0, "status": "waiting",
            "sequence": 1, "created_at": "2026-11-21T10:00:00Z", "created": True, **more,
        },
        201,
    )  # fmt: skip


def client_of(*answers, subject=None):
    script = Script(*answers)
    return script, Client(URL, API_KEY, subject=subject, transport=script.transport, clock=FakeClock())


def sent(request):
    return msgspec.msgpack.decode(request.content)


def asked(request):
    return dict(request.url.params.multi_items())


def late(client, seconds, answer):
    """An answer that takes its time."""

    def give(_request):
        client._clock.sleep(seconds)
        return answer

    return give


def test_a_list_goes_page_by_page_with_its_filters():
    page = {"approvals": [msgspec.msgpack.decode(approval().content)], "next_cursor": "more"}
    script, client = client_of(packed(page), packed({**page, "next_cursor": None}))
    found = list(client.approvals.list(status="pending", agent="a", thread="t"))
    assert [each.approval_id for each in found] == [ID, ID]
    assert all(each.is_pending for each in found)
    assert asked(script.requests[1]) == {
        "status": "pending", "agent": "a", "thread": "t", "limit": "100", "cursor": "more"
    }  # fmt: skip


def test_a_decision_echoes_what_was_shown_and_names_the_person_in_its_one_spelling():
    script, client = client_of(approval("approved"))
    done = client.approvals.decide(ID, Verdict.edit({"amount": 900}, "less"), action_hash=HASH, principal="ann lee")
    [request] = script.requests
    assert request.url.path == f"/v1/approvals/{ID}/decisions"
    assert sent(request) == {
        "action_hash": HASH, "verdicts": [{"verdict": "edit", "edited_args": {"amount": 900}, "message": "less"}]
    }  # fmt: skip
    assert request.headers["stateroom-principal"] == "~YW5uIGxlZQ"
    assert done.status == "approved"
    assert not done.is_pending


def test_a_decision_about_several_actions_has_a_verdict_for_each():
    script, client = client_of(approval("approved"))
    client.approvals.decide(ID, [Verdict.approve(), Verdict.reject("no"), Verdict.respond(7)], action_hash=HASH)
    assert [each["verdict"] for each in sent(script.requests[0])["verdicts"]] == ["approve", "reject", "respond"]
    assert sent(script.requests[0])["verdicts"][2] == {"verdict": "respond", "response": 7}
    assert "stateroom-principal" not in script.requests[0].headers


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (404, "approval-not-found", ApprovalNotFound),
        (409, "approval-decided", ApprovalDecided),
        (409, "action-changed", ActionChanged),
        (410, "approval-expired", ApprovalExpired),
        (403, "approval-not-yours", ApprovalNotYours),
        (422, "edit-invalid", EditInvalid),
    ],
)
def test_each_refusal_has_a_class(status, code, kind):
    _, client = client_of(problem(status, code))
    with pytest.raises(kind) as caught:
        client.approvals.decide(ID, Verdict.approve(), action_hash=HASH)
    assert caught.value.code == code


def test_waiting_asks_with_patience_until_it_is_decided():
    script, client = client_of()
    script.answers = [late(client, 25, approval()), late(client, 3, approval("rejected"))]
    assert client.approvals.wait(ID).status == "rejected"
    assert [asked(each)["wait_seconds"] for each in script.requests] == ["25", "25"]
    assert client._clock.slept == [25, 3]  # it did not wait in between


def test_waiting_ends_with_its_time_and_says_what_it_is():
    script, client = client_of()
    script.answers = [late(client, 25, approval()), late(client, 15, approval())]
    assert client.approvals.wait(ID, timeout_seconds=40).is_pending
    assert [asked(each)["wait_seconds"] for each in script.requests] == ["25", "15"]


def test_waiting_asks_a_gateway_that_answers_at_once_no_oftener_than_that():
    script, client = client_of(*[approval()] * 3, approval("approved"))
    assert client.approvals.wait(ID).status == "approved"
    assert len(client._clock.slept) == 3
    assert all(0.5 <= each <= 1.5 for each in client._clock.slept)
    assert len(script.requests) == 4


def test_waiting_goes_on_behind_an_outage_but_not_if_nothing_ever_answered():
    script, client = client_of()
    broken = [httpx2.ReadError("gone")] * 12  # more than one call tries again
    script.answers = [late(client, 25, approval()), *broken, approval("approved")]
    assert client.approvals.wait(ID).status == "approved"
    _, other = client_of(httpx2.ConnectError("away"))
    with pytest.raises(GatewayUnavailable):
        other.approvals.wait(ID)


def test_a_plain_agent_asks_with_the_save_and_is_told_what_may_be_done():
    script, client = client_of(
        saved(),
        listed(approval()),
        content(),
        approval("approved"),
        content(verdict="edit", edited_args={"amount": 900}, action_hash=HASH),
        subject="u",
    )
    thread = client.thread("t", agent="payer")
    answer = thread.ask({"todo": 1}, QUESTION)
    body = sent(script.requests[0])
    assert (body["status"], body["state"]) == ("waiting", {"todo": 1})
    assert body["approvals"] == [
        {
            "external_id": "pay-1", "actions": [{"tool": "pay", "args": {"amount": 1200}}],
            "allowed": ["approve", "reject", "edit"],
        }
    ]  # fmt: skip
    assert answer.is_approved
    assert answer.args == {"amount": 900}
    assert (answer.response, answer.message) == (None, None)


@pytest.mark.parametrize("status", ["rejected", "expired", "superseded", "pending", "consumed"])
def test_a_plain_agent_does_nothing_that_is_not_approved(status):
    found = listed(approval(status)) if status != "superseded" else listed(approval())
    answers = (saved(), found, content(), approval(status), content(verdict="approve"))
    _, client = client_of(*answers, subject="u")
    assert not client.thread("t").ask({}, QUESTION, timeout_seconds=0).is_approved


def test_a_question_is_known_again_by_its_name_and_its_action():
    others = [
        content("pay-2"),
        content(action_hash="00" * 32),  # another action under its name
        content(verdict="approve"),
    ]
    found = listed(approval("superseded"), approval("approved"), approval("approved"), approval("approved"))
    script, client = client_of(saved(), found, *others, approval("approved"), content(verdict="approve"), subject="u")
    assert client.thread("t").ask({}, QUESTION).is_approved
    assert [each.url.path for each in script.requests].count(f"/v1/approvals/{ID}/content") == 4
    _, client = client_of(saved(), found, content("pay-2"), subject="u")
    with pytest.raises(ApprovalNotFound):
        client.thread("t").ask({}, QUESTION)


def test_a_question_that_is_edited_between_two_looks_is_known_by_its_name():
    edited = content(action_hash="00" * 32, edited_args={"amount": 900}, verdict="edit")
    _, client = client_of(saved(), listed(approval()), edited, approval("approved"), edited, subject="u")
    asked = client.thread("t").ask({}, QUESTION)
    assert (asked.is_approved, asked.args) == (True, {"amount": 900})


def test_a_plain_agent_asks_about_one_action():
    _, client = client_of(saved(), subject="u")
    several = NewApproval(external_id="x", actions=[ACTION, ACTION])
    with pytest.raises(InvalidRequest):
        client.thread("t").ask({}, several)


def test_a_save_without_a_question_says_nothing_of_approvals():
    script, client = client_of(saved(), subject="u")
    client.thread("t").save({})
    assert "approvals" not in sent(script.requests[0])


async def test_the_async_client_does_the_same():
    script = Script(
        saved(), listed(approval()), content(), approval("answered"), content(verdict="respond", response="42")
    )
    client = AsyncClient(URL, API_KEY, subject="u", transport=script.transport, clock=FakeAsyncClock())
    answer = await client.thread("t").ask({}, QUESTION)
    assert not answer.is_approved
    assert answer.response == "42"
