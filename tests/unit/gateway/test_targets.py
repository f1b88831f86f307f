"""A path has one spelling: whatever else a proxy could let pass names nothing."""

import pytest

BODY = {"state": {}}
OTHERS = [
    "/v1%2fadmin/tenants",
    "/v1%2Fadmin/tenants",
    "//v1//admin//tenants",
    "/v1/admin//tenants",
    "/%76%31/admin/tenants",
    "/v1/%61dmin/tenants",
    "/v1/admin/tenants/",
    "/v1/admin/tenants%2F",
    "/v1/admin%2ftenants",
    "/v1/admin/%2e%2e/threads",
    "/v1/threads%3Aprune",
    "/v1/threads:%70rune",
    "/v1/threads/a%2Fb",
    "/v1/threads/a%2fb",
    "/v1/threads/%61",
    "/v1/threads/a%7eb",
    "/v1/threads/a%4",
    "/v1/threads/a%3a",
    "/v1/threads//checkpoints",
    "/v1/threads/t/checkpoints/",
    "/v1/threads/t/checkpoints/%6Catest",
    "/%6Civez",
    "/livez/",
]


@pytest.mark.parametrize("kind", ["operator", "subject"])
@pytest.mark.parametrize("path", OTHERS)
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
async def test_another_spelling_of_a_path_names_nothing(call_one_app, method, path, kind):
    async with call_one_app(kind) as client:
        answer = await client.request(method, path, **({"json": BODY} if method == "POST" else {}))
    assert (answer.status_code, answer.json()["code"]) == (404, "not-found"), answer.text
    assert "~ and its base64url" in answer.json()["detail"]


@pytest.mark.parametrize("thread", ["a:b@c+d|e", "a%3Ab%40c%2Bd%7Ce"])
async def test_what_an_id_may_hold_may_be_encoded_or_not(call_one_app, thread):
    async with call_one_app() as client:
        answer = await client.post(f"/v1/threads/{thread}/checkpoints", json=BODY)
    assert (answer.status_code, answer.json()["thread_id"]) == (201, "a:b@c+d|e")


@pytest.mark.parametrize("thread", ["%C3%A4", "%00", "%20", "%25"])
async def test_an_id_that_must_be_encoded_otherwise_is_told_so(call_one_app, thread):
    async with call_one_app() as client:
        answer = await client.get(f"/v1/threads/{thread}")
    assert (answer.status_code, answer.json()["errors"][0]["parameter"]) == (422, "thread_id")
