import base64
import json
import os
import resource
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from crypto.context import HEADER_BYTES
from crypto.envelope import seal_body
from crypto.errors import KeyDenied, KeyDestroyed, OpenError, RootKeyInvalid
from crypto.keyring import SecretKey
from crypto.roots import (
    TOMBSTONE_PURPOSE,
    FileRootKey,
    MemoryRootKey,
    RootKeys,
    WrappedKey,
    create_root_key,
)
from crypto.roots.base import checked_context, root_context
from crypto.roots.local import _TENANT_KEK, LocalRootKey, _encode
from tests.support.root_keys import UnsteadyRootKey

NOBODY = 65534
CONTEXT = {"deployment": str(UUID(int=1)), "tenant": str(UUID(int=2)), "purpose": "data", "version": "1"}


def write(path: Path, text: str | bytes, mode: int = 0o600) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    path.chmod(mode)
    return path


def test_a_wrapping_is_bound_to_these_words():
    context = root_context(UUID(int=1), UUID(int=2), "data", 1)
    assert context == CONTEXT == checked_context(context)
    assert root_context(UUID(int=1), UUID(int=0), "transfer", 12) == {
        "deployment": "00000000-0000-0000-0000-000000000001",
        "tenant": "00000000-0000-0000-0000-000000000000",
        "purpose": "transfer",
        "version": "12",
    }


async def test_a_version_taken_out_of_the_file_is_destroyed(tmp_path: Path) -> None:
    path = tmp_path / "root.key"
    root_key = FileRootKey.create(path)
    wrapped = await root_key.wrap(SecretKey.generate(), CONTEXT)
    root_key.add_version()
    document = json.loads(path.read_text())
    del document["keys"]["1"]
    with pytest.raises(KeyDestroyed):
        await FileRootKey.open(write(path, json.dumps(document))).unwrap(wrapped, CONTEXT)


