"""Where a bucket is and how it is reached, as one URL: `STATEROOM_S3_URL` or `STATEROOM_ARCHIVE_URL`. Connects nowhere.

    s3://BUCKET?region=eu-central-1                                    AWS itself
    s3://ACCESS:SECRET@HOST:PORT/BUCKET?endpoint=http&region=us-east-1  any other server

A path makes the host the endpoint. `endpoint` is `https` (default) or `http`; `addressing` is `path` (default with an
endpoint) or `virtual`; `region` defaults to boto3's own, or to us-east-1 with an endpoint. `sse` asks the server to
encrypt what it stores, a second layer below our own: `AES256`, or `aws:kms` with an optional `kms_key_id`.
`storage_class` is what objects are stored in, one of S3's classes, STANDARD if it is left out; GLACIER and
DEEP_ARCHIVE are for the bucket of archived threads only. `offload_bytes_min` says how large a piece of a value must be
to live in the bucket instead of the database: 16384 to 16777216 bytes, 65536 if it is left out. Access, secret and
parameters are percent-encoded. There are no other parameters.
"""

from dataclasses import dataclass, field
from typing import Self
from urllib.parse import parse_qsl, unquote, urlsplit

from storage.blobs.store import STORAGE_CLASSES

# Below, an object costs more than the row it spares; above, rows become what PostgreSQL is slow at.
OFFLOAD_BYTES_BOUNDS = (16 * 1024, 16 * 1024 * 1024)


@dataclass(frozen=True, slots=True)
class S3Location:
    """A bucket, how to reach it, and from which size on pieces of values go there; `parse` reads the URL."""

    bucket: str
    endpoint_url: str | None = None
    region: str | None = None
    addressing: str = "virtual"
    access_key: str | None = None
    secret_key: str | None = field(default=None, repr=False)
    sse: str | None = None
    kms_key_id: str | None = None
    offload_bytes_min: int | None = None
    storage_class: str | None = None

    @classmethod
    def parse(cls, url: str) -> Self:
        """Read a URL.

        Raises:
            ValueError: It is not of the form above. The message never repeats the URL: it holds a secret.
        """
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
            pairs = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
        except ValueError:
            raise ValueError("the S3 URL cannot be parsed") from None
        options = dict(pairs)
        path = parts.path.strip("/")
        if parts.scheme != "s3" or not host or "/" in path or parts.fragment or len(options) != len(pairs):
            raise ValueError("the S3 URL must look like s3://bucket or s3://access:secret@host:port/bucket")
        if (parts.username is None) != (parts.password is None):
            raise ValueError("the S3 URL has an access key without a secret, or the reverse")
        scheme, addressing = options.pop("endpoint", "https"), options.pop("addressing", None)
        region = options.pop("region", None)
        sse, kms_key_id = options.pop("sse", None), options.pop("kms_key_id", None)
        if sse not in {None, "AES256", "aws:kms"} or (kms_key_id is not None and (sse != "aws:kms" or not kms_key_id)):
            raise ValueError("the S3 URL takes sse=AES256, or sse=aws:kms with or without kms_key_id")
        storage_class = options.pop("storage_class", None)
        if storage_class is not None and storage_class not in STORAGE_CLASSES:
            raise ValueError(f"the S3 URL takes storage_class={'|'.join(sorted(STORAGE_CLASSES))}")
        offload_bytes_min = _offload_bytes_min(options.pop("offload_bytes_min", None))
        if options or scheme not in {"http", "https"} or addressing not in {None, "path", "virtual"}:
            raise ValueError(
                "the S3 URL takes endpoint=http|https, addressing=path|virtual, region, sse, kms_key_id, storage_class"
                " and offload_bytes_min only"
            )
        if not path and (port is not None or scheme != "https"):
            raise ValueError("the S3 URL names an endpoint but no bucket: add /bucket")
        authority = f"[{host}]" if ":" in host else host
        return cls(
            bucket=path or host,
            endpoint_url=f"{scheme}://{authority}{f':{port}' if port else ''}" if path else None,
            region=region or ("us-east-1" if path else None),
            addressing=addressing or ("path" if path else "virtual"),
            access_key=unquote(parts.username) if parts.username is not None else None,
            secret_key=unquote(parts.password) if parts.password is not None else None,
            sse=sse,
            kms_key_id=kms_key_id,
            offload_bytes_min=offload_bytes_min,
            storage_class=storage_class,
        )


def _offload_bytes_min(text: str | None) -> int | None:
    low, high = OFFLOAD_BYTES_BOUNDS
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(high)) and low <= int(text) <= high):
        raise ValueError(f"the S3 URL takes offload_bytes_min={low} to {high}")
    return int(text)
