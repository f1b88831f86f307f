"""What is Vault's own, against a real OpenBao: outages, tokens, keys that would not bind, and a move."""

import traceback
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest
from requests import HTTPError

from crypto.errors import KeyDenied, KeyUnavailable, OpenError, RootKeyInvalid
from crypto.keyring import SecretKey
from crypto.roots import FileRootKey, WrappedKey, create_root_key
from crypto.roots.breaker import OPEN_SECONDS
from tests.support.root_keys import OpenBao, open_bao

CONTEXT = {"deployment": str(UUID(int=1)), "tenant": str(UUID(int=2)), "purpose": "tenant", "version": "1"}
CANARY = b"canary-canary-canary-canary-1234"


@pytest.fixture(scope="module")
def bao() -> Iterator[OpenBao]:
    with open_bao() as service:
        yield service


@pytest.mark.parametrize("arguments", [{"derived": False}, {"derived": False, "key_type": "rsa-2048"}])
async def test_a_key_that_would_ignore_the_context_never_wraps(bao: OpenBao, arguments: dict[str, object]) -> None:
    root_key = create_root_key(bao.spec(bao.make_key(**arguments)))
    with pytest.raises(RootKeyInvalid, match="derived=true"):
        await root_key.wrap(SecretKey(CANARY), CONTEXT)
    with pytest.raises(RootKeyInvalid, match="derived=true"):
        await root_key.health()
    await root_key.aclose()


async def test_a_key_that_is_not_there_is_denied_and_not_made(bao: OpenBao) -> None:
    root_key = create_root_key(bao.spec("absent"))
    with pytest.raises(KeyDenied):
        await root_key.wrap(SecretKey(CANARY), CONTEXT)
    with pytest.raises(HTTPError, match="404"):
        bao.request("GET", "transit/keys/absent")
    await root_key.aclose()


async def test_a_token_with_only_the_documented_policy_is_enough_and_a_withdrawn_one_is_denied(
    bao: OpenBao, tmp_path: Path
) -> None:
    name = bao.make_key()
    rules = "".join(
        f'path "transit/{verb}/{name}" {{ capabilities = ["update"] }}\n' for verb in ("encrypt", "decrypt", "rewrap")
    )
    rules += f'path "transit/keys/{name}" {{ capabilities = ["read"] }}\n'
    bao.request("PUT", "sys/policies/acl/stateroom", json={"policy": rules})

    def new_token() -> str:
        made = bao.request("POST", "auth/token/create", json={"policies": ["stateroom"]})
        return str(made.json()["auth"]["client_token"])

    token = new_token()
    token_file = tmp_path / "token"
    token_file.write_text(token)
    root_key = create_root_key(f"vault:{bao.url}/transit/{name}?token_file={token_file}")
    key = SecretKey(CANARY)
    wrapped = await root_key.rewrap(await root_key.wrap(key, CONTEXT), CONTEXT)
    assert (await root_key.unwrap(wrapped, CONTEXT)).kcv() == key.kcv()
    bao.request("POST", "auth/token/revoke", json={"token": token})
    with pytest.raises(KeyDenied) as caught:
        await root_key.unwrap(wrapped, CONTEXT)
    assert token not in "".join(traceback.format_exception(caught.value))
    token_file.unlink()
    with pytest.raises(KeyUnavailable):
        await root_key.unwrap(wrapped, CONTEXT)
    token_file.write_text(new_token())
    assert (await root_key.unwrap(wrapped, CONTEXT)).kcv() == key.kcv()
    await root_key.aclose()


async def test_a_version_trimmed_away_opens_nothing_any_more(bao: OpenBao) -> None:
    name = bao.make_key()
    root_key = create_root_key(bao.spec(name))
    old = await root_key.wrap(SecretKey(CANARY), CONTEXT)
    bao.transit.rotate_key(name)
    new = await root_key.rewrap(old, CONTEXT)
    # hvac refuses a minimum for encryption that equals the one for decryption; the server does not.
    bao.request("POST", f"transit/keys/{name}/config", json={"min_decryption_version": 2, "min_encryption_version": 2})
    bao.request("POST", f"transit/keys/{name}/trim", json={"min_available_version": 2})
    with pytest.raises(KeyDenied):
        await root_key.unwrap(old, CONTEXT)
    assert (await root_key.unwrap(new, CONTEXT)).kcv() == SecretKey(CANARY).kcv()
    await root_key.aclose()


async def test_a_wrapping_is_an_ordinary_transit_ciphertext_of_the_documented_context(bao: OpenBao) -> None:
    name = bao.make_key()
    root_key = create_root_key(bao.spec(name))
    wrapped = await root_key.wrap(SecretKey(CANARY), CONTEXT)
    assert wrapped.root_key_id == f"{bao.url}/transit/{name}"
    assert wrapped.ciphertext.startswith(b"vault:v1:")
    with pytest.raises(OpenError):
        await root_key.unwrap(WrappedKey("vault", wrapped.root_key_id, "2", wrapped.ciphertext), CONTEXT)
    await root_key.aclose()


async def test_a_deployment_moves_from_a_file_to_vault(bao: OpenBao, tmp_path: Path) -> None:
    key = SecretKey(CANARY)
    before = await FileRootKey.create(tmp_path / "root.key").wrap(key, CONTEXT)
    vault = bao.spec(bao.make_key())
    both = create_root_key(f"{vault} file:{tmp_path}/root.key")
    moved = await both.rewrap(before, CONTEXT)
    assert (both.provider, moved.provider) == ("vault", "vault")
    assert (await both.unwrap(before, CONTEXT)).kcv() == key.kcv()
    only = create_root_key(vault)
    assert (await only.unwrap(moved, CONTEXT)).kcv() == key.kcv()
    await both.aclose()
    await only.aclose()


async def test_a_sealed_server_and_a_killed_one_are_unavailable_and_show_no_key() -> None:
    with open_bao() as service:
        root_key = create_root_key(service.spec(service.make_key()))
        wrapped = await root_key.wrap(SecretKey(CANARY), CONTEXT)
        service.request("PUT", "sys/seal")
        for _ in ("sealed", "killed"):
            calls = (
                lambda: root_key.wrap(SecretKey(CANARY), CONTEXT),
                lambda: root_key.unwrap(wrapped, CONTEXT),
                lambda: root_key.rewrap(wrapped, CONTEXT),
                root_key.health,
            )
            for call in calls:
                with pytest.raises(KeyUnavailable) as caught:
                    await call()
                assert caught.value.__context__ is None
                # After five failures the circuit is open, and says for how long.
                assert 1 <= caught.value.retry_after_seconds <= OPEN_SECONDS
            service.kill()
        await root_key.aclose()