@pytest.mark.parametrize("mode", [0o600, 0o400])
async def test_an_added_version_wraps_and_the_old_one_still_unwraps(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "root.key"
    root_key = FileRootKey.create(path)
    path.chmod(mode)
    key = SecretKey.generate()
    old = await root_key.wrap(key, CONTEXT)
    assert root_key.add_version() == 2
    assert stat.S_IMODE(path.stat().st_mode) == mode
    assert os.listdir(tmp_path) == ["root.key"]  # noqa: PTH208  a blocking Path is refused in async tests
    new = await root_key.wrap(key, CONTEXT)
    assert (old.root_key_version, new.root_key_version) == ("1", "2")
    reopened = FileRootKey.open(path)
    assert (await reopened.unwrap(old, CONTEXT)).kcv() == (await reopened.unwrap(new, CONTEXT)).kcv() == key.kcv()
    assert reopened.add_version() == 3


async def test_another_process_takes_up_an_added_version(tmp_path: Path) -> None:
    path = tmp_path / "root.key"
    adding, reading, wrapping = FileRootKey.create(path), FileRootKey.open(path), FileRootKey.open(path)
    adding.add_version()
    key = SecretKey.generate()
    assert (await reading.unwrap(await adding.wrap(key, CONTEXT), CONTEXT)).kcv() == key.kcv()
    assert (await wrapping.wrap(key, CONTEXT)).root_key_version == "2"


def test_concurrent_processes_never_add_the_same_number(tmp_path: Path) -> None:
    path = tmp_path / "root.key"
    FileRootKey.create(path)

    def add(_: int) -> int | str:
        try:
            return FileRootKey.open(path).add_version()
        except RootKeyInvalid as error:
            return str(error)

    with ThreadPoolExecutor(8) as threads:
        results = list(threads.map(add, range(40)))
    added = [result for result in results if isinstance(result, int)]
    assert all("is being added now" in result for result in results if isinstance(result, str))
    assert sorted(added) == list(range(2, len(added) + 2))
    assert sorted(map(int, json.loads(path.read_text())["keys"])) == list(range(1, len(added) + 2))


def test_an_interrupted_addition_is_named_and_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "root.key"
    root_key = FileRootKey.create(path)
    before = path.read_bytes()
    write(tmp_path / "root.key.new", "")
    with pytest.raises(RootKeyInvalid, match=r"root\.key\.new exists"):
        root_key.add_version()
    assert path.read_bytes() == before
    (tmp_path / "root.key.new").unlink()
    assert root_key.add_version() == 2


def test_a_link_to_the_file_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    path, link = tmp_path / "real" / "root.key", tmp_path / "link.key"
    FileRootKey.create(path)
    link.symlink_to(path)
    FileRootKey.open(link).add_version()
    assert link.is_symlink()
    assert json.loads(path.read_text())["active"] == 2


async def test_a_version_is_never_added_to_or_wrapped_under_a_file_that_changed(tmp_path: Path) -> None:
    path = tmp_path / "root.key"
    root_key = FileRootKey.create(path)
    write(path, json.dumps(GOOD))
    with pytest.raises(RootKeyInvalid, match="not the one this process started with"):
        root_key.add_version()
    with pytest.raises(RootKeyInvalid, match="not the one this process started with"):
        await root_key.wrap(SecretKey.generate(), CONTEXT)
    assert json.loads(path.read_text()) == GOOD
    write(path, json.dumps({**GOOD, "active": 4294967295, "keys": {"4294967295": SECRET}}))
    with pytest.raises(RootKeyInvalid, match="no version number left"):
        FileRootKey.open(path).add_version()
    assert os.listdir(tmp_path) == ["root.key"]  # noqa: PTH208  a blocking Path is refused in async tests
    path.unlink()
    with pytest.raises(RootKeyInvalid, match="no root key file"):
        await root_key.wrap(SecretKey.generate(), CONTEXT)


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


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777, 0o720, 0o702])
def test_a_folder_in_which_others_can_replace_the_file_is_refused_with_the_remedy(tmp_path: Path, mode: int) -> None:
    folder, linked = tmp_path / "folder", tmp_path / "linked"
    folder.mkdir(mode=0o700)
    linked.mkdir(mode=0o700)
    path, link = folder / "root.key", linked / "link.key"
    root_key = FileRootKey.create(path)
    link.symlink_to(path)
    FileRootKey.open(link)
    for open_folder in (folder, linked):
        open_folder.chmod(mode)
        with pytest.raises(RootKeyInvalid, match=f"chmod go-w {open_folder}"):
            FileRootKey.open(link)
        with pytest.raises(RootKeyInvalid, match=f"chmod go-w {open_folder}"):
            FileRootKey.create(open_folder / "new.key")
        assert not (open_folder / "new.key").exists()
        open_folder.chmod(mode | stat.S_ISVTX)  # as /tmp: each may replace his own files only
        FileRootKey.open(link)
        open_folder.chmod(0o755)
        FileRootKey.open(link)
    folder.chmod(mode)
    with pytest.raises(RootKeyInvalid, match="chmod go-w"):
        root_key.add_version()


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
    path = tmp_path / "root.key"
    root_key = FileRootKey.create(path)
    await root_key.health()
    original = path.read_bytes()
    write(path, json.dumps(GOOD))
    with pytest.raises(RootKeyInvalid, match="not the one this process started with"):
        await root_key.health()
    write(path, original, 0o644)
    with pytest.raises(RootKeyInvalid, match="chmod 600"):
        await root_key.health()
    path.unlink()
    with pytest.raises(RootKeyInvalid, match="no root key file"):
        await root_key.health()


@pytest.mark.parametrize("spec", ["", "file", "file:", "file:relative", "memory:", "aws:x", "s3cret"])
def test_a_setting_that_names_no_root_key_is_refused_without_repeating_it(spec: str) -> None:
    with pytest.raises(RootKeyInvalid, match=r"file:/path/to/root\.key") as caught:
        create_root_key(spec)
    assert "s3cret" not in str(caught.value)


KEY_ARN = "arn:aws:kms:eu-central-1:111122223333:key/12345678-1234-1234-1234-123456789abc"


