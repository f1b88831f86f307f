"""One contract for every root key: file, memory, AWS KMS (moto) and Vault (a real OpenBao)."""

from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from crypto.errors import KeyDenied, OpenError
from crypto.keyring import SecretKey
from crypto.roots import RootKey
from tests.support.root_keys import (
    FileRig,
    Kms,
    KmsRig,
    MemoryRig,
    ObservedRig,
    OpenBao,
    Rig,
    UnsteadyRig,
    VaultRig,
    kms,
    open_bao,
)

CONTEXT = {"deployment": str(UUID(int=1)), "tenant": str(UUID(int=2)), "purpose": "tenant", "version": "1"}


@pytest.fixture(scope="module")
def kms_service() -> Iterator[Kms]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("AWS_ACCESS_KEY_ID", "test")
        environment.setenv("AWS_SECRET_ACCESS_KEY", "test")
        with kms() as service:
            yield service


@pytest.fixture(scope="module")
def bao() -> Iterator[OpenBao]:
    with open_bao() as service:
        yield service


@pytest.fixture(params=["file", "memory", "unsteady", "observed", "aws-kms", "vault"])
async def rig(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Rig]:
    made: Rig
    match request.param:
        case "file":
            made = FileRig(tmp_path)
        case "memory":
            made = MemoryRig()
        case "unsteady":
            made = UnsteadyRig()
        case "observed":
            made = ObservedRig()
        case "aws-kms":
            made = KmsRig(request.getfixturevalue("kms_service"))
        case _:
            made = VaultRig(request.getfixturevalue("bao"))
    yield made
    await made.root_key.aclose()


def refusal(rig: Rig) -> type[Exception]:
    """A service does not tell changed bytes or another context from a wrapping that is not its own."""
    return OpenError if rig.local else KeyDenied


async def test_a_wrapped_key_unwraps_to_the_same_key(rig: Rig) -> None:
    key = SecretKey.generate()
    wrapped = await rig.root_key.wrap(key, CONTEXT)
    assert isinstance(rig.root_key, RootKey)
    assert wrapped.provider == rig.root_key.provider == rig.kind
    assert wrapped.root_key_version == rig.versions[0]
    assert bytes(key.borrow()) not in wrapped.ciphertext
    assert "ciphertext" not in repr(wrapped)
    assert (await rig.root_key.unwrap(wrapped, CONTEXT)).kcv() == key.kcv()
    assert (await rig.root_key.wrap(key, CONTEXT)).ciphertext != wrapped.ciphertext
    await rig.root_key.health()


async def test_ids_in_another_spelling_are_the_same_context(rig: Rig) -> None:
    tenant = str(UUID(int=0xABCDEF))
    wrapped = await rig.root_key.wrap(SecretKey.generate(), {**CONTEXT, "tenant": tenant.upper()})
    await rig.root_key.unwrap(wrapped, {**CONTEXT, "tenant": tenant})


@pytest.mark.parametrize(
    ("name", "value"),
    [("deployment", str(UUID(int=9))), ("tenant", str(UUID(int=9))), ("purpose", "id"), ("version", "2")],
)
async def test_another_context_is_refused(rig: Rig, name: str, value: str) -> None:
    wrapped = await rig.root_key.wrap(SecretKey.generate(), CONTEXT)
    other = {**CONTEXT, name: value}
    with pytest.raises(refusal(rig)):
        await rig.root_key.unwrap(wrapped, other)
    with pytest.raises(refusal(rig)):
        await rig.root_key.rewrap(wrapped, other)


async def test_a_context_with_other_names_or_ids_is_refused(rig: Rig) -> None:
    key = SecretKey.generate()
    wrapped = await rig.root_key.wrap(key, CONTEXT)
    for context in ({}, {**CONTEXT, "user": "x"}, {**CONTEXT, "tenant": "acme"}):
        with pytest.raises(ValueError, match=r"context|UUID"):
            await rig.root_key.wrap(key, context)
        with pytest.raises(ValueError, match=r"context|UUID"):
            await rig.root_key.unwrap(wrapped, context)
        with pytest.raises(ValueError, match=r"context|UUID"):
            await rig.root_key.rewrap(wrapped, context)


async def test_changed_bytes_are_refused(rig: Rig) -> None:
    wrapped = await rig.root_key.wrap(SecretKey.generate(), CONTEXT)
    for bit in range(0, len(wrapped.ciphertext) * 8, 1 if rig.local else 9):
        damaged = bytearray(wrapped.ciphertext)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises((OpenError, refusal(rig))):
            await rig.root_key.unwrap(replace(wrapped, ciphertext=bytes(damaged)), CONTEXT)
    for ciphertext in (b"", b"\0", wrapped.ciphertext[:-1], wrapped.ciphertext + b"A", bytes(10_000)):
        with pytest.raises((OpenError, refusal(rig))):
            await rig.root_key.unwrap(replace(wrapped, ciphertext=ciphertext), CONTEXT)


async def test_another_root_key_denies(rig: Rig) -> None:
    wrapped = await rig.root_key.wrap(SecretKey.generate(), CONTEXT)
    async with aclosing(rig.another()) as other:
        assert rig.root_key.recognises(wrapped)
        assert not other.recognises(wrapped)
        with pytest.raises(KeyDenied):
            await other.unwrap(wrapped, CONTEXT)
        if rig.kind != "aws-kms":  # moto ignores SourceKeyId; that it is sent is shown in the unit tests
            with pytest.raises(KeyDenied):
                await other.rewrap(wrapped, CONTEXT)
    foreign = replace(wrapped, provider="other")
    assert not rig.root_key.recognises(foreign)
    with pytest.raises(KeyDenied):
        await rig.root_key.unwrap(foreign, CONTEXT)


async def test_rewrap_moves_a_key_to_the_newest_version(rig: Rig) -> None:
    key = SecretKey.generate()
    old = await rig.root_key.wrap(key, CONTEXT)
    rig.rotate()
    new = await rig.root_key.rewrap(old, CONTEXT)
    assert (old.root_key_version, new.root_key_version) == rig.versions
    assert new.ciphertext != old.ciphertext
    assert (await rig.root_key.unwrap(old, CONTEXT)).kcv() == key.kcv()
    assert (await rig.root_key.unwrap(new, CONTEXT)).kcv() == key.kcv()
    assert (await rig.root_key.wrap(key, CONTEXT)).root_key_version == rig.versions[1]
