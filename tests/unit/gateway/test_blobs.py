import pytest

from gateway.app import _healthy, offload_bytes_min, open_blobs
from gateway.settings import SettingsError
from storage.blobs.memory import MemoryBlobStore
from storage.blobs.store import BlobUnavailable


@pytest.mark.parametrize("url", ["", "http://a:hunter2@host/bucket", "s3://a:hunter2@host/b?x=1"])
async def test_a_wrong_object_store_url_is_refused_without_repeating_it(url):
    with pytest.raises(SettingsError, match="STATEROOM_S3_URL") as raised:
        async with open_blobs(url):
            pass
    assert "hunter2" not in str(raised.value)


async def test_the_archives_url_is_refused_by_its_own_name():
    with pytest.raises(SettingsError, match="STATEROOM_ARCHIVE_URL") as raised:
        async with open_blobs("s3://a:hunter2@host/b?storage_class=COLD", "archive"):
            pass
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize("storage_class", ["GLACIER", "DEEP_ARCHIVE"])
async def test_only_the_archive_may_be_frozen(storage_class):
    url = f"s3://a:b@127.0.0.1:1/b?endpoint=http&storage_class={storage_class}"
    with pytest.raises(SettingsError, match=f"STATEROOM_S3_URL.*{storage_class}"):
        async with open_blobs(url):
            pass
    async with open_blobs(url, "archive") as archive:
        assert archive is not None
        assert archive.storage_class == storage_class
    async with open_blobs(url.replace(storage_class, "STANDARD_IA")) as blobs:
        assert blobs is not None
        assert blobs.storage_class == "STANDARD_IA"


def test_the_url_says_from_which_size_on_pieces_live_in_the_bucket():
    assert offload_bytes_min(None) == offload_bytes_min("s3://b") == 65_536
    assert offload_bytes_min("s3://a:b@h/b?endpoint=http&offload_bytes_min=131072") == 131_072


async def test_without_a_url_there_is_no_object_store():
    async with open_blobs(None) as blobs:
        assert blobs is None


async def test_the_probe_of_the_object_store_fails_when_it_is_away():
    blobs = MemoryBlobStore()
    assert await _healthy(blobs)()
    blobs.available = False
    with pytest.raises(BlobUnavailable):
        await _healthy(blobs)()
