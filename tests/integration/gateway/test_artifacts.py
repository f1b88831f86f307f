"""Artifacts over HTTP, on real engines: what goes up comes down, and only that."""

import base64
import hashlib
import http.client
import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from random import Random  # noqa: TID251  seeded: the same ranges every time
from typing import Any
from urllib.parse import quote, urlsplit
from uuid import uuid4

import httpx
import psutil
import pytest

from gateway.http.artifact_headers import CONTENT_POLICY
from tests.support.gateway import GatewayProcess
from tests.support.operations import Tenancy, assert_problem

PART = 8 * 1024 * 1024
MIB = 1024 * 1024


def digest_field(content: bytes) -> str:
    return f"sha-256=:{base64.b64encode(hashlib.sha256(content).digest()).decode()}:"


@pytest.fixture(scope="module")
def tenancy(running_gateway: GatewayProcess) -> Tenancy:
    return Tenancy(running_gateway)


@pytest.fixture(scope="module")
def client(tenancy: Tenancy) -> Iterator[httpx.Client]:
    with tenancy.client(tenancy.tenant(), "files") as opened:
        yield opened


def store(client: httpx.Client, content: bytes, thread: str | None = None, name: str = "a.bin", **headers: str) -> Any:
    named = {"Stateroom-Artifact-Name": name, **{one.replace("_", "-"): text for one, text in headers.items()}}
    answer = client.post(f"/v1/threads/{thread or uuid4()}/artifacts", content=content, headers=named)
    assert answer.status_code in ({201, 200} if "Idempotency-Key" in named else {201}), answer.text
    return answer.json()


def content_of(artifact: Any) -> str:
    return f"/v1/artifacts/{artifact['artifact_id']}/content"


def test_everything_that_was_said_of_a_file_comes_back(client: httpx.Client) -> None:
    metadata = {"step": 3, "tags": ["ü", None]}
    made = store(
        client,
        b"\x89PNG",
        name="UTF-8''" + quote("écran 截图.png", safe=""),
        Content_Type="image/png",
        Stateroom_Artifact_Metadata=base64.urlsafe_b64encode(json.dumps(metadata).encode()).decode(),
        Stateroom_Artifact_Preview=base64.urlsafe_b64encode(b"thumb").decode().rstrip("="),
    )
    shown = client.get(f"/v1/artifacts/{made['artifact_id']}").json()
    assert shown == made
    assert made["name"] == "écran 截图.png"
    assert made["metadata"] == metadata
    assert base64.b64decode(made["preview"]) == b"thumb"
    assert made["pointer"] == f"stateroom:artifact:{made['artifact_id']}"
    assert (made["media_type"], made["size_bytes"], made["digest"]) == ("image/png", 4, digest_field(b"\x89PNG"))


@pytest.mark.parametrize("size", [0, 1, 16_384, PART - 1, PART, PART + 1, 2 * PART])
def test_a_file_of_any_size_comes_back_whole(client: httpx.Client, size: int) -> None:
    content = os.urandom(size)
    made = store(client, content, Content_Digest=digest_field(content))
    answer = client.get(content_of(made))
    assert (answer.status_code, answer.content == content) == (200, True)
    assert answer.headers["content-length"] == str(size)
    asking = {"Want-Content-Digest": "sha-512=3, sha-256=10", "Want-Repr-Digest": "sha-256=1"}
    asked = client.get(content_of(made), headers=asking).headers
    assert asked["content-digest"] == asked["repr-digest"] == digest_field(content)
    headed = client.head(content_of(made))
    assert (headed.status_code, headed.content, headed.headers["content-length"]) == (200, b"", str(size))


def test_random_ranges_are_slices_of_the_content(client: httpx.Client) -> None:
    content = os.urandom(2 * PART + 12_345)
    made = store(client, content)
    chance = Random(4)  # noqa: S311  repeatable
    for _ in range(60):
        start = chance.randrange(len(content))
        last = min(len(content) + 3, start + chance.choice([0, 1, 100, 16_384, 200_000]))
        answer = client.get(content_of(made), headers={"Range": f"bytes={start}-{last}"})
        assert answer.status_code == 206
        assert answer.content == content[start : last + 1]
        end = min(last, len(content) - 1)
        assert answer.headers["content-range"] == f"bytes {start}-{end}/{len(content)}"
        assert "content-digest" not in answer.headers
    for header, expected in {"bytes=-5": content[-5:], f"bytes={len(content) - 2}-": content[-2:]}.items():
        answer = client.get(content_of(made), headers={"Range": header})
        assert (answer.status_code, answer.content) == (206, expected)


