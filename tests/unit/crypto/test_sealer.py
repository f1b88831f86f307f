import copy
import hmac
import json
import os
import pickle  # noqa: TID251  the claim is that it refuses
import struct
from collections.abc import Callable
from dataclasses import replace
from uuid import UUID

import pytest

from crypto import digests
from crypto.ciphers import cobblestone, xaes
from crypto.compression import compress_if_smaller, inflate
from crypto.context import HEADER_BYTES, Kind, Location, encode_context
from crypto.envelope import OVERHEAD_BYTES, Flag, Header, KeyScope, open_body, peek_header, seal_body
from crypto.errors import KeyDestroyed, OpenError
from crypto.keyring import SecretKey, SubjectKeys
from crypto.sealer import Sealer
from crypto.suites import Suite
from tests.support import standard_zstd as zstd

DEPLOYMENT = UUID("00000000-0000-4000-8000-000000000001")
TENANT = UUID("00000000-0000-4000-8000-000000000002")
LOCATION = ("t1", "", "c1", None, 5)
DATA_KEY = SecretKey(bytes(range(32)))
ID_KEY = SecretKey(bytes(range(32, 64)))


def make_sealer(suite: Suite = Suite.COBBLESTONE_256, **data_keys: SecretKey) -> Sealer:
    keys = {int(name[1:]): key for name, key in data_keys.items()} or {1: DATA_KEY}
    return Sealer(DEPLOYMENT, TENANT, "user-42", SubjectKeys(keys, max(keys), ID_KEY), suite)


def forge(raw_bytes: int, body: bytes, flags: Flag) -> bytes:
    # What a holder of the key could make; an envelope from outside never gets this far.
    header = Header(Suite.COBBLESTONE_256, flags, Kind.MANIFEST, KeyScope.SUBJECT, 1).pack()
    row_key = DATA_KEY.derive(b"stateroom/v1/row", TENANT, "user-42", 1)
    context = encode_context(header, DEPLOYMENT, TENANT, "user-42", LOCATION)
    return seal_body(header, row_key.borrow(), context, raw_bytes, body)


@pytest.mark.parametrize("suite", list(Suite))
@pytest.mark.parametrize("size", [0, 1, 127, 128, 16375, 16376, 16377, 16384, 40000])
def test_what_was_sealed_opens(suite: Suite, size: int) -> None:
    sealer = make_sealer(suite)
    for plaintext in (os.urandom(size), b"a" * size):
        envelope = sealer.seal(Kind.MANIFEST, LOCATION, plaintext)
        assert sealer.open(Kind.MANIFEST, LOCATION, envelope) == plaintext


def test_a_location_that_is_encoded_once_is_the_same_place() -> None:
    sealer = make_sealer()
    envelope = sealer.seal(Kind.MANIFEST, Location(LOCATION), b"x")
    assert sealer.open(Kind.MANIFEST, LOCATION, envelope) == b"x"
    assert sealer.open(Kind.MANIFEST, Location(LOCATION), sealer.seal(Kind.MANIFEST, LOCATION, b"y")) == b"y"
    with pytest.raises(OpenError):
        sealer.open(Kind.MANIFEST, Location((*LOCATION[:-1], 6)), envelope)


def test_an_incompressible_record_costs_92_bytes() -> None:
    plaintext = os.urandom(1024)
    assert len(make_sealer().seal(Kind.MANIFEST, LOCATION, plaintext)) - len(plaintext) == OVERHEAD_BYTES == 92


def test_compression_is_kept_only_when_it_saves_and_is_allowed() -> None:
    sealer = make_sealer()
    text = json.dumps([{"role": "user", "content": f"turn {i}"} for i in range(50)]).encode()
    assert peek_header(sealer.seal(Kind.MANIFEST, LOCATION, text)).flags == Flag.ZSTD
    assert peek_header(sealer.seal(Kind.MANIFEST, LOCATION, text, compress=False)).flags == Flag(0)
    assert peek_header(sealer.seal(Kind.MANIFEST, LOCATION, os.urandom(4096))).flags == Flag(0)
    assert peek_header(sealer.seal(Kind.MANIFEST, LOCATION, b"a" * 127)).flags == Flag(0)


def test_sealing_twice_never_gives_the_same_bytes() -> None:
    sealer = make_sealer()
    assert len({sealer.seal(Kind.CHUNK, LOCATION, b"same") for _ in range(100)}) == 100


