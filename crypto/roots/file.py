"""A root key in a file, for single machines and development.

Owns the format `stateroom-root-key/1` (docs/formats/root-key-file.md) and the checks that keep such a file
from being used when other users of the machine can read or replace it. Losing the file loses every tenant's
data; a copy of it opens every tenant's data. It does not protect against this user or root.
"""

import asyncio
import base64
import binascii
import json
import os
import re
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final

from crypto.envelope import KEY_VERSION_MAX
from crypto.errors import KeyDestroyed, RootKeyInvalid
from crypto.keyring import SecretKey
from crypto.roots.base import WrappedKey
from crypto.roots.local import LocalRootKey
from crypto.suites import KEY_BYTES

FORMAT: Final = "stateroom-root-key/1"

_FILE_BYTES_MAX: Final = 65536
_MEMBERS: Final = frozenset({"format", "active", "keys"})
_VERSION_TEXT: Final = re.compile(r"[1-9][0-9]{0,9}")


def _unique(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for name, value in pairs:
        if name in members:
            raise ValueError("a name appears twice")
        members[name] = value
    return members


def _check_folder(path: Path) -> None:
    """Refuse a folder in which other users can put another file in this one's place."""
    for folder in {path.parent, Path(os.path.realpath(path)).parent}:
        try:
            mode = folder.stat().st_mode
        except OSError:
            continue  # opening the file says what is wrong
        if stat.S_IMODE(mode) & 0o022 and not mode & stat.S_ISVTX:
            raise RootKeyInvalid(f"other users can replace {path}; run chmod go-w {folder}")


def _read(path: Path) -> bytes:
    """Read the file after checking, on the open descriptor, that only this user can read or write it."""
    try:
        link = path.lstat()
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise RootKeyInvalid(
            f"no root key file at {path}; restore it from its backup, or create one for a new deployment",
        ) from None
    except OSError as error:
        raise RootKeyInvalid(f"cannot open the root key file {path}: {error.strerror}") from None
    try:
        status = os.fstat(descriptor)
        user_id = os.geteuid()
        if stat.S_ISLNK(link.st_mode) and link.st_uid != user_id:
            raise RootKeyInvalid(f"{path} is a symbolic link of another user; name the file itself")
        if not stat.S_ISREG(status.st_mode):
            raise RootKeyInvalid(f"{path} is not a regular file")
        if status.st_uid != user_id:
            raise RootKeyInvalid(
                f"{path} belongs to user {status.st_uid}, not to this process's user {user_id}; "
                f"run chown {user_id} {path}",
            )
        if stat.S_IMODE(status.st_mode) & 0o077:
            raise RootKeyInvalid(f"other users can reach {path}; run chmod 600 {path}")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            text = file.read(_FILE_BYTES_MAX + 1)
    finally:
        os.close(descriptor)
    if len(text) > _FILE_BYTES_MAX:
        raise RootKeyInvalid(f"{path} is larger than a root key file can be")
    return text


def _parse(path: Path, text: bytes) -> tuple[dict[int, SecretKey], int]:
    try:
        document = json.loads(text.decode(), object_pairs_hook=_unique)
    except (ValueError, RecursionError):
        raise RootKeyInvalid(f"{path} is not valid JSON; restore it from its backup") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise RootKeyInvalid(f'{path} does not say "format": "{FORMAT}"')
    if document.keys() != _MEMBERS or not isinstance(document["keys"], dict):
        raise RootKeyInvalid(f"{path} must have exactly the members format, active and keys")
    root_keys: dict[int, SecretKey] = {}
    for number, encoded in document["keys"].items():
        if not _VERSION_TEXT.fullmatch(number) or int(number) > KEY_VERSION_MAX:
            raise RootKeyInvalid(f"{path} names a key version that is not a whole number from 1")
        try:
            material = base64.b64decode(encoded, validate=True)
        except (binascii.Error, ValueError, TypeError):
            raise RootKeyInvalid(f"key {number} in {path} is not base64") from None
        if len(material) != KEY_BYTES:
            raise RootKeyInvalid(f"key {number} in {path} has {len(material)} bytes; it must have 32")
        root_keys[int(number)] = SecretKey(material)
    active = document["active"]
    if type(active) is not int or active not in root_keys:
        raise RootKeyInvalid(f"{path} has no key of its active version")
    return root_keys, active


def _open(path: Path) -> tuple[dict[int, SecretKey], int]:
    _check_folder(path)
    return _parse(path, _read(path))


def _format(root_keys: Mapping[int, SecretKey], active_root_key_version: int) -> bytes:
    encoded = {str(number): base64.b64encode(key.borrow()).decode() for number, key in sorted(root_keys.items())}
    return (
        json.dumps({"format": FORMAT, "active": active_root_key_version, "keys": encoded}, indent=2) + "\n"
    ).encode()


def _create(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)


def _fill(file: BinaryIO, content: bytes, mode: int) -> None:
    os.fchmod(file.fileno(), mode)
    file.write(content)
    file.flush()
    os.fsync(file.fileno())


def _sync_directory(path: Path) -> None:
    directory = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


class FileRootKey(LocalRootKey):
    """A root key read from a file that only this user can read."""

    def __init__(self, path: Path, root_keys: dict[int, SecretKey], active_root_key_version: int) -> None:
        """Take what `open` read; use `open` or `create`."""
        super().__init__("file", root_keys, active_root_key_version)
        self._path = path

    @classmethod
    def create(cls, path: str | os.PathLike[str]) -> "FileRootKey":
        """Create a file with one random key, mode 0600, and open it. An existing file is never overwritten.

        Raises:
            RootKeyInvalid: There is something at that path already, or it cannot be written, or other users could
                replace it.
        """
        target = Path(path)
        _check_folder(target)
        try:
            descriptor = _create(target)
        except FileExistsError:
            raise RootKeyInvalid(
                f"{target} exists; a root key file is never overwritten: what it wrapped would be lost",
            ) from None
        except OSError as error:
            raise RootKeyInvalid(f"cannot create the root key file {target}: {error.strerror}") from None
        try:
            with os.fdopen(descriptor, "wb") as file:
                _fill(file, _format({1: SecretKey.generate()}, 1), 0o600)
            _sync_directory(target)
        except OSError as error:
            target.unlink(missing_ok=True)
            raise RootKeyInvalid(f"cannot write the root key file {target}: {error.strerror}") from None
        return cls.open(target)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> "FileRootKey":
        """Open a root key file.

        Raises:
            RootKeyInvalid: It is missing, not a regular file of this user, reachable or replaceable by other users, or
                malformed. The message names the remedy and never the content.
        """
        source = Path(path)
        root_keys, active = _open(source)
        return cls(source, root_keys, active)

    def add_version(self) -> int:
        """Add a random version to the file, wrap with it from now on, and return its number.

        The file is replaced in one step by a complete one of the same mode; a crash leaves the old or the new
        one. Other processes take the new version up when they next wrap, or meet a key wrapped under it.
        Blocks for the disk.

        Raises:
            RootKeyInvalid: As `open`; or another process is adding one, or one that did was interrupted; or
                there is no further number; or the file cannot be written.
        """
        # A link stays; what it points to is replaced.
        target = self._path.resolve()
        beside = target.with_name(f"{target.name}.new")
        try:
            # Made before the file is read, it keeps two processes from adding the same number.
            descriptor = _create(beside)
        except FileExistsError:
            raise RootKeyInvalid(
                f"{beside} exists: a version is being added now, or adding one was interrupted; "
                "if nobody is adding one, remove it",
            ) from None
        except OSError as error:
            raise RootKeyInvalid(f"cannot write {beside}: {error.strerror}") from None
        try:
            with os.fdopen(descriptor, "wb") as file:
                # What the file lost is not brought back: only what it holds now goes on.
                root_keys, _ = self._reload()
                number = max(root_keys) + 1
                if number > KEY_VERSION_MAX:
                    raise RootKeyInvalid(f"{target} has no version number left")  # noqa: TRY301  one clean-up for all
                content = _format({**root_keys, number: SecretKey.generate()}, number)
                _fill(file, content, stat.S_IMODE(target.stat().st_mode))
            beside.replace(target)
        except (OSError, RootKeyInvalid) as error:
            beside.unlink(missing_ok=True)
            if isinstance(error, RootKeyInvalid):
                raise
            raise RootKeyInvalid(f"cannot write the root key file {target}: {error.strerror}") from None
        try:
            _sync_directory(target)
        except OSError as error:
            raise RootKeyInvalid(f"version {number} is in {target}, but not yet durably: {error.strerror}") from None
        self._reload()
        return number

    async def wrap(self, key: SecretKey, context: Mapping[str, str]) -> WrappedKey:
        """Wrap a key under the file's newest version; see `RootKey.wrap`.

        Raises:
            RootKeyInvalid: The file went away, changed or cannot be read: what were wrapped now could be lost
                with this process.
        """
        await asyncio.to_thread(self._reload)
        return await super().wrap(key, context)

    async def unwrap(self, wrapped: WrappedKey, context: Mapping[str, str]) -> SecretKey:
        """Unwrap a key; see `RootKey.unwrap`. A version not met before is looked for in the file.

        Raises:
            RootKeyInvalid: It had to be looked for, and the file cannot be read.
        """
        try:
            return await super().unwrap(wrapped, context)
        except KeyDestroyed:
            await asyncio.to_thread(self._reload)
            return await super().unwrap(wrapped, context)

    async def health(self) -> None:
        """Check that the file is still there, still private, and still holds every version in use.

        Raises:
            RootKeyInvalid: As `open`, or a version is missing or differs from the one in memory.
        """
        on_disk, _ = await asyncio.to_thread(_open, self._path)
        for number, root_key in self._root_keys.items():
            other = on_disk.get(number)
            if other is None or other.kcv() != root_key.kcv():
                raise RootKeyInvalid(f"key {number} in {self._path} is not the one this process started with")

    def _reload(self) -> tuple[dict[int, SecretKey], int]:
        """Take up the versions the file has gained and its active one; return what is in it.

        Raises:
            RootKeyInvalid: As `open`, or a version differs from the one in memory.
        """
        on_disk, active = _open(self._path)
        for number, root_key in on_disk.items():
            mine = self._root_keys.get(number)
            if mine is not None and mine.kcv() != root_key.kcv():
                raise RootKeyInvalid(f"key {number} in {self._path} is not the one this process started with")
        # A version the file has lost stays usable here for as long as the process lives; `health` reports it.
        self._root_keys = {**on_disk, **self._root_keys}
        self._active_root_key_version = active
        return on_disk, active