@pytest.mark.parametrize("header", ["bytes=5-1", "bytes=0-1,3-4", "items=0-1", "bytes=a-b", "bytes=-", "bytes"])
def test_what_is_no_single_range_of_bytes_gives_all_of_it(client: httpx.Client, header: str) -> None:
    made = store(client, b"0123456789")
    answer = client.get(content_of(made), headers={"Range": header})
    assert (answer.status_code, answer.content) == (200, b"0123456789")


@pytest.mark.parametrize(("content", "header"), [(b"0123", "bytes=4-"), (b"", "bytes=0-0"), (b"0123", "bytes=-0")])
def test_a_range_without_a_byte_says_how_long_the_content_is(client: httpx.Client, content: bytes, header: str) -> None:
    answer = client.get(content_of(store(client, content)), headers={"Range": header})
    assert_problem(answer, 416, "range-not-satisfiable")
    assert answer.headers["content-range"] == f"bytes */{len(content)}"


@pytest.mark.parametrize("want", [None, "sha-256=10"])
def test_no_header_lets_who_is_on_the_way_guess_a_content(client: httpx.Client, want: str | None) -> None:
    content = b"a known file"
    made, namesake = store(client, content), store(client, content)
    url = client.post(f"/v1/artifacts/{made['artifact_id']}/urls", json={"ttl_seconds": 60}).json()["url"]
    wanting = {} if want is None else {"Want-Repr-Digest": want, "Want-Content-Digest": want}
    signed = client.get(httpx.URL(url).path, headers=wanting)
    plain = client.get(content_of(made))
    digest = hashlib.sha256(content)
    for answer in (
        signed,
        plain,
        client.head(content_of(made)),
        client.get(content_of(made), headers={"Range": "bytes=0-1"}),
    ):
        assert answer.is_success
        said = str(answer.headers.raw)
        assert digest.hexdigest() not in said
        assert digest_field(content) not in said
    assert signed.headers["etag"] == plain.headers["etag"]
    assert plain.headers["etag"] != client.get(content_of(namesake)).headers["etag"]


def test_conditions_compare_the_etag(client: httpx.Client) -> None:
    made = store(client, b"0123456789")
    tag = client.get(content_of(made)).headers["etag"]
    for header in (tag, f'"x", W/{tag}', "*"):
        answer = client.get(content_of(made), headers={"If-None-Match": header})
        assert (answer.status_code, answer.content, answer.headers["etag"]) == (304, b"", tag)
    assert client.get(content_of(made), headers={"If-None-Match": '"x"'}).status_code == 200
    for header in (tag, f'"x", {tag}', "*"):
        assert client.get(content_of(made), headers={"If-Match": header}).content == b"0123456789"
    for header in ('"x"', f"W/{tag}"):
        assert_problem(client.get(content_of(made), headers={"If-Match": header}), 412, "content-changed")
    ranged = {"Range": "bytes=0-1"}
    assert client.get(content_of(made), headers={**ranged, "If-Range": tag}).status_code == 206
    for other in ('"x"', f"W/{tag}", "Wed, 21 Oct 2015 07:28:00 GMT"):
        assert client.get(content_of(made), headers={**ranged, "If-Range": other}).status_code == 200


FAR = "Tue, 01 Jan 2999 00:00:00 GMT"
LONG_AGO = "Sun, 06 Nov 1994 08:49:37 GMT"


