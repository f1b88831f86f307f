"""An example of every JSON body and of every answer in the documentation, by operation.

They tell one story: agents of the tenant Example plan trips for user-42. Owns nothing but the text; a test holds every
example against the shape it is of, and finds none missing. Made-up secrets and digests are of the right form only.
"""

import base64
import json
from typing import Any

_HEAD = "1f0c6c3e-4f5a-6b10-8000-5e2d9c7a4b11"
_PARENT = "1f0c6c3d-0c1e-6a40-8000-5e2d9c7a4b11"
_TENANT = "01988d2e-7c31-7f60-9a3b-0d4c5e6f7081"
_JOB = "01988d3f-1a2b-7c3d-8e4f-5a6b7c8d9e0f"
_ARTIFACT = "01988d40-2b3c-7d4e-9f50-6b7c8d9eaf10"
_UPLOAD = "01988d41-3c4d-7e5f-8061-7c8d9eafb021"
_CURSOR = "c2ZrN2oyZFE4bVpfd0F4OJGkdHJpcA"
_CREATED, _LATER = "2026-03-01T09:00:00Z", "2026-03-01T09:04:12Z"
_APPROVAL = "01988d43-7081-7293-9a15-afb0c1d2e304"
_DIGEST = "sha-256=:n4bQgYhMfWWaL+qgxVrQFaO/TxsrC4Is0V1sFbDwCgg=:"
_HASH = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
_PREVIOUS = "60303ae22b998861bce3b28f33eec1be758a213c86c93c076dbe9f558c11c752"
_API_KEY = "sr_live_7Qm2Xc9LpA4z_" + "4mK8vT2nB6xR0qW3yZ5cD7fG9hJ1kL4pN8sV2tX6zA0" + "1b3D5f"
_TRANSFER_KEY = "stateroom-transfer-2:U6eBZbi9G8D2BlRRlrYlJz9DymDAn_Kx798pcr1mZT8BmI0ufDF_YJo7DUxeb3CCImIk1A"


def _packed(data: bytes) -> str:
    """Bytes as JSON has them."""
    return base64.b64encode(data).decode("ascii")


