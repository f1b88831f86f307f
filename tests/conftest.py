"""Registers the shared engines and the property-test profiles for every suite."""

import os

from hypothesis import HealthCheck, settings

pytest_plugins = [
    "tests.support.engines",
    "tests.support.stores",
    "tests.support.interleaving",
    "tests.support.gateway",
    "tests.support.production",
]

settings.register_profile("dev", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))