def test_an_envelope_under_an_older_key_version_still_opens() -> None:
    old = make_sealer(v1=DATA_KEY).seal(Kind.MANIFEST, LOCATION, b"old")
    sealer = make_sealer(v1=DATA_KEY, v2=SecretKey.generate())
    assert sealer.active_key_version == 2
    assert sealer.open(Kind.MANIFEST, LOCATION, old) == b"old"
    assert peek_header(sealer.seal(Kind.MANIFEST, LOCATION, b"new")).key_version == 2


def test_an_envelope_under_a_missing_key_version_says_key_destroyed() -> None:
    envelope = make_sealer(v2=DATA_KEY).seal(Kind.MANIFEST, LOCATION, b"gone")
    with pytest.raises(KeyDestroyed):
        make_sealer(v3=DATA_KEY).open(Kind.MANIFEST, LOCATION, envelope)


def test_the_other_suite_opens_too_but_never_under_the_same_row_key() -> None:
    envelope = make_sealer(Suite.XAES_256_GCM).seal(Kind.MANIFEST, LOCATION, b"x")
    sealer = make_sealer()
    assert sealer.open(Kind.MANIFEST, LOCATION, envelope) == b"x"
    keys = [sealer._row_key(1, suite).kcv() for suite in Suite]
    assert len(set(keys)) == 2


def test_content_longer_than_allowed_is_refused_by_size() -> None:
    sealer = make_sealer()
    for plaintext in (os.urandom(1000), b"a" * 1000):
        envelope = sealer.seal(Kind.MANIFEST, LOCATION, plaintext)
        with pytest.raises(OpenError) as caught:
            sealer.open(Kind.MANIFEST, LOCATION, envelope, raw_bytes_max=999)
        assert caught.value.code == "size"
        assert sealer.open(Kind.MANIFEST, LOCATION, envelope, raw_bytes_max=1000) == plaintext


def unsized_frame(raw: bytes) -> bytes:
    compressor = zstd.ZstdCompressor(options={zstd.CompressionParameter.content_size_flag: 0})
    return compressor.compress(raw, zstd.ZstdCompressor.FLUSH_FRAME)


def wide_window_frame(raw: bytes) -> bytes:
    options = {zstd.CompressionParameter.window_log: 24, zstd.CompressionParameter.compression_level: 3}
    compressor = zstd.ZstdCompressor(options=options)
    compressor.set_pledged_input_size(len(raw))
    return compressor.compress(raw, zstd.ZstdCompressor.FLUSH_FRAME)


BOMB = zstd.compress(bytes(64 << 20))
FRAME = zstd.compress(b"a" * 1000)


@pytest.mark.parametrize(
    ("raw_bytes", "body", "code"),
    [
        pytest.param(1000, BOMB, "size", id="frame states more than the seal"),
        pytest.param(999, FRAME, "size", id="seal states less than the frame"),
        pytest.param(1001, FRAME, "size", id="seal states more than the frame"),
        pytest.param(1000, unsized_frame(b"a" * 1000), "size", id="frame states no size"),
        pytest.param(1000, FRAME + b"\0", "format", id="bytes after the frame"),
        pytest.param(1000, FRAME + FRAME, "format", id="second frame"),
        pytest.param(1000, FRAME[:-1], "format", id="frame cut short"),
        pytest.param(4, b"\x50\x2a\x4d\x18\x04\0\0\0abcd", "format", id="skippable frame"),
        pytest.param(9, b"not zstd!", "format", id="no frame"),
        pytest.param(0, b"", "format", id="nothing"),
        pytest.param(20 << 20, wide_window_frame(bytes(20 << 20)), "format", id="window above 8 MiB"),
    ],
)
def test_a_frame_that_is_not_what_the_seal_says_is_refused(raw_bytes: int, body: bytes, code: str) -> None:
    with pytest.raises(OpenError) as caught:
        make_sealer().open(Kind.MANIFEST, LOCATION, forge(raw_bytes, body, Flag.ZSTD))
    assert caught.value.code == code


def test_an_uncompressed_body_of_another_length_than_the_seal_says_is_refused() -> None:
    with pytest.raises(OpenError) as caught:
        make_sealer().open(Kind.MANIFEST, LOCATION, forge(5, b"four", Flag(0)))
    assert caught.value.code == "size"


@pytest.mark.parametrize("suite", list(Suite))
@pytest.mark.parametrize("said", [0, 7, 9, 0xFFFF_FFFF])
def test_a_body_that_ends_elsewhere_than_the_seal_says_is_refused(suite: Suite, said: int) -> None:
    header = Header(suite, Flag(0), Kind.MANIFEST, KeyScope.SUBJECT, 1).pack()
    seal = cobblestone.seal if suite is Suite.COBBLESTONE_256 else xaes.seal

    def envelope(body_bytes: int) -> bytes:
        return header + seal(DATA_KEY.borrow(), b"context", struct.pack(">II", 8, body_bytes) + b"8 bytes.")

    assert open_body(envelope(8), DATA_KEY.borrow(), b"context") == (8, b"8 bytes.")
    with pytest.raises(OpenError) as refused:
        open_body(envelope(said), DATA_KEY.borrow(), b"context")
    assert refused.value.code == "format"


