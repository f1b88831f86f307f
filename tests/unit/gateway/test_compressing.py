"""Which answers are compressed, for whom, and that their length does not tell what one byte of them is."""

import gzip
import zlib

import pytest

from gateway.http import compressing
from gateway.http.compressing import accepts_gzip, compress

SAVE = "/v1/threads/t/checkpoints"
LATEST = f"{SAVE}/latest"
GZIP = {"Accept-Encoding": "gzip"}


@pytest.mark.parametrize(
    ("accept_encoding", "accepted"),
    [
        (None, False), (b"", False), (b"identity", False), (b"*", False), (b"br, zstd", False), (b"gzip", True),
        (b"GZIP;q=0.5, br", True), (b"gzip;q=0", False), (b"gzip;q=0.1, identity", False), (b"gzip;q=x", False),
        (b"deflate, gzip;q=1.0, *;q=0.5", True), (b"gzip;" * 9_000, True),
    ],
)  # fmt: skip
def test_gzip_is_used_where_it_is_named_and_not_liked_less(accept_encoding, accepted):
    assert accepts_gzip(accept_encoding) is accepted


@pytest.mark.parametrize("body", [b"", b"a" * 10_000, bytes(range(256)) * 100])
def test_every_padding_is_one_that_decoders_pass_over(body):
    packed = [compress(body) for _ in range(100)]
    assert {gzip.decompress(each) for each in packed} == {zlib.decompress(each, 31) for each in packed} == {body}


def test_the_length_of_one_content_differs_by_more_than_a_right_guess_would():
    lengths = {len(compress(b'{"secret":"abcdefgh","guess":"abcdefgh"}' * 40)) for _ in range(400)}
    guessed = len(gzip.compress(b'{"secret":"abcdefgh","guess":"abcdefgh"}', 1, mtime=0))
    missed = len(gzip.compress(b'{"secret":"abcdefgh","guess":"stuvwxyz"}', 1, mtime=0))
    assert max(lengths) - min(lengths) > 10 * (missed - guessed) > 0
    assert max(lengths) - min(lengths) < compressing.PADDING_BYTES_MAX


async def test_state_is_compressed_for_who_accepts_it_and_is_the_same_state(call):
    async with call() as client:
        saved = await client.post(SAVE, json={"state": {"a": "long " * 100_000}}, headers=GZIP)
        assert "content-encoding" not in saved.headers
        plain = await client.get(LATEST, headers={"Accept-Encoding": "identity"})
        packed = await client.get(LATEST, headers=GZIP)
        assert "content-encoding" not in plain.headers
        assert packed.headers["content-encoding"] == "gzip"
        assert int(packed.headers["content-length"]) < len(plain.content) // 50
        assert packed.json() == plain.json()
        assert packed.headers["etag"] == plain.headers["etag"]
        assert {"accept", "accept-encoding"} <= set(packed.headers["vary"].split(", "))
        small = await client.get(LATEST, params={"view": "none"}, headers=GZIP)
        assert "content-encoding" not in small.headers


async def test_what_holds_a_secret_of_ours_is_never_compressed(call):
    async with call("service", permissions=("tenant:admin",)) as client:
        answer = await client.get("/v1/whoami", headers=GZIP)
        assert answer.status_code == 200
        assert "content-encoding" not in answer.headers


@pytest.mark.parametrize("path", ["/openapi.json", "/docs"])
async def test_the_documentation_is_compressed(call, path):
    async with call(None) as client:
        plain = await client.get(path, headers={"Accept-Encoding": "identity"})
        packed = await client.get(path, headers=GZIP)
    assert packed.headers["content-encoding"] == "gzip"
    assert int(packed.headers["content-length"]) < len(plain.content) // 4
    assert packed.content == plain.content
    assert packed.headers["content-type"] == plain.headers["content-type"]


@pytest.mark.parametrize("path", ["/openapi.json", "/docs"])
async def test_who_has_the_documentation_is_not_sent_it_again(call, path):
    async with call(None) as client:
        first = await client.get(path, headers=GZIP)
        tag = first.headers["etag"]
        assert tag.startswith('W/"')
        for known in (tag, tag.removeprefix("W/"), f'"x", {tag}', "*"):
            again = await client.get(path, headers={**GZIP, "If-None-Match": known})
            assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
        assert (await client.head(path, headers={"If-None-Match": tag})).status_code == 304
        for other in ('"x"', 'W/"x"', ""):
            assert (await client.get(path, headers={"If-None-Match": other})).status_code == 200
