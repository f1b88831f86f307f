import pytest

SAID = {
    "agent": None, "policy": {"strict": True}, "strict": True, "compact_elements": 500, "compact_bytes": 2097152,
    "agents": ["travel"], "damaged": [],
}  # fmt: skip


@pytest.mark.parametrize(
    ("options", "policy"),
    [
        (("--strict",), {"strict": True}),
        (("--no-strict",), {"strict": False}),
        (("--compact-elements", "500"), {"strict": True, "compact_elements": 500}),
        (("--compact-bytes", "2MiB", "--no-strict"), {"strict": False, "compact_bytes": 2 * 1024 * 1024}),
        (("--compact-bytes", "none"), {"strict": True, "compact_bytes": None}),
        (("--take-back",), {}),
    ],
)
def test_it_is_said_for_the_tenant_or_an_agent_and_the_rest_stays_as_it_is(command, gateway, options, policy):
    if options != ("--take-back",):
        gateway.answer(SAID)
    gateway.answer(SAID)
    outcome = command("save-policy", "set", *options, "--agent", "travel")
    assert outcome.code == 0, outcome.err
    assert (gateway.last.method, gateway.last.path) == ("PUT", "/v1/save-policy")
    assert gateway.last.query == {"agent": "travel"}
    assert gateway.last.body == policy
    assert "strict: saves name the head" in outcome.out
    assert "more than 500 elements" in outcome.out
    assert "more than 2.0 MiB" in outcome.out
    assert "travel" in outcome.err


@pytest.mark.parametrize("options", [(), ("--strict", "--take-back"), ("--compact-elements", "few")])
def test_nothing_is_said_by_accident(command, options):
    assert command("save-policy", "set", *options).code == 2


def test_what_is_damaged_is_named(command, gateway):
    gateway.answer(SAID | {"policy": {}, "strict": None, "damaged": [None, "billing"]})
    outcome = command("save-policy", "get")
    assert (gateway.last.method, gateway.last.path) == ("GET", "/v1/save-policy")
    assert "saves that name no head are refused" in outcome.out
    assert "the policy of the tenant" in outcome.err
    assert "the policy of agent billing" in outcome.err
