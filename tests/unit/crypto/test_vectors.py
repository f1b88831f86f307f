"""Published vectors: Wycheproof and C2SP XAES, from `tests/vectors`, and NIST CAVP, from `cryptography_vectors`."""

import hashlib
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cryptography_vectors
import pytest
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from crypto.ciphers import cobblestone, xaes
from crypto.errors import OpenError
from tests.support.cobblestone_streams import open_stream, seal_stream

VECTORS = Path(__file__).resolve().parents[2] / "vectors"


def wycheproof(name: str, expected_count: int) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    document = json.loads((VECTORS / "wycheproof" / name).read_text())
    cases = [(group, case) for group in document["testGroups"] for case in group["tests"]]
    assert len(cases) == expected_count
    yield from cases


def xaes_vectors() -> Any:
    return json.loads((VECTORS / "xaes_256_gcm.json").read_text())


COBBLESTONE = ("c2sp_chunked_encryption_aes_256_gcm_test.json", 35)


def cobblestone_case(case: dict[str, Any]) -> tuple[bytes, bytes, bytes]:
    return bytes.fromhex(case["key"]), bytes.fromhex(case["ctx"]), zlib.decompress(bytes.fromhex(case["ct"]))


def is_message(case: dict[str, Any], plaintext: bytes) -> bool:
    return len(plaintext) == case["msgLength"] and hashlib.sha512(plaintext).hexdigest() == case["msgSha512"]


def test_one_shot_agrees_with_every_wycheproof_cobblestone_vector() -> None:
    for _, case in wycheproof(*COBBLESTONE):
        input_key, context, message = cobblestone_case(case)
        if case["result"] == "valid":
            plaintext = cobblestone.open_(input_key, context, message)
            assert is_message(case, plaintext), case["tcId"]
            salt = message[: cobblestone.SALT_BYTES]
            assert cobblestone.seal(input_key, context, plaintext, salt) == message, case["tcId"]
            assert cobblestone.sealed_bytes(len(plaintext)) == len(message)
        else:
            with pytest.raises(OpenError):
                cobblestone.open_(input_key, context, message)


@pytest.mark.parametrize("part_bytes", [1000, 16384, 16400, 1 << 20])
def test_stream_agrees_with_every_wycheproof_cobblestone_vector(part_bytes: int) -> None:
    for _, case in wycheproof(*COBBLESTONE):
        input_key, context, message = cobblestone_case(case)
        parts = [message[at : at + part_bytes] for at in range(0, len(message), part_bytes)]
        released: list[bytes] = []
        if case["result"] == "valid":
            released.extend(open_stream(input_key, context, parts))
            plaintext = b"".join(released)
            assert is_message(case, plaintext), case["tcId"]
            sliced = [plaintext[at : at + part_bytes] for at in range(0, len(plaintext), part_bytes)]
            sealed = seal_stream(input_key, context, sliced, message[: cobblestone.SALT_BYTES])
            assert b"".join(sealed) == message, case["tcId"]
        else:
            with pytest.raises(OpenError):
                released.extend(open_stream(input_key, context, parts))
            if "PartialPlaintext" in case["flags"]:
                assert is_message(case, b"".join(released)), case["tcId"]
            else:
                assert b"".join(released) == b"", case["tcId"]


def test_chunk_access_agrees_with_every_wycheproof_cobblestone_vector() -> None:
    for _, case in wycheproof(*COBBLESTONE):
        input_key, context, message = cobblestone_case(case)
        prefix = message[: cobblestone.PREFIX_BYTES]
        if "HeaderFailure" in case["flags"]:
            with pytest.raises(OpenError):
                cobblestone.ChunkOpener(input_key, context, prefix)
            continue
        opener = cobblestone.ChunkOpener(input_key, context, prefix)
        last = (len(message) - cobblestone.PREFIX_BYTES) // cobblestone.SEALED_CHUNK_BYTES
        sealed = [message[cobblestone.chunk_offset(k) :][: cobblestone.SEALED_CHUNK_BYTES] for k in range(last + 1)]
        if case["result"] == "valid":
            backwards = [opener.open_chunk(k, sealed[k]) for k in range(last, -1, -1)]
            assert is_message(case, b"".join(reversed(backwards))), case["tcId"]
        elif "ValidFinalChunk" in case["flags"]:
            opener.open_chunk(last, sealed[last])
            with pytest.raises(OpenError):
                [opener.open_chunk(k, sealed[k]) for k in range(last)]
        else:
            with pytest.raises(OpenError):
                opener.open_chunk(last, sealed[last])


