import os
import re
from collections import Counter
from itertools import pairwise
from pathlib import Path
from random import Random  # noqa: TID251  seeded
from uuid import UUID, uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crypto.blob import (
    BLOB_BYTES_MAX,
    PART_BYTES,
    PARTS_MAX,
    PREFIX_BYTES,
    SEALED_PART_BYTES,
    BlobCipher,
    object_bytes,
    open_span,
    part_bytes,
    part_count,
    spans,
)
from crypto.ciphers import cobblestone
from crypto.ciphers.cobblestone import CHUNK_BYTES, SALT_BYTES, ChunkSealer
from crypto.errors import OpenError
from crypto.keyring import SecretKey, SubjectKeys
from crypto.sealer import Sealer

PAGE = Path(__file__).resolve().parents[3] / "docs" / "formats" / "blob.md"
DEPLOYMENT, TENANT, BLOB = (UUID(f"00000000-0000-4000-8000-00000000000{n}") for n in (1, 2, 3))
BLOB_KEY = SecretKey(bytes(range(32)))
SIZES = [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 100_000, PART_BYTES - CHUNK_BYTES, PART_BYTES - 1]


def make_sealer() -> Sealer:
    return Sealer(DEPLOYMENT, TENANT, "user-42", SubjectKeys({1: SecretKey.generate()}, 1, SecretKey.generate()))


def make_cipher() -> BlobCipher:
    return make_sealer().blob_cipher(BLOB, BLOB_KEY)


def seal(plaintext: bytes) -> bytes:
    cipher, last = make_cipher(), len(plaintext) // PART_BYTES
    return b"".join(
        cipher.seal_part(n, plaintext[n * PART_BYTES : (n + 1) * PART_BYTES], last=n == last) for n in range(last + 1)
    )


def read(sealed: bytes, size_bytes: int, start: int, length: int, **options: int) -> bytes:
    cipher = make_cipher()
    found = b""
    for span in spans(size_bytes, start, length, **options):
        opener = cipher.opener(span.part, sealed[span.prefix_offset : span.prefix_offset + PREFIX_BYTES])
        stored = sealed[span.offset : span.offset + span.sealed_bytes]
        assert span.ends_object == (span.offset + span.sealed_bytes == len(sealed))
        pieces = list(open_span(opener, span, stored, slice_bytes_max=1 << 20))
        assert all(0 < len(piece) <= 1 << 20 for piece in pieces)
        assert sum(map(len, pieces)) == span.take_bytes
        found += b"".join(pieces)
    return found


@pytest.mark.parametrize("size", SIZES)
def test_a_part_opens_to_what_was_sealed_whole_or_in_pieces(size: int) -> None:
    plaintext, cipher = os.urandom(size), make_cipher()
    whole = cipher.seal_part(4, plaintext, last=True)
    part = cipher.part_sealer(4)
    rest = memoryview(plaintext)
    random = Random(size)  # noqa: S311
    while rest:
        taken = part.write(rest[: random.randrange(1, 100_000)])
        rest = rest[taken:]
    pieces = part.finish(last=True)
    assert len(whole) == len(pieces) == object_bytes(size)
    assert whole[:SALT_BYTES] != pieces[:SALT_BYTES]
    assert cipher.open_part(4, whole, last=True) == cipher.open_part(4, pieces, last=True) == plaintext
    for number, last in ((3, True), (4, False)):
        with pytest.raises(OpenError):
            cipher.open_part(number, whole, last=last)


def test_a_full_part_has_the_size_that_offsets_count_on() -> None:
    cipher = make_cipher()
    sealed = cipher.seal_part(0, bytes(PART_BYTES), last=False)
    assert len(sealed) == SEALED_PART_BYTES == 8_396_872
    assert cipher.open_part(0, sealed, last=False) == bytes(PART_BYTES)
    with pytest.raises(OpenError):
        cipher.open_part(0, sealed, last=True)
    part = cipher.part_sealer(0)
    assert part.write(bytes(PART_BYTES + 5)) == PART_BYTES
    assert (part.room_bytes, part.write(b"more")) == (0, 0)
    with pytest.raises(ValueError, match="the last is not"):
        part.finish(last=True)
    assert len(part.finish(last=False)) == SEALED_PART_BYTES


