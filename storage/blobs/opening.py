"""Which client reaches a bucket: the URL says it. Owns the choice and nothing else."""

from storage.blobs.s3 import THREADS, S3BlobStore, S3Location


def open_bucket(bucket: S3Location, *, threads: int = THREADS) -> S3BlobStore:
    """A store for a bucket; nothing is asked of the server yet.

    Raises:
        ValueError: The URL asks for a client that is not installed.
    """
    if bucket.client == "boto3":
        return S3BlobStore(bucket, threads=threads)
    try:
        from storage.blobs.obstore import ObstoreBlobStore  # noqa: PLC0415  an extra
    except ModuleNotFoundError:
        raise ValueError("the S3 URL says client=obstore: install stateroom-gateway[obstore]") from None
    return ObstoreBlobStore(bucket, threads=threads)
