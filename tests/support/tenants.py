"""Tenants of a running gateway, made as operators and their administrators make them."""

from typing import Any
from uuid import uuid4

import httpx

SERVICE = ["state:read", "state:write", "state:delete", "subject:act_as", "tenant:admin"]


def granted(client: httpx.Client) -> list[str]:
    """What keys may have that the client's key makes; an earlier build tells only what the key itself has."""
    who: dict[str, list[str]] = client.get("/v1/whoami").raise_for_status().json()
    return who.get("grants", who["permissions"])


def new_tenant(url: str, operator_key: str) -> dict[str, Any]:
    """A new tenant; ``api_key`` is a key with every permission that its founding key, ``founding_key``, made."""
    with httpx.Client(base_url=url, timeout=60) as client:
        client.headers["Authorization"] = f"Bearer {operator_key}"
        founded = client.post("/v1/admin/tenants", json={"name": f"tenant-{uuid4()}"})
        assert founded.status_code == 201, founded.text
        client.headers["Authorization"] = f"Bearer {founded.json()['api_key']}"
        made = client.post("/v1/api-keys", json={"kind": "service", "permissions": granted(client)})
        assert made.status_code == 201, made.text
    return founded.json() | {"founding_key": founded.json()["api_key"], "api_key": made.json()["api_key"]}


def somebody_else(url: str, operator_key: str, api_key: str, permissions: list[str]) -> str:
    """A key of a key's tenant for another person: a key that decides makes none, so that an operator has to help."""
    with httpx.Client(base_url=url, timeout=60) as client:
        client.headers["Authorization"] = f"Bearer {api_key}"
        tenant_id = client.get("/v1/whoami").raise_for_status().json()["tenant_id"]
        client.headers["Authorization"] = f"Bearer {operator_key}"
        recovered = client.post(f"/v1/admin/tenants/{tenant_id}/recover", json={"reason": "a test"})
        assert recovered.status_code == 201, recovered.text
        client.headers["Authorization"] = f"Bearer {recovered.json()['api_key']}"
        body = {"kind": "service", "name": "a person's", "permissions": permissions, "grants": []}
        made = client.post("/v1/api-keys", json=body)
        assert made.status_code == 201, made.text
    return str(made.json()["api_key"])