@pytest.mark.parametrize(
    "old", [LONG_AGO, "Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994"], ids=["imf", "rfc 850", "asctime"]
)
def test_conditions_on_dates_compare_when_the_artifact_was_made(client: httpx.Client, old: str) -> None:
    made = store(client, b"0123456789")
    modified = client.get(content_of(made)).headers["last-modified"]
    stale = client.get(content_of(made), headers={"If-Unmodified-Since": old})
    assert_problem(stale, 412, "content-changed")
    assert_problem(client.get(content_of(made), headers={"If-Unmodified-Since": old, "Range": "bytes=0-1"}), 412)
    assert client.get(content_of(made), headers={"If-Modified-Since": old}).content == b"0123456789"
    for since in (modified, FAR):
        assert client.get(content_of(made), headers={"If-Unmodified-Since": since}).content == b"0123456789"
        answer = client.get(content_of(made), headers={"If-Modified-Since": since})
        assert (answer.status_code, answer.content) == (304, b"")


@pytest.mark.parametrize(
    "text", ["yesterday", "0", "Sun, 06 Nov 1994 08:49:37 +0000", "06 Nov 1994", "", f"{LONG_AGO}, {FAR}"]
)
def test_what_is_no_http_date_is_no_condition(client: httpx.Client, text: str) -> None:
    made = store(client, b"0123456789")
    for name in ("If-Unmodified-Since", "If-Modified-Since"):
        assert client.get(content_of(made), headers={name: text}).content == b"0123456789"


def test_an_etag_counts_more_than_a_date(client: httpx.Client) -> None:
    made = store(client, b"0123456789")
    tag = client.get(content_of(made)).headers["etag"]
    assert client.get(content_of(made), headers={"If-Match": tag, "If-Unmodified-Since": LONG_AGO}).status_code == 200
    wrong = {"If-Match": '"x"', "If-Unmodified-Since": FAR}
    assert_problem(client.get(content_of(made), headers=wrong), 412, "content-changed")
    assert client.get(content_of(made), headers={"If-None-Match": '"x"', "If-Modified-Since": FAR}).status_code == 200
    known = {"If-None-Match": tag, "If-Modified-Since": LONG_AGO}
    assert client.get(content_of(made), headers=known).status_code == 304
    refused = {"If-None-Match": tag, "If-Unmodified-Since": LONG_AGO}
    assert_problem(client.get(content_of(made), headers=refused), 412, "content-changed")


def test_other_content_than_the_digest_says_is_refused_and_not_stored(client: httpx.Client) -> None:
    thread = str(uuid4())
    headers = {"Stateroom-Artifact-Name": "a", "Content-Digest": digest_field(b"other")}
    answer = client.post(f"/v1/threads/{thread}/artifacts", content=b"this", headers=headers)
    assert_problem(answer, 400, "digest-mismatch")
    assert client.get(f"/v1/threads/{thread}/artifacts").json()["artifacts"] == []


def test_versions_of_a_name_are_numbered_in_their_thread_and_listed_newest_first(client: httpx.Client) -> None:
    thread = str(uuid4())
    made = [store(client, bytes([n]), thread, name) for n, name in enumerate(["a", "b", "a", "a"])]
    assert [each["version"] for each in made] == [1, 1, 2, 3]
    assert store(client, b"x", None, "a")["version"] == 1
    listed = client.get(f"/v1/threads/{thread}/artifacts").json()["artifacts"]
    assert listed == made[::-1]
    of_one = client.get(f"/v1/threads/{thread}/artifacts", params={"name": "a", "limit": 2}).json()
    assert [each["version"] for each in of_one["artifacts"]] == [3, 2]
    rest = client.get(
        f"/v1/threads/{thread}/artifacts", params={"name": "a", "limit": 2, "cursor": of_one["next_cursor"]}
    )
    assert [each["version"] for each in rest.json()["artifacts"]] == [1]


def test_the_same_idempotency_key_stores_once_and_another_content_under_it_is_refused(client: httpx.Client) -> None:
    thread = str(uuid4())
    first = store(client, b"one", thread, Idempotency_Key="k")
    assert store(client, b"one", thread, Idempotency_Key="k") == first
    answer = client.post(
        f"/v1/threads/{thread}/artifacts",
        content=b"two",
        headers={"Stateroom-Artifact-Name": "a.bin", "Idempotency-Key": "k"},
    )
    assert_problem(answer, 422, "idempotency-key-reused")
    assert len(client.get(f"/v1/threads/{thread}/artifacts").json()["artifacts"]) == 1
    begun = [
        client.post(f"/v1/threads/{thread}/uploads", json={"name": "u"}, headers={"Idempotency-Key": "u"}).json()
        for _ in range(2)
    ]
    assert begun[0]["upload_id"] == begun[1]["upload_id"]


