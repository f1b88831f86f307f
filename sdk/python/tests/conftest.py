"""Clocks that only move when told, and savers on fake gateways."""

import httpx2
import pytest

from sdk.python.tests.fakes import API_KEY, URL, FakeAsyncClock, FakeClock
from stateroom.langgraph import StateroomSaver


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def async_clock():
    return FakeAsyncClock()


@pytest.fixture
def saver_to():
    """Makes savers whose requests a function answers."""
    savers = []

    def make(gateway, subject="user-42", **options):
        made = StateroomSaver(
            URL,
            API_KEY,
            subject=subject,
            transport=lambda: httpx2.MockTransport(gateway),
            async_transport=lambda: httpx2.MockTransport(gateway),
            **options,
        )
        savers.append(made)
        return made

    yield make
    for saver in savers:
        saver.close()
