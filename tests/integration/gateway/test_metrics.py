"""What the metrics listener shows, and what it must not."""

import asyncio
import re
import resource

import asyncpg
import httpx

from gateway.admission.limits import CONNECTIONS_MAX
from tests.support.half_request import HalfRequest
from tests.support.metrics import exposition, free_port, until_in_flight, value_of
from tests.support.production import serving

NAMES = {
    "stateroom_request_seconds",
    "stateroom_commit_seconds",
    "stateroom_pool_wait_seconds",
    "stateroom_in_flight",
    "stateroom_refused_total",
    "stateroom_integrity_failures_total",
    "stateroom_root_key_refused_total",
    "stateroom_audit_failures_total",
    "stateroom_audit_notes_dropped_total",
    "stateroom_dependency_up",
    "stateroom_swept_total",
    "stateroom_swept_bytes_total",
    "stateroom_sweep_failures_total",
    "stateroom_sweep_age_seconds",
    "stateroom_sweep_due_seconds",
    "stateroom_blobs",
    "stateroom_blob_bytes",
    "stateroom_blob_usage_bytes",
    "stateroom_row_usage_bytes",
    "stateroom_tenants_over_row_quota",
    "stateroom_row_count_age_seconds",
    "stateroom_row_counts_total",
    "stateroom_row_count_failures_total",
    "stateroom_threads",
    "stateroom_threads_held",
    "stateroom_retained_total",
    "stateroom_items_expired_total",
    "stateroom_retained_bytes_total",
    "stateroom_retention_failures_total",
    "stateroom_retention_due",
    "stateroom_events_failures_total",
    "stateroom_events_lag_seconds",
    "stateroom_events_numbered_total",
    "stateroom_retention_late_seconds",
    "stateroom_retention_age_seconds",
    "stateroom_retention_overdue",
    "stateroom_state_reads_total",
    "stateroom_too_costly_total",
    "stateroom_workers_busy",
    "stateroom_workers_lost_total",
    "stateroom_jobs_open",
    "stateroom_jobs_ended_total",
    "stateroom_job_waits_total",
    "stateroom_jobs_oldest_seconds",
    "stateroom_build_info",
    "stateroom_clock_offset_seconds",
    "stateroom_limit",
    "stateroom_limit_used",
    "stateroom_probes_total",
    "stateroom_round_success_timestamp_seconds",
    "process_virtual_memory_bytes",
    "process_resident_memory_bytes",
    "process_start_time_seconds",
    "process_cpu_seconds_total",
    "process_open_fds",
    "process_max_fds",
}


async def test_metrics_have_their_own_listener_and_carry_routes_but_nobodys_name(deployment, launcher):
    port = free_port()
    settings = {"metrics_listen": f"127.0.0.1:{port}", "requests_in_flight_max": "1"}
    async with serving(launcher, deployment, **settings) as gateway, gateway.client("subject-17") as client:
        saved = await client.post("/v1/threads/thread-23/checkpoints", json={"state": {"n": 1}})
        assert saved.status_code == 201
        assert (await client.get("/v1/threads/thread-23/checkpoints/latest")).status_code == 200
        assert (await client.get("/no/such-29/path")).status_code == 404
        tenant_id = (await client.get("/v1/whoami")).json()["tenant_id"]
        held = await HalfRequest(gateway, "thread-23", subject="subject-17").begin()
        await until_in_flight(port, 1)
        assert (await client.get("/v1/whoami")).status_code == 503
        assert await held.finish() == 201

        text = await exposition(port)
        assert (await client.get("/metrics")).status_code == 404
    assert set(re.findall(r"^# TYPE (\S+) ", text, re.MULTILINE)) == NAMES
    labels = {label for line in text.splitlines() if line[:1] != "#" for label in re.findall(r'(\w+)="', line)}
    assert labels - {"kind", "round"} == {
        "route", "method", "status", "le", "reason", "dependency", "step", "state",
        "tier", "action", "cause", "what", "version", "db_revision", "limit",
    }  # fmt: skip
    for somebody in (tenant_id, "subject-17", "thread-23", "such-29", gateway.deployment.api_key[:20]):
        assert somebody not in text
    route = "/v1/threads/{thread_id}/checkpoints"
    count = "stateroom_request_seconds_count"
    assert value_of(text, f'{count}{{method="POST",route="{route}",status="201"}}') == 2
    assert value_of(text, f'{count}{{method="GET",route="unmatched",status="404"}}') == 1
    assert value_of(text, 'stateroom_refused_total{reason="overloaded"}') == 1
    assert value_of(text, 'stateroom_dependency_up{dependency="database"}') == 1
    assert value_of(text, "stateroom_commit_seconds_count") >= 3
    assert value_of(text, "stateroom_integrity_failures_total") == 0


