"""The rows of an earlier build, as `tests/golden/rows_a34` holds them: a database, two buckets, keys and answers."""

import hashlib
import io
import json
import os
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import msgspec

from gateway.embedded.postgres import postgres_programs
from storage.blobs.keyspace import BUCKETS
from storage.blobs.s3 import S3BlobStore
from storage.blobs.s3_location import S3Location

FOLDER = Path(__file__).parents[1] / "golden" / "rows_a34"
FILE = FOLDER / "deployment.tar.xz"
_DOCUMENT, _ROOT_KEY, _DATABASE, _OBJECTS = "answers.json", "root.key", "database.sql", "objects"


class Question(msgspec.Struct, frozen=True):
    """What one asks of a gateway: a GET by one of the golden's keys."""

    key: str
    path: str
    headers: dict[str, str] = {}

    def ask(self, client: httpx.Client, keys: Mapping[str, str]) -> httpx.Response:
        """Ask it; ``client`` names the gateway, and nobody who asks."""
        return client.get(self.path, headers={**self.headers, "Authorization": f"Bearer {keys[self.key]}"})


class Answered(msgspec.Struct, frozen=True):
    """A question, and what the earlier build answered: a status with JSON, or with the digest of what is no JSON."""

    question: Question
    status: int
    body: Any


class Document(msgspec.Struct, frozen=True):
    """What the earlier build was told and what it said.

    Attributes:
        environ: Settings of the deployment; those that name a server or a file are left out.
        keys: API keys by the name that questions have for them.
        named: What tests go on with: ids of threads, jobs and tenants by their parts in the story.
        answers: What the earlier build answered at the end.
        events: The audit log of a key's tenant, by the key's name.
    """

    environ: dict[str, str]
    keys: dict[str, str]
    named: dict[str, str]
    answers: list[Answered]
    events: dict[str, list[Any]]


class ObjectKey(NamedTuple):
    """An object by its key; see `ObjectLocation`."""

    text: str

    def object_key(self) -> str:
        return self.text


class Golden(NamedTuple):
    """A whole deployment at rest; ``objects`` are those of each bucket, by their keys."""

    document: Document
    root_key: bytes
    database: bytes
    objects: dict[str, dict[str, bytes]]

    def write(self, file: Path) -> None:
        """Pack it, the same bytes for the same deployment."""
        parts = {_ROOT_KEY: self.root_key, _DATABASE: self.database}
        parts[_DOCUMENT] = json.dumps(msgspec.to_builtins(self.document), indent=1, sort_keys=True).encode()
        for bucket, objects in self.objects.items():
            parts |= {f"{_OBJECTS}/{bucket}/{key}": content for key, content in objects.items()}
        with tarfile.open(file, "w:xz", preset=9) as archive:
            for name, content in sorted(parts.items()):
                member = tarfile.TarInfo(name)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))

    @classmethod
    def read(cls, file: Path = FILE) -> "Golden":
        with tarfile.open(file) as archive:
            parts = {each.name: archive.extractfile(each).read() for each in archive.getmembers()}  # type: ignore[union-attr]
        objects: dict[str, dict[str, bytes]] = {bucket: {} for bucket in BUCKETS}
        for name, content in parts.items():
            if name.startswith(f"{_OBJECTS}/"):
                _, bucket, key = name.split("/", 2)
                objects[bucket][key] = content
        document = msgspec.json.decode(parts[_DOCUMENT], type=Document)
        return cls(document, parts[_ROOT_KEY], parts[_DATABASE], objects)


def body_of(answer: httpx.Response) -> Any:
    """What an answer said: its JSON, or a digest of what is no JSON; a problem's kind, for its words may change."""
    if answer.status_code >= 400:
        return answer.json()["code"]
    if answer.headers.get("content-type") == "application/json":
        return answer.json()
    return hashlib.sha256(answer.content).hexdigest()


def dump(superuser_url: str) -> bytes:
    """Everything that the schema of a database is and holds, as SQL; no value in it names this machine."""
    command = [postgres_programs() / "pg_dump", "--schema=stateroom", "--restrict-key=golden", superuser_url]
    return subprocess.run(command, capture_output=True, check=True).stdout


def restore(superuser_url: str, script: bytes) -> None:
    """Run what `dump` wrote, on a database without the schema."""
    command = [postgres_programs() / "psql", "-qX", "-v", "ON_ERROR_STOP=1", "-o", os.devnull, superuser_url]
    subprocess.run(command, input=script, check=True)


async def stored(url: str) -> dict[str, bytes]:
    """The objects of a bucket."""
    bucket = S3BlobStore(S3Location.parse(url))
    try:
        found: dict[str, bytes] = {}
        while keys := await bucket.list_keys("", after=max(found, default="")):
            found |= {key: await bucket.get(ObjectKey(key)) for key in keys}
        return found
    finally:
        await bucket.aclose()


async def store(url: str, objects: Mapping[str, bytes]) -> None:
    """Put objects into a bucket."""
    bucket = S3BlobStore(S3Location.parse(url))
    try:
        for key, content in objects.items():
            await bucket.put_if_absent(ObjectKey(key), content)
    finally:
        await bucket.aclose()