@pytest.mark.parametrize(
    ("spec", "wrong"),
    [
        ("aws-kms:", "no KMS key ARN"),
        ("aws-kms:s3cret", "no KMS key ARN"),
        (f"aws-kms:{KEY_ARN.replace('kms', 's3')}", "no KMS key ARN"),
        (f"aws-kms:{KEY_ARN.replace(':key/', ':')}", "no KMS key ARN"),
        ("aws-kms:alias/app?region=s3cret", "no AWS region"),
        (f"aws-kms:{KEY_ARN}?region=us-east-1", "another than the ARN's"),
        (f"aws-kms:{KEY_ARN}?secret=s3cret", "option besides endpoint, region, tenant"),
        (f"aws-kms:{KEY_ARN}?s3cret", "not name=value"),
        (f"aws-kms:{KEY_ARN}?region=&endpoint=https://h", "region is empty"),
        (f"aws-kms:{KEY_ARN}?endpoint=https://a&endpoint=https://b", "twice"),
        (f"aws-kms:{KEY_ARN}?endpoint=http://kms.example", "must be https"),
        (f"aws-kms:{KEY_ARN}?endpoint=https://user:s3cret@kms.example", "must not hold a credential"),
        (f"aws-kms:{KEY_ARN}?tenant=s3cret", "tenant is no UUID"),
        (f"aws-kms:{KEY_ARN}?tenant={UUID(int=1)}", "besides those of single tenants"),
        (f"aws-kms:{KEY_ARN} aws-kms:alias/old", "name KMS keys by ARN"),
        ("vault:https://h/transit/app", "token_file"),
        ("vault:https://h/transit/app?token_file=relative", "absolute"),
        ("vault:https://h/transit/app?token_file=/nowhere/token", "cannot read the token file /nowhere/token"),
        ("vault:https://h/transit/app?token_file=/dev/null", "holds no token"),
        ("vault:https://h/transit/app?token=s3cret", "option besides ca, namespace, tenant, token_file"),
        ("vault:https://h/app?token_file=/x", "mount and a key's name"),
        ("vault:https://h/../app?token_file=/x", "mount and a key's name"),
        ("vault:http://vault.example/transit/app?token_file=/x", "must be https"),
        ("vault:https://user:s3cret@h/transit/app?token_file=/x", "must not hold a credential"),
        ("vault:https://h:s3cret/transit/app?token_file=/x", "cannot be parsed"),
        ("vault:transit/app?token_file=/x", r"not https://HOST"),
    ],
)
def test_a_setting_of_a_service_that_cannot_be_used_says_what_is_wrong(spec: str, wrong: str) -> None:
    with pytest.raises(RootKeyInvalid, match=wrong) as caught:
        create_root_key(spec)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("option", ["ca=/dev/null", "ca=/nowhere/ca.pem", "namespace=a%20b"])
def test_a_vault_setting_with_unusable_options_is_refused(tmp_path: Path, option: str) -> None:
    token = write(tmp_path / "token", "t")
    with pytest.raises(RootKeyInvalid, match=r"PEM|namespace"):
        create_root_key(f"vault:https://h/transit/app?token_file={token}&{option}")


def test_a_setting_may_list_root_keys_and_its_paths_may_have_spaces(tmp_path: Path) -> None:
    first, second = tmp_path / "a b.key", tmp_path / "c.key"
    FileRootKey.create(first)
    FileRootKey.create(second)
    assert isinstance(create_root_key(f"file:{first}"), FileRootKey)
    assert isinstance(create_root_key(f" file:{first}  file:{second}\n"), RootKeys)


async def test_after_a_move_earlier_wrappings_unwrap_and_new_ones_use_the_active_root_key(tmp_path: Path) -> None:
    old = FileRootKey.create(tmp_path / "old.key")
    key = SecretKey.generate()
    before = await old.wrap(key, CONTEXT)
    FileRootKey.create(tmp_path / "new.key")
    both = create_root_key(f"file:{tmp_path}/new.key file:{tmp_path}/old.key")
    assert (await both.unwrap(before, CONTEXT)).kcv() == key.kcv()
    moved = await both.rewrap(before, CONTEXT)
    only_new = FileRootKey.open(tmp_path / "new.key")
    assert (await only_new.unwrap(moved, CONTEXT)).kcv() == key.kcv()
    assert only_new.recognises(await both.wrap(key, CONTEXT))
    assert (await only_new.unwrap(await both.rewrap(moved, CONTEXT), CONTEXT)).kcv() == key.kcv()
    with pytest.raises(KeyDenied):
        await only_new.unwrap(before, CONTEXT)
    with pytest.raises(KeyDenied):
        await both.unwrap(await MemoryRootKey().wrap(key, CONTEXT), CONTEXT)
    await both.health()
    (tmp_path / "old.key").unlink()
    with pytest.raises(RootKeyInvalid, match=r"old\.key"):
        await both.health()
    await both.aclose()


