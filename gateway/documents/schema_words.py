"""Words of the OpenAPI document: what parameters mean, how operations are grouped, what form a name promises.

Owns no shape: those are of `gateway.wire` and of the operations. A name means one thing wherever it stands
(docs/api-policy.md), so it is described once.
"""

from typing import Any

_ID = "An id; one that does not match [A-Za-z0-9][A-Za-z0-9._:@|+-]{0,254} travels as ~ and its base64url."
PARAMETERS: dict[str, str] = {
    "after": "A step of the trajectory that is there already: only those after it.",
    "after_namespace": "With namespaces=all: the namespace of after; absent is the root.",
    "agent": "The program's name: only what is of this agent.",
    "approval_id": "The approval's id.",
    "artifact_id": "The artifact's id.",
    "before": "Only checkpoints whose id is smaller, compared bytewise: older ones.",
    "channel": "A channel's name; give it once for each channel.",
    "checkpoint_id": "The checkpoint's id, or latest where the summary says so; of a trajectory, the one it leads to. "
    + _ID,
    "cursor": "next_cursor of the page before, with the same other parameters; absent: the first page.",
    "draft": "A retention policy as JSON, to try instead of the stored one; nothing is stored.",
    "family": "Whether its descendants are deleted, too: who was begun from it, and so on.",
    "filter": "A JSON object: only checkpoints whose metadata contains it.",
    "effect_name": "The effect's name, such as the id of a tool call. " + _ID,
    "execution": "The number of the execution; absent: the newest.",
    "force": "Revoke the key although nobody could administer afterwards.",
    "history": "A channel's name; its channel-history comes along. Give it once for each channel.",
    "job_id": "The job's id.",
    "key": "The item's key; the empty one is ~. " + _ID,
    "key_id": "The key's public id.",
    "limit": "How many a page has at most; it may have fewer and still have a successor.",
    "mark": "The mark of an earlier answer for the same channels: only what came since is given.",
    "keep_every": "Checkpoints stay whose step is a multiple of it.",
    "keep_first": "So many of the oldest checkpoints of each namespace stay.",
    "keep_last": "So many of the newest checkpoints of each namespace stay.",
    "keep_status": "Checkpoints stay that had or came to this status.",
    "name": "Only versions of the artifact of this name.",
    "namespace": "A sub-agent's namespace; empty is the root. In lists, absent is all of them.",
    "namespaces": "all: the thread's namespaces, one after the other, each up to its newest checkpoint, or its newest "
    "whose id is not greater than checkpoint_id, which is of namespace; one: that of namespace.",
    "older_than_seconds": "Only checkpoints move that were made and written to last so many seconds ago.",
    "part_number": "The part's place, from 0.",
    "path": "The labels that the item stands under, joined by commas; each as an id travels. " + _ID,
    "piece": "The piece's id, in base64url without padding.",
    "pieces": "refs: large leaves come as placeholders (MessagePack only); resolved: in place.",
    "refresh": "Whether reading gives an item with a time to live that time anew; default true.",
    "resolve": "inline: the artifacts that the state names come along; previews: what is said of them, without "
    "their content; pointers: only what names them.",
    "run_id": "Only what this run made.",
    "segment": "The number of the one segment of a hot thread that comes back; absent: all of the thread does.",
    "silent_seconds": "For how long, at least, the claim is over; default 0.",
    "since": "Of checkpoints: only those stored at this time (RFC 3339, with a zone) or later. Of events: the cursor "
    "behind which they come, or now; absent is now.",
    "skip_existing": "Whether threads that exist here are passed over, instead of ending the import.",
    "source": "Only checkpoints with this source.",
    "state_schema": "The state schema's name, [A-Za-z0-9._:-]{1,64}.",
    "state_version": "The version's number, from 1.",
    "status": "Only what has this status.",
    "step": "Only checkpoints at this step.",
    "storage_class": "The S3 storage class to archive to; absent: the bucket's own.",
    "subject_id": "The subject's id. " + _ID,
    "task_id": "The task's id. " + _ID,
    "tenant_id": "The tenant's id.",
    "thread": "A thread's id as it is: only what is about this thread.",
    "thread_id": "The thread's id. " + _ID,
    "tool": "Of this tool; absent: of all.",
    "tier": "Only threads in this tier.",
    "token": "The signed token of the URL.",
    "types": "A type of events; give it once for each type. Absent: all of them.",
    "until": "Only checkpoints stored before this time (RFC 3339, with a zone).",
    "upload_id": "The upload's id.",
    "verify": "Whether the chain of hashes is computed again and compared before it is shown.",
    "wait_seconds": "How long the answer may take until there is an event, and then without one; or until the approval "
    "is decided.",
    "view": "state: plain values; channels: the serialised bytes; none: neither.",
}
TAGS: dict[str, str] = {
    "threads": "Threads: settings, copies, removal.",
    "archives": "Threads on their way to the archive and back.",
    "checkpoints": "Saving, loading, history, pending writes.",
    "artifacts": "Files of threads, and the space they take.",
    "pieces": "Large leaves of values, uploaded before the save that names them.",
    "claims": "Who goes on with a thread, and which threads nobody goes on with any more.",
    "effects": "Tool calls with consequences, so that none happens twice.",
    "items": "What agents remember across threads: values under paths.",
    "events": "What happens to threads, jobs and keys, told to who listens.",
    "admin": "Who am I, and API keys.",
    "tenants": "Tenants of the deployment.",
    "audit": "The audit log of a tenant, and the operators'.",
    "verify": "Opening everything that is stored, to find damage.",
    "keys": "Rotation and shredding of keys; jobs.",
    "decrypt": "Break-glass reading by operators, on the record.",
    "retention": "How long threads are kept; legal holds.",
    "save_policies": "Which saves must name the head they follow, and when lists need compaction.",
    "approvals": "What people are asked before agents act, and what they decide.",
    "approval_policies": "How many must approve what, and for how long.",
    "vector_policies": "Whether vectors of items may be in clear.",
    "state_schemas": "Versions of agents' state, and migrations.",
    "transfer": "Export and import.",
    "trajectories": "Threads in clear, step by step.",
    "health": "Probes.",
    "docs": "The documentation itself.",
}
_UUIDS = frozenset({"tenant_id", "job_id", "artifact_id", "upload_id", "export_id", "approval_id"})
_BITS_32 = 2**31  # bounds of what fits an integer of 32 bits are at most this: some are not reached
_PATTERN_END = r"\Z"  # Python's; ECMA-262, which JSON Schema goes by, has only $