@pytest.mark.parametrize(("size", "last"), [(PART_BYTES, True), (PART_BYTES - 1, False), (PART_BYTES + 1, False)])
def test_only_the_last_part_is_not_full(size: int, last: bool) -> None:
    with pytest.raises(ValueError, match="the last is not"):
        make_cipher().seal_part(0, bytes(size), last=last)


@pytest.mark.parametrize("number", [-1, PARTS_MAX])
def test_a_part_number_out_of_range_is_refused(number: int) -> None:
    for make in (make_cipher().part_sealer, lambda n: make_cipher().seal_part(n, b"", last=True)):
        with pytest.raises(ValueError, match="part's number"):
            make(number)


def test_a_finished_part_takes_nothing_more() -> None:
    part = make_cipher().part_sealer(0)
    part.write(b"abc")
    part.finish(last=True)
    with pytest.raises(ValueError, match="none follows the last"):
        part.finish(last=True)
    chunks = ChunkSealer(bytes(32), b"")
    with pytest.raises(ValueError, match="at most 16 KiB"):
        chunks.seal_next(bytes(CHUNK_BYTES + 1))


def test_the_pieces_of_a_part_are_the_message_that_sealing_it_whole_would_give() -> None:
    plaintext = os.urandom(3 * CHUNK_BYTES + 7)
    chunks = ChunkSealer(bytes(range(32)), b"context")
    sealed = chunks.prefix + b"".join(
        chunks.seal_next(plaintext[n : n + CHUNK_BYTES]) for n in range(0, len(plaintext), CHUNK_BYTES)
    )
    salt = chunks.prefix[:SALT_BYTES]
    assert sealed == cobblestone.seal(bytes(range(32)), b"context", plaintext, salt)


def test_no_key_and_salt_meet_twice() -> None:
    sealer = make_sealer()
    seen: Counter[tuple[bytes, bytes]] = Counter()
    for _ in range(20):
        blob_key = sealer.new_blob_key()
        cipher = sealer.blob_cipher(uuid4(), blob_key)
        for number in (0, 0, 1):  # a part that is sent again, too
            for _ in range(5):
                seen[bytes(blob_key.borrow()), cipher.seal_part(number, b"same", last=True)[:SALT_BYTES]] += 1
                part = cipher.part_sealer(number)
                part.write(b"same")
                seen[bytes(blob_key.borrow()), bytes(part.finish(last=True)[:SALT_BYTES])] += 1
    assert len(seen) == 600
    assert seen.total() == 600


def test_sizes_add_up() -> None:
    for size in (*SIZES, PART_BYTES, PART_BYTES + 1, 3 * PART_BYTES, BLOB_BYTES_MAX):
        count = part_count(size)
        assert part_bytes(size, count - 1) < PART_BYTES
        assert (count - 1) * PART_BYTES + part_bytes(size, count - 1) == size
    assert part_count(BLOB_BYTES_MAX) == PARTS_MAX
    for wrong in (-1, BLOB_BYTES_MAX + 1):
        with pytest.raises(ValueError, match="a blob holds"):
            object_bytes(wrong)
    with pytest.raises(ValueError, match="no such part"):
        part_bytes(10, 1)


SOURCE = os.urandom(2 * PART_BYTES + 123_456)
SEALED = seal(SOURCE)


def test_a_thousand_random_ranges_equal_the_slices_of_the_source() -> None:
    random = Random(20261122)  # noqa: S311
    for _ in range(1000):
        length = min(int(2 ** random.uniform(0, 21)), len(SOURCE))
        start = random.randrange(len(SOURCE) - length + 1)
        assert read(SEALED, len(SOURCE), start, length) == SOURCE[start : start + length]


EDGES = [n + d for n in (0, CHUNK_BYTES, PART_BYTES - CHUNK_BYTES, PART_BYTES, 2 * PART_BYTES) for d in (-1, 0, 1)]