async def test_a_tenants_own_root_key_serves_that_tenant_alone() -> None:
    shared, own, key = MemoryRootKey(), MemoryRootKey(), SecretKey.generate()
    tenant, other = CONTEXT, {**CONTEXT, "tenant": str(UUID(int=3))}
    earlier = await shared.wrap(key, tenant)
    roots = RootKeys([shared], {UUID(tenant["tenant"]): [own]})
    assert own.recognises(await roots.wrap(key, tenant))
    assert shared.recognises(await roots.wrap(key, other))
    assert (await roots.unwrap(earlier, tenant)).kcv() == key.kcv()
    assert own.recognises(await roots.rewrap(earlier, tenant))
    with pytest.raises(KeyDenied):
        await roots.unwrap(await own.wrap(key, other), other)
    assert roots.provider == "memory"
    assert roots.recognises(earlier)
    assert not roots.recognises(await MemoryRootKey().wrap(key, other))
    with pytest.raises(RootKeyInvalid):
        RootKeys([], {UUID(int=2): [own]})


async def test_a_tenants_tombstones_need_the_deployments_root_key_and_never_its_own() -> None:
    shared, own, key = MemoryRootKey(), UnsteadyRootKey(), SecretKey.generate()
    tombstone = {**CONTEXT, "purpose": TOMBSTONE_PURPOSE}
    earlier = await own.wrap(key, tombstone)
    roots = RootKeys([shared], {UUID(CONTEXT["tenant"]): [own]})
    assert (await roots.unwrap(earlier, tombstone)).kcv() == key.kcv()  # earlier releases took the tenant's own
    own.refusal = KeyDenied()
    wrapped = await roots.wrap(key, tombstone)
    assert shared.recognises(wrapped)
    assert (await roots.unwrap(wrapped, tombstone)).kcv() == key.kcv()
    with pytest.raises(KeyDenied):
        await roots.wrap(key, CONTEXT)


@pytest.mark.slow
def test_no_client_of_a_service_is_loaded_for_a_file() -> None:
    program = "import crypto, sys; sys.exit(any(name in sys.modules for name in ('boto3', 'hvac', 'requests')))"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_wrapped_key_is_immutable() -> None:
    wrapped = WrappedKey("file", "id", "1", b"")
    with pytest.raises(AttributeError):
        wrapped.provider = "other"  # type: ignore[misc]


@contextmanager
def as_nobody(folder: Path) -> Iterator[None]:
    """Runs as a user who may do what the mode of ``folder`` says; root may do everything."""
    user_id = os.geteuid()
    if user_id == 0:
        os.chown(folder, NOBODY, -1)
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(user_id)


