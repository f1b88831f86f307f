"""What is under the MACs of rows that steer the gateway, byte by byte: docs/formats/control-row.md."""

from datetime import UTC, datetime
from uuid import UUID

from storage.control.features import feature_row
from storage.control.rows import (
    JobDraft,
    event_settings_row,
    job_row,
    policy_row,
    schema_row,
    vector_policy_row,
)

TENANT = UUID("00000000-0000-4000-8000-000000000001")
JOB = UUID("00000000-0000-4000-8000-000000000002")
MOMENT = datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)


def text(given):
    return b"\x02" + len(given).to_bytes(4, "big") + given.encode()


def number(given):
    return b"\x03\x00\x00\x00\x01" + given.to_bytes(1, "big")


WHOSE = b"\x04\x00\x00\x00\x10" + TENANT.bytes
SECOND = b"\x05\x00\x00\x00\x08" + (1_000_000).to_bytes(8, "big")
NOTHING = bytes(5)


def test_the_bytes_under_the_macs_are_those_of_the_format():
    body = b"\x01\x00\x00\x00\x02{}"
    assert schema_row(TENANT, "pay", 2, b"{}", MOMENT).encoded(1) == (
        text("state-schema") + WHOSE + number(2) + text("pay") + number(2) + body + SECOND
    )
    assert policy_row(TENANT, "agent", ("travel",), b"{}", True, MOMENT).encoded(1) == (
        text("retention") + WHOSE + number(2) + text("agent") + text("travel") + body + number(1) + SECOND
    )
    assert policy_row(TENANT, "thread", ("user", "t1"), b"{}", False, MOMENT).encoded(1) == (
        text("retention") + WHOSE + number(3) + text("thread") + text("user") + text("t1") + body + number(0) + SECOND
    )
    assert vector_policy_row(TENANT, "clear", "content", True, MOMENT).encoded(1) == (
        text("vector-policy") + WHOSE + number(0) + text("clear") + text("content") + number(1) + SECOND
    )
    assert event_settings_row(TENANT, True, MOMENT, MOMENT).encoded(1) == (
        text("event-settings") + WHOSE + number(0) + number(1) + SECOND + SECOND
    )
    assert event_settings_row(TENANT, False, None, MOMENT).encoded(1) == (
        text("event-settings") + WHOSE + number(0) + number(0) + NOTHING + SECOND
    )
    assert job_row(JobDraft(TENANT, JOB, "reseal", "user", "running", "at")).encoded(1) == (
        text("job") + WHOSE + number(1) + b"\x04\x00\x00\x00\x10" + JOB.bytes
        + text("reseal") + text("user") + text("open") + text("at") + NOTHING + NOTHING
    )  # fmt: skip


def test_a_mac_of_a_later_format_covers_its_format():
    row = schema_row(TENANT, "pay", 2, b"{}", MOMENT)
    assert row.encoded(2) == text("format") + number(2) + row.encoded(1)
    assert feature_row("f", MOMENT).encoded(2) == (
        text("format")
        + number(2)
        + text("feature")
        + b"\x04\x00\x00\x00\x10"
        + bytes(16)
        + number(1)
        + text("f")
        + SECOND
    )


def test_a_job_that_waits_and_one_that_is_worked_on_are_the_same_row_and_one_that_ended_is_another():
    def at(state):
        return job_row(JobDraft(TENANT, JOB, "reseal", "user", state, "at"))

    assert at("queued") == at("running")
    assert len({at(state).encoded(1) for state in ("running", "done", "failed")}) == 3


def test_a_row_is_named_without_what_it_says():
    assert str(policy_row(TENANT, "agent", ("travel",), b"secret", True, MOMENT)) == "retention 'agent/travel'"