@given(
    start=st.one_of(st.sampled_from([e for e in EDGES if e >= 0]), st.integers(0, len(SOURCE) - 1)),
    end=st.one_of(st.sampled_from([*EDGES, len(SOURCE)]), st.integers(1, len(SOURCE))),
    span_chunks=st.sampled_from([1, 3, 64, 512]),
)
@settings(max_examples=60, deadline=None)
def test_spans_cover_a_range_once_and_in_order(start: int, end: int, span_chunks: int) -> None:
    if end <= start:
        return
    found = list(spans(len(SOURCE), start, end - start, span_bytes_max=span_chunks * CHUNK_BYTES))
    assert sum(span.take_bytes for span in found) == end - start
    assert all(span.sealed_bytes <= (span_chunks + 1) * cobblestone.SEALED_CHUNK_BYTES for span in found)
    assert all(
        (one.part, one.first_chunk + one.chunks) == (two.part, two.first_chunk)
        or (one.part + 1, 0) == (two.part, two.first_chunk)
        for one, two in pairwise(found)
    )
    if end - start < 1 << 20:
        assert (
            read(SEALED, len(SOURCE), start, end - start, span_bytes_max=span_chunks * CHUNK_BYTES) == SOURCE[start:end]
        )


@pytest.mark.parametrize("size", [PART_BYTES, 2 * PART_BYTES])
def test_a_range_to_the_end_of_full_parts_includes_the_empty_last_part(size: int) -> None:
    sealed = seal(SOURCE[:size])
    assert read(sealed, size, size - 3, 3) == SOURCE[size - 3 : size]
    assert [span.ends_object for span in spans(size, size - 3, 3)] == [False, True]
    assert not any(span.ends_object for span in spans(size, size - 3, 2))


@pytest.mark.parametrize(
    ("size", "start", "length"), [(10, -1, 2), (10, 9, 2), (10, 11, 1), (10, 0, 0), (0, 0, 1), (-1, 0, 0)]
)
def test_a_range_outside_the_blob_is_refused(size: int, start: int, length: int) -> None:
    with pytest.raises(ValueError, match="blob"):
        spans(size, start, length)


@pytest.mark.parametrize("wrong", [0, -CHUNK_BYTES, CHUNK_BYTES + 1])
def test_a_span_of_broken_chunks_is_refused(wrong: int) -> None:
    with pytest.raises(ValueError, match="multiple"):
        spans(10, 0, 10, span_bytes_max=wrong)


def test_neither_a_cipher_nor_a_new_key_shows_a_key() -> None:
    blob_key = Sealer.new_blob_key()
    shown = repr(make_sealer().blob_cipher(BLOB, blob_key)) + repr(blob_key)
    assert bytes(blob_key.borrow()).hex() not in shown
    assert blob_key.kcv() != Sealer.new_blob_key().kcv()


def test_the_documented_example_is_what_the_code_computes() -> None:
    block = PAGE.read_text().split("## Example")[1].split("```")[1]
    context, sealed = (
        bytes.fromhex(re.sub(r"\s", "", text)) for text in block.removeprefix("\ncontext").split("object")
    )
    cipher = make_cipher()
    assert cipher._part_context(0) == context
    assert cobblestone.seal(BLOB_KEY.borrow(), context, b"hello", bytes(range(24))) == sealed
    assert cipher.open_part(0, sealed, last=True) == b"hello"
    assert context[18:30] == bytes.fromhex(re.search(r"header  = (.*)", PAGE.read_text())[1])


def test_a_span_of_another_length_is_refused_before_it_is_opened() -> None:
    [span] = spans(100, 0, 100)
    opener = make_cipher().opener(0, seal(bytes(100))[:PREFIX_BYTES])
    for stored in (b"", seal(bytes(100))):
        with pytest.raises(OpenError) as caught:
            list(open_span(opener, span, stored, slice_bytes_max=1 << 20))
        assert caught.value.code == "format"


def test_a_span_far_into_a_part_is_not_fetched_together_with_the_parts_prefix() -> None:
    [near], [far] = (spans(PART_BYTES - 1, start, 1) for start in (0, PART_BYTES - 2))
    assert (near.coalesced, far.coalesced) == (True, False)
