import pytest

from gateway.app import _blobs_healthy, open_blobs
from gateway.settings import SettingsError
from storage.blobs.memory import MemoryBlobStore
from storage.blobs.store import BlobUnavailable


@pytest.mark.parametrize("url", ["", "http://a:hunter2@host/bucket", "s3://a:hunter2@host/b?x=1"])
async def test_a_wrong_object_store_url_is_refused_without_repeating_it(url):
    with pytest.raises(SettingsError, match="STATEROOM_S3_URL") as raised:
        async with open_blobs(url):
            pass
    assert "hunter2" not in str(raised.value)


async def test_without_a_url_there_is_no_object_store():
    async with open_blobs(None) as blobs:
        assert blobs is None


async def test_the_probe_of_the_object_store_fails_when_it_is_away():
    blobs = MemoryBlobStore()
    assert await _blobs_healthy(blobs)()
    blobs.available = False
    with pytest.raises(BlobUnavailable):
        await _blobs_healthy(blobs)()
