"""Every way to move, cut or alter an envelope is refused (threats 3, 4 and 9 of the threat model)."""

import json
import os
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from crypto.context import Field, Kind
from crypto.errors import CryptoError, KeyDestroyed, OpenError
from crypto.keyring import SecretKey, SubjectKeys
from crypto.sealer import Sealer
from crypto.suites import Suite

CREATED_AT = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
OWNER: dict[str, Any] = {"deployment_id": UUID(int=1), "tenant_id": UUID(int=2), "subject_id": "user-42"}
LOCATION: tuple[Field, ...] = (
    "thread-7",
    "",
    UUID(int=3),
    None,
    5,
    "active",
    "travel",
    "run-1",
    "trip",
    2,
    CREATED_AT,
    b"\x01" * 34,
)
SWAPPED: tuple[Field, ...] = (
    "thread-8",
    "sub",
    UUID(int=4),
    UUID(int=3),
    6,
    "done",
    "other",
    "run-2",
    "trap",
    3,
    CREATED_AT + timedelta(microseconds=1),
    b"\x01" * 17,
)
DATA_KEYS = {1: SecretKey.generate(), 2: SecretKey.generate()}
ID_KEY = SecretKey.generate()
TEXT = json.dumps({"messages": [{"role": "user", "content": f"canary {i}"} for i in range(12)]}).encode()


def make_sealer(suite: Suite = Suite.COBBLESTONE_256, **owner: Any) -> Sealer:
    return Sealer(**{**OWNER, **owner}, keys=SubjectKeys(DATA_KEYS, 1, ID_KEY), suite=suite)


def refused(envelope: bytes, sealer: Sealer, kind: Kind = Kind.MANIFEST, at: tuple[Field, ...] = LOCATION) -> str:
    with pytest.raises(CryptoError) as caught:
        sealer.open(kind, at, envelope)
    error = caught.value
    assert isinstance(error, (OpenError, KeyDestroyed))
    assert "canary" not in str(error)
    return error.code if isinstance(error, OpenError) else "destroyed"


@pytest.mark.parametrize("suite", list(Suite))
@pytest.mark.parametrize("compress", [True, False])
def test_no_single_bit_of_an_envelope_can_change(suite: Suite, compress: bool) -> None:
    sealer = make_sealer(suite)
    envelope = sealer.seal(Kind.MANIFEST, LOCATION, TEXT, compress=compress)
    for bit in range(len(envelope) * 8):
        damaged = bytearray(envelope)
        damaged[bit // 8] ^= 1 << bit % 8
        refused(bytes(damaged), sealer)
    assert sealer.open(Kind.MANIFEST, LOCATION, envelope) == TEXT


@pytest.mark.parametrize("suite", list(Suite))
def test_no_truncation_or_extension_of_an_envelope_opens(suite: Suite) -> None:
    sealer = make_sealer(suite)
    envelope = sealer.seal(Kind.MANIFEST, LOCATION, TEXT)
    for size in range(len(envelope)):
        refused(envelope[:size], sealer)
    for tail in (b"\0", envelope[-16:], bytes(16384), envelope):
        refused(envelope + tail, sealer)


def test_chunks_of_a_long_envelope_cannot_be_cut_swapped_or_repeated() -> None:
    sealer = make_sealer()
    envelope = sealer.seal(Kind.MANIFEST, LOCATION, os.urandom(40_000))
    head, step = 12 + 56, 16384 + 16
    chunks = [envelope[at : at + step] for at in range(head, len(envelope), step)]
    assert [len(chunk) for chunk in chunks] == [step, step, 40_000 + 8 - 2 * 16384 + 16]
    for order in ([0, 1], [0, 2], [1, 0, 2], [0, 0, 2], [0, 1, 1, 2], [0, 1, 2, 2], [2], [1, 2], []):
        refused(envelope[:head] + b"".join(chunks[k] for k in order), sealer)


@pytest.mark.parametrize(
    "owner",
    [{"deployment_id": UUID(int=9)}, {"tenant_id": UUID(int=9)}, {"subject_id": "user-43"}],
    ids=["deployment", "tenant", "subject"],
)
@pytest.mark.parametrize("suite", list(Suite))
def test_an_envelope_does_not_open_for_another_owner_even_with_the_same_keys(
    suite: Suite, owner: dict[str, Any]
) -> None:
    envelope = make_sealer(suite).seal(Kind.MANIFEST, LOCATION, TEXT)
    assert refused(envelope, make_sealer(suite, **owner)) == "authentication"


@pytest.mark.parametrize("position", range(len(LOCATION)))
@pytest.mark.parametrize("suite", list(Suite))
def test_an_envelope_does_not_open_with_any_other_field_of_its_location(suite: Suite, position: int) -> None:
    sealer = make_sealer(suite)
    envelope = sealer.seal(Kind.MANIFEST, LOCATION, TEXT)
    moved = (*LOCATION[:position], SWAPPED[position], *LOCATION[position + 1 :])
    assert refused(envelope, sealer, at=moved) == "authentication"


def test_an_envelope_does_not_open_with_fields_missing_added_or_exchanged() -> None:
    sealer = make_sealer()
    envelope = sealer.seal(Kind.MANIFEST, LOCATION, TEXT)
    exchanged = (LOCATION[1], LOCATION[0], *LOCATION[2:])
    for at in (LOCATION[:-1], LOCATION[1:], (*LOCATION, None), (None, *LOCATION), exchanged, ()):
        assert refused(envelope, sealer, at=at) == "authentication"


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind is not Kind.MANIFEST])
def test_an_envelope_does_not_open_as_another_kind_even_when_its_byte_is_edited(kind: Kind) -> None:
    sealer = make_sealer()
    envelope = sealer.seal(Kind.MANIFEST, LOCATION, TEXT)
    assert refused(envelope, sealer, kind) == "authentication"
    assert refused(envelope[:6] + bytes((kind,)) + envelope[7:], sealer, kind) == "authentication"