_LEAF = b"\xd9\x29<html><p>Flights to Lisbon, page 1</html>"  # a text of 41 bytes in MessagePack
_RECEIPT = {
    "thread_id": "trip-7", "namespace": "", "checkpoint_id": _HEAD, "parent_id": _PARENT, "step": 1, "status": "active",
    "sequence": 2, "created_at": _LATER, "created": True,
}  # fmt: skip
_COMPACTED = {**_RECEIPT, "step": 41, "sequence": 42}
_LISTED = {
    "thread_id": "trip-7", "namespace": "", "checkpoint_id": _HEAD, "parent_id": _PARENT, "step": 1, "status": "active",
    "source": None, "agent": "travel", "run_id": "run-1", "created_at": _LATER, "state_schema": "travel",
    "state_version": 2, "model": {"name": "example-large", "temperature": 0.2},
    "usage": {"input_tokens": 812, "output_tokens": 64, "cost_micros": 310}, "metadata": {"channel": "web"},
    "delta_channels": [],
}  # fmt: skip
_WRITE = {"task_id": "book-flight", "idx": 0, "channel": "done", "value": "book the flight"}
_ASKED_ARGS = {"flight": "TP 1234", "price_cents": 18_900}
_APPROVAL_SHOWN = {
    "approval_id": _APPROVAL, "subject_id": "user-42", "thread_id": "trip-7", "namespace": "", "checkpoint_id": _HEAD,
    "run_id": "run-1", "agent": "travel", "kind": "tool_call", "status": "pending", "requested_by": "Xc9LpA4z7Qm2",
    "requested_principal": "Xc9LpA4z7Qm2", "created_at": _LATER, "expires_at": "2026-03-08T09:04:12Z",
    "valid_until": None, "decided_at": None, "decisions_needed": 1, "revision": 1, "client_share": False,
    "has_display": False, "actions": [{"position": 0, "status": "pending", "verdict": None, "edited": False}],
    "votes": [],
}  # fmt: skip
_APPROVAL_DECIDED = {
    **_APPROVAL_SHOWN, "status": "approved", "valid_until": "2026-03-02T09:30:00Z",
    "decided_at": "2026-03-01T09:30:00Z", "revision": 2,
    "actions": [{"position": 0, "status": "approved", "verdict": "approve", "edited": False}],
    "votes": [{"principal": "7Qm2Xc9LpA4z", "key_id": "7Qm2Xc9LpA4z", "verdict": "approve",
               "at": "2026-03-01T09:30:00Z", "asserted": False}],
}  # fmt: skip
_APPROVAL_CONTENT: dict[str, Any] = {
    "approval_id": _APPROVAL, "external_id": "book-flight", "action_hash": _HASH, "allowed": ["approve", "reject"],
    "message": "Book this flight?", "display": None, "response_schema": None,
    "actions": [
        {"tool": "book_flight", "tool_digest": None, "args": _ASKED_ARGS, "args_schema": None, "hide": [],
         "description": None, "action_hash": _PREVIOUS, "verdict": None}
    ],
    "withheld": False,
}  # fmt: skip
_APPROVAL_POLICY = {
    "required": True, "decisions_needed": 2, "requester_may_approve": False, "edit_allowed": True,
    "expires_seconds": 604_800, "valid_seconds": 900, "asserted_count": False,
}  # fmt: skip
_APPROVAL_POLICIES = {
    "policies": [
        {"agent": None, "tool": "book_flight", "policy": _APPROVAL_POLICY, "updated_at": _CREATED, "damaged": False}
    ]
}
_CHECKPOINT = {
    **_LISTED,
    "state": {"plan": ["book the flight", "book the hotel"], "done": ["book the flight"]},
    "pending_writes": [{"task_id": "book-hotel", "idx": 0, "channel": "done", "value": "book the hotel"}],
}
_THREAD = {
    "thread_id": "trip-7", "agent": "travel", "status": "active", "tier": "hot", "strict": True,
    "client_share": False, "created_at": _CREATED, "updated_at": _LATER, "head_id": _HEAD,
}  # fmt: skip
_CHILD = {
    **_THREAD, "thread_id": "trip-7-hotels", "agent": "hotels", "head_id": None,
    "parent": {"thread_id": "trip-7", "namespace": "", "checkpoint_id": _HEAD, "absent": False},
}  # fmt: skip
_ARTIFACT_SHOWN = {
    "artifact_id": _ARTIFACT, "pointer": f"stateroom:artifact:{_ARTIFACT}", "thread_id": "trip-7",
    "name": "boarding pass.pdf", "version": 1, "media_type": "application/pdf", "size_bytes": 48_213,
    "digest": _DIGEST, "metadata": {"airline": "Example Air"}, "created_at": _LATER,
}  # fmt: skip
_ITEM = {
    "path": ["memories", "flights"], "key": "seat", "value": {"likes": "window", "since": 2024}, "revision": 12,
    "created_at": _CREATED, "updated_at": _LATER, "ttl_seconds": 7_776_000, "expires_at": "2026-05-30T09:04:12Z",
}  # fmt: skip
_PUT_ITEM = {
    "status": "replaced", "revision": 12, "created_at": _CREATED, "updated_at": _LATER,
    "expires_at": "2026-05-30T09:04:12Z",
}  # fmt: skip
_ITEM_MOVED = {
    "type": "https://stateroom.example.com/docs#item-moved", "title": "Item moved", "status": 412, "code": "item-moved",
    "retryable": False, "detail": "The item is not at the revision that the request names; read it, apply your change"
    " again, put it.", "request_id": "01988d42-5e6f-7081-9203-4d5e6f708192", "revision": 7,
}  # fmt: skip
_UPLOAD_SHOWN = {
    "upload_id": _UPLOAD, "thread_id": "trip-7", "name": "walkthrough.mp4", "part_bytes": 8_388_608,
    "expires_at": "2026-03-02T09:04:12Z", "parts": [],
}  # fmt: skip
_PART = {"part_number": 0, "size_bytes": 8_388_608, "digest": _DIGEST}
_USAGE = {
    "tenant_id": _TENANT, "used_bytes": 73_400_320, "quota_bytes": 10_737_418_240, "rows_bytes": 41_943_040,
    "rows_quota_bytes": 21_474_836_480, "rows_counted_at": "2026-03-02T09:04:12Z",
}  # fmt: skip
_KEY_SHOWN = {
    "key_id": "7Qm2Xc9LpA4z", "kind": "subject", "name": "laptop", "tenant_id": _TENANT, "subject_id": "user-42",
    "permissions": ["state:read", "state:write"], "grants": ["state:read", "state:write"], "status": "active",
    "created_at": _CREATED, "expires_at": "2099-03-01T00:00:00Z", "revoked_at": None, "last_used_at": None,
}  # fmt: skip
_OPERATOR_KEY_SHOWN = {
    "key_id": "0Vt5Rb8NqW2k", "kind": "operator", "name": "bob", "tenant_id": None, "subject_id": None,
    "permissions": ["operator"], "grants": ["operator"], "status": "active", "created_at": _CREATED,
    "expires_at": "2026-05-30T09:04:12Z", "revoked_at": None, "last_used_at": _LATER,
}  # fmt: skip
_RECOVERY_KEY_SHOWN = {
    "key_id": "4Jd9Ph3SxY6m", "kind": "service", "name": "recovery key", "tenant_id": _TENANT, "subject_id": None,
    "permissions": ["tenant:admin"],
    "grants": ["state:delete", "state:read", "state:write", "subject:act_as", "tenant:admin"], "status": "active",
    "created_at": _CREATED, "expires_at": None, "revoked_at": None, "last_used_at": None,
}  # fmt: skip
_TENANT_SHOWN = {"tenant_id": _TENANT, "name": "Example", "created_at": _CREATED, "suspended_at": None}
_ORIGIN = f"stateroom/audit/8a1f6c2e-5b3d-4e7f-9a0b-1c2d3e4f5a6b/{_TENANT}"
_ANCHOR = {
    "origin": _ORIGIN, "sequence": 118, "hash": _HASH, "stored": True,
    "note": f"{_ORIGIN}\n118\nn4bQgYhMfWWaL+qgxVrQFaO/TxsrC4Is0V1sFbDwCgg=\n\n— {_ORIGIN} Az3grlgtzPICa5OS8npVmf1M\n",
}  # fmt: skip
_EVENT_CURSOR = "kx0pZ1vQ3n8rW5tYb2c7d4f6g9hJkLmNpQrStUvWxYzAaBbCcDdEeFfGgHhIiJjKkLlMmNnOoPpQqRrSsTtUuV"
_EVENT = {
    "event_id": "01988d42-6f70-7182-9304-5e6f70819203", "type": "checkpoint.saved", "at": _LATER,
    "stream": {"kind": "thread", "id": "trip-7", "incarnation": "8c1f0a9be2d34576"}, "stream_sequence": 12,
    "subject_id": "user-42", "thread_id": "trip-7", "namespace": "", "checkpoint_id": _HEAD, "run_id": "run-1",
    "agent": "travel", "status": "waiting", "job_id": None, "key_id": None, "subject_tag": None,
}  # fmt: skip
_CLAIM = {
    "thread_id": "trip-7", "fence": 1_772_355_852_000, "holder": "worker-3", "run_id": "run-1", "status": "live",
    "claimed_at": _LATER, "claimed_until": "2026-03-01T09:05:12Z", "lease_seconds": 60, "takeovers": 0,
    "required": False, "note": "2 of 5 booked",
}  # fmt: skip
_SILENT = {
    "subject_id": "user-42", "thread_id": "trip-7", "agent": "travel", "status": "active", "fence": 1_772_355_852_000,
    "holder": "worker-3", "run_id": "run-1", "claimed_at": _LATER, "claimed_until": "2026-03-01T09:05:12Z",
    "lease_seconds": 60, "takeovers": 1, "stuck": False,
}  # fmt: skip
_EFFECT = {
    "thread_id": "trip-7", "namespace": "", "name": "call_Zc81", "execution": 1, "attempt": 1, "mode": "once",
    "tool": "pay_invoice", "status": "done", "provider_key": "01988d42-7a81-7293-8405-6f7081920314",
    "anchor_checkpoint_id": _HEAD, "run_id": "run-1", "started_at": _LATER, "finished_at": "2026-03-01T09:04:13Z",
    "leased_until": "2026-03-01T09:09:12Z", "result_state": "stored", "error": None, "resolved_by": None,
    "started_by": "7Qm2Xc9LpA4z", "repeats": None,
    "repeats_name": None, "is_copy": False, "result_bytes": 13, "artifact_id": None,
}  # fmt: skip
_EFFECT_STARTED = {
    **_EFFECT, "status": "started", "finished_at": None, "result_state": "none", "result_bytes": None,
}  # fmt: skip
_EFFECT_DONE = {**_EFFECT, "args": {"to": "bob", "amount": 1200}, "result": {"paid": 1200}}
_UNKNOWN_EFFECT = {
    "subject_id": "user-42", "thread_id": "trip-7", "namespace": "", "name_tag": "9f86d081884c7d659a2feaa0c55ad015",
    "execution": 1, "attempt": 1, "mode": "once", "anchor_checkpoint_id": _HEAD, "run_id": "run-1",
    "started_at": _LATER, "started_by": "7Qm2Xc9LpA4z",
}  # fmt: skip
_EVENT_SETTINGS = {"on": True, "on_since": _LATER, "damaged": False}
_EVENTS = {
    "origin": _ORIGIN,
    "events": [
        {
            "sequence": 118, "at": _CREATED, "actor": "api-key:9Rf4Tg6Hj8Kl", "action": "api-key.create",
            "target": "api-key:7Qm2Xc9LpA4z", "detail": {"kind": "subject", "subject_id": "user-42"},
            "body": '{"action":"api-key.create","actor":"api-key:9Rf4Tg6Hj8Kl"}', "previous": _PREVIOUS, "hash": _HASH,
        },
    ],
    "next_cursor": None,
}  # fmt: skip
_AUDIT_KEY = {"origin": _ORIGIN, "public_key": f"{_ORIGIN}+0b1c2d3e+AYEgHTvZ6cBzkXh8zOq0zVZ0cZr1p3mJ8uG4s2Yw5n7L"}
_JOB_SHOWN = {
    "job_id": _JOB,
    "kind": "rewrap-subject-keys",
    "state": "running",
    "target": {},
    "progress": {"done": 1_200, "total": 4_100},
    "error": None,
    "note": None,
    "waits_for": None,
    "created_at": _CREATED,
    "updated_at": _LATER,
    "damaged": False,
}
_OF_THREAD = {"target": {"subject_id": "user-42", "thread_id": "trip-7"}, "progress": {"done": 0, "total": 1}}
_OF_SCHEMA = {"target": {"state_schema": "travel", "state_version": 2}, "progress": {"done": 310, "total": 310}}
_DEPLOYMENT_JOB = {**_JOB_SHOWN, "kind": "rewrap-tenant-keys", "progress": {"done": 12, "total": 40}}
_SHREDDED = {
    **_JOB_SHOWN,
    "kind": "shred-subject",
    "target": {"subject_id": "user-42"},
    "progress": {"done": 0, "total": None},
    "shred_effective_at": "2026-04-01T09:00:00Z",
    "tombstone": True,
}
_TENANT_SHREDDED = {**_SHREDDED, "kind": "shred-tenant", "target": {}}
_CANCELLED = {**_JOB_SHOWN, **_OF_SCHEMA, "kind": "state-migrate", "state": "failed", "error": "it was cancelled"}
_SUPERSEDED = {
    **_JOB_SHOWN,
    "kind": "superseded",
    "state": "failed",
    "progress": {"done": 0, "total": None},
    "error": "the row of this job was written or edited outside the gateway",
}
_POLICY = {"idle_ttl_seconds": 2_592_000, "on_expiry": "archive", "archive_ttl_seconds": 31_536_000}
_EFFECTIVE = {
    "idle_ttl_seconds": 2_592_000, "absolute_ttl_seconds": None, "done_ttl_seconds": None, "on_expiry": "archive",
    "checkpoints_max": None, "thinning": None, "pending_writes_seconds": None, "checkpoints_idle_ttl_seconds": None,
    "keep_hot": None, "archive_storage_class": None,
    "archive_ttl_seconds": 31_536_000, "segment_ttl_seconds": None, "legal_hold": False,
}  # fmt: skip
_CEILINGS = {"absolute_ttl_seconds": 63_072_000}
_RETENTION = {
    "agent": None, "policy": _POLICY, "effective": _EFFECTIVE, "ceilings": _CEILINGS, "agents": ["travel"],
    "damaged": [], "updated_at": _CREATED,
}  # fmt: skip
_SAVE_POLICIES = {
    "agent": "travel", "policy": {"strict": True, "compact_elements": 500}, "strict": True, "compact_elements": 500,
    "compact_bytes": None, "agents": ["travel"], "damaged": [], "updated_at": _CREATED,
}  # fmt: skip
_VECTOR_POLICY = {
    "vectors": "clear", "accepted_leakage": "content", "complete": False, "damaged": False, "updated_at": _CREATED,
}  # fmt: skip
_THREAD_RETENTION = {
    "thread_id": "trip-7", "policy": {"legal_hold": True}, "effective": {**_EFFECTIVE, "legal_hold": True},
    "damaged": False, "next": None, "updated_at": _LATER,
}  # fmt: skip
_CEILINGS_SHOWN = {"tenant_id": _TENANT, "ceilings": _CEILINGS, "updated_at": _CREATED}
_UP = [{"op": "rename", "from": "/user_pref", "to": "/user_profile"}]
_ADOPTION = {
    "state_schema": "travel",
    "state_version": 1,
    "agent": "travel",
    "namespace": "",
    "adopted_at": _CREATED,
    "damaged": False,
}
_DOWN = [{"op": "rename", "from": "/user_profile", "to": "/user_pref"}]
_VERSION = {
    "state_schema": "travel", "state_version": 2, "label": "2.0.0", "json_schema": None, "ephemeral": ["scratch"],
    "searchable": ["channel"], "up": _UP, "down": _DOWN, "deployment": None, "created_at": _CREATED,
    "damaged": False,
}  # fmt: skip
_REPORT = {
    "heads": 310, "current": 12, "changed": 290, "waiting": 4, "recent": 2, "shared": 1, "archived": 0, "moved": 0,
    "gone": 0, "failed": 1,
    "failures": [{"step": "1>2", "pointer": "/user_pref", "detail": "there is nothing to rename", "heads": 1}],
    "samples": [
        {
            "subject_id": "user-42", "thread_id": "trip-7", "namespace": "", "checkpoint_id": _HEAD, "from_version": 1,
            "changes": [{"pointer": "/user_profile", "before": None, "after": "object"}],
        },
    ],
}  # fmt: skip
_READY = {
    "ready": True, "self_test": True, "draining": False, "database": True, "writes": True, "db_revision": "a37",
    "db_revision_fits": True, "features_known": True, "history": True, "clock": True, "clock_offset_seconds": 0.002,
    "blobs": True, "archive": True, "root_key": True,
}  # fmt: skip

