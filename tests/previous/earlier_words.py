"""Translates what the tests say to a gateway of the recorded build, whose API called some things otherwise.

No client is promised that: a build's SDK speaks to its own gateways. It lets one set of requests be made of both.
When the record moves on to a build with today's words, this goes.
"""

import json
import re
from typing import Any

import httpx

# The operation's name now, and then, where they differ.
NAMES = {"update_thread": "put_thread"}
# Who may ask, then, where somebody else may now.
PERMISSIONS = {"get_transfer_key": "operator"}
_PATHS = [
    ("POST", r"/v1/runs:delete$", "POST", "/v1/runs/delete"),
    ("GET", r"/v1/transfer-key$", "GET", "/v1/admin/transfer-key"),
    ("POST", r"/v1/threads:prune$", "POST", "/v1/prune"),
    ("POST", r"/v1/threads:verify$", "POST", "/v1/verify"),
    ("POST", r"/v1/verify$", "POST", "/v1/verify/tenant"),
    ("POST", r"/v1/(admin/)?keys:(\w+)$", "POST", r"/v1/\1keys/\2"),
    ("PATCH", r"/v1/threads/([^/]+)$", "PUT", r"/v1/threads/\1"),
    (
        "POST",
        r"/v1/threads/([^/]+)/checkpoints/([^/]+)/writes/([^/]+)$",
        "PUT",
        r"/v1/threads/\1/checkpoints/\2/writes/\3",
    ),
    ("PATCH", r"/v1/admin/tenants/([^/]+)/usage$", "PUT", r"/v1/admin/tenants/\1/blob-usage"),
    ("GET", r"/v1/admin/tenants/([^/]+)/usage$", "GET", r"/v1/admin/tenants/\1/blob-usage"),
]
# Lists that had one page.
_WITHOUT_QUERY = {"/v1/state-schemas"}
_ANSWERED = {"id": "checkpoint_id", "credential_id": "key_id", "newest": "newest_version", "schema": "state_schema"}
_LISTS = ("checkpoints", "versions", "state_schemas")


def earlier_path(method: str, path: str) -> tuple[str, str]:
    """How the recorded build calls what is asked for this way now."""
    for now, pattern, then, earlier in _PATHS:
        if method == now and (found := re.match(pattern, path)):
            return then, found.expand(earlier)
    return method, path


def _answer(said: Any, path: str) -> Any:
    if not isinstance(said, dict):
        return said
    renamed = {_ANSWERED.get(name, name): value for name, value in said.items()}
    if "/state-schemas" in path and "number" in renamed:
        renamed["state_version"] = renamed.pop("number")
    for name in _LISTS:
        if isinstance(renamed.get(name), list):
            renamed[name] = [_answer(each, path) for each in renamed[name]]
    return renamed


class EarlierWords(httpx.BaseTransport):
    """Sends requests in the words of the recorded build, and gives its answers in today's."""

    def __init__(self) -> None:
        self._inner = httpx.HTTPTransport(verify=False)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        content = request.read()
        method, path = earlier_path(request.method, request.url.raw_path.decode().split("?")[0])
        if path.endswith("/decrypt") and content:
            body = json.loads(content)
            content = json.dumps(
                {("subject" if name == "subject_id" else name): each for name, each in body.items()}
            ).encode()
        query = f"?{request.url.query.decode()}" if request.url.query and path not in _WITHOUT_QUERY else ""
        headers = [(name, value) for name, value in request.headers.raw if name.lower() != b"content-length"]
        url = request.url.copy_with(raw_path=f"{path}{query}".encode())
        answer = self._inner.handle_request(httpx.Request(method, url, headers=headers, content=content))
        answer.read()
        content = answer.content
        if answer.headers.get("content-type") == "application/json" and answer.status_code < 400:
            content = json.dumps(_answer(json.loads(content), path)).encode()
        headers = [
            (name, value) for name, value in answer.headers.raw
            if name.lower() not in {b"content-length", b"content-encoding", b"transfer-encoding"}
        ]  # fmt: skip
        return httpx.Response(answer.status_code, headers=headers, content=content)

    def close(self) -> None:
        self._inner.close()
