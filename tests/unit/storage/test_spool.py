"""What waits in a spool comes back as it was, and lies on no disk in the clear."""

import os
from datetime import UTC, datetime

import pytest

from crypto import OpenError
from storage.transfer.spool import Spool

CANARY = b"canary-in-the-spool" * 50


def test_records_come_back_in_order_and_by_place():
    moment = datetime(2026, 11, 22, 5, 30, 0, 123456, tzinfo=UTC)
    with Spool() as spool:
        places = [spool.add(n, None, b"\0" * n, "ä", moment, [1, [2]]) for n in range(200)]
        assert spool.count == 200
        assert [each[0] for each in spool] == list(range(200))
        assert spool.get(places[150]) == [150, None, b"\0" * 150, "ä", moment, [1, [2]]]


def test_records_may_be_read_and_added_in_turn():
    with Spool() as spool:
        first = spool.add("a")
        found = []
        for each in spool:
            found.append(each[0])
            if len(found) < 5:
                spool.add(found[-1] + "b")
            assert spool.get(first) == ["a"]
        assert found == ["a", "ab", "abb", "abbb", "abbbb"]


def test_what_goes_to_the_disk_is_sealed_and_the_file_has_no_name(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    with Spool(memory_bytes_max=100) as spool:
        for _ in range(20):
            spool.add(CANARY)
        assert list(tmp_path.iterdir()) == []
        spool._file.seek(0)
        written = spool._file.read()
        assert len(written) == spool.size_bytes > 20 * len(CANARY)
        assert CANARY[:19] not in written


def test_a_record_that_was_changed_on_the_disk_is_refused():
    with Spool(memory_bytes_max=100) as spool:
        places = [spool.add(os.urandom(100)) for _ in range(3)]
        spool._file.seek(places[1] + 80)
        (byte,) = spool._file.read(1)
        spool._file.seek(places[1] + 80)
        spool._file.write(bytes([byte ^ 1]))
        spool.get(places[0])
        with pytest.raises(OpenError):
            spool.get(places[1])
