import base64
import json
import os
import stat
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from crypto.errors import KeyDenied, KeyDestroyed, OpenError, RootKeyInvalid
from crypto.keyring import SecretKey
from crypto.roots import FileRootKey, MemoryRootKey, RootKey, WrappedKey, create_root_key

CONTEXT = {"deployment": str(UUID(int=1)), "tenant": str(UUID(int=2)), "purpose": "data", "version": "1"}


class Rig:
    """A root key that can be rotated, whatever its kind."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self.path = folder / "root.key"
        self.root_key: RootKey = FileRootKey.create(self.path) if kind == "file" else MemoryRootKey()

    def rotate(self) -> None:
        if isinstance(self.root_key, MemoryRootKey):
            self.root_key.rotate()
            return
        document = json.loads(self.path.read_text())
        document["active"] += 1
        document["keys"][str(document["active"])] = base64.b64encode(os.urandom(32)).decode()
        self.path.write_text(json.dumps(document))
        self.root_key = FileRootKey.open(self.path)


@pytest.fixture(params=["file", "memory"])
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Rig:
    return Rig(request.param, tmp_path)


def write(path: Path, text: str | bytes, mode: int = 0o600) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    path.chmod(mode)
    return path


async def test_contract_a_wrapped_key_unwraps_to_the_same_key(rig: Rig) -> None:
    key = SecretKey.generate()
    wrapped = await rig.root_key.wrap(key, CONTEXT)
    assert isinstance(rig.root_key, RootKey)
    assert wrapped.provider == rig.root_key.provider == rig.kind
    assert wrapped.root_key_version == "1"
    assert bytes(key.borrow()) not in wrapped.ciphertext
    assert "ciphertext" not in repr(wrapped)
    assert (await rig.root_key.unwrap(wrapped, CONTEXT)).kcv() == key.kcv()
    await rig.root_key.health()


@pytest.mark.parametrize(
    ("name", "value"),
    [("deployment", str(UUID(int=9))), ("tenant", str(UUID(int=9))), ("purpose", "id"), ("version", "2")],
)
async def test_contract_another_context_is_refused(rig: Rig, name: str, value: str) -> None:
    wrapped = await rig.root_key.wrap(SecretKey.generate(), CONTEXT)
    with pytest.raises(OpenError) as caught:
        await rig.root_key.unwrap(wrapped, {**CONTEXT, name: value})
    assert caught.value.code == "authentication"


async def test_contract_a_context_with_other_names_or_ids_is_refused(rig: Rig) -> None:
    key = SecretKey.generate()
    for context in ({}, {**CONTEXT, "user": "x"}, {**CONTEXT, "tenant": "acme"}):
        with pytest.raises(ValueError, match=r"context|UUID"):
            await rig.root_key.wrap(key, context)


async def test_contract_every_bit_flip_of_a_wrapping_is_refused(rig: Rig) -> None:
    wrapped = await rig.root_key.wrap(SecretKey.generate(), CONTEXT)
    for bit in range(len(wrapped.ciphertext) * 8):
        damaged = bytearray(wrapped.ciphertext)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(OpenError):
            await rig.root_key.unwrap(replace(wrapped, ciphertext=bytes(damaged)), CONTEXT)


async def test_contract_another_root_key_denies(rig: Rig, tmp_path: Path) -> None:
    other_folder = tmp_path / "other"
    other_folder.mkdir()
    other = Rig(rig.kind, other_folder)
    wrapped = await rig.root_key.wrap(SecretKey.generate(), CONTEXT)
    with pytest.raises(KeyDenied):
        await other.root_key.unwrap(wrapped, CONTEXT)
    with pytest.raises(KeyDenied):
        await rig.root_key.unwrap(replace(wrapped, provider="vault"), CONTEXT)


async def test_contract_rewrap_moves_a_key_to_the_newest_version(rig: Rig) -> None:
    key = SecretKey.generate()
    old = await rig.root_key.wrap(key, CONTEXT)
    rig.rotate()
    new = await rig.root_key.rewrap(old, CONTEXT)
    assert (old.root_key_version, new.root_key_version) == ("1", "2")
    assert (await rig.root_key.unwrap(old, CONTEXT)).kcv() == key.kcv()
    assert (await rig.root_key.unwrap(new, CONTEXT)).kcv() == key.kcv()
    with pytest.raises(OpenError):
        await rig.root_key.rewrap(new, {**CONTEXT, "tenant": str(UUID(int=9))})


async def test_a_version_taken_out_of_the_file_is_destroyed(tmp_path: Path) -> None:
    rig = Rig("file", tmp_path)
    wrapped = await rig.root_key.wrap(SecretKey.generate(), CONTEXT)
    rig.rotate()
    document = json.loads(rig.path.read_text())
    del document["keys"]["1"]
    with pytest.raises(KeyDestroyed):
        await FileRootKey.open(write(rig.path, json.dumps(document))).unwrap(wrapped, CONTEXT)


async def test_a_created_file_is_private_and_survives_reopening(tmp_path: Path) -> None:
    path = tmp_path / "root.key"
    key = SecretKey.generate()
    wrapped = await FileRootKey.create(path).wrap(key, CONTEXT)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert (await create_root_key(f"file:{path}").unwrap(wrapped, CONTEXT)).kcv() == key.kcv()
    assert (await create_root_key(f"file://{path}").unwrap(wrapped, CONTEXT)).kcv() == key.kcv()


def test_an_existing_file_is_never_overwritten(tmp_path: Path) -> None:
    path = write(tmp_path / "root.key", "precious")
    with pytest.raises(RootKeyInvalid, match="never overwritten"):
        FileRootKey.create(path)
    assert path.read_text() == "precious"
    dangling = tmp_path / "dangling"
    dangling.symlink_to(tmp_path / "nowhere")
    with pytest.raises(RootKeyInvalid, match="never overwritten"):
        FileRootKey.create(dangling)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o610, 0o601, 0o666])
def test_a_file_others_can_reach_is_refused_with_the_remedy(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "root.key"
    FileRootKey.create(path)
    path.chmod(mode)
    with pytest.raises(RootKeyInvalid, match=f"chmod 600 {path}"):
        FileRootKey.open(path)
    path.chmod(0o400)
    FileRootKey.open(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_a_file_or_link_of_another_user_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "root.key"
    FileRootKey.create(path)
    link = tmp_path / "link.key"
    link.symlink_to(path)
    FileRootKey.open(link)
    os.chown(link, 12345, 12345, follow_symlinks=False)
    with pytest.raises(RootKeyInvalid, match="symbolic link of another user"):
        FileRootKey.open(link)
    os.chown(path, 12345, 12345)
    with pytest.raises(RootKeyInvalid, match="belongs to user 12345"):
        FileRootKey.open(path)


def test_what_is_not_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RootKeyInvalid, match="no root key file"):
        FileRootKey.open(tmp_path / "absent")
    with pytest.raises(RootKeyInvalid, match="not a regular file"):
        FileRootKey.open(tmp_path)
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(RootKeyInvalid, match="not a regular file"):
        FileRootKey.open(tmp_path / "pipe")
    with pytest.raises(RootKeyInvalid, match="cannot create"):
        FileRootKey.create(tmp_path / "absent" / "root.key")


SECRET = base64.b64encode(b"canary-canary-canary-canary-1234").decode()
GOOD = {"format": "stateroom-root-key/1", "active": 1, "keys": {"1": SECRET}}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        b"\xff\xfe",
        "[" * 50_000,
        json.dumps({**GOOD, "format": "stateroom-root-key/2"}),
        json.dumps({**GOOD, "extra": 1}),
        json.dumps({"format": GOOD["format"], "active": 1}),
        json.dumps({**GOOD, "active": 2}),
        json.dumps({**GOOD, "active": "1"}),
        json.dumps({**GOOD, "active": True}),
        json.dumps({**GOOD, "keys": []}),
        json.dumps({**GOOD, "keys": {"1": SECRET[:-4]}}),
        json.dumps({**GOOD, "keys": {"1": SECRET + "AAAA"}}),
        json.dumps({**GOOD, "keys": {"1": SECRET[:-2] + "!="}}),
        json.dumps({**GOOD, "keys": {"1": SECRET, "02": SECRET}}),
        json.dumps({**GOOD, "keys": {"1": SECRET, "0": SECRET}}),
        json.dumps({**GOOD, "keys": {"1": SECRET, "4294967296": SECRET}}),
        json.dumps({**GOOD, "keys": {"1": 5}}),
        json.dumps(GOOD).replace('"active"', '"active": 1, "active"'),
        json.dumps(GOOD) + " " * 70_000,
    ],
)
def test_a_malformed_file_is_refused_without_showing_its_content(tmp_path: Path, text: str | bytes) -> None:
    path = write(tmp_path / "root.key", text)
    with pytest.raises(RootKeyInvalid) as caught:
        FileRootKey.open(path)
    assert str(path) in str(caught.value)
    assert SECRET[:8] not in str(caught.value)


def test_the_example_of_the_format_is_accepted(tmp_path: Path) -> None:
    opened = FileRootKey.open(write(tmp_path / "root.key", json.dumps(GOOD)))
    assert repr(opened) == "FileRootKey(active_root_key_version=1)"


async def test_health_notices_a_file_that_went_away_or_changed(tmp_path: Path) -> None:
    rig = Rig("file", tmp_path)
    await rig.root_key.health()
    original = rig.path.read_bytes()
    write(rig.path, json.dumps(GOOD))
    with pytest.raises(RootKeyInvalid, match="not the one this process started with"):
        await rig.root_key.health()
    write(rig.path, original, 0o644)
    with pytest.raises(RootKeyInvalid, match="chmod 600"):
        await rig.root_key.health()
    rig.path.unlink()
    with pytest.raises(RootKeyInvalid, match="no root key file"):
        await rig.root_key.health()


@pytest.mark.parametrize("spec", ["", "file", "file:", "file:relative", "memory:", "aws-kms:x", "s3cret"])
def test_a_setting_that_names_no_root_key_is_refused_without_repeating_it(spec: str) -> None:
    with pytest.raises(RootKeyInvalid, match=r"file:/path/to/root\.key") as caught:
        create_root_key(spec)
    assert "s3cret" not in str(caught.value)


def test_a_wrapped_key_is_immutable() -> None:
    wrapped = WrappedKey("file", "id", "1", b"")
    with pytest.raises(AttributeError):
        wrapped.provider = "other"  # type: ignore[misc]