def test_a_copy_outlives_its_source_and_its_own_name_counts(client: httpx.Client) -> None:
    content = os.urandom(100_000)
    made, target = store(client, content), str(uuid4())
    copied = client.post(f"/v1/artifacts/{made['artifact_id']}/copy", json={"thread_id": target, "name": "b"})
    assert copied.status_code == 201, copied.text
    shown = copied.json()
    assert (shown["name"], shown["version"], shown["thread_id"]) == ("b", 1, target)
    assert shown["artifact_id"] != made["artifact_id"]
    assert shown["digest"] == made["digest"]
    assert client.delete(f"/v1/artifacts/{made['artifact_id']}").status_code == 204
    assert_problem(client.get(f"/v1/artifacts/{made['artifact_id']}"), 404, "artifact-not-found")
    assert client.get(content_of(shown)).content == content


# --- uploads in parts ------------------------------------------------------------------------------------------------


def begin(client: httpx.Client, **more: Any) -> Any:
    begun = client.post(f"/v1/threads/{uuid4()}/uploads", json={"name": "big", **more})
    assert begun.status_code == 201, begun.text
    return begun.json()


def put(client: httpx.Client, upload: Any, number: int, content: bytes, **headers: str) -> httpx.Response:
    return client.put(f"/v1/uploads/{upload['upload_id']}/parts/{number}", content=content, headers=headers)


def complete(client: httpx.Client, upload: Any, parts: int, content: bytes | None = None) -> httpx.Response:
    body = {"parts": parts} | ({} if content is None else {"digest": digest_field(content)})
    return client.post(f"/v1/uploads/{upload['upload_id']}/complete", json=body)


@pytest.mark.parametrize("size", [0, 5, PART, PART + 1, 2 * PART])
@pytest.mark.parametrize("backwards", [False, True])
def test_parts_in_any_order_make_the_file(client: httpx.Client, size: int, backwards: bool) -> None:
    content = os.urandom(size)
    upload = begin(client, size_bytes=size)
    parts = [content[at : at + PART] for at in range(0, size, PART)]
    numbered = list(enumerate(parts))
    for number, part in reversed(numbered) if backwards else numbered:
        stored = put(client, upload, number, part, **{"Content-Digest": digest_field(part)})
        assert stored.json() == {"part_number": number, "size_bytes": len(part), "digest": digest_field(part)}
    done = complete(client, upload, len(parts), content)
    assert done.status_code == 201, done.text
    assert complete(client, upload, len(parts), content).json() == done.json()
    assert done.json()["digest"] == digest_field(content)
    assert client.get(content_of(done.json())).content == content


def test_a_part_that_is_sent_again_replaces_the_first_and_the_same_one_changes_nothing(client: httpx.Client) -> None:
    first, second, last = os.urandom(PART), os.urandom(PART), b"end"
    upload = begin(client)
    for content in (first, first, second):
        assert put(client, upload, 0, content).status_code == 200
    assert put(client, upload, 1, last).status_code == 200
    shown = client.get(f"/v1/uploads/{upload['upload_id']}").json()
    assert [each["digest"] for each in shown["parts"]] == [digest_field(second), digest_field(last)]
    done = complete(client, upload, 2, second + last)
    assert done.status_code == 201, done.text
    assert client.get(content_of(done.json())).content == second + last


def test_an_upload_that_is_not_whole_cannot_be_completed(client: httpx.Client) -> None:
    upload = begin(client)
    assert put(client, upload, 0, b"short").status_code == 200
    assert put(client, upload, 2, b"third").status_code == 200
    assert_problem(complete(client, upload, 3), 409, "upload-incomplete")
    assert put(client, upload, 1, b"x" * PART).status_code == 200
    problem = assert_problem(complete(client, upload, 3), 409, "upload-incomplete")
    assert "part 0 is shorter" in problem["detail"]
    assert_problem(complete(client, upload, 2), 409, "upload-incomplete")
    announced = begin(client, size_bytes=7)
    assert_problem(put(client, announced, 0, b"12345678"), 422, "part-invalid")
    assert put(client, announced, 0, b"1234").status_code == 200
    assert_problem(complete(client, announced, 1), 409, "upload-incomplete")


