"""There is no JWT in this gateway, hence nothing to forge: whatever is not one of its keys is refused unread."""

import base64
import hashlib
import hmac
import json
import time
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa

from gateway import settings
from gateway.authentication.principals import Authenticator
from gateway.problems import Unauthenticated
from storage.clock import SystemClock
from storage.keys.key_seals import Pepper, Peppers
from storage.model import ApiKeyRecord
from tests.support.gateway import GatewayProcess
from tests.support.operations import Tenancy, assert_problem

PEPPER = bytes(range(32))
CLAIMS = {"iss": "https://issuer.example", "sub": "user-1", "tenant": "0" * 32, "permissions": ["operator"]}


def _segment(content: Any) -> str:
    raw = content if isinstance(content, bytes) else json.dumps(content, separators=(",", ":")).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _token(algorithm: str, sign: Any, claims: dict[str, Any], **header: Any) -> str:
    signed = f"{_segment({'alg': algorithm, 'typ': 'JWT', **header})}.{_segment(claims)}"
    return f"{signed}.{_segment(sign(signed.encode()))}"


def _tokens() -> dict[str, str]:
    """What forgers send (RFC 8725, sections 2 and 3), with real signatures where there is one."""
    private = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    public = private.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    curve = ec.generate_private_key(ec.SECP256R1())

    def unsigned(_: bytes) -> bytes:
        return b""

    def hs(secret: bytes) -> Any:
        return lambda signed: hmac.digest(secret, signed, hashlib.sha256)

    def rs(signed: bytes) -> bytes:
        return private.sign(signed, padding.PKCS1v15(), hashes.SHA256())

    def es(signed: bytes) -> bytes:
        return curve.sign(signed, ec.ECDSA(hashes.SHA256()))

    now = int(time.time())
    valid = {**CLAIMS, "aud": "stateroom", "exp": now + 3600}
    return {
        "alg none": _token("none", unsigned, valid),
        "alg None": _token("None", unsigned, valid),
        "HS256 under the pepper": _token("HS256", hs(PEPPER), valid),
        "HS256 under an empty secret": _token("HS256", hs(b""), valid),
        "HS256 under a public RSA key": _token("HS256", hs(public), valid),
        "RS256": _token("RS256", rs, valid),
        "RS256 with a key of its own in the header": _token("RS256", rs, valid, jku="http://127.0.0.1:1/", kid="../x"),
        "ES256": _token("ES256", es, valid),
        "without exp": _token("RS256", rs, CLAIMS),
        "expired": _token("RS256", rs, {**valid, "exp": now - 1}),
        "for somebody else": _token("RS256", rs, {**valid, "aud": "another"}),
        "of another issuer": _token("RS256", rs, {**valid, "iss": "https://evil.example"}),
        "signature cut off": _token("RS256", rs, valid).rpartition(".")[0] + ".",
        "five parts, as encrypted ones have": ".".join([_segment(b"x")] * 5),
        "opaque": "gho_" + "a" * 36,
        "a key of another service": "sk_live_" + "a" * 60,
        "basic credentials": base64.b64encode(b"user:password").decode(),
    }


TOKENS = _tokens()


@pytest.mark.parametrize("name", TOKENS)
async def test_a_bearer_that_is_no_key_of_ours_is_refused_without_the_database(name: str) -> None:
    asked: list[str] = []

    async def look_up(key_id: str) -> ApiKeyRecord | None:
        asked.append(key_id)
        return None

    async def not_needed() -> bool:
        return False

    authenticator = Authenticator(Peppers(Pepper(1, PEPPER)), look_up, SystemClock(), not_needed)
    with pytest.raises(Unauthenticated):
        await authenticator.verify(b"Bearer " + TOKENS[name].encode())
    assert asked == []


def test_a_gateway_refuses_them_all_alike(running_gateway: GatewayProcess) -> None:
    tenancy = Tenancy(running_gateway)
    details = set()
    for token in TOKENS.values():
        with tenancy.client(token, "user-1") as client:
            problem = assert_problem(client.get("/v1/threads"), 401, "unauthenticated")
        assert token not in str(problem)
        details.add(problem["detail"])
    assert len(details) == 1
    with httpx.Client(base_url=running_gateway.url, headers={"Authorization": "Bearer"}) as client:
        assert_problem(client.get("/v1/whoami"), 401, "unauthenticated")


def test_no_setting_names_an_issuer() -> None:
    words = ("ISSUER", "JWKS", "JWT", "OIDC", "AUDIENCE")
    assert [name for name in settings.VARIABLES if any(word in name for word in words)] == []