BODIES: dict[str, Any] = {
    "put_item": {"value": _ITEM["value"], "ttl_seconds": 7_776_000},
    "search_items": {"prefix": ["memories"], "filter": {"since": {"$gte": 2020}}, "limit": 10},
    "list_item_paths": {"prefix": ["memories"], "suffix": ["*"], "max_depth": 2},
    "run_item_batch": {
        "gets": [{"path": ["memories", "flights"], "key": "seat"}],
        "writes": [
            {"path": ["memories", "flights"], "key": "seat", "value": _ITEM["value"], "ttl_seconds": 7_776_000},
            {"path": ["memories", "hotels"], "key": "floor", "value": {"likes": "high"}, "if_revision": 6},
        ],
        "searches": [{"prefix": ["memories"], "filter": {"likes": "window"}}],
        "paths": [{"prefix": ["memories"]}],
    },
    "put_event_settings": {"on": True},
    "claim_thread": {"holder": "worker-3", "run_id": "run-1", "lease_seconds": 60},
    "renew_claim": {"fence": 1_772_355_852_000, "note": "2 of 5 booked"},
    "release_claim": {"fence": 1_772_355_852_000},
    "require_claims": {"required": True},
    "start_effect": {
        "tool": "pay_invoice", "args": {"to": "bob", "amount": 1200}, "mode": "once", "checkpoint_id": _HEAD,
        "run_id": "run-1",
    },
    "finish_effect": {"execution": 1, "attempt": 1, "status": "done", "result": {"paid": 1200}},
    "resolve_effect": {"execution": 1, "attempt": 1, "happened": True},
    "decide_approval": {"action_hash": _HASH, "verdicts": [{"verdict": "approve"}]},
    "put_approval_policy": _APPROVAL_POLICY,
    "update_thread": {"strict": True, "agent": "travel"},
    "link_thread": {"thread_id": "trip-7", "checkpoint_id": _HEAD},
    "copy_thread": {"target_thread_id": "trip-8"},
    "prune": {"thread_ids": ["trip-7"], "strategy": "keep_latest"},
    "delete_runs": {"run_ids": ["run-1"]},
    "save_checkpoint": {
        "state": {"plan": ["book the flight", "book the hotel"], "done": ["book the flight"]},
        "agent": "travel", "run_id": "run-1", "step": 1,
    },
    "compact_thread": {"channel": "messages", "keep_last": 20, "summary": "The flight is booked; the hotel is not."},
    "put_writes": {"writes": [{"channel": "done", "idx": 0, "value": "book the flight"}]},
    "set_tenant_quota": {"quota_bytes": 10_737_418_240, "rows_quota_bytes": 21_474_836_480},
    "begin_upload": {"name": "walkthrough.mp4", "media_type": "video/mp4", "size_bytes": 20_971_520},
    "complete_upload": {"parts": 3, "digest": _DIGEST},
    "copy_artifact": {"thread_id": "trip-8", "name": "boarding pass.pdf"},
    "create_artifact_url": {"ttl_seconds": 300, "disposition": "inline"},
    "put_piece": {"data": _packed(_LEAF)},
    "create_api_key": {
        "kind": "subject", "name": "laptop", "subject_id": "user-42", "permissions": ["state:read", "state:write"],
        "expires_at": "2099-03-01T00:00:00Z",
    },
    "create_tenant": {"name": "Example"},
    "rename_tenant": {"name": "Example Travel"},
    "suspend_tenant": {"reason": "Ticket 512: its key was published"},
    "recover_tenant": {"reason": "Ticket 513: the last administrator left"},
    "verify": {"thread_id": "trip-7"},
    "rotate_key": {"level": "subject", "subject_id": "user-42"},
    "shred_subject": {"confirm": "user-42"},
    "shred_tenant": {"confirm": _TENANT},
    "decrypt": {"subject_id": "user-42", "thread_id": "trip-7", "reason": "Incident 311: the agent repeats a booking"},
    "put_retention": _POLICY,
    "put_thread_retention": {"legal_hold": True},
    "put_save_policy": {"strict": True, "compact_elements": 500},
    "put_vector_policy": {"vectors": "clear", "accept_leakage": "content"},
    "put_retention_ceilings": _CEILINGS,
    "put_state_schema_version": {
        "label": "2.0.0", "ephemeral": ["scratch"], "searchable": ["channel"], "up": _UP, "down": _DOWN,
    },
    "adopt_state": {"agent": "travel", "state_version": 1},
    "plan_state_migration": {"target_version": 2},
    "migrate_state": {"target_version": 2, "threads_per_second": 20, "idle_seconds": 300},
    "roll_back_state": {"threads_per_second": 20},
    "export_thread": {"subject_id": "user-42", "recipient": _TRANSFER_KEY},
    "export_tenant": {"recipient": _TRANSFER_KEY},
    "accept_unbound_import": {"export_id": "0192d3b6-27a6-7c3a-9b0e-1f6d5b6a1c22"},
}  # fmt: skip