@contextmanager
def no_room() -> Iterator[None]:
    """Nothing can be written to any file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture
def folder() -> Iterator[Path]:
    # Not pytest's own: its parents are closed to other users.
    path = Path(tempfile.mkdtemp(prefix="stateroom-root-key-"))
    yield path
    path.chmod(0o700)
    shutil.rmtree(path)


def test_a_path_that_no_file_can_have_is_refused(tmp_path: Path) -> None:
    for act in (FileRootKey.open, FileRootKey.create):
        with pytest.raises(RootKeyInvalid, match="too long"):
            act(tmp_path / ("x" * 256))


def test_a_file_that_cannot_be_written_whole_is_not_left_behind(folder: Path) -> None:
    with no_room(), pytest.raises(RootKeyInvalid, match="cannot write"):
        FileRootKey.create(folder / "root.key")
    assert not list(folder.iterdir())
    root_key = FileRootKey.create(folder / "root.key")
    before = (folder / "root.key").read_bytes()
    with no_room(), pytest.raises(RootKeyInvalid, match="cannot write"):
        root_key.add_version()
    assert [each.read_bytes() for each in folder.iterdir()] == [before]


def test_a_version_needs_a_file_beside_the_root_key_file(tmp_path: Path) -> None:
    root_key = FileRootKey.create(tmp_path / ("x" * 252))  # one letter too many for `.new`
    with pytest.raises(RootKeyInvalid, match=r"cannot write .*\.new"):
        root_key.add_version()


def test_the_last_version_number_is_the_last(tmp_path: Path) -> None:
    encoded = base64.b64encode(bytes(32)).decode()
    document = {"format": "stateroom-root-key/1", "active": 4294967295, "keys": {"4294967295": encoded}}
    path = write(tmp_path / "root.key", json.dumps(document))
    with pytest.raises(RootKeyInvalid, match="no version number left"):
        FileRootKey.open(path).add_version()
    assert json.loads(path.read_text()) == document


def test_what_is_not_yet_durable_is_said(folder: Path) -> None:
    with as_nobody(folder):
        root_key = FileRootKey.create(folder / "root.key")
        folder.chmod(0o300)  # files can be made in it, but nobody can open it to sync it
        with pytest.raises(RootKeyInvalid, match=r"version 2 is in .*, but not yet durably"):
            root_key.add_version()
        with pytest.raises(RootKeyInvalid, match="cannot write"):
            FileRootKey.create(folder / "other.key")
        folder.chmod(0o700)
        assert not (folder / "other.key").exists()
        assert json.loads((folder / "root.key").read_text())["active"] == 2


@pytest.mark.parametrize(("keys", "active"), [({}, 1), ({1: bytes(32)}, 2), ({0: bytes(32)}, 0)])
def test_versions_that_cannot_be_are_refused(keys: dict[int, bytes], active: int) -> None:
    with pytest.raises(RootKeyInvalid):
        LocalRootKey("memory", {number: SecretKey(each) for number, each in keys.items()}, active)


async def test_a_new_version_wraps_and_earlier_wrappings_unwrap() -> None:
    root_key, key = MemoryRootKey(), SecretKey.generate()
    before = await root_key.wrap(key, CONTEXT)
    root_key.rotate()
    assert (await root_key.wrap(key, CONTEXT)).root_key_version == "2"
    assert (await root_key.unwrap(before, CONTEXT)).kcv() == key.kcv()


async def test_a_wrapping_says_the_version_that_made_it_and_holds_a_whole_key() -> None:
    material = SecretKey(bytes(32))
    root_key = LocalRootKey("memory", {1: material}, 1)
    wrapped = await root_key.wrap(SecretKey.generate(), CONTEXT)
    with pytest.raises(OpenError) as caught:
        await root_key.unwrap(replace(wrapped, root_key_version="2"), CONTEXT)
    assert caught.value.code == "authentication"
    header, wrapping_key = wrapped.ciphertext[:HEADER_BYTES], material.derive(_TENANT_KEK)
    short = seal_body(header, wrapping_key.borrow(), _encode(header, CONTEXT), 16, bytes(16))
    with pytest.raises(OpenError) as caught:
        await root_key.unwrap(replace(wrapped, ciphertext=short), CONTEXT)
    assert caught.value.code == "format"


async def test_a_context_of_other_names_is_refused() -> None:
    root_key = MemoryRootKey()
    for context in (CONTEXT | {"more": "1"}, {"tenant": CONTEXT["tenant"]}):
        with pytest.raises(ValueError, match="deployment, tenant, purpose and version"):
            await root_key.wrap(SecretKey.generate(), context)


@pytest.mark.slow
def test_vault_without_its_extra_is_named() -> None:
    program = (
        "import sys; sys.modules['hvac'] = None\n"
        "from crypto.errors import RootKeyInvalid\n"
        "from crypto.roots import create_root_key\n"
        "try: create_root_key('vault:https://h/transit/app')\n"
        "except RootKeyInvalid as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "stateroom-gateway[vault]" in done.stdout
