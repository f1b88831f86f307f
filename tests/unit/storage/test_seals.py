"""What seals and tokens add up and say: sums that do not depend on order, and names that do not give ids away."""

from dataclasses import replace
from datetime import UTC, datetime
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crypto import Sealer, SecretKey, SubjectKeys
from storage.format.chain import NO_WRITES, HeadSeal, LiveSet, ThreadSeal, namespace_mac
from storage.format.pointer import artifact_location, artifact_name_digest
from storage.format.token import ThreadToken, incarnation_tag, removal_mac, thread_tag
from storage.model import ThreadLink

MACS = st.lists(st.binary(min_size=32, max_size=32), max_size=8)


def new_sealer():
    keys = SubjectKeys({1: SecretKey.generate()}, 1, SecretKey.generate())
    return Sealer(UUID(int=1), UUID(int=2), "user-1", keys)


@pytest.fixture(scope="module")
def sealer():
    return new_sealer()


def sum_of(macs):
    total = LiveSet()
    for each in macs:
        total = total.add(each)
    return total


@given(MACS, MACS)
def test_a_sum_depends_on_its_members_alone_and_what_was_added_can_be_taken_away(some, others):
    together = sum_of(some + others)
    assert together == sum_of(others + some) == sum_of(some).join(sum_of(others))
    assert together.part(sum_of(others)) == sum_of(some)
    for each in others:
        together = together.subtract(each)
    assert together == sum_of(some)


def test_a_sum_is_taken_modulo_two_to_the_256():
    assert sum_of([b"\xff" * 32, bytes(31) + b"\x03"]) == LiveSet(2, 2)
    assert LiveSet(2, 2).subtract(bytes(31) + b"\x03") == LiveSet(1, 2**256 - 1)


def test_a_namespace_that_goes_leaves_the_sequence_that_no_later_one_begins_below(sealer):
    thread = ThreadSeal.new()
    both = thread.with_namespace(sealer, "").with_namespace(sealer, "child")
    assert both.namespaces == sum_of([namespace_mac(sealer, ""), namespace_mac(sealer, "child")])
    without = both.without_namespace(sealer, "child", 7)
    assert (without.namespaces, without.floor) == (thread.with_namespace(sealer, "").namespaces, 7)
    assert without.without_namespace(sealer, "", 3).floor == 7
    assert ThreadSeal.decode(without.encode()) == without


def test_the_bytes_of_a_threads_seal_are_these_with_a_link_and_without():
    thread = ThreadSeal(bytes(range(16)), LiveSet(2, 3), floor=7, share_check=b"check" * 3 + b"!", writes=LiveSet(4, 5))
    sums = thread.encode()
    assert sums.hex(" ", 4) == (
        "0200 01020304 05060708 090a0b0c 0d0e0f00 00000000 00000200 00000000 00000000 00000000 00000000 00000000"
        " 00000000 00000000 00000300 00000000 00000400 00000000 00000000 00000000 00000000 00000000 00000000 00000000"
        " 00000500 00000000 00000701 63686563 6b636865 636b6368 65636b21"
    )
    linked = replace(thread, link=ThreadLink("trip-7", "sub", "c1"))
    assert linked.encode() == b"\x03" + sums[1:] + bytes.fromhex("93 a6 74 72 69 70 2d 37 a3 73 75 62 a2 63 31")
    for link in (
        ThreadLink("trip-7", "sub", "c1"),
        ThreadLink("t"),
        ThreadLink("ü" * 127, "x" * 1024, "c" * 255),
        None,
    ):
        assert ThreadSeal.decode(replace(thread, link=link).encode()) == replace(thread, link=link)


def test_tags_name_threads_and_lives_to_their_subject_only(sealer):
    tag = thread_tag(sealer, "trip-7")
    assert (len(tag), tag == thread_tag(sealer, "trip-7"), tag == thread_tag(sealer, "trip-8")) == (16, True, False)
    assert tag != thread_tag(new_sealer(), "trip-7")
    life = incarnation_tag(sealer, bytes(16))
    proof = removal_mac(sealer, tag, life)
    assert proof == removal_mac(sealer, tag, life) != removal_mac(sealer, life, tag)


def test_a_token_goes_on_with_its_namespace_and_life(sealer):
    head = HeadSeal(bytes(16), 3, LiveSet(), NO_WRITES)
    after = msgspec.structs.replace(head, sequence=4, live=LiveSet(1, 9))
    token = ThreadToken.of(sealer, "child", "c1", head)
    assert token.after(sealer, "c2", after) == ThreadToken.of(sealer, "child", "c2", after)
    assert token.after(sealer, "c2", after).admits(sealer, "c2", after)


def test_a_file_has_one_name_in_a_thread_and_its_row_every_column_that_never_changes(sealer):
    digest = artifact_name_digest(sealer, "trip-7", "map.png")
    assert len(digest) == 32
    assert digest != artifact_name_digest(sealer, "trip-7map", ".png")
    at = datetime(2026, 11, 25, tzinfo=UTC)
    location = artifact_location(UUID(int=1), digest, 3, UUID(int=2), 5, at)
    assert location == ("artifact", UUID(int=1), digest, 3, UUID(int=2), 5, at)