ANSWERS: dict[str, Any] = {
    "put_item": _PUT_ITEM,
    "get_item": _ITEM,
    "delete_item": {"status": "deleted"},
    "search_items": {"items": [_ITEM], "next_cursor": None},
    "list_item_paths": {"paths": [["memories", "flights"], ["memories", "hotels"]], "next_cursor": None},
    "run_item_batch": {
        "gets": [_ITEM],
        "writes": [_PUT_ITEM, {"status": "refused", "problem": _ITEM_MOVED}],
        "searches": [{"items": [_ITEM], "next_cursor": None}],
        "paths": [{"paths": [["memories", "flights"]], "next_cursor": None}],
    },
    "read_events": {"events": [{**_EVENT, "cursor": _EVENT_CURSOR}], "cursor": _EVENT_CURSOR, "more": False},
    "list_approvals": {"approvals": [_APPROVAL_SHOWN], "next_cursor": None},
    "get_approval": _APPROVAL_DECIDED,
    "open_approval": _APPROVAL_CONTENT,
    "decide_approval": _APPROVAL_DECIDED,
    "cancel_approval": {**_APPROVAL_SHOWN, "status": "cancelled", "revision": 2},
    "list_approval_policies": _APPROVAL_POLICIES,
    "put_approval_policy": _APPROVAL_POLICIES,
    "delete_approval_policy": {"policies": []},
    "get_event_settings": _EVENT_SETTINGS,
    "put_event_settings": _EVENT_SETTINGS,
    "claim_thread": _CLAIM,
    "renew_claim": _CLAIM,
    "release_claim": {**_CLAIM, "status": "released", "claimed_until": None},
    "get_claim": _CLAIM,
    "list_silent_threads": {"threads": [_SILENT], "next_cursor": None},
    "start_effect": {"must_run": True, "effect": _EFFECT_STARTED},
    "finish_effect": _EFFECT_DONE,
    "resolve_effect": {**_EFFECT_DONE, "resolved_by": "9Rf4Tg6Hj8Kl"},
    "get_effect": _EFFECT_DONE,
    "list_effects": {"effects": [_EFFECT], "next_cursor": None},
    "list_unknown_effects": {"effects": [_UNKNOWN_EFFECT], "next_cursor": _CURSOR},
    "list_threads": {"threads": [_THREAD], "next_cursor": _CURSOR},
    "get_thread": {
        **_THREAD, "status": "done", "tier": "archive",
        "segments": {
            "segments": 12, "checkpoints": 9_400, "pending_writes": 31, "hot_bytes": 61_204_900,
            "size_bytes": 20_118_400,
            "ranges": [
                {
                    "segment": 12, "volume": 9, "first_id": "1f0a2b3c-4d5e-6f70-8a9b-0c1d2e3f4a5b",
                    "last_id": "1f0a2b3c-9d5e-6f70-8a9b-0c1d2e3f4a5b", "checkpoints": 800,
                },
            ],
            "restoring": {"job_id": _JOB, "state": "thawing", "retry_after_seconds": 900.0, "progress": 0.4},
        },
        "archive": {
            "state": "thawing", "storage_class": "GLACIER", "checkpoints": 210, "pending_writes": 0,
            "hot_bytes": 4_812_300, "size_bytes": 911_204, "archived_at": "2026-06-01T00:00:00Z",
            "retry_after_seconds": 900.0, "progress": 0.4, "job_id": _JOB,
        },
    },
    "update_thread": _THREAD,
    "link_thread": _CHILD,
    "list_children": {"threads": [_CHILD], "next_cursor": None},
    "copy_thread": {"thread_id": "trip-8", "checkpoints": 2, "pending_writes": 1},
    "prune": {"threads": 1, "checkpoints": 40, "pending_writes": 3},
    "delete_runs": {"threads": 1, "checkpoints": 2, "pending_writes": 1},
    "archive_thread": {**_JOB_SHOWN, "kind": "archive", **_OF_THREAD},
    "restore_thread": {**_JOB_SHOWN, "kind": "restore", **_OF_THREAD},
    "save_checkpoint": _RECEIPT,
    "compact_thread": _COMPACTED,
    "load_checkpoint": _CHECKPOINT,
    "list_checkpoints": {"checkpoints": [_LISTED], "next_cursor": None},
    "search_checkpoints": {"checkpoints": [{**_LISTED, "status": "failed"}], "next_cursor": _CURSOR},
    "channel_history": {
        "channels": {
            "messages": {
                "writes": [
                    {
                        "task_id": "ask", "idx": 0, "channel": "messages", "encoding": "msgpack",
                        "data": _packed(b"\x91\xa2hi"),
                    },
                ],
                "seed": {"version": 1, "encoding": "msgpack", "data": _packed(b"\x90")},
            },
        },
        "mark": f"9f86d081884c7d659a2feaa0c55ad015{_HEAD}",
    },
    "put_writes": {"stored": 1, "unchanged": 0},
    "get_writes": {"writes": [_WRITE]},
    "get_usage": _USAGE,
    "get_tenant_usage": _USAGE,
    "set_tenant_quota": _USAGE,
    "create_artifact": _ARTIFACT_SHOWN,
    "begin_upload": _UPLOAD_SHOWN,
    "get_upload": {**_UPLOAD_SHOWN, "parts": [_PART]},
    "put_upload_part": _PART,
    "complete_upload": {
        **_ARTIFACT_SHOWN, "name": "walkthrough.mp4", "media_type": "video/mp4", "size_bytes": 20_971_520,
        "metadata": {},
    },
    "list_artifacts": {"artifacts": [_ARTIFACT_SHOWN], "next_cursor": None},
    "get_artifact": {**_ARTIFACT_SHOWN, "preview": _packed(b"Example Air, 14 March, seat 7A")},
    "copy_artifact": {**_ARTIFACT_SHOWN, "thread_id": "trip-8"},
    "create_artifact_url": {
        "url": "https://stateroom.example/v1/artifact-urls/q83vASNFZ4mrze8BI0VniQ",
        "expires_at": "2026-03-01T09:09:12Z",
    },
    "put_piece": {"piece": _packed(b"\x01" + bytes(range(16, 32))), "size_bytes": len(_LEAF)},
    "get_piece": {"data": _packed(_LEAF)},
    "whoami": {
        "key_id": "7Qm2Xc9LpA4z", "kind": "subject", "tenant_id": _TENANT, "subject_id": "user-42",
        "permissions": ["state:read", "state:write"], "grants": ["state:read", "state:write"],
        "expires_at": "2099-03-01T00:00:00Z",
    },
    "create_api_key": {**_KEY_SHOWN, "api_key": _API_KEY},
    "list_api_keys": {"api_keys": [{**_KEY_SHOWN, "last_used_at": _LATER}], "next_cursor": None},
    "create_tenant": {**_TENANT_SHOWN, "api_key": _API_KEY},
    "list_tenants": {"tenants": [_TENANT_SHOWN], "next_cursor": None},
    "get_tenant": _TENANT_SHOWN,
    "rename_tenant": {**_TENANT_SHOWN, "name": "Example Travel"},
    "suspend_tenant": {**_TENANT_SHOWN, "suspended_at": _LATER},
    "resume_tenant": _TENANT_SHOWN,
    "recover_tenant": {**_RECOVERY_KEY_SHOWN, "api_key": _API_KEY},
    "list_operator_keys": {"api_keys": [_OPERATOR_KEY_SHOWN], "next_cursor": None},
    "read_audit": _EVENTS,
    "get_audit_anchor": _ANCHOR,
    "anchor_audit": _ANCHOR,
    "get_audit_key": _AUDIT_KEY,
    "read_operator_audit": _EVENTS,
    "get_operator_audit_anchor": _ANCHOR,
    "anchor_operator_audit": _ANCHOR,
    "get_operator_audit_key": _AUDIT_KEY,
    "verify": {
        "threads": 1, "threads_skipped": 0, "threads_frozen": 0, "checkpoints": 42, "pending_writes": 3, "pieces": 57,
        "items_opened": 12, "items_skipped": 0, "findings": [], "next_cursor": None,
    },
    "verify_tenant": {**_JOB_SHOWN, "kind": "verify-tenant"},
    "verify_deployment": {**_JOB_SHOWN, "kind": "verify-deployment"},
    "list_subjects": {"subjects": [{"subject_id": "user-42"}], "next_cursor": None},
    "rotate_key": {
        **_JOB_SHOWN, "kind": "reseal", "target": {"subject_id": "user-42"}, "level": "subject", "key_version": 3,
    },
    "rewrap_subject_keys": _JOB_SHOWN,
    "get_keys": {
        "tenant_keys": [
            {
                "key_version": 1, "state": "active", "provider": "aws-kms", "root_key_version": "1",
                "created_at": _CREATED, "destroyed_at": None, "subject_keys": 2,
            },
        ],
        "subject_keys": [
            {
                "purpose": "data", "key_version": 1, "tenant_key_version": 1, "state": "active", "archived_bytes": 0,
                "created_at": _CREATED, "destroyed_at": None, "shred_effective_at": None,
            },
        ],
    },
    "rewrap_tenant_keys": _DEPLOYMENT_JOB,
    "get_root_keys": {
        "root_keys": [
            {
                "provider": "aws-kms", "root_key_id": "alias/stateroom", "root_key_version": "1", "tenant_keys": 40,
            },
        ],
    },
    "shred_subject": _SHREDDED,
    "shred_tenant": _TENANT_SHREDDED,
    "list_jobs": {"jobs": [_JOB_SHOWN], "next_cursor": None},
    "get_job": _JOB_SHOWN,
    "list_deployment_jobs": {"jobs": [_DEPLOYMENT_JOB], "next_cursor": None},
    "get_deployment_job": _DEPLOYMENT_JOB,
    "cancel_job": _CANCELLED,
    "cancel_deployment_job": {**_CANCELLED, "kind": "verify-deployment", "target": {}},
    "supersede_job": _SUPERSEDED,
    "supersede_deployment_job": _SUPERSEDED,
    "get_tenant_job": {**_JOB_SHOWN, "kind": "shred-tenant", "state": "done"},
    "decrypt": _CHECKPOINT,
    "get_retention": _RETENTION,
    "put_retention": _RETENTION,
    "get_save_policy": _SAVE_POLICIES,
    "put_save_policy": _SAVE_POLICIES,
    "get_vector_policy": _VECTOR_POLICY,
    "put_vector_policy": _VECTOR_POLICY,
    "preview_retention": {
        "at": _LATER, "threads": 100, "held": 1, "damaged": 0,
        "actions": [
            {"action": "archive", "threads": 7, "bytes": 3_145_728, "checkpoints": 0, "pending_writes": 0},
            {"action": "thin", "threads": 2, "bytes": 65_536, "checkpoints": 30, "pending_writes": 4},
        ],
        "next_cursor": _CURSOR,
    },
    "get_retention_round": {
        "state": "running", "lease_until": "2026-03-01T09:04:42Z", "due_at": None, "started_at": _CREATED,
        "finished_at": None, "looked_at": 1_500, "hot": 4_000, "archive": 900, "held": 1,
        "done": {"archive": 7, "thin": 2}, "due": {"delete": 1}, "over_quota": 0,
        "late_since": "2026-03-01T08:59:00Z",
    },
    "begin_retention_round": {
        "state": "running", "lease_until": "2026-03-01T09:04:42Z", "due_at": None, "started_at": _CREATED,
        "finished_at": None, "looked_at": 1_500, "hot": 4_000, "archive": 900, "held": 1,
        "done": {"archive": 7, "thin": 2}, "due": {"delete": 1}, "over_quota": 0,
        "late_since": "2026-03-01T08:59:00Z",
    },
    "get_thread_retention": {
        **_THREAD_RETENTION, "policy": {}, "effective": _EFFECTIVE, "updated_at": None,
        "next": {"action": "archive", "reason": "idle_ttl", "at": "2026-03-31T09:04:12Z"},
    },
    "put_thread_retention": _THREAD_RETENTION,
    "get_retention_ceilings": _CEILINGS_SHOWN,
    "put_retention_ceilings": _CEILINGS_SHOWN,
    "put_state_schema_version": _VERSION,
    "list_state_schemas": {"state_schemas": [{"state_schema": "travel", "newest_version": 2}], "next_cursor": None},
    "get_state_schema": {
        "state_schema": "travel", "newest_version": 2,
        "versions": [{**_VERSION, "state_version": 1, "label": "1.0.0", "up": None, "down": None}, _VERSION],
    },
    "adopt_state": _ADOPTION,
    "list_state_adoptions": {"adoptions": [_ADOPTION]},
    "plan_state_migration": {**_JOB_SHOWN, "kind": "state-plan", **_OF_SCHEMA, "migration": _REPORT},
    "migrate_state": {**_JOB_SHOWN, "kind": "state-migrate", **_OF_SCHEMA, "migration": _REPORT},
    "roll_back_state": {**_JOB_SHOWN, "kind": "state-rollback", **_OF_SCHEMA, "migration": _REPORT},
    "get_state_migration": {
        "state_schema": "travel", "newest_version": 2,
        "heads": [{"state_version": 1, "heads": 20}, {"state_version": 2, "heads": 290}],
        "unversioned": [{"agent": "billing", "threads": 7}],
        "jobs": [
            {**_JOB_SHOWN, "kind": "state-migrate", "state": "done", **_OF_SCHEMA, "migration": _REPORT},
        ],
    },
    "import_threads": {
        "export_id": "01988d42-4d5e-7f60-9172-8d9eafb0c132", "job_id": _JOB, "threads": 3, "checkpoints": 84,
        "pending_writes": 5, "artifacts": 2, "state_schemas": 1, "verified": 3, "passed_over": 1,
        "passed": [{"subject_id": "user-42", "thread_id": "trip-7", "reason": "there"}],
        "items": 120, "items_verified": 120, "items_passed_over": 1,
        "passed_items": [
            {"subject_id": "user-42", "path": ["memories", "travel"], "key": "seat", "reason": "exists"},
        ],
    },
    "get_transfer_key": {"public_key": _TRANSFER_KEY, "fingerprint": "ae5de446740d1343c97e3c4801d7b241"},
    "livez": {"alive": True},
    "readyz": _READY,
}  # fmt: skip

