"""Registers the shared engines and the property-test profiles for every suite."""

import logging
import os

import pytest
import structlog
from hypothesis import HealthCheck, settings

pytest_plugins = [
    "tests.support.engines",
    "tests.support.stores",
    "tests.support.interleaving",
    "tests.support.own_database",
    "tests.support.gateway",
    "tests.support.production",
]

settings.register_profile("dev", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.fixture(autouse=True)
def _logging_as_found():
    """Put back what a test configured in this process: what is left behind writes into the next test's stderr."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    structlog.reset_defaults()
    root.handlers[:] = handlers
    root.setLevel(level)
