"""What of a request the gateway notes for the audit log."""

import base64

from storage.format.audit import OPERATOR_CHAIN


async def test_every_access_of_a_subjects_rows_is_noted_with_who_and_whose(call, store):
    async with call("service") as client:
        await client.get("/v1/threads/t1", headers={"Stateroom-Subject": "user-9"})
        await client.get("/v1/threads", headers={"Stateroom-Subject": "user-9"})
    (one, listed) = store.audit.notes
    actor = one[1]
    assert actor.startswith("api-key:")
    assert one == (store.tenant_id, actor, "get_thread", "subject/user-9/thread/t1", 404)
    assert listed == (store.tenant_id, actor, "list_threads", "subject/user-9", 200)


async def test_ids_are_noted_as_they_travel_so_that_none_can_look_like_another(call, store):
    subject = "~" + base64.urlsafe_b64encode(b"u/thread/t").decode().rstrip("=")
    async with call("service") as client:
        await client.get("/v1/threads/t1", headers={"Stateroom-Subject": subject})
    assert store.audit.notes[0][3] == f"subject/{subject}/thread/t1"


async def test_what_is_no_id_is_not_noted_because_it_can_be_any_text(call, store):
    async with call("service") as client:
        for text in ("%00my-password", "a%20word", "~bad", "x" * 5000):
            answer = await client.get(f"/v1/threads/{text}", headers={"Stateroom-Subject": "user-9"})
            assert answer.status_code == 422
    assert [note[2:] for note in store.audit.notes] == [("get_thread", "subject/user-9", 422)] * 4


async def test_administration_is_noted_on_the_tenants_and_on_the_operators_chain(call, store):
    async with call("service") as client:
        await client.get("/v1/api-keys")
    async with call("operator") as client:
        await client.get("/v1/admin/tenants")
    assert [(note[0], note[2], note[3]) for note in store.audit.notes] == [
        (store.tenant_id, "list_api_keys", "tenant"),
        (OPERATOR_CHAIN, "list_tenants", "operators"),
    ]


async def test_who_was_not_let_in_or_asked_for_nobodys_rows_is_not_noted(call, store):
    async with call(None) as client:
        await client.get("/v1/threads/t1")
        await client.get("/livez")
    async with call("subject") as client:
        await client.get("/v1/whoami")
        await client.get("/v1/threads/t1", headers={"Stateroom-Subject": "somebody-else"})
        await client.get("/v1/nowhere")
    assert store.audit.notes == []