# Answers that are others with another status.
OTHERWISE: dict[tuple[str, int], Any] = {
    ("archive_thread", 200): {**_THREAD, "tier": "archive"},
    ("restore_thread", 200): _THREAD,
    ("save_checkpoint", 200): {**_RECEIPT, "created": False},
    ("compact_thread", 200): {**_COMPACTED, "created": False},
    ("create_api_key", 200): {**_KEY_SHOWN, "api_key": None},
    ("create_tenant", 200): {**_TENANT_SHOWN, "api_key": None},
    ("recover_tenant", 200): {**_RECOVERY_KEY_SHOWN, "api_key": None},
    ("readyz", 503): {**_READY, "ready": False, "draining": True},
}


STREAMS: dict[str, str] = {
    "read_events": f"retry: 2000\n:\nid: {_EVENT_CURSOR}\n\n"
    f"id: {_EVENT_CURSOR}\ndata: {json.dumps(_EVENT, separators=(',', ':'))}\n\n",
}


def stream_of(operation: str) -> str:
    """The example of an operation's server-sent events."""
    return STREAMS[operation]


def body_of(operation: str) -> Any:
    """The example of an operation's body."""
    return BODIES[operation]


def answer_of(operation: str, status: int) -> Any:
    """The example of an operation's answer."""
    return OTHERWISE.get((operation, status), ANSWERS[operation])
