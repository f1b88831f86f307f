"""Threads as test cases: what happened in production, kept as a file and loaded into a test.

This module owns the names that tests use; what they mean is in the modules it takes them from. A fixture holds
everything in clear: keep it where the state itself may be kept.
"""

from stateroom._threads.fixtures import ChannelChange, Fixture, FixtureStep, FixtureWrite, LoadsFixtures
from stateroom.errors import FixtureUnreadable

__all__ = ["ChannelChange", "Fixture", "FixtureStep", "FixtureUnreadable", "FixtureWrite", "LoadsFixtures"]
