"""`stateroom vector-policy`: said for the tenant, what leaks by name, and damage in words."""

import pytest

SAID = {"vectors": "clear", "accepted_leakage": "content", "complete": False, "damaged": False, "updated_at": None}


def test_what_leaks_is_sent_by_name_and_the_job_is_told_of(command, gateway):
    gateway.answer(SAID)
    outcome = command("vector-policy", "set", "--vectors", "clear", "--accept-leakage", "content")
    assert outcome.code == 0, outcome.err
    assert (gateway.last.method, gateway.last.path) == ("PUT", "/v1/vector-policy")
    assert gateway.last.body == {"vectors": "clear", "accept_leakage": "content"}
    assert "content" in outcome.out
    assert "stateroom job list" in outcome.err


def test_sealed_needs_no_leakage(command, gateway):
    gateway.answer(SAID | {"vectors": "sealed", "accepted_leakage": None, "complete": True})
    assert command("vector-policy", "set", "--vectors", "sealed").code == 0
    assert gateway.last.body == {"vectors": "sealed"}


@pytest.mark.parametrize("options", [(), ("--vectors", "open"), ("--vectors", "clear", "--accept-leakage", "some")])
def test_nothing_is_said_by_accident(command, options):
    assert command("vector-policy", "set", *options).code == 2


def test_what_is_damaged_is_named(command, gateway):
    gateway.answer(SAID | {"vectors": "sealed", "damaged": True})
    outcome = command("vector-policy", "get")
    assert (gateway.last.method, gateway.last.path) == ("GET", "/v1/vector-policy")
    assert "Damaged" in outcome.err
