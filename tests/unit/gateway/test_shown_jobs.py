from datetime import UTC, datetime
from uuid import uuid4

import msgspec
import pytest

from gateway import wire
from gateway.routes.jobs import shown
from storage.administration.jobs import Job
from storage.verification.jobs import DeploymentReport, TenantReport

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("report", [TenantReport(known_losses=3), DeploymentReport(known_losses=3)])
def test_nothing_that_a_verification_counted_is_left_out_of_the_answer(report):
    job = Job(
        tenant_id=uuid4(), job_id=uuid4(), kind="verify-tenant", target="", state="done", done=1, total=1, error=None,
        note=msgspec.json.encode(report).decode(), created_at=NOW, updated_at=NOW, position="",
    )  # fmt: skip
    found = shown(job).verification
    assert isinstance(found, wire.jobs.Verification)
    assert msgspec.to_builtins(found) == msgspec.to_builtins(report)
