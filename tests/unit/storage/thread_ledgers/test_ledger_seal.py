"""The seal of a thread's ledger says what it was given, of this thread's life and moment only."""

from uuid import UUID

import pytest

from crypto import Sealer, SecretKey, SubjectKeys
from storage.errors import IntegrityFailure
from storage.format.chain import LiveSet
from storage.format.thread_ledgers.seal import (
    EFFECT_PARTS,
    LedgerSeal,
    effect_part,
    ledger_token,
    member,
    row_mac,
)


def new_sealer(subject_id="user-1"):
    keys = SubjectKeys({1: SecretKey.generate()}, 1, SecretKey.generate())
    return Sealer(UUID(int=1), UUID(int=2), subject_id, keys)


SEALER = new_sealer()
LIFE = bytes(16)
EFFECTS = tuple(LiveSet(part, part * 7) if part in {0, 3, 15} and part else LiveSet() for part in range(EFFECT_PARTS))
SEALS = [
    LedgerSeal(),
    LedgerSeal(fence=1_764_000_000_000, approvals=LiveSet(2, 5), claims=LiveSet(1, 2**256 - 1)),
    LedgerSeal(effects=EFFECTS),
    LedgerSeal(effects=(LiveSet(0, 9), *EFFECTS[1:])),  # counts none, and yet a sum: what an edit may leave
]


@pytest.mark.parametrize("seal", SEALS)
def test_what_is_sealed_is_read(seal):
    assert LedgerSeal.open(SEALER, "t1", LIFE, 4, seal.seal(SEALER, "t1", LIFE, 4)) == seal


@pytest.mark.parametrize("seal", SEALS)
def test_every_bit_and_the_place_are_authenticated(seal):
    data = seal.seal(SEALER, "t1", LIFE, 4)
    for at in range(len(data)):
        edited = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        with pytest.raises(IntegrityFailure):
            LedgerSeal.open(SEALER, "t1", LIFE, 4, edited)
    for place in (("t2", LIFE, 4), ("t1", b"1" * 16, 4), ("t1", LIFE, 3)):
        with pytest.raises(IntegrityFailure):
            LedgerSeal.open(SEALER, *place, data)
    for short in (b"", data[:10], data[:-1]):
        with pytest.raises(IntegrityFailure):
            LedgerSeal.open(SEALER, "t1", LIFE, 4, short)


def test_rows_of_different_kinds_and_columns_have_different_macs():
    rows = [
        ("effect", ("a", 1)),
        ("effect", ("a", 2)),
        ("claim", ("a", 1)),
        ("effect", ("a1",)),
        ("effect", ("a", None)),
    ]
    macs = [row_mac(SEALER, kind, columns) for kind, columns in rows]
    assert len({*macs}) == len({member(SEALER, kind, mac) for (kind, _), mac in zip(rows, macs, strict=True)}) == 5


def test_another_subjects_sealer_opens_nothing():
    other = new_sealer("somebody else")
    with pytest.raises(IntegrityFailure):
        LedgerSeal.open(other, "t1", LIFE, 4, SEALS[1].seal(SEALER, "t1", LIFE, 4))


def test_every_effect_has_one_part_and_a_ledger_is_anchored_as_no_namespace_can_be():
    assert {effect_part(bytes([each]) * 16) for each in range(256)} == {*range(EFFECT_PARTS)}
    assert "\0" in ledger_token(SEALER, LIFE, 3).namespace