async def test_probes_are_answered_while_the_connections_for_the_api_are_full(deployment, launcher):
    port = free_port()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4096), hard))
    async with serving(launcher, deployment, metrics_listen=f"127.0.0.1:{port}") as gateway:
        host, _, own = gateway.url.removeprefix("http://").partition(":")
        silent = [await asyncio.open_connection(host, int(own)) for _ in range(CONNECTIONS_MAX)]
        try:
            async with httpx.AsyncClient() as client:
                refused = await client.get(f"{gateway.url}/livez")
                assert (refused.status_code, refused.json()["code"]) == (503, "overloaded")
                for path in ("livez", "readyz"):
                    assert (await client.get(f"http://127.0.0.1:{port}/{path}")).status_code == 200
            text = await exposition(port)
        finally:
            for _, writer in silent:
                writer.close()
    assert value_of(text, 'stateroom_limit{limit="connections"}') == CONNECTIONS_MAX
    assert value_of(text, 'stateroom_limit_used{limit="connections"}') >= CONNECTIONS_MAX
    # What is asked every few seconds is counted apart: it says nothing of what clients get.
    assert value_of(text, 'stateroom_probes_total{route="/readyz",status="200"}') >= 1
    assert 'route="/livez"' not in "".join(line for line in text.splitlines() if "request_seconds" in line)


async def test_every_detection_counts_and_is_a_problem_that_is_not_worth_repeating(
    deployment, launcher, durable_postgres
):
    port = free_port()
    attacker = await asyncpg.connect(durable_postgres.superuser_url(deployment.database).replace("+asyncpg", ""))
    try:
        async with (
            serving(launcher, deployment, metrics_listen=f"127.0.0.1:{port}") as gateway,
            gateway.client("alarm") as client,
        ):
            tokens = []
            for number in range(2):
                saved = await client.post("/v1/threads/t/checkpoints", json={"state": {"n": number}})
                assert saved.status_code == 201, saved.text
                tokens.append(saved.headers["Stateroom-Thread-Token"])
            other = (await client.post("/v1/threads/u/checkpoints", json={"state": {"n": 0}})).json()["checkpoint_id"]
            path = "/v1/threads/t/checkpoints/latest"
            assert (await client.get(path, headers={"Stateroom-Known-Token": tokens[1]})).status_code == 200
            assert value_of(await exposition(port), "stateroom_integrity_failures_total") == 0

            edit = "UPDATE stateroom.checkpoints SET step = coalesce(step, 0) + $1 WHERE checkpoint_id = $2"
            await attacker.execute(edit, 1, other)
            for count in (1, 2):
                refused = await client.get("/v1/threads/u/checkpoints/latest")
                problem = refused.json()
                assert (refused.status_code, problem["code"], problem["retryable"]) == (500, "integrity-failure", False)
                assert "state" not in problem
                assert value_of(await exposition(port), "stateroom_integrity_failures_total") == count

            deleted = await client.delete("/v1/threads/t")
            assert deleted.status_code == 204, deleted.text
            await attacker.execute("DELETE FROM stateroom.removed_threads WHERE subject_id = 'alarm'")
            # Both who stored it and who saw it know that there was more than what is there now.
            saved = await client.post("/v1/threads/t/checkpoints", json={"state": {"n": 0}})
            read = await client.get(path, headers={"Stateroom-Known-Token": tokens[1]})
            for refused in (saved, read):
                problem = refused.json()
                assert (refused.status_code, problem["code"], problem["retryable"]) == (409, "rollback-detected", False)
            assert value_of(await exposition(port), "stateroom_integrity_failures_total") == 4
    finally:
        await attacker.close()
