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