def test_a_frame_of_32_mib_needs_no_window_above_the_limit() -> None:
    raw = os.urandom(1 << 16) * (32 << 4)
    frame = compress_if_smaller(raw)
    assert frame is not None
    assert inflate(frame, len(raw)) == raw


@pytest.mark.parametrize(
    ("header", "code"),
    [
        (b"", "format"),
        (b"{" + bytes(100), "format"),
        (struct.pack(">3sBBBBBI", b"\xc1\x53\x52", 2, 1, 0, 0x10, 1, 1) + bytes(100), "unsupported"),
        (struct.pack(">3sBBBBBI", b"\xc1\x53\x52", 1, 3, 0, 0x10, 1, 1) + bytes(100), "unsupported"),
        (struct.pack(">3sBBBBBI", b"\xc1\x53\x52", 1, 1, 4, 0x10, 1, 1) + bytes(100), "unsupported"),
        (struct.pack(">3sBBBBBI", b"\xc1\x53\x52", 1, 1, 16, 0x10, 1, 1) + bytes(100), "format"),
        (struct.pack(">3sBBBBBI", b"\xc1\x53\x52", 1, 1, 2, 0x10, 1, 1) + bytes(100), "format"),
        (struct.pack(">3sBBBBBI", b"\xc1\x53\x52", 1, 1, 0, 0x2F, 1, 1) + bytes(100), "format"),
        (struct.pack(">3sBBBBBI", b"\xc1\x53\x52", 1, 1, 0, 0x10, 2, 1) + bytes(100), "format"),
        (struct.pack(">3sBBBBBI", b"\xc1\x53\x52", 1, 1, 0, 0x10, 1, 0) + bytes(100), "format"),
        (struct.pack(">3sBBBBBI", b"\xc1\x53\x52", 1, 1, 0, 0x10, 1, 1) + bytes(79), "format"),
    ],
)
def test_a_header_this_build_does_not_know_is_refused_by_name(header: bytes, code: str) -> None:
    with pytest.raises(OpenError) as caught:
        make_sealer().open(Kind.MANIFEST, LOCATION, header)
    assert caught.value.code == code


@pytest.mark.parametrize(
    "header",
    [
        Header(Suite.COBBLESTONE_256, Flag(0), Kind.CHUNK, KeyScope.SUBJECT, 0),
        Header(Suite.COBBLESTONE_256, Flag(0), Kind.CHUNK, KeyScope.SUBJECT, 1 << 32),
        Header(Suite.COBBLESTONE_256, Flag.PADME, Kind.CHUNK, KeyScope.SUBJECT, 1),
        Header(Suite.COBBLESTONE_256, Flag(0), Kind.CHUNK, KeyScope.SUBJECT, 1, envelope_version=2),
    ],
)
def test_a_header_this_version_cannot_write_is_not_written(header: Header) -> None:
    with pytest.raises(ValueError, match=r"key_version|reserved|envelope version"):
        header.pack()


def test_a_header_reads_back_as_it_was_written() -> None:
    header = Header(Suite.XAES_256_GCM, Flag.ZSTD, Kind.AUDIT, KeyScope.TENANT, 0xFFFF_FFFF)
    assert Header.unpack(header.pack()) == header
    assert header.pack().hex() == "c1535201" + "02014000" + "ffffffff"


def test_a_sealer_without_its_active_key_or_subject_is_not_made() -> None:
    with pytest.raises(ValueError, match="active version"):
        Sealer(DEPLOYMENT, TENANT, "user-42", SubjectKeys({1: DATA_KEY}, 2, ID_KEY))
    with pytest.raises(ValueError, match="subject"):
        Sealer(DEPLOYMENT, TENANT, "", SubjectKeys({1: DATA_KEY}, 1, ID_KEY))


def test_a_sealer_shows_and_pickles_no_key() -> None:
    sealer = make_sealer()
    sealer.seal(Kind.MANIFEST, LOCATION, b"x")
    assert repr(sealer) == "Sealer(active_key_version=1)"
    with pytest.raises(TypeError):
        pickle.dumps(sealer)
    with pytest.raises(TypeError):
        copy.deepcopy(sealer)


