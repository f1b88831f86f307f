"""Clocks that only move when told."""

import pytest

from sdk.python.tests.fakes import FakeAsyncClock, FakeClock


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def async_clock():
    return FakeAsyncClock()
