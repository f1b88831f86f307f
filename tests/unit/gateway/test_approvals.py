"""Approvals over HTTP: who sees and decides which, what is sent to storage, and what nobody is shown."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from uuid import uuid4

import httpx
import msgpack
import pytest

from gateway.admission.limits import TENANT_WAITERS_MAX
from gateway.app import Gateway
from gateway.routes.thread_ledgers.conversion import hidden
from storage.approvals import model
from storage.errors import ApprovalDecided, ApprovalNotYours
from storage.scope import Scope, TenantListing
from tests.unit.gateway.conftest import Caller
from tests.unit.gateway.doubles import NOW, MemoryStore

HASH = "ab" * 32
DECIDE = {"action_hash": HASH, "verdicts": [{"verdict": "approve"}]}
ARGS = {"to": "Bob", "account": {"number": "DE02", "pin": 1234}, "lines": [1, "secret", 3], "~a/b": 1}
HIDE = ("/account/pin", "/lines/1", "/~0a~1b", "/none", "/lines/9", "/to/x", "/account/pin/0")


def packed(value: object) -> bytes:
    return msgpack.packb(value)


@pytest.fixture
def approval(store: MemoryStore) -> model.Approval:
    made = model.Approval(
        approval_id=uuid4(), subject_id="user-1", thread_id="t", namespace="", checkpoint_id="c", run_id=None,
        agent="payer", kind="tool_call", status="pending", requested_by="k", requested_principal="k", created_at=NOW,
        expires_at=NOW + timedelta(days=7), valid_until=None, decided_at=None, decisions_needed=1, revision=1,
        client_share=False, has_display=False, actions=(model.ActionState(0, "pending", None, False),),
        votes=(model.Vote("ann", "k9", "approve", NOW, asserted=True),),
    )  # fmt: skip
    store.approvals.stored[made.approval_id] = made
    action = model.AskedAction(
        tool="pay", tool_digest=None, args=packed(ARGS), args_schema=b'{"type":"object"}', hide=HIDE, description=None,
        action_hash=HASH, verdict="edit", edited_args=packed({**ARGS, "to": "Eve"}), response=None, message="m",
    )  # fmt: skip
    store.approvals.content = model.ApprovalContent(
        made, "pay-1", HASH, frozenset({"reject", "approve"}), "Pay?", None, None, (action,)
    )
    return made


def place(approval: model.Approval, *more: str) -> str:
    return "/".join(("/v1/approvals", str(approval.approval_id), *more))


async def test_how_one_stands_says_nothing_of_what_it_is_about(call: Caller, approval: model.Approval) -> None:
    async with call("subject", permissions=("approval:read",)) as client:
        shown = (await client.get(place(approval))).json()
    assert shown["approval_id"] == str(approval.approval_id)
    assert shown["votes"] == [
        {"principal": "ann", "key_id": "k9", "verdict": "approve", "at": "2026-01-02T03:04:05Z", "asserted": True}
    ]
    assert "args" not in str(shown)


@pytest.mark.parametrize(
    ("kind", "permissions", "headers", "status"),
    [
        ("subject", ("approval:read",), {}, 200),
        ("subject", ("state:read", "state:write"), {}, 403),
        ("subject", ("approval:read",), {"Stateroom-Subject": "user-2"}, 403),
        ("service", ("approval:read",), {}, 200),
        ("service", ("approval:read",), {"Stateroom-Subject": "user-1"}, 403),
        ("service", ("approval:read", "subject:act_as"), {"Stateroom-Subject": "user-1"}, 200),
        ("service", ("approval:read", "subject:act_as"), {"Stateroom-Subject": "user-2"}, 404),
        ("service", ("tenant:admin", "state:read", "subject:act_as"), {}, 403),
        ("operator", ("operator",), {}, 403),
    ],
)
async def test_who_sees_how_one_stands(
    call: Caller,
    approval: model.Approval,
    kind: str,
    permissions: tuple[str, ...],
    headers: dict[str, str],
    status: int,
) -> None:
    async with call(kind, permissions=permissions) as client:
        assert (await client.get(place(approval), headers=headers)).status_code == status


async def test_another_subjects_key_finds_nothing(call: Caller, approval: model.Approval) -> None:
    everything = ("approval:read", "approval:open", "approval:decide", "state:write")
    async with call("subject", permissions=everything, subject_id="user-2") as client:
        answers = [
            await client.get(place(approval)),
            await client.get(place(approval, "content")),
            await client.post(place(approval, "decisions"), json=DECIDE),
            await client.post(place(approval, "cancel")),
            await client.get(f"/v1/approvals/{str(approval.approval_id).upper()}"),
            await client.get("/v1/approvals/none"),
        ]
    assert [each.json()["code"] for each in answers] == ["approval-not-found"] * 6


async def test_opening_needs_no_more_than_its_permission_and_deciding_implies_it(
    call: Caller, approval: model.Approval, store: MemoryStore
) -> None:
    for permissions, status in [
        (("approval:open",), 200),
        (("approval:decide",), 200),
        (("approval:read", "state:read"), 403),
    ]:
        async with call("service", permissions=permissions) as client:
            assert (await client.get(place(approval, "content"))).status_code == status
    voter, share = store.approvals.opened[0]
    assert voter.key_id in store.tenants.api_keys
    assert voter.created_at == NOW
    assert share is None


async def test_what_is_hidden_is_shown_to_nobody_in_any_form(call: Caller, approval: model.Approval) -> None:
    async with call("service", permissions=("approval:open",)) as client:
        as_json = (await client.get(place(approval, "content"))).json()
        answer = await client.get(place(approval, "content"), headers={"Accept": "application/msgpack"})
    for shown in (as_json, msgpack.unpackb(answer.content)):
        [action] = shown["actions"]
        assert action["args"] == {
            "to": "Bob",
            "account": {"number": "DE02", "pin": "hidden, 3 bytes"},
            "lines": [1, "hidden, 7 bytes", 3],
            "~a/b": "hidden, 1 bytes",
        }
        assert action["edited_args"]["to"] == "Eve"
        assert "1234" not in str(action)
        assert "secret" not in str(action)
        assert action["args_schema"] == {"type": "object"}
        assert shown["allowed"] == ["approve", "reject"]


def test_all_arguments_can_be_hidden_and_a_pointer_to_nothing_hides_nothing() -> None:
    assert msgpack.unpackb(hidden(packed({"a": 1}), [""])) == "hidden, 4 bytes"
    assert msgpack.unpackb(hidden(packed({"a": [1]}), ["/a/01", "/a/-", "/a/x/y", "/b/c"])) == {"a": [1]}


async def test_a_decision_goes_to_storage_as_it_was_said(
    call: Caller, approval: model.Approval, store: MemoryStore
) -> None:
    body = {
        "action_hash": HASH,
        "verdicts": [
            {"verdict": "edit", "edited_args": {"amount": 900}, "message": "less"},
            {"verdict": "respond", "response": [1, None]},
            {"verdict": "reject"},
        ],
    }
    async with call("service", permissions=("approval:decide",)) as client:
        answer = await client.post(place(approval, "decisions"), json=body)
    assert answer.status_code == 200
    assert answer.json()["status"] == "approved"
    scope, decision, voter = store.approvals.decisions[0]
    assert scope == TenantListing(store.tenant_id)
    assert decision == model.Decision(
        approval.approval_id,
        HASH,
        (
            model.Verdict("edit", packed({"amount": 900}), None, "less"),
            model.Verdict("respond", None, packed([1, None])),
            model.Verdict("reject"),
        ),
    )
    assert (voter.principal, voter.asserted_principal, voter.break_glass) == (voter.key_id, None, False)


@pytest.mark.parametrize(
    "verdict",
    [
        {"verdict": "edit"},
        {"verdict": "edit", "edited_args": [1]},
        {"verdict": "approve", "edited_args": {}},
        {"verdict": "approve", "response": 1},
        {"verdict": "respond"},
        {"verdict": "maybe"},
        {"verdict": "approve", "unknown": 1},
    ],
)
async def test_a_verdict_that_is_none_is_refused(
    call: Caller, approval: model.Approval, store: MemoryStore, verdict: dict[str, object]
) -> None:
    async with call("service", permissions=("approval:decide",)) as client:
        answer = await client.post(place(approval, "decisions"), json={"action_hash": HASH, "verdicts": [verdict]})
    assert answer.status_code == 422
    assert not store.approvals.decisions


@pytest.mark.parametrize("digest", ["", "ab", "AB" * 32, HASH + "\n", "xy" * 32])
async def test_a_decision_without_the_hash_of_what_was_shown_is_refused(
    call: Caller, approval: model.Approval, digest: str
) -> None:
    async with call("service", permissions=("approval:decide",)) as client:
        answer = await client.post(place(approval, "decisions"), json={**DECIDE, "action_hash": digest})
    assert answer.status_code == 422


async def test_a_person_is_named_by_a_backend_that_may_and_in_one_spelling(
    call: Caller, approval: model.Approval, store: MemoryStore
) -> None:
    may, may_not = ("approval:decide", "approval:assert"), ("approval:decide",)
    for permissions, named, status in [
        (may_not, "ann", 403),
        (may, "ann lee", 422),
        (may, "~YW5u", 422),  # it would be ann
        (may, "~YW5uIGxlZQ", 200),
    ]:
        async with call("service", permissions=permissions) as client:
            answer = await client.post(
                place(approval, "decisions"), json=DECIDE, headers={"Stateroom-Principal": named}
            )
            assert answer.status_code == status, answer.text
    [(_, _, voter)] = store.approvals.decisions
    assert voter.named == "ann lee"
    assert voter.principal == voter.key_id


async def test_refusals_say_who_and_when_and_what_to_do(
    call: Caller, approval: model.Approval, store: MemoryStore
) -> None:
    async with call("service", permissions=("approval:decide",)) as client:
        store.approvals.error = ApprovalDecided("rejected", "ann", NOW)
        decided = (await client.post(place(approval, "decisions"), json=DECIDE)).json()
        store.approvals.error = ApprovalNotYours("x")
        not_yours = await client.post(place(approval, "decisions"), json=DECIDE)
    assert (decided["status"], decided["code"]) == (409, "approval-decided")
    assert "rejected by ann at 2026-01-02 03:04:05 UTC" in decided["detail"]
    assert (not_yours.status_code, not_yours.json()["code"]) == (403, "approval-not-yours")


async def test_who_acts_for_the_subject_takes_a_question_back(call: Caller, approval: model.Approval) -> None:
    async with call("subject", permissions=("state:write",)) as client:
        assert (await client.post(place(approval, "cancel"))).json()["status"] == "cancelled"
    async with call("service", permissions=("approval:decide", "approval:read")) as client:
        assert (await client.post(place(approval, "cancel"))).status_code == 403


async def test_a_list_is_of_whom_the_key_is_for_and_its_cursor_of_its_filters(
    call: Caller, approval: model.Approval, store: MemoryStore
) -> None:
    async with call("service", permissions=("approval:read",)) as client:
        first = (await client.get("/v1/approvals", params={"status": "pending", "limit": 1})).json()
        cursor = first["next_cursor"]
        more = {"status": "pending", "limit": 1, "cursor": cursor}
        assert (await client.get("/v1/approvals", params=more)).status_code == 200
        assert (await client.get("/v1/approvals", params={**more, "status": "expired"})).status_code == 422
        assert (await client.get("/v1/approvals", params={"status": "maybe"})).status_code == 422
    async with call("subject", permissions=("approval:read",)) as client:
        assert (await client.get("/v1/approvals", params=more)).status_code == 422
        await client.get("/v1/approvals", params={"agent": "a", "thread": "t/1"})
    (scope, _), (_, query), (own, filters) = store.approvals.queries
    assert scope == TenantListing(store.tenant_id)
    assert query.before == approval.approval_id
    assert own == Scope(store.tenant_id, "user-1")
    assert (filters.agent, filters.thread_id) == ("a", "t/1")


async def test_policies_are_of_administrators(call: Caller) -> None:
    async with call("service", permissions=("approval:decide", "approval:read")) as client:
        assert (await client.get("/v1/approval-policies")).status_code == 403
    async with call("service", permissions=("tenant:admin",)) as client:
        put = await client.put("/v1/approval-policies?tool=pay", json={"decisions_needed": 2, "required": True})
        [entry] = put.json()["policies"]
        assert (entry["agent"], entry["tool"], entry["policy"]["decisions_needed"]) == (None, "pay", 2)
        assert entry["policy"]["expires_seconds"] == 7 * 86_400
        for wrong in ({"decisions_needed": 6}, {"decisions_needed": 0}, {"expires_seconds": 1}, {"unknown": 1}):
            assert (await client.put("/v1/approval-policies", json=wrong)).status_code == 422
        assert (await client.delete("/v1/approval-policies?tool=pay")).json() == {"policies": []}


# --- asking ---------------------------------------------------------------------------------------------------------

QUESTION = {
    "external_id": "pay-1",
    "actions": [{"tool": "pay", "args": {"amount": 1200}, "args_schema": {"type": "object"}, "hide": ["/amount"]}],
    "message": "Pay?",
    "allowed": ["approve", "edit"],
}


async def test_a_save_asks_in_its_own_transaction_as_who_it_is(call: Caller, store: MemoryStore) -> None:
    body = {"state": {}, "status": "waiting", "agent": "payer", "approvals": [QUESTION], "approval_refs": ["sub-1"]}
    async with call("subject") as client:
        answer = await client.post("/v1/threads/t/checkpoints", json=body)
    assert answer.status_code == 201, answer.text
    [(_, save)] = store.checkpoints.saves
    [asked] = save.approvals
    assert asked.external_id == "pay-1"
    assert asked.allowed == {"approve", "edit"}
    [action] = asked.actions
    assert (action.args, action.args_schema) == (packed({"amount": 1200}), b'{"type":"object"}')
    assert save.approval_refs == ("sub-1",)
    assert save.asker is not None
    assert save.asker.key_id in store.tenants.api_keys


async def test_a_save_that_asks_nothing_says_nothing_of_it(call: Caller, store: MemoryStore) -> None:
    async with call("subject") as client:
        await client.post("/v1/threads/t/checkpoints", json={"state": {}})
    [(_, save)] = store.checkpoints.saves
    assert (save.approvals, save.approval_refs, save.asker) == ((), (), None)


@pytest.mark.parametrize(
    "wrong",
    [
        {"actions": []},
        {"actions": [{"tool": "pay", "args": {}}] * 33},
        {"actions": [{"tool": "pay", "args": [1]}]},
        {"actions": [{"tool": "pay", "args": {"n": 2**64}}]},
        {"actions": [{"tool": "pay", "args": {}, "args_schema": []}]},
        {"actions": [{"tool": "pay", "args": {}, "tool_digest": "x"}]},
        {"actions": [{"tool": "pay", "args": {}, "hide": ["amount"]}]},
        {"actions": [{"tool": "pay"}]},
        {"allowed": []},
        {"allowed": ["maybe"]},
        {"expires_seconds": 59},
        {"expires_seconds": 30 * 86_400 + 1},
        {"external_id": ""},
        {"unknown": 1},
    ],
)
async def test_a_question_that_is_none_is_refused(call: Caller, store: MemoryStore, wrong: dict[str, object]) -> None:
    body = {"state": {}, "approvals": [{**QUESTION, **wrong}]}
    async with call("subject") as client:
        answer = await client.post("/v1/threads/t/checkpoints", json=body)
    assert answer.status_code == 422, answer.text
    assert not store.checkpoints.saves


async def test_a_question_that_is_too_large_is_refused_by_name(call: Caller) -> None:
    large = {"tool": "pay", "args": {"text": "x" * (64 * 1024)}}
    body = {"state": {}, "approvals": [{**QUESTION, "actions": [large] * 5}]}
    async with call("subject") as client:
        answer = await client.post("/v1/threads/t/checkpoints", json=body)
    assert (answer.status_code, answer.json()["limit"]) == (422, "APPROVAL_CONTENT_BYTES_MAX")


# --- waiting --------------------------------------------------------------------------------------------------------


async def until(is_so: Callable[[], bool]) -> None:
    for _ in range(500):
        if is_so():
            return
        await asyncio.sleep(0.01)
    raise TimeoutError


async def test_who_waits_is_told_as_soon_as_this_process_decides_and_holds_no_place(
    call: Caller, app: Gateway, approval: model.Approval
) -> None:
    everything = ("approval:read", "approval:decide")
    async with call("service", permissions=everything) as client, asyncio.timeout(10):
        waiting = asyncio.create_task(client.get(place(approval), params={"wait_seconds": 30}))
        await until(lambda: app.services.waiters.count == 1 and app.services.admission.requests == 0)
        await client.post(place(approval, "decisions"), json=DECIDE)
        answer = await waiting
    assert answer.json()["status"] == "approved"
    assert app.services.waiters.count == 0


async def test_who_waits_is_told_of_what_another_process_decides(
    call: Caller, approval: model.Approval, store: MemoryStore
) -> None:
    async with call("subject", permissions=("approval:read",)) as client, asyncio.timeout(10):
        waiting = asyncio.create_task(client.get(place(approval), params={"wait_seconds": 30}))
        await asyncio.sleep(0.1)
        store.approvals.stored[approval.approval_id] = replace(approval, status="expired")
        assert (await waiting).json()["status"] == "expired"


async def test_what_is_decided_is_not_waited_for_and_time_ends_a_wait(
    call: Caller, approval: model.Approval, store: MemoryStore
) -> None:
    async with call("subject", permissions=("approval:read",)) as client, asyncio.timeout(10):
        assert (await client.get(place(approval), params={"wait_seconds": 1})).json()["status"] == "pending"
        assert (await client.head(place(approval), params={"wait_seconds": 30})).status_code == 200
        store.approvals.stored[approval.approval_id] = replace(approval, status="rejected")
        assert (await client.get(place(approval), params={"wait_seconds": 30})).json()["status"] == "rejected"
        assert (await client.get(place(approval), params={"wait_seconds": 31})).status_code == 422


async def test_a_key_that_is_revoked_meanwhile_is_told_nothing(
    call: Caller, approval: model.Approval, store: MemoryStore
) -> None:
    async with call("service", permissions=("approval:read",)) as client, asyncio.timeout(10):
        waiting = asyncio.create_task(client.get(place(approval), params={"wait_seconds": 30}))
        await asyncio.sleep(0.1)
        for key_id, record in store.tenants.api_keys.items():
            store.tenants.api_keys[key_id] = replace(record, revoked_at=NOW)
        store.approvals.stored[approval.approval_id] = replace(approval, status="approved")
        assert (await waiting).status_code == 401


async def test_more_may_not_wait_than_may_and_all_are_let_go_when_the_process_drains(
    call: Caller, app: Gateway, approval: model.Approval
) -> None:
    async with call("service", permissions=("approval:read",)) as client, asyncio.timeout(30):
        tasks: list[asyncio.Task[httpx.Response]] = []

        def is_count(count: int) -> bool:
            return app.services.waiters.count == count

        while len(tasks) < TENANT_WAITERS_MAX:  # fewer at once than a tenant may have under way
            tasks += [asyncio.create_task(client.get(place(approval), params={"wait_seconds": 30})) for _ in range(64)]
            await until(partial(is_count, len(tasks)))
        refused = await client.get(place(approval), params={"wait_seconds": 30})
        assert (refused.status_code, refused.json()["code"]) == (429, "too-many-waiters")
        assert (await client.get(place(approval))).status_code == 200
        app.services.drain.begin()
        answers: list[httpx.Response] = await asyncio.gather(*tasks)
        assert {each.json()["status"] for each in answers} == {"pending"}
        later = await client.get(place(approval), params={"wait_seconds": 30})
        assert (later.status_code, later.json()["code"]) == (503, "draining")
    assert app.services.waiters.count == 0
