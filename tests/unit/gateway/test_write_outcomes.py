import pytest

from gateway.admission.write_outcomes import REFUSED_MIN, REST_SECONDS, WriteOutcomes
from storage.errors import DatabaseReadOnly, HeadMoved, Unavailable


class Seconds:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def seconds():
    return Seconds()


@pytest.fixture
def outcomes(seconds):
    return WriteOutcomes(seconds)


def refuse(outcomes, times):
    for _ in range(times):
        outcomes.note(DatabaseReadOnly())


def test_a_write_that_is_taken_among_refused_ones_is_enough(outcomes):
    refuse(outcomes, REFUSED_MIN - 1)
    outcomes.note(None)
    refuse(outcomes, REFUSED_MIN - 1)
    assert not outcomes.are_refused


def test_other_errors_neither_count_nor_heal(outcomes):
    for error in (HeadMoved("c1"), Unavailable("busy"), ValueError()):
        outcomes.note(error)
    assert not outcomes.are_refused
    refuse(outcomes, REFUSED_MIN)
    outcomes.note(HeadMoved("c1"))
    assert outcomes.are_refused


def test_after_a_rest_the_next_write_decides(outcomes, seconds):
    refuse(outcomes, REFUSED_MIN)
    seconds.now += REST_SECONDS - 1
    assert outcomes.are_refused
    seconds.now += 1
    assert not outcomes.are_refused
    refuse(outcomes, 1)
    assert outcomes.are_refused
    outcomes.note(None)
    assert not outcomes.are_refused
