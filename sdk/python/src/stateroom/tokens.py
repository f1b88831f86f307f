"""What a client remembers of its threads, so that it notices when they are rolled back.

Everything in the gateway's database agrees with everything else, also after yesterday's copy was put back. Only who
remembers more can tell. With each save, each load and each write to a head the gateway gives a token; a store keeps the
newest of each thread and namespace, and the client sends it along: a thread that is older than that, or another one
under its name, is refused with ``RollbackDetected``. A store belongs where the owner of the database cannot write.

This module owns stores and which of two tokens is newer. It does not check tokens; only the gateway can.
"""

import base64
import binascii
import contextlib
import hashlib
import os
import shutil
import struct
import tempfile
import threading
from pathlib import Path
from typing import Protocol

import msgspec

from stateroom._io.processes import PerProcess
from stateroom._protocol.core import Answer, Call

_BODY = struct.Struct(">B16sQ")  # format, incarnation, sequence; the rest is the gateway's


class TokenPlace(msgspec.Struct, frozen=True):
    """What a token is of.

    Attributes:
        tenant_id: The tenant's id.
        subject: The subject's id.
        thread_id: The thread's id.
        namespace: The namespace's name; empty for the root.
    """

    tenant_id: str
    subject: str
    thread_id: str
    namespace: str


class TokenStore(Protocol):
    """Keeps the newest token of each place. Methods may be called from several threads at once."""

    def get(self, place: TokenPlace) -> str | None:
        """The token that was kept, or ``None``."""

    def put(self, place: TokenPlace, token: str) -> None:
        """Keep a token, unless a newer one of the same life of the thread is kept; durable on return."""

    def forget(self, place: TokenPlace) -> None:
        """Drop the tokens of all namespaces of the place's thread: this client deleted or replaced it."""


def is_newer(token: str, kept: str | None) -> bool:
    """Whether ``token`` should replace ``kept``: it is of another life of the thread, or not of an earlier change."""
    if kept is None:
        return True
    ours, theirs = _read(token), _read(kept)
    return ours is None or theirs is None or ours[0] != theirs[0] or ours[1] >= theirs[1]


def _read(token: str) -> tuple[bytes, int] | None:
    try:
        raw = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
        _, incarnation, sequence = _BODY.unpack_from(raw)
    except (ValueError, binascii.Error, struct.error):
        return None
    return incarnation, sequence


class MemoryTokenStore:
    """Keeps tokens as long as the process lives."""

    def __init__(self) -> None:
        self._lock = PerProcess(threading.Lock)
        self._tokens: dict[TokenPlace, str] = {}

    def get(self, place: TokenPlace) -> str | None:
        """See ``TokenStore``."""
        with self._lock.mine():
            return self._tokens.get(place)

    def put(self, place: TokenPlace, token: str) -> None:
        """See ``TokenStore``."""
        with self._lock.mine():
            if is_newer(token, self._tokens.get(place)):
                self._tokens[place] = token

    def forget(self, place: TokenPlace) -> None:
        """See ``TokenStore``."""
        thread = msgspec.structs.replace(place, namespace="")
        with self._lock.mine():
            for kept in [kept for kept in self._tokens if msgspec.structs.replace(kept, namespace="") == thread]:
                del self._tokens[kept]


class FileTokenStore:
    """Keeps tokens in a folder: a file for each namespace, replaced atomically and flushed to the disk.

    Names of files are digests; no id appears. Processes may share a folder: should two of them store tokens of one
    thread at the same moment, the one that is slightly older may stay, which only weakens what is noticed.

    Args:
        folder: Where; made when it does not exist, readable by its owner only.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder)
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = PerProcess(threading.Lock)

    def _thread_folder(self, place: TokenPlace) -> Path:
        return self._folder / _digest(place.tenant_id, place.subject) / _digest(place.thread_id)

    def _file(self, place: TokenPlace) -> Path:
        return self._thread_folder(place) / _digest(place.namespace)

    def get(self, place: TokenPlace) -> str | None:
        """See ``TokenStore``."""
        try:
            return self._file(place).read_text("ascii")
        except FileNotFoundError:
            return None

    def put(self, place: TokenPlace, token: str) -> None:
        """See ``TokenStore``.

        Raises:
            OSError: The token could not be stored.
        """
        with self._lock.mine():
            kept = self.get(place)
            if kept == token or not is_newer(token, kept):
                return
            file = self._file(place)
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            number, name = tempfile.mkstemp(prefix=".new-", dir=file.parent)
            try:
                with os.fdopen(number, "w", encoding="ascii") as fresh:
                    fresh.write(token)
                    fresh.flush()
                    os.fsync(fresh.fileno())
                Path(name).replace(file)
            except BaseException:
                with contextlib.suppress(FileNotFoundError):
                    Path(name).unlink()
                raise

    def forget(self, place: TokenPlace) -> None:
        """See ``TokenStore``."""
        with self._lock.mine(), contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self._thread_folder(place))


def _digest(*parts: str) -> str:
    digest = hashlib.sha256()
    for part in parts:
        raw = part.encode("utf-8", "surrogatepass")
        digest.update(len(raw).to_bytes(8, "big") + raw)
    return digest.hexdigest()[:32]


KNOWN_HEADER = "Stateroom-Known-Token"
GIVEN_HEADER = "stateroom-thread-token"


class Owner(msgspec.Struct, frozen=True):
    """Whose threads a call is about; ids of threads are unique below it."""

    tenant_id: str
    subject: str

    def place(self, thread_id: str, namespace: str = "") -> TokenPlace:
        """A place of this owner."""
        return TokenPlace(self.tenant_id, self.subject, thread_id, namespace)


def with_known(call: Call, token: str | None) -> Call:
    """The call, with what is known of its thread."""
    if token is None:
        return call
    return msgspec.structs.replace(call, headers={**call.headers, KNOWN_HEADER: token})


def remember(store: TokenStore, owner: Owner, call: Call, answer: Answer) -> None:
    """Keep what an answer tells, and drop what its call ended."""
    for thread_id in call.forgets:
        store.forget(owner.place(thread_id))
    token = answer.headers.get(GIVEN_HEADER)
    if call.seen is not None and token:
        store.put(owner.place(*call.seen), token)


def forget_missing(store: TokenStore, owner: Owner, call: Call) -> None:
    """Drop what a call wanted to end when there was nothing to end."""
    for thread_id in call.forgets:
        store.forget(owner.place(thread_id))
