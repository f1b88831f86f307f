"""How many list elements one save may cut: a body full of the shortest ones must not cost a minute and a gigabyte."""

import os

import pytest

from storage.errors import LimitExceeded
from storage.format.pieces import LIST_ELEMENTS_MAX, Cutter, list_header
from storage.model import Value

NIL = b"\xc0"


class Digests:
    """Digests that close no group by content: only the count of elements matters here."""

    def content_id(self, kind, encoding, data):
        return b"\x01" + os.urandom(16)

    def boundary(self, data):
        return 1


def nils(count: int) -> Value:
    return Value("msgpack", list_header(count) + NIL * count)


def test_a_list_of_more_elements_is_refused_by_name_before_they_are_looked_for():
    with pytest.raises(LimitExceeded, match="LIST_ELEMENTS_MAX") as refused:
        Cutter(Digests()).cut(nils(LIST_ELEMENTS_MAX + 1))
    assert refused.value.limit == "LIST_ELEMENTS_MAX"


def test_the_lists_of_all_records_of_a_save_count_together():
    cutter = Cutter(Digests())
    cutter.elements.add(LIST_ELEMENTS_MAX - 10_000)
    cutter.cut(nils(5_000))
    with pytest.raises(LimitExceeded):
        cutter.beside().cut(nils(5_001))


def test_a_header_that_announces_more_than_there_is_counts_what_there_can_be():
    data = list_header(2**32 - 1) + NIL * 5_000
    cutter = Cutter(Digests())
    cutter.cut(Value("msgpack", data))
    assert cutter.elements.count == len(data)


def test_short_lists_and_other_values_are_not_counted():
    cutter = Cutter(Digests())
    cutter.cut(nils(100))
    cutter.cut(Value("bytes", bytes(10_000)))
    assert cutter.elements.count == 0