def test_installed_aes_gcm_agrees_with_every_wycheproof_vector() -> None:
    for _, case in wycheproof("aes_gcm_test.json", 316):
        secret, nonce, aad, message, ciphertext, tag = (
            bytes.fromhex(case[name]) for name in ("key", "iv", "aad", "msg", "ct", "tag")
        )
        if not 8 <= len(nonce) <= 128:
            # The installed library takes no such nonce; refusing a valid one is not an unsafe difference.
            with pytest.raises(ValueError, match="Nonce must be"):
                AESGCM(secret).decrypt(nonce, ciphertext + tag, aad)
        elif case["result"] == "valid":
            assert AESGCM(secret).decrypt(nonce, ciphertext + tag, aad) == message, case["tcId"]
            assert AESGCM(secret).encrypt(nonce, message, aad) == ciphertext + tag, case["tcId"]
        else:
            with pytest.raises(InvalidTag):
                AESGCM(secret).decrypt(nonce, ciphertext + tag, aad)


@pytest.mark.parametrize(
    ("name", "expected_count", "digest"),
    [("hkdf_sha256_test.json", 86, hashes.SHA256()), ("hkdf_sha512_test.json", 83, hashes.SHA512())],
)
def test_installed_hkdf_agrees_with_every_wycheproof_vector(
    name: str, expected_count: int, digest: hashes.HashAlgorithm
) -> None:
    for _, case in wycheproof(name, expected_count):
        ikm, salt, info = (bytes.fromhex(case[part]) for part in ("ikm", "salt", "info"))
        if case["result"] == "valid":
            assert HKDF(digest, case["size"], salt, info).derive(ikm).hex() == case["okm"], case["tcId"]
        else:
            with pytest.raises(ValueError, match="Cannot derive keys larger"):
                HKDF(digest, case["size"], salt, info)


def test_xaes_gives_the_known_answers_of_its_specification() -> None:
    cases = xaes_vectors()["known_answers"]
    assert len(cases) == 2
    for case in cases:
        secret, nonce = bytes.fromhex(case["key"]), case["nonce_ascii"].encode()
        plaintext, aad = case["plaintext_ascii"].encode(), case["aad_ascii"].encode()
        assert xaes.derive_key(secret, nonce).hex() == case["derived_key"]
        message = xaes.seal(secret, aad, plaintext, nonce)
        assert message == nonce + bytes.fromhex(case["ciphertext"])
        assert xaes.open_(secret, aad, message) == plaintext


def accumulate_xaes(iterations: int, stream_bytes: int) -> str:
    # hashlib cannot squeeze step by step, so the whole stream is taken at once.
    stream = memoryview(hashlib.shake_128(b"").digest(stream_bytes))
    assert bytes(stream[:16]).hex() == "7f9c2ba4e88f827d616045507605853e"
    at = 0

    def take(count: int) -> bytes:
        nonlocal at
        at += count
        assert at <= stream_bytes
        return bytes(stream[at - count : at])

    absorbed = hashlib.shake_128()
    for _ in range(iterations):
        secret, nonce = take(32), take(24)
        plaintext = take(take(1)[0])
        aad = take(take(1)[0])
        message = xaes.seal(secret, aad, plaintext, nonce)
        assert xaes.open_(secret, aad, message) == plaintext
        absorbed.update(message[xaes.NONCE_BYTES :])
    return absorbed.hexdigest(32)


def test_xaes_accumulates_to_the_published_hash_after_10000_messages() -> None:
    expected = xaes_vectors()["accumulated"]["iterations_10000"]
    assert accumulate_xaes(10_000, 4_000_000) == expected


@pytest.mark.soak
def test_xaes_accumulates_to_the_published_hash_after_1000000_messages() -> None:
    expected = xaes_vectors()["accumulated"]["iterations_1000000"]
    assert accumulate_xaes(1_000_000, 330_000_000) == expected


def cavp_cases(text: str) -> Iterator[dict[str, str]]:
    case: dict[str, str] = {}
    for raw_line in text.splitlines():
        line = raw_line.strip()
        name, separator, value = line.partition("=")
        if line == "FAIL":
            case["FAIL"] = ""
        elif separator and not line.startswith("["):
            case[name.strip()] = value.strip()
        elif not line and "Tag" in case:
            yield case
            case = {}
    if "Tag" in case:
        yield case


def test_installed_aes_gcm_agrees_with_nist_cavp() -> None:
    folder = Path(cryptography_vectors.__file__).parent / "ciphers" / "AES" / "GCM"
    checked = 0
    for case in cavp_cases((folder / "gcmDecrypt256.rsp").read_text()):
        nonce, tag = bytes.fromhex(case["IV"]), bytes.fromhex(case["Tag"])
        # The library takes whole tags and nonces of 8 to 128 bytes; the formats here use 16 and 12.
        if len(tag) != 16 or not 8 <= len(nonce) <= 128:
            continue
        checked += 1
        cipher = AESGCM(bytes.fromhex(case["Key"]))
        ciphertext, aad = bytes.fromhex(case["CT"]) + tag, bytes.fromhex(case["AAD"])
        if "FAIL" in case:
            with pytest.raises(InvalidTag):
                cipher.decrypt(nonce, ciphertext, aad)
        else:
            assert cipher.decrypt(nonce, ciphertext, aad).hex() == case["PT"]
    assert checked == 750
