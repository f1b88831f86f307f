"""Looks for plaintext in everything a stopped Stateroom leaves behind: files, rows and objects.

Owns the search of the demo, and the controls that tell whether it can find anything: values stored compressed but not
sealed. What is looked for is a text or bytes; it counts as found as it is, or inside any zstd frame, wherever the frame
begins. Rows and objects are read through PostgreSQL (as superuser) and S3 besides the files, because both cut long
values into pieces. The engines are run by the search itself, without a gateway. It does not look for text in other
encodings or encrypted disks.
"""

import asyncio
import secrets
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg
import boto3
from botocore.config import Config

from gateway.embedded.postgres import EmbeddedPostgres
from gateway.embedded.s3 import EmbeddedS3

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"  # RFC 8878 section 3.1.1
READ_BYTES = 64 * 1024
OPENED_BYTES_MAX = 64 * 1024 * 1024  # of one frame
SCRATCH_TABLE = "demo_control"
SCRATCH_OBJECT = "demo-control"
SMALL_BYTES, LARGE_BYTES = 512, 4096  # kept inside its row; kept beside the table, in pieces of 2 KB
LITERAL_CHARACTERS = 16  # so many of a control in a row would be seen without decompressing anything

Inflate = Callable[[bytes, int], bytes]
Needle = str | bytes


class Control:
    """A text that can only be found by decompressing the frame that it is stored as."""

    def __init__(self, size: int) -> None:
        # Of hexadecimal digits each takes 4 bits instead of 8, so that none of them stands in the frame as it is.
        self.text = secrets.token_hex(size)
        self.frame = zstd.compress(self.text.encode())
        starts = range(len(self.text) - LITERAL_CHARACTERS)
        if any(self.text[at : at + LITERAL_CHARACTERS].encode() in self.frame for at in starts):
            raise RuntimeError("the control stands in its own frame: finding it would prove nothing")


def inflate(data: bytes, at: int) -> bytes:
    """Whatever can be decompressed of a frame that begins at ``at``; a damaged or cut frame gives its beginning."""
    decompressor = zstd.ZstdDecompressor()
    opened = bytearray()
    try:
        while at < len(data) and not decompressor.eof and len(opened) < OPENED_BYTES_MAX:
            opened += decompressor.decompress(data[at : at + READ_BYTES], OPENED_BYTES_MAX)
            at += READ_BYTES
    except zstd.ZstdError:
        pass  # the magic number by chance, or a frame that somebody cut
    return bytes(opened)


@dataclass
class Found:
    """What a search met: how much it read, what it found where, and whether it found its own controls."""

    inflate: Inflate = inflate
    files: int = 0
    rows: int = 0
    rows_of: Counter[str] = field(default_factory=Counter)
    objects: int = 0
    frames: int = 0
    hits: dict[Needle, set[str]] = field(default_factory=dict)
    controls: dict[str, bool] = field(default_factory=dict)

    def look(self, place: str, data: bytes, needles: Sequence[Needle]) -> None:
        """Look for texts and bytes in some bytes, and in every zstd frame among them."""
        wanted = [(each, each if isinstance(each, bytes) else each.encode()) for each in needles]
        self._note(place, data, wanted)
        at = data.find(ZSTD_MAGIC)
        while at >= 0:
            opened = self.inflate(data, at)
            self.frames += bool(opened)
            self._note(f"{place}, compressed", opened, wanted)
            at = data.find(ZSTD_MAGIC, at + 1)

    def _note(self, place: str, data: bytes, wanted: list[tuple[Needle, bytes]]) -> None:
        for needle, stored in wanted:
            if stored in data:
                self.hits.setdefault(needle, set()).add(place)

    def take_control(self, what: str, control: Control, place: str) -> None:
        """Note whether a control was found where it was stored, and that it is none of the texts that leaked."""
        self.controls[what] = any(
            each.startswith(place) and each.endswith(", compressed") for each in self.hits.get(control.text, ())
        )

    def leaked(self, needles: Sequence[Needle]) -> dict[Needle, set[str]]:
        """Which of the texts and bytes were found, and where."""
        return {each: self.hits[each] for each in needles if each in self.hits}


