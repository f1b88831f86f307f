import pytest

SAID = {"agent": None, "policy": {"strict": True}, "strict": True, "agents": ["travel"], "damaged": []}


@pytest.mark.parametrize(("option", "strict"), [("--strict", True), ("--no-strict", False), ("--take-back", None)])
def test_it_is_said_for_the_tenant_or_an_agent(command, gateway, option, strict):
    gateway.answer(SAID)
    outcome = command("save-policy", "set", option, "--agent", "travel")
    assert outcome.code == 0, outcome.err
    assert (gateway.last.method, gateway.last.path) == ("PUT", "/v1/save-policy")
    assert gateway.last.query == {"agent": "travel"}
    assert gateway.last.body == {"strict": strict}
    assert "strict: saves name the head" in outcome.out
    assert "travel" in outcome.err


@pytest.mark.parametrize("options", [(), ("--strict", "--take-back")])
def test_nothing_is_said_by_accident(command, options):
    assert command("save-policy", "set", *options).code == 2


def test_what_is_damaged_is_named(command, gateway):
    gateway.answer(SAID | {"policy": {}, "strict": None, "damaged": [None, "billing"]})
    outcome = command("save-policy", "get")
    assert (gateway.last.method, gateway.last.path) == ("GET", "/v1/save-policy")
    assert "saves that name no head are refused" in outcome.out
    assert "the policy of the tenant" in outcome.err
    assert "the policy of agent billing" in outcome.err