@pytest.mark.parametrize(
    ("offset", "value", "code"),
    [
        (3, 0, "unsupported"),
        (3, 2, "unsupported"),
        (4, 2, "authentication"),
        (4, 0, "unsupported"),
        (5, 0, "authentication"),
        (5, 5, "unsupported"),
        (5, 9, "authentication"),
        (7, 0, "authentication"),
        (11, 2, "authentication"),
        (11, 9, "destroyed"),
    ],
    ids=["older", "newer", "suite", "no suite", "zstd off", "padme", "share", "scope", "other key", "no key"],
)
def test_a_header_cannot_talk_the_reader_into_a_weaker_way(offset: int, value: int, code: str) -> None:
    sealer = make_sealer()
    envelope = bytearray(sealer.seal(Kind.MANIFEST, LOCATION, TEXT))
    assert envelope[5] == 1
    envelope[offset] = value
    assert refused(bytes(envelope), sealer) == code


@pytest.mark.parametrize("stored", [TEXT, b"", b"\x80", b"null", b"gASVAAAA", b"\x28\xb5\x2f\xfd" + bytes(200)])
def test_plaintext_in_place_of_an_envelope_is_an_error_and_never_data(stored: bytes) -> None:
    assert refused(stored, make_sealer()) == "format"


def test_another_subjects_keys_do_not_open_an_envelope() -> None:
    envelope = make_sealer().seal(Kind.MANIFEST, LOCATION, TEXT)
    stranger = Sealer(**OWNER, keys=SubjectKeys({1: SecretKey.generate()}, 1, ID_KEY))
    assert refused(envelope, stranger) == "authentication"


def test_an_error_carries_nothing_that_could_hold_a_secret() -> None:
    envelope = make_sealer().seal(Kind.MANIFEST, LOCATION, TEXT)
    with pytest.raises(OpenError) as caught:
        make_sealer(subject_id="user-43").open(Kind.MANIFEST, LOCATION, envelope)
    assert vars(caught.value) == {"code": "authentication"}
    assert caught.value.args == ("envelope refused: authentication",)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


def test_the_plaintext_does_not_show_in_the_envelope() -> None:
    envelope = make_sealer().seal(Kind.MANIFEST, LOCATION, TEXT, compress=False)
    assert b"canary" not in envelope
    assert b"thread-7" not in envelope
    assert b"user-42" not in envelope
