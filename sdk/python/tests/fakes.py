"""Fakes that satisfy the HTTP contract: a clock that only moves when told, and scripted answers."""

from collections.abc import Callable

import httpx2
import msgspec

API_KEY = "sr_live_0123456789ab_" + "x" * 49
URL = "http://gateway.test"


class FakeClock:
    def __init__(self):
        self.seconds = 1000.0
        self.slept = []

    def monotonic(self):
        return self.seconds

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.seconds += seconds


class FakeAsyncClock(FakeClock):
    async def sleep(self, seconds):
        FakeClock.sleep(self, seconds)


def packed(body, status=200, headers=None):
    return httpx2.Response(
        status,
        content=msgspec.msgpack.encode(body),
        headers={"content-type": "application/msgpack", **(headers or {})},
    )


def problem(status, code, *, retryable=False, headers=None, **extra):
    body = {"type": f"urn:{code}", "title": code, "status": status, "code": code, "retryable": retryable}
    return httpx2.Response(
        status,
        content=msgspec.json.encode({**body, **extra}),
        headers={"content-type": "application/problem+json", "x-request-id": "req-1", **(headers or {})},
    )


class Script:
    """A transport that gives one answer after another and remembers what it was asked."""

    def __init__(self, *answers: httpx2.Response | Exception | Callable[[httpx2.Request], httpx2.Response]):
        self.answers = list(answers)
        self.requests = []

    def __call__(self, request):
        self.requests.append(request)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer(request) if callable(answer) else answer

    @property
    def transport(self):
        return httpx2.MockTransport(self)


def receipt(checkpoint_id="1ef00000-0000-6000-8000-000000000001", step=0):
    return packed(
        {
            "thread_id": "t",
            "namespace": "",
            "checkpoint_id": checkpoint_id,
            "parent_id": None,
            "step": step,
            "status": "active",
            "sequence": 1,
            "created_at": "2026-11-21T10:00:00Z",
            "created": True,
        },
        201,
        {"etag": f'"{checkpoint_id}"'},
    )


def checkpoint(checkpoint_id="1ef00000-0000-6000-8000-000000000001", *, head=None, step=0, **fields):
    body = {
        "thread_id": "t",
        "namespace": "",
        "checkpoint_id": checkpoint_id,
        "parent_id": None,
        "step": step,
        "status": "active",
        "source": None,
        "agent": None,
        "run_id": None,
        "created_at": "2026-11-21T10:00:00Z",
        "state_schema": None,
        "state_version": None,
        "model": None,
        "usage": None,
        "metadata": {},
        "delta_channels": [],
        **fields,
    }
    return packed(body, 200, {"etag": f'"{head or checkpoint_id}"'})