def test_a_part_that_no_upload_has_is_refused(client: httpx.Client) -> None:
    upload = begin(client)
    assert_problem(put(client, upload, 6400, b"x"), 422, "part-invalid")
    assert_problem(put(client, upload, 0, b"x" * (PART + 1)), 413, "body-too-large")
    assert_problem(put(client, upload, 0, b"x", **{"Content-Digest": digest_field(b"y")}), 400, "digest-mismatch")
    for number in ("-1", "01", "x", "1.0", "٣"):
        answer = client.put(f"/v1/uploads/{upload['upload_id']}/parts/{quote(number)}", content=b"x")
        assert_problem(answer, 422, "invalid-request")
    assert client.get(f"/v1/uploads/{upload['upload_id']}").json()["parts"] == []
    wrong = put(client, upload, 0, b"x")
    assert wrong.status_code == 200
    assert_problem(complete(client, upload, 1, b"other"), 400, "digest-mismatch")
    assert put(client, upload, 0, b"other").status_code == 200
    assert complete(client, upload, 1, b"other").status_code == 201


def test_an_upload_that_was_given_up_is_gone(client: httpx.Client) -> None:
    upload = begin(client)
    assert put(client, upload, 0, b"x").status_code == 200
    path = f"/v1/uploads/{upload['upload_id']}"
    assert client.delete(path).status_code == 204
    for answer in (client.delete(path), client.get(path), put(client, upload, 0, b"x"), complete(client, upload, 1)):
        assert_problem(answer, 404, "upload-not-found")


# --- signed URLs -----------------------------------------------------------------------------------------------------


def url_of(client: httpx.Client, artifact: Any, **body: Any) -> str:
    made = client.post(f"/v1/artifacts/{artifact['artifact_id']}/urls", json=body)
    assert made.status_code == 200, made.text
    return str(made.json()["url"])


def test_a_signed_url_shows_a_picture_and_nothing_can_run_in_it(client: httpx.Client, tenancy: Tenancy) -> None:
    made = store(client, b"\x89PNG", name="a.png", Content_Type="image/png")
    url = url_of(client, made, disposition="inline")
    with tenancy.client(None) as browser:
        answer = browser.get(url, headers={"Accept": "image/png"})
        assert (answer.status_code, answer.content) == (200, b"\x89PNG")
        expected = {
            "content-type": "image/png",
            "content-security-policy": CONTENT_POLICY,
            "referrer-policy": "no-referrer",
            "x-content-type-options": "nosniff",
            "cache-control": "private, no-store",
        }
        assert {name: answer.headers[name] for name in expected} == expected
        assert answer.headers["content-disposition"].startswith("inline;")
        assert browser.get(url, headers={"Range": "bytes=1-2"}).content == b"PN"
        for method in ("POST", "PUT", "DELETE", "PATCH"):
            assert_problem(browser.request(method, url), 405, "method-not-allowed")


@pytest.mark.parametrize(
    "media_type", ["image/svg+xml", "IMAGE/SVG+XML", "text/html", "application/xhtml+xml", "text/xml", "image/svg"]
)
def test_what_could_run_is_never_shown_in_place(client: httpx.Client, tenancy: Tenancy, media_type: str) -> None:
    made = store(client, b"<script>", Content_Type=media_type)
    refused = client.post(f"/v1/artifacts/{made['artifact_id']}/urls", json={"disposition": "inline"})
    assert assert_problem(refused, 422)["errors"][0]["pointer"] == "/disposition"
    with tenancy.client(None) as browser:
        answer = browser.get(url_of(client, made))
    assert answer.headers["content-disposition"].startswith("attachment;")
    assert "sandbox" in answer.headers["content-security-policy"]


