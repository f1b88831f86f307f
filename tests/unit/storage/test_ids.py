"""Checkpoint ids that the gateway mints: greater than the head, whatever the clocks say, and by its clock otherwise."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import InvalidState
from storage.format.ids import mint_checkpoint_id

# RFC 9562, appendix A.5: the example of UUIDv6, and the moment it was made.
EXAMPLE = UUID("1ec9414c-232a-6b00-b3c8-9f6bdeced846")
EXAMPLE_AT = datetime(2022, 2, 22, 19, 22, 22, tzinfo=UTC)
LAST_TICK = (1 << 60) - 1


def ticks(checkpoint_id):
    """How many 100 ns passed since the Gregorian calendar began."""
    number = UUID(checkpoint_id).int
    return (number >> 80) << 12 | (number >> 64) & 0xFFF


def head_at(tick):
    return str(UUID(int=(tick >> 12) << 80 | 6 << 76 | (tick & 0xFFF) << 64 | 0b10 << 62))


def test_the_clock_is_in_an_id_as_the_rfc_says():
    minted = UUID(mint_checkpoint_id(EXAMPLE_AT, None))
    assert (minted.int >> 64, minted.version, minted.variant) == (EXAMPLE.int >> 64, 6, EXAMPLE.variant)
    next_one = mint_checkpoint_id(EXAMPLE_AT + timedelta(microseconds=1), None)
    assert ticks(next_one) == ticks(str(EXAMPLE)) + 10


def test_two_ids_of_one_moment_differ():
    assert mint_checkpoint_id(EXAMPLE_AT, None) != mint_checkpoint_id(EXAMPLE_AT, None)


@given(
    days=st.integers(-20_000, 60_000),
    microseconds=st.integers(0, 86_400_000_000),
    head=st.integers(0, LAST_TICK - 1),
)
def test_an_id_is_greater_than_the_head_as_text_and_never_behind_the_clock(days, microseconds, head):
    now, head_id = EXAMPLE_AT + timedelta(days, microseconds=microseconds), head_at(head)
    minted = mint_checkpoint_id(now, head_id)
    assert minted > head_id
    assert ticks(minted) == max(ticks(mint_checkpoint_id(now, None)), head + 1)


def test_after_the_last_id_there_is_none():
    assert ticks(mint_checkpoint_id(EXAMPLE_AT, head_at(LAST_TICK - 1))) == LAST_TICK
    with pytest.raises(InvalidState, match="name an id") as refused:
        mint_checkpoint_id(EXAMPLE_AT, head_at(LAST_TICK))
    assert refused.value.pointer == "/id"


@pytest.mark.parametrize(
    "head_id",
    [
        "draft-1",
        "",
        "0190b5a2-0000-7000-8000-000000000001",
        str(EXAMPLE).upper(),
        EXAMPLE.hex,
        f"urn:uuid:{EXAMPLE}",
    ],
    ids=["a word", "nothing", "UUIDv7", "in capitals", "without hyphens", "as URN"],
)
def test_what_follows_a_head_of_another_kind_needs_a_name(head_id):
    with pytest.raises(InvalidState, match="explicit id") as refused:
        mint_checkpoint_id(EXAMPLE_AT, head_id)
    assert refused.value.pointer == "/id"