def is_moment(name: str) -> bool:
    """Whether a member of this name is a time."""
    return name == "at" or name.endswith(("_at", "_until", "_since"))


def path_schema(name: str) -> dict[str, Any]:
    """The form of a parameter of a path."""
    if name in {"part_number", "state_version"}:
        return {"type": "integer", "minimum": 0 if name == "part_number" else 1}
    return {"type": "string", "format": "uuid"} if name in _UUIDS else {"type": "string"}


def portable(schema: Any, name: str = "") -> Any:
    """A JSON Schema that other tools read as it is meant.

    Patterns are ECMA-262, a constant has a type, an object that takes any member says so, times, UUIDs and integers
    that may need 64 bits have their format, and no member has a default: generators make such a member required of who
    sends it.
    """
    if isinstance(schema, list):
        return [portable(each, name) for each in schema]
    if not isinstance(schema, dict):
        return schema
    plain: dict[str, Any] = {
        key: {member: portable(each, member) for member, each in value.items()}
        if key == "properties"
        else value
        if key in {"enum", "required"}
        else portable(value, name)
        for key, value in schema.items()
        if key != "default"
    }
    if "pattern" in plain:
        plain["pattern"] = plain["pattern"].replace(_PATTERN_END, "$")
    if plain.get("type") == "object" and not plain.keys() & {"properties", "additionalProperties"}:
        plain["additionalProperties"] = True
    if plain.get("type") == "integer" and plain.get("maximum", plain.get("exclusiveMaximum", 2**63)) > _BITS_32:
        plain["format"] = "int64"  # without it, generated Go, Java and C# have 32 bits for bytes and sequences
    if plain.get("type") == "string" and "format" not in plain:
        form = "date-time" if is_moment(name) else "uuid" if name in _UUIDS else None
        plain |= {} if form is None else {"format": form}
    return plain