def test_revoking_ends_every_url_made_so_far_and_none_made_later(client: httpx.Client, tenancy: Tenancy) -> None:
    made, other = store(client, b"1"), store(client, b"2")
    first, second, others = url_of(client, made), url_of(client, made), url_of(client, other)
    assert client.delete(f"/v1/artifacts/{made['artifact_id']}/urls").status_code == 204
    later = url_of(client, made)
    with tenancy.client(None) as browser:
        for url in (first, second):
            assert_problem(browser.get(url), 403, "artifact-url-invalid")
        assert browser.get(later).content == b"1"
        assert browser.get(others).content == b"2"
        assert client.delete(f"/v1/artifacts/{made['artifact_id']}").status_code == 204
        assert_problem(browser.get(later), 403, "artifact-url-invalid")


def test_a_url_that_was_changed_anywhere_opens_nothing(client: httpx.Client, tenancy: Tenancy) -> None:
    url = url_of(client, store(client, b"1"))
    base, _, token = url.rpartition("/")
    changed = [token[:at] + ("A" if token[at] != "A" else "B") + token[at + 1 :] for at in range(len(token))]
    changed += [token[:-1], token + "A", token + "=", "", "x" * 5000, token.lower(), quote("é")]
    with tenancy.client(None) as browser:
        assert browser.get(url).status_code == 200
        for each in changed:
            assert browser.get(f"{base}/{each}").status_code in {403, 404}, each


# --- limits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "text"),
    [
        ("Stateroom-Artifact-Name", None),
        ("Stateroom-Artifact-Name", ""),
        ("Stateroom-Artifact-Name", "UTF-8''%FF"),
        ("Stateroom-Artifact-Name", "UTF-8''%00"),
        ("Stateroom-Artifact-Name", "UTF-8''%0d%0aX:y"),
        ("Stateroom-Artifact-Name", "UTF-8''" + "%C3%A4" * 128),
        ("Stateroom-Artifact-Metadata", "!"),
        ("Stateroom-Artifact-Metadata", base64.urlsafe_b64encode(b"[]").decode()),
        ("Stateroom-Artifact-Metadata", base64.urlsafe_b64encode(b'{"a":"' + b"x" * 16_384 + b'"}').decode()),
        ("Stateroom-Artifact-Preview", base64.urlsafe_b64encode(b"x" * 4097).decode()),
        ("Content-Type", "text"),
        ("Content-Type", 'text/html; a="'),
        ("Content-Type", "a/" + "b" * 300),
        ("Content-Digest", "sha-256=:AAAA:"),
        ("Content-Digest", "md5=:AAAA:"),
    ],
)
def test_a_wrong_header_is_named_and_nothing_is_stored(client: httpx.Client, header: str, text: str | None) -> None:
    thread = str(uuid4())
    headers = {"Stateroom-Artifact-Name": "a"} | ({} if text is None else {header: text})
    if text is None:
        del headers[header]
    answer = client.post(f"/v1/threads/{thread}/artifacts", content=b"x", headers=headers)
    assert assert_problem(answer, 422, "invalid-request")["errors"][0]["header"] == header
    assert_problem(client.get(f"/v1/threads/{thread}/artifacts"), 404, "thread-not-found")


def test_a_body_announced_longer_than_any_artifact_is_refused_unread(
    client: httpx.Client, running_gateway: GatewayProcess
) -> None:
    address = urlsplit(running_gateway.url)
    with socket.create_connection((address.hostname or "", address.port or 0), timeout=10) as wire:
        wire.sendall(
            f"POST /v1/threads/t/artifacts HTTP/1.1\r\nHost: x\r\nAuthorization: {client.headers['authorization']}\r\n"
            f"Stateroom-Subject: files\r\nStateroom-Artifact-Name: a\r\nContent-Length: {51 * 1024**3}\r\n\r\n".encode()
        )
        assert wire.recv(65_536).startswith(b"HTTP/1.1 413 ")


