import itertools
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crypto.ciphers import cobblestone
from crypto.context import Field, Kind, encode_fields
from crypto.envelope import Flag, Header, KeyScope, peek_header
from crypto.errors import CryptoError, OpenError
from crypto.keyring import SecretKey, SubjectKeys
from crypto.sealer import Sealer
from crypto.suites import Suite
from tests.support.cobblestone_streams import open_stream, seal_stream

FIELD = st.one_of(
    st.none(),
    st.binary(max_size=12),
    st.text(max_size=12),
    st.integers(-(1 << 70), 1 << 70),
    st.uuids(),
    st.datetimes(timezones=st.just(UTC)),
)
FIELDS = st.lists(FIELD, max_size=5)
SEALABLE = [kind for kind in Kind if kind not in (Kind.SUBJECT_KEY, Kind.TENANT_KEY)]
# Sizes around where a chunk ends are the interesting ones.
PLAINTEXT = st.one_of(
    st.binary(max_size=300),
    st.builds(
        lambda size, seed: (seed * (size // len(seed) + 1))[:size],
        st.sampled_from([16375, 16376, 16377, 16384, 32760, 32768, 33000]),
        st.binary(min_size=1, max_size=64),
    ),
)


def make_sealer(suite: Suite) -> Sealer:
    data_keys = {1: SecretKey(bytes(32)), 2: SecretKey(bytes(range(32)))}
    return Sealer(UUID(int=1), UUID(int=2), "user-42", SubjectKeys(data_keys, 2, SecretKey(b"i" * 32)), suite)


def decode_fields(encoded: bytes) -> list[Field]:
    # An independent reader of the documented format: that it exists proves the encoding injective.
    fields: list[Field] = []
    at = 0
    while at < len(encoded):
        tag, size = encoded[at], int.from_bytes(encoded[at + 1 : at + 5], "big")
        raw = encoded[at + 5 : at + 5 + size]
        assert len(raw) == size
        at += 5 + size
        decoded: dict[int, Any] = {
            0: lambda raw: None,
            1: bytes,
            2: bytes.decode,
            3: lambda raw: int.from_bytes(raw, "big", signed=True),
            4: lambda raw: UUID(bytes=raw),
            5: lambda raw: int.from_bytes(raw, "big", signed=True),
        }
        fields.append(decoded[tag](raw))
    return fields


def comparable(field: Field) -> Field:
    if isinstance(field, datetime):
        elapsed = field - datetime(1970, 1, 1, tzinfo=UTC)
        return (elapsed.days * 86400 + elapsed.seconds) * 1_000_000 + elapsed.microseconds
    return field


@given(FIELDS)
def test_encoded_fields_can_be_read_back(fields: list[Field]) -> None:
    decoded = decode_fields(encode_fields(fields))
    assert decoded == [comparable(field) for field in fields]


@given(FIELDS, FIELDS)
def test_two_field_lists_share_bytes_only_if_they_are_equal(left: list[Field], right: list[Field]) -> None:
    same = [(type(f), comparable(f)) for f in left] == [(type(f), comparable(f)) for f in right]
    assert (encode_fields(left) == encode_fields(right)) == same


@given(st.sampled_from(SEALABLE), FIELDS, PLAINTEXT, st.booleans(), st.sampled_from(Suite))
def test_what_was_sealed_opens_to_the_same_bytes(
    kind: Kind, location: list[Field], plaintext: bytes, compress: bool, suite: Suite
) -> None:
    sealer = make_sealer(suite)
    envelope = sealer.seal(kind, location, plaintext, compress=compress)
    assert sealer.open(kind, location, envelope) == plaintext
    header = peek_header(envelope)
    assert (header.kind, header.scope, header.key_version) == (kind, KeyScope.SUBJECT, 2)


@given(st.sampled_from(SEALABLE), st.sampled_from(SEALABLE), FIELDS, FIELDS, st.binary(max_size=64))
def test_an_envelope_opens_only_at_its_own_kind_and_place(
    kind: Kind, other_kind: Kind, location: list[Field], other_location: list[Field], plaintext: bytes
) -> None:
    sealer = make_sealer(Suite.COBBLESTONE_256)
    envelope = sealer.seal(kind, location, plaintext)
    if kind is other_kind and encode_fields(location) == encode_fields(other_location):
        assert sealer.open(other_kind, other_location, envelope) == plaintext
    else:
        with pytest.raises(OpenError):
            sealer.open(other_kind, other_location, envelope)


@given(st.binary(max_size=400), st.booleans())
def test_arbitrary_bytes_are_refused_with_an_error_of_ours(noise: bytes, headed: bool) -> None:
    head = Header(Suite.COBBLESTONE_256, Flag.ZSTD, Kind.CHUNK, KeyScope.SUBJECT, 2).pack() if headed else b""
    with pytest.raises(CryptoError):
        make_sealer(Suite.COBBLESTONE_256).open(Kind.CHUNK, (), head + noise)


@given(st.binary(min_size=12, max_size=12))
def test_a_header_that_is_read_writes_back_the_same_bytes(header: bytes) -> None:
    candidate = b"\xc1\x53\x52\x01" + header[4:]
    try:
        parsed = Header.unpack(candidate)
    except OpenError:
        return
    assert parsed.pack() == candidate


@settings(max_examples=50)
@given(PLAINTEXT, st.lists(st.integers(0, 33000), max_size=4), st.lists(st.integers(0, 33100), max_size=4))
def test_stream_and_one_shot_are_one_format(plaintext: bytes, cuts: list[int], sealed_cuts: list[int]) -> None:
    def split(data: bytes, at: list[int]) -> list[bytes]:
        edges = [0, *sorted(at), len(data)]
        return [data[a:b] for a, b in itertools.pairwise(edges)]

    input_key, salt = bytes(32), bytes(24)
    message = cobblestone.seal(input_key, b"ctx", plaintext, salt)
    assert b"".join(seal_stream(input_key, b"ctx", split(plaintext, cuts), salt)) == message
    parts = split(message, sealed_cuts)
    assert b"".join(open_stream(input_key, b"ctx", parts)) == plaintext
