"""`stateroom events` and its subcommands: what is asked, what is printed, and what is refused."""

import pytest

EVENT = {
    "event_id": "e1", "type": "thread.status", "at": "2026-11-21T10:00:00Z", "cursor": "c1", "stream_sequence": 1,
    "stream": {"kind": "thread", "id": "t", "incarnation": "i"}, "thread_id": "t", "status": "waiting",
}  # fmt: skip


def test_what_has_happened_since_is_printed_a_line_each(command, gateway):
    gateway.answer({"events": [EVENT], "cursor": "c1", "more": False})
    outcome = command("events", "--since", "c0", "--type", "thread.status", "--thread", "t")
    assert outcome.code == 0, outcome.err
    assert (gateway.last.method, gateway.last.path) == ("GET", "/v1/events")
    assert gateway.last.query == {"types": "thread.status", "thread": "t", "since": "c0", "wait_seconds": "0"}
    assert "thread.status" in outcome.out
    assert "status=waiting" in outcome.out


@pytest.mark.parametrize("said", [True, False])
def test_events_are_switched_by_a_subcommand(command, gateway, said):
    gateway.answer({"on": said, "on_since": "2026-11-21T10:00:00Z", "damaged": False})
    outcome = command("events", "on" if said else "off")
    assert outcome.code == 0, outcome.err
    assert (gateway.last.method, gateway.last.path) == ("PUT", "/v1/events/settings")
    assert gateway.last.body == {"on": said}


@pytest.mark.parametrize(
    "options",
    [
        ("--follow",),
        ("--since", "c1"),
        ("--type", "job.ended"),
        ("--thread", "t"),
        ("--subject", "u"),
        ("--url", "http://elsewhere.test"),
        ("--json",),
    ],
)
@pytest.mark.parametrize("subcommand", ["settings", "on", "off"])
def test_what_is_said_before_a_subcommand_is_refused_and_not_passed_over(command, gateway, options, subcommand):
    outcome = command("events", *options, subcommand)
    assert outcome.code == 2
    assert options[0] in outcome.err
    assert gateway.requests == []


def test_what_the_environment_says_is_no_such_option(command, gateway, environment):
    environment.setenv("STATEROOM_SUBJECT", "user-42")
    gateway.answer({"on": True, "on_since": "2026-11-21T10:00:00Z", "damaged": False})
    assert command("events", "settings").code == 0