def test_a_file_under_a_share_opens_with_that_share_only(client: httpx.Client) -> None:
    share, wrong = (base64.b64encode(os.urandom(32)).decode() for _ in range(2))
    thread = str(uuid4())
    made = store(client, b"secret", thread, Stateroom_Client_Share=share)
    with_share, with_wrong = {"Stateroom-Client-Share": share}, {"Stateroom-Client-Share": wrong}
    assert client.get(content_of(made), headers=with_share).content == b"secret"
    for path in (content_of(made), f"/v1/artifacts/{made['artifact_id']}", f"/v1/threads/{thread}/artifacts"):
        assert_problem(client.get(path), 400, "client-share-required")
        assert_problem(client.get(path, headers=with_wrong), 403, "client-share-wrong")
    urls = f"/v1/artifacts/{made['artifact_id']}/urls"
    assert_problem(client.post(urls, json={}, headers=with_share), 409, "artifact-shared")
    plain = store(client, b"open")
    assert_problem(client.get(content_of(plain), headers=with_share), 409, "client-share-unexpected")
    upload = client.post(f"/v1/threads/{thread}/uploads", json={"name": "u"}, headers=with_share).json()
    path = f"/v1/uploads/{upload['upload_id']}"
    assert_problem(client.get(path), 400, "client-share-required")
    assert_problem(client.put(f"{path}/parts/0", content=b"x", headers=with_wrong), 403, "client-share-wrong")
    assert client.put(f"{path}/parts/0", content=b"x", headers=with_share).status_code == 200
    done = client.post(f"{path}/complete", json={"parts": 1}, headers=with_share)
    assert done.status_code == 201, done.text


def _peak(process: psutil.Process, work: Any) -> int:
    """The greatest resident size while ``work`` yields."""
    peak = 0
    for _ in work:
        peak = max(peak, process.memory_info().rss)
    return peak


def _up(client: httpx.Client, thread: str, size: int, block: bytes, made: dict[str, Any]) -> Iterator[None]:
    address = client.base_url
    connection = http.client.HTTPConnection(address.host, address.port or 80, timeout=60)
    connection.putrequest("POST", f"/v1/threads/{thread}/artifacts")
    sent = {"Stateroom-Artifact-Name": "big", "Content-Length": str(size)}
    for name in ("authorization", "stateroom-subject"):
        sent[name] = client.headers[name]
    for name, text in sent.items():
        connection.putheader(name, text)
    connection.endheaders()
    for _ in range(size // len(block)):
        connection.send(block)
        yield
    answer = connection.getresponse()
    assert answer.status == 201
    made.update(json.load(answer))
    connection.close()


def _down(client: httpx.Client, made: dict[str, Any], digest: Any) -> Iterator[None]:
    with client.stream("GET", content_of(made)) as answer:
        for chunk in answer.iter_raw(MIB):
            digest.update(chunk)
            yield


def assert_memory_is_bounded(gateway: GatewayProcess, client: httpx.Client, size: int) -> None:
    process = psutil.Process(gateway.pid)
    block = os.urandom(4 * MIB)
    store(client, b"warm", None)
    idle = process.memory_info().rss
    made: dict[str, Any] = {}
    peak = _peak(process, _up(client, str(uuid4()), size, block, made))
    digest = hashlib.sha256()
    begun = time.monotonic()
    peak = max(peak, _peak(process, _down(client, made, digest)))
    rate = size / MIB / (time.monotonic() - begun)
    sys.stderr.write(f"\nidle {idle / MIB:.0f} MiB, peak {peak / MIB:.0f} MiB, down {rate:.0f} MiB/s\n")
    expected = hashlib.sha256()
    for _ in range(size // len(block)):
        expected.update(block)
    assert digest.digest() == expected.digest()
    assert made["digest"] == f"sha-256=:{base64.b64encode(expected.digest()).decode()}:"
    assert peak - idle < 128 * MIB


def test_memory_does_not_grow_with_a_file(running_gateway: GatewayProcess, client: httpx.Client) -> None:
    assert_memory_is_bounded(running_gateway, client, 256 * MIB)


@pytest.mark.soak
def test_memory_does_not_grow_with_a_file_of_4_gib(running_gateway: GatewayProcess, client: httpx.Client) -> None:
    assert_memory_is_bounded(running_gateway, client, 4096 * MIB)
