"""What the metrics listener shows, and what it must not."""

import re

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
    "stateroom_key_unavailable_total",
    "stateroom_audit_failures_total",
    "stateroom_audit_notes_dropped_total",
    "stateroom_dependency_up",
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
    families = set(re.findall(r"^# TYPE (\S+) ", text, re.MULTILINE)) - {
        name for name in re.findall(r"^# TYPE (\S+) ", text, re.MULTILINE) if name.endswith("_created")
    }
    assert families == NAMES
    labels = {label for line in text.splitlines() if line[:1] != "#" for label in re.findall(r'(\w+)="', line)}
    assert labels == {"route", "method", "status", "le", "reason", "dependency"}
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