def test_content_ids_depend_on_subject_kind_encoding_and_bytes() -> None:
    sealer = make_sealer()
    other = Sealer(DEPLOYMENT, TENANT, "user-42", SubjectKeys({1: DATA_KEY}, 1, SecretKey.generate()))
    ids = [
        sealer.content_id("a", "bc", b"d"),
        sealer.content_id("ab", "c", b"d"),
        sealer.content_id("a", "b", b"cd"),
        sealer.content_id("", "abc", b"d"),
        other.content_id("a", "bc", b"d"),
    ]
    assert len(set(ids)) == 5
    assert {len(content_id) for content_id in ids} == {digests.CONTENT_ID_BYTES}
    assert {content_id[0] for content_id in ids} == {1}


@pytest.mark.parametrize("size", [0, 1, 65535, 65536, 65537, 300_000])
def test_a_content_id_does_not_depend_on_the_buffer_type_or_the_path_by_size(size: int) -> None:
    sealer = make_sealer()
    data = os.urandom(size)
    expected = sealer.content_id("k", "e", data)
    assert sealer.content_id("k", "e", memoryview(data)) == expected
    assert sealer.content_id("k", "e", bytearray(data)) == expected


def test_the_one_shot_and_the_incremental_digest_agree() -> None:
    subkey = bytes(range(32))
    big = os.urandom(70_000)
    import hmac

    framed = b"".join(len(part).to_bytes(8, "big") + part for part in (b"k", b"", big))
    assert digests.keyed_digest(subkey, b"k", b"", big) == hmac.digest(subkey, framed, "sha256")


def test_macs_differ_by_purpose_and_by_where_parts_end() -> None:
    sealer = make_sealer()
    macs = {
        sealer.mac(b"p", b"ab", b"c"),
        sealer.mac(b"p", b"a", b"bc"),
        sealer.mac(b"p", b"abc"),
        sealer.mac(b"q", b"abc"),
        sealer.mac(b"p", b"abc", b""),
    }
    assert len(macs) == 5
    assert {len(mac) for mac in macs} == {32}
    assert sealer.mac(b"q", b"abc") == make_sealer().mac(b"q", b"abc")


def test_boundaries_are_keyed_64_bit_numbers() -> None:
    sealer = make_sealer()
    other = Sealer(DEPLOYMENT, TENANT, "user-42", SubjectKeys({1: DATA_KEY}, 1, SecretKey.generate()))
    numbers = [sealer.boundary(bytes([i])) for i in range(64)]
    assert len(set(numbers)) == 64
    assert max(numbers) < 1 << 64
    assert max(number.bit_length() for number in numbers) > 56
    assert sealer.boundary(b"x") == sealer.boundary(memoryview(b"x")) != other.boundary(b"x")


SHARE = bytes(range(32))


def test_a_shared_sealer_and_its_origin_do_not_open_each_others_envelopes() -> None:
    own = make_sealer()
    shared = own.with_share(SHARE)
    for writer, reader in ((own, shared), (shared, own), (shared, own.with_share(bytes(32)))):
        with pytest.raises(OpenError) as caught:
            reader.open(Kind.MANIFEST, LOCATION, writer.seal(Kind.MANIFEST, LOCATION, b"x" * 500))
        assert caught.value.code == "authentication"
    sealed = shared.seal(Kind.MANIFEST, LOCATION, b"x" * 500)
    assert peek_header(sealed).flags == Flag.ZSTD | Flag.CLIENT_SHARE
    assert own.with_share(SHARE).open(Kind.MANIFEST, LOCATION, sealed) == b"x" * 500


def test_a_header_that_opened_before_admits_no_other_kind_share_key_or_stump() -> None:
    own = make_sealer(v1=DATA_KEY, v2=SecretKey(bytes(32)))
    sealed = own.seal(Kind.MANIFEST, LOCATION, b"x" * 500)
    assert own.open(Kind.MANIFEST, LOCATION, sealed) == b"x" * 500
    shared = own.with_share(SHARE)
    shared_too = shared.seal(Kind.MANIFEST, LOCATION, b"x" * 500)
    assert shared.open(Kind.MANIFEST, LOCATION, shared_too) == b"x" * 500
    refusals = [
        (own, Kind.CHUNK, sealed, "authentication"),
        (make_sealer(v1=DATA_KEY, v2=SecretKey(bytes(32))), Kind.CHUNK, sealed, "authentication"),
        (own, Kind.MANIFEST, sealed[: OVERHEAD_BYTES - 1], "format"),
        (own, Kind.CHUNK, sealed[: OVERHEAD_BYTES - 1], "format"),
        (own, Kind.MANIFEST, sealed[:HEADER_BYTES], "format"),
        (own, Kind.MANIFEST, shared_too, "authentication"),
        (own.with_share(SHARE), Kind.MANIFEST, sealed, "authentication"),
        (make_sealer(v1=SecretKey(bytes(32)), v2=DATA_KEY), Kind.MANIFEST, sealed, "authentication"),
    ]
    for reader, kind, envelope, code in refusals:
        with pytest.raises(OpenError) as caught:
            reader.open(kind, LOCATION, envelope)
        assert caught.value.code == code


