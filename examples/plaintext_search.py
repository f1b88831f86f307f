"""Looks for plaintext in everything a stopped Stateroom leaves behind: files, rows and objects.

Owns the search of the demo. A text counts as found as it is, or inside any zstd frame, wherever the frame begins.
Rows are read as superuser besides the files, because PostgreSQL cuts a long value into pieces of 2 KB. The engines
are run by the search itself, without a gateway. It does not look for text in other encodings or encrypted disks.
"""

import asyncio
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg
import boto3

from gateway.cli.embedded import EmbeddedPostgres, EmbeddedS3

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"  # RFC 8878 section 3.1.1
READ_BYTES = 64 * 1024
OPENED_BYTES_MAX = 64 * 1024 * 1024  # of one frame
SCRATCH_TABLE = "demo_control"
SCRATCH_OBJECT = "demo-control"


@dataclass
class Found:
    """What a search met: how much it read, and which texts it found where."""

    files: int = 0
    rows: int = 0
    objects: int = 0
    frames: int = 0
    hits: dict[str, set[str]] = field(default_factory=dict)

    def look(self, place: str, data: bytes, texts: list[str]) -> None:
        """Look for the texts in some bytes, and in every zstd frame among them."""
        self._note(place, data, texts)
        at = data.find(ZSTD_MAGIC)
        while at >= 0:
            opened = inflate(data, at)
            self.frames += bool(opened)
            self._note(place, opened, texts)
            at = data.find(ZSTD_MAGIC, at + 1)

    def _note(self, place: str, data: bytes, texts: list[str]) -> None:
        for text in texts:
            if text.encode() in data:
                self.hits.setdefault(text, set()).add(place)


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


def search(data_dir: Path, texts: list[str], row_control: str, object_control: str) -> Found:
    """Look everywhere for ``texts`` and for two controls, which this stores compressed but not sealed.

    Args:
        data_dir: The folder of an embedded gateway that was stopped.
        texts: What must not be there.
        row_control: Stored in a scratch table first; a search that misses it proves nothing.
        object_control: Stored as an object in the bucket; the same.
    """
    wanted = [*texts, row_control, object_control]
    found = Found()
    with EmbeddedPostgres(data_dir) as postgres, EmbeddedS3(data_dir) as s3:
        for row in asyncio.run(_rows(postgres, row_control)):
            found.rows += 1
            for name, value in row.items():
                data = value if isinstance(value, bytes) else str(value).encode()
                found.look(f"rows of {row['found_in']}: {name}", data, wanted)
        for name, data in _objects(s3, object_control):
            found.objects += 1
            found.look(f"object {name}", data, wanted)
    # The engines were stopped, hence wrote everything to disk.
    for path in sorted(data_dir.rglob("*")):
        if path.is_file() and not path.is_symlink():
            found.files += 1
            place = "postgres files" if path.is_relative_to(data_dir / "postgres") else "other files"
            place = "s3 files" if path.is_relative_to(data_dir / "s3") else place
            found.look(place, path.read_bytes(), wanted)
    return found


async def _rows(postgres: EmbeddedPostgres, control: str) -> list[dict[str, Any]]:
    """Every row of every table of the gateway's database, as superuser."""
    connection = await asyncpg.connect(postgres.superuser_url("stateroom").replace("+asyncpg", "", 1))
    try:
        await connection.execute(f"CREATE TABLE {SCRATCH_TABLE} (value bytea)")
        await connection.execute(
            f"INSERT INTO {SCRATCH_TABLE} VALUES ($1)",  # noqa: S608 - a constant name
            zstd.compress(control.encode() * 2),
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


def _objects(s3: EmbeddedS3, control: str) -> Iterator[tuple[str, bytes]]:
    """Every object of the bucket."""
    client = boto3.client(
        "s3",
        endpoint_url=s3.endpoint_url,
        aws_access_key_id=s3.access_key,
        aws_secret_access_key=s3.secret_key,
        region_name=s3.region,
    )
    try:
        client.put_object(Bucket=s3.bucket, Key=SCRATCH_OBJECT, Body=zstd.compress(control.encode() * 2))
        for page in client.get_paginator("list_objects_v2").paginate(Bucket=s3.bucket):
            for entry in page.get("Contents", []):
                yield entry["Key"], client.get_object(Bucket=s3.bucket, Key=entry["Key"])["Body"].read()
    finally:
        client.close()