def search(data_dir: Path, needles: Sequence[Needle], inflate: Inflate = inflate) -> Found:
    """Look everywhere for ``needles`` and for controls, which this stores compressed but not sealed.

    Args:
        data_dir: The folder of an embedded gateway that was stopped.
        needles: What must not be there.
        inflate: How a frame is opened.
    """
    small, large, listed, blob, archived = (Control(size) for size in (SMALL_BYTES, *[LARGE_BYTES] * 4))
    wanted = [*needles, *(each.text for each in (small, large, listed, blob, archived))]
    found = Found(inflate)
    with EmbeddedPostgres(data_dir) as postgres, EmbeddedS3(data_dir) as s3:
        for row in asyncio.run(_rows(postgres, small, large, listed)):
            found.rows += 1
            found.rows_of[row["found_in"]] += 1
            for name, value in row.items():
                found.look(f"rows of {row['found_in']}: {name}", _bytes_of(value), wanted)
        for bucket, name, data in _objects(s3, {s3.bucket: blob, s3.archive_bucket: archived}):
            found.objects += 1
            found.look(f"object {bucket}/{name}", data, wanted)
    # The engines were stopped, hence wrote everything to disk. What these files cannot show is a compressed value of
    # more than 2 KB that was deleted: its pieces are there until they are overwritten, but no row leads to them, and a
    # piece alone cannot be decompressed.
    for path in sorted(data_dir.rglob("*")):
        if path.is_file() and not path.is_symlink():
            found.files += 1
            place = "postgres files" if path.is_relative_to(data_dir / "postgres") else "other files"
            place = "s3 files" if path.is_relative_to(data_dir / "s3") else place
            found.look(place, path.read_bytes(), wanted)
    rows = f"rows of public.{SCRATCH_TABLE}: "
    found.take_control("the database's files", small, "postgres files")
    found.take_control("a row", small, f"{rows}small")
    found.take_control("a value that is kept beside its row, in pieces", large, f"{rows}large")
    found.take_control("a list in a row", listed, f"{rows}listed")
    found.take_control("the bucket of blobs", blob, f"object {s3.bucket}/")
    found.take_control("the bucket of archives", archived, f"object {s3.archive_bucket}/")
    return found


def _bytes_of(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, list | tuple | asyncpg.Record):
        return b"\n".join(map(_bytes_of, value))
    return str(value).encode()


async def _rows(postgres: EmbeddedPostgres, small: Control, large: Control, listed: Control) -> list[dict[str, Any]]:
    """Every row of every table of the gateway's database, as superuser."""
    connection = await asyncpg.connect(postgres.superuser_url("stateroom").replace("+asyncpg", "", 1))
    try:
        await connection.execute(f"DROP TABLE IF EXISTS {SCRATCH_TABLE}")
        await connection.execute(f"CREATE TABLE {SCRATCH_TABLE} (small bytea, large bytea, listed bytea[])")
        await connection.execute(
            f"INSERT INTO {SCRATCH_TABLE} VALUES ($1, $2, $3)",  # noqa: S608 - a constant name
            small.frame,
            large.frame,
            [b"before", listed.frame],
        )
        await connection.execute("CHECKPOINT")
        tables = await connection.fetch(
            "SELECT format('%I.%I', schemaname, tablename) AS name FROM pg_tables"
            " WHERE schemaname NOT IN ('pg_catalog', 'information_schema')"
        )
        return [
            {"found_in": table["name"], **row}
            for table in tables
            for row in await connection.fetch(f"SELECT * FROM {table['name']}")  # noqa: S608 - quoted by format
        ]
    finally:
        await connection.close()


def _objects(s3: EmbeddedS3, controls: dict[str, Control]) -> Iterator[tuple[str, str, bytes]]:
    """Every object of every bucket: bucket, name and content."""
    client = boto3.client(
        "s3",
        endpoint_url=s3.endpoint_url,
        aws_access_key_id=s3.access_key,
        aws_secret_access_key=s3.secret_key,
        region_name=s3.region,
        config=Config(proxies={}),  # none leads to this machine
    )
    try:
        for bucket, control in controls.items():
            client.put_object(Bucket=bucket, Key=SCRATCH_OBJECT, Body=control.frame)
        for bucket in [each["Name"] for each in client.list_buckets()["Buckets"]]:
            for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket):
                for entry in page.get("Contents", []):
                    yield bucket, entry["Key"], client.get_object(Bucket=bucket, Key=entry["Key"])["Body"].read()
    finally:
        client.close()
