from datetime import UTC, datetime, timedelta, timezone
from enum import IntEnum, StrEnum
from typing import Any
from uuid import UUID

import pytest

from crypto.context import Kind, encode_context, encode_fields

HEADER = bytes(range(12))
ONE, TWO = UUID(int=1), UUID(int=2)


class Colour(StrEnum):
    RED = "red"


class Size(IntEnum):
    SMALL = 7


def test_the_bytes_of_a_context_are_exactly_the_documented_ones() -> None:
    moment = datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    context = encode_context(HEADER + b"ignored", ONE, TWO, "u", (None, b"\x01", "é", 0, -1, 128, moment))
    assert context.hex() == "".join(
        (
            b"stateroom/v1/context\0".hex(),
            HEADER.hex(),
            "0400000010" + ONE.hex,
            "0400000010" + TWO.hex,
            "0200000001" + "75",
            "0000000000",
            "0100000001" + "01",
            "0200000002" + "c3a9",
            "0300000001" + "00",
            "0300000001" + "ff",
            "0300000002" + "0080",
            "0500000008" + "00000000000f4240",
        )
    )


def test_the_bytes_of_every_kind_are_frozen() -> None:
    assert {kind.name: int(kind) for kind in Kind} == {
        "MANIFEST": 0x10,
        "THREAD": 0x11,
        "WRITE": 0x12,
        "CHUNK": 0x13,
        "POINTER": 0x14,
        "HEAD": 0x15,
        "IDEMPOTENCY": 0x16,
        "SEGMENT": 0x17,
        "ITEM": 0x18,
        "ITEM_LABELS": 0x19,
        "ITEM_PATH": 0x1A,
        "ITEM_SCOPE": 0x1B,
        "ITEM_VECTORS": 0x1C,
        "CLAIM_NOTE": 0x1E,
        "EFFECT": 0x1F,
        "APPROVAL": 0x1D,
        "BLOB_PART": 0x20,
        "SUBJECT_KEY": 0x30,
        "TENANT_KEY": 0x31,
        "AUDIT": 0x40,
        "METADATA": 0x41,
    }


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (("a", "bc"), ("ab", "c")),
        (("a",), ("a", "")),
        (("a",), ("a", None)),
        ((None,), ("",)),
        (("",), (b"",)),
        ((0,), ("0",)),
        ((0,), (None,)),
        ((1,), (b"\x01",)),
        ((-1,), (255,)),
        ((ONE,), (ONE.bytes,)),
        ((ONE,), (str(ONE),)),
        ((datetime(1970, 1, 1, tzinfo=UTC),), (0,)),
        ((), (None,)),
    ],
)
def test_different_fields_never_share_their_bytes(left: Any, right: Any) -> None:
    assert encode_fields(left) != encode_fields(right)


def test_one_moment_has_one_encoding_in_every_time_zone() -> None:
    moment = datetime(2026, 11, 21, 12, 0, 0, 123456, tzinfo=UTC)
    elsewhere = moment.astimezone(timezone(timedelta(hours=-7)))
    assert encode_fields((moment,)) == encode_fields((elsewhere,))


def test_enumerations_are_encoded_as_their_values() -> None:
    assert encode_fields((Colour.RED, Size.SMALL)) == encode_fields(("red", 7))


@pytest.mark.parametrize(
    ("field", "error"),
    [
        (datetime(2026, 11, 21), ValueError),  # noqa: DTZ001  the claim is that it is refused
        ("\ud800", ValueError),
        (True, TypeError),
        (1.5, TypeError),
        (("a",), TypeError),
        (bytearray(b"a"), TypeError),
    ],
)
def test_a_field_without_an_encoding_is_refused(field: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        encode_fields((field,))


def test_refused_text_does_not_appear_in_the_error() -> None:
    with pytest.raises(ValueError, match="Unicode") as caught:
        encode_fields(("canary\ud800",))
    assert "canary" not in repr(caught.value)
    assert caught.value.__suppress_context__


def test_a_context_needs_the_whole_header() -> None:
    with pytest.raises(ValueError, match="12 header bytes"):
        encode_context(HEADER[:11], ONE, TWO, None, ())


def test_octets_are_a_field_of_their_own() -> None:
    assert encode_fields((b"u",)) != encode_fields(("u",))
    assert encode_fields((b"",)) == bytes((1, 0, 0, 0, 0))