def test_headers_that_do_not_open_are_not_kept() -> None:
    sealer = make_sealer()
    kept = Header(Suite.COBBLESTONE_256, Flag(0), Kind.CHUNK, KeyScope.SUBJECT, 1)
    for key_version in range(2, 500):
        stranger = replace(kept, key_version=key_version)
        with pytest.raises(KeyDestroyed):
            sealer.open(Kind.CHUNK, LOCATION, stranger.pack() + bytes(200))
    assert len(sealer._openings) == 0


def test_a_share_changes_every_digest_and_is_undone_by_leaving_it_out() -> None:
    own = make_sealer()
    shared = own.with_share(SHARE)
    digests = [(each.content_id("k", "e", b"d"), each.boundary(b"d"), each.mac(b"p", b"d")) for each in (own, shared)]
    assert all(one != other for one, other in zip(*digests, strict=True))
    assert (own.shared, shared.shared) == (False, True)
    assert own.without_share is own
    assert shared.without_share is own
    assert shared.active_key_version == own.active_key_version


def test_a_share_has_32_bytes_is_mixed_once_and_never_shown() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        make_sealer().with_share(bytes(31))
    with pytest.raises(ValueError, match="one share"):
        make_sealer().with_share(SHARE).with_share(SHARE)
    assert SHARE.hex() not in repr(make_sealer().with_share(SHARE))


def test_a_sealer_shows_no_key_and_whose_it_is() -> None:
    sealer = make_sealer()
    assert repr(sealer) == "Sealer(active_key_version=1)"
    assert (sealer.tenant_id, sealer.subject_id) == (TENANT, "user-42")


def test_macs_of_any_number_of_purposes_stay_the_same() -> None:
    sealer, purposes = make_sealer(), [b"purpose-%d" % number for number in range(300)]
    macs = [sealer.mac(purpose, b"x") for purpose in purposes]
    assert len(set(macs)) == 300
    assert [sealer.mac(purpose, b"x") for purpose in purposes] == macs


@pytest.mark.parametrize("seal", [cobblestone.seal, xaes.seal])
def test_a_key_or_salt_of_another_length_is_refused(seal: Callable[..., bytes]) -> None:
    for secret, salt in ((bytes(31), None), (bytes(32), bytes(23)), (bytes(32), bytes(25))):
        with pytest.raises(ValueError, match=r"24|32"):
            seal(secret, b"", b"", salt)


def test_an_envelope_of_4_gib_is_never_made_and_one_without_lengths_never_opened() -> None:
    header = Header(Suite.COBBLESTONE_256, Flag(0), Kind.MANIFEST, KeyScope.SUBJECT, 1).pack()
    with pytest.raises(ValueError, match="4 GiB"):
        seal_body(header, bytes(32), b"", 1 << 32, b"")
    with pytest.raises(OpenError) as caught:
        open_body(header + cobblestone.seal(bytes(32), b"", b"short"), bytes(32), b"")
    assert caught.value.code == "format"


def test_an_xaes_message_that_is_too_short_or_altered_or_of_no_key_is_refused() -> None:
    message = xaes.seal(bytes(32), b"context", b"content")
    for secret, context, sealed, code in (
        (bytes(32), b"context", message[:39], "format"),
        (bytes(31), b"context", message, "authentication"),
        (bytes(32), b"other", message, "authentication"),
    ):
        with pytest.raises(OpenError) as caught:
            xaes.open_(secret, context, sealed)
        assert caught.value.code == code


@pytest.mark.parametrize("size", [0, 5, 65_536, 65_537])
def test_digests_and_macs_are_the_documented_ones(size: int) -> None:
    parts = (b"a", memoryview(bytes(size)), b"bc")
    framed = b"".join(len(each).to_bytes(8, "big") + bytes(each) for each in parts)
    assert digests.keyed_digest(bytes(32), *parts) == hmac.digest(bytes(32), framed, "sha256")
    subkey = bytes(ID_KEY.derive(b"stateroom/v1/mac", b"purpose").borrow())
    assert make_sealer().mac(b"purpose", *map(bytes, parts)) == hmac.digest(subkey, framed, "sha256")
