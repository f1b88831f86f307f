"""Threads as test cases: what happened in production, kept as a file, loaded into a test, and run again.

This package owns fixtures as tests use them, and how steps of theirs are run again and compared. A fixture holds
everything in clear: keep it where the state itself may be kept. What needs LangGraph is in
``stateroom.testing.graphs``.
"""

from stateroom._threads.fixtures import ChannelChange, Fixture, FixtureLeaf, FixtureStep, FixtureWrite, LoadsFixtures
from stateroom.errors import FixtureUnreadable
from stateroom.testing.comparing import prompt_hash
from stateroom.testing.replay import Comparison, Made, Report, StepReport, check_run

__all__ = [
    "ChannelChange",
    "Comparison",
    "Fixture",
    "FixtureLeaf",
    "FixtureStep",
    "FixtureUnreadable",
    "FixtureWrite",
    "LoadsFixtures",
    "Made",
    "Report",
    "StepReport",
    "check_run",
    "prompt_hash",
]
