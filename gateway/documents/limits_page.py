"""The page of limits, made of the limits themselves.

Owns which limits clients see, what each bounds and what is answered beyond it; the numbers are read where they are
enforced.
``python -m gateway.documents.limits_page`` prints the page ``docs/limits.md``.
"""

import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Final

from crypto.blob import PART_BYTES
from gateway import settings, wire
from gateway.admission import limits
from gateway.http import artifact_urls, exchange
from gateway.problems import KINDS
from migrations.state import conditions, declarative, document, json_schemas, patterns
from migrations.state.worker import messages
from storage import scope
from storage.access import offload
from storage.approvals import model as approval_model
from storage.archive import moving as archives
from storage.artifacts import model as artifact_model
from storage.artifacts import part_uploads
from storage.checkpoints import compacting, reading
from storage.claims import model as claim_model
from storage.effects import model as effect_model
from storage.format import pieces
from storage.items import filters as item_filters
from storage.items import model as item_model
from storage.items.finding import index as item_index
from storage.items.finding import searching as item_searching
from storage.retention import policies as retention_policies
from storage.schemas import adoptions, save_policies, tags, workers
from storage.schemas import registry as state_schemas
from storage.threads import links
from storage.tiers import views as archive_views
from storage.transfer import lines

_SIZES: Final = ((1024**4, "TiB"), (1024**3, "GiB"), (1024**2, "MiB"), (1024, "KiB"))


@dataclass(frozen=True, slots=True)
class Limit:
    """One limit.

    Attributes:
        name: As problems name it.
        source: The number, or the module that has it by this name.
        what: A phrase for what it bounds.
        then: The code of the problem beyond it, or a sentence where nothing is refused.
    """

    name: str
    source: ModuleType | int
    what: str
    then: str

    def row(self) -> str:
        """Its row of the table."""
        kind = KINDS.get(self.then)
        then = self.then if kind is None else f"{kind.status} `{kind.code}`"
        return f"| `{self.name}` | {self._size()} | {self.what} | {then} |"

    def _size(self) -> str:
        number = self.source if isinstance(self.source, int) else getattr(self.source, self.name)
        if "BYTES" in self.name:
            return _bytes(number) + (" a second" if "_PER_SECOND" in self.name else "")
        if "SECONDS" in self.name:
            days = int(number) // 86_400
            return f"{days:,} days" if days and days * 86_400 == number else f"{number:g} s"
        return f"{number:,}" + (" characters" if "CHARACTERS" in self.name else "")


def _bytes(count: int) -> str:
    for size, unit in _SIZES:
        if count % size == 0:
            return f"{count // size:,} {unit}"
    return f"{count:,} bytes"


SECTIONS: Final = {
    "A request": (
        Limit("HEADER_BYTES_MAX", limits, "target and headers together", "headers-too-large"),
        Limit("HEADERS_MAX", limits, "header fields", "headers-too-large"),
        Limit("HEADER_SECONDS_MAX", limits, "until all headers are there", "The connection is closed."),
        Limit("QUERY_FIELDS_MAX", limits, "fields of a query", "invalid-request"),
        Limit("ACCEPT_BYTES_MAX", limits, "`Accept`", "not-acceptable"),
        Limit("VERSION_SCHEMAS_MAX", exchange, "schemas that `Accept-State-Version` names", "invalid-request"),
        Limit(
            "BODY_BYTES_MAX",
            limits,
            "a body, uncompressed; contents of artifacts and imports have limits of their own",
            "body-too-large",
        ),
        Limit("BODY_IDLE_SECONDS_MAX", limits, "a pause within a body", "body-timeout"),
        Limit("BODY_SECONDS_MAX", limits, "a whole body", "body-timeout"),
        Limit(
            "STREAM_BYTES_PER_SECOND_MIN",
            limits,
            "the least pace of an artifact or import that takes longer than that",
            "body-timeout",
        ),
        Limit("DEPTH_MAX", limits, "lists and maps in each other, from the body itself", "limit-exceeded"),
        Limit("VALUES_MAX", limits, "lists, maps, names of members and other values of a body", "limit-exceeded"),
        Limit(
            "TREE_BYTES_MAX",
            limits,
            "what of a JSON body is not in its texts: numbers, brackets, blanks",
            "limit-exceeded",
        ),
        Limit("FAULTS_MAX", limits, "faults of a request that a problem names", "`errors` ends; `detail` says so."),
    ),
    "Names": (
        Limit(
            "NAME_BYTES_MAX",
            limits,
            "channels, agents, tenants, run ids; in UTF-8",
            "422 `limit-exceeded` for channels, else 422 `invalid-request`.",
        ),
        Limit("ID_BYTES_MAX", scope, "ids of subjects, threads, checkpoints and tasks; in UTF-8", "invalid-request"),
        Limit("ID_CHARACTERS_MAX", 1024, "an id in a body before it is looked at", "invalid-request"),
        Limit("NAMESPACE_BYTES_MAX", wire.base, "a namespace", "invalid-request"),
        Limit("WORD_CHARACTERS_MAX", 64, "an encoding, a source, the name of a state schema", "invalid-request"),
        Limit("TASK_PATH_CHARACTERS_MAX", 2048, "the path of a task", "invalid-request"),
    ),
    "States": (
        Limit("CHANNELS_MAX", limits, "channels of a save", "limit-exceeded"),
        Limit("METADATA_BYTES_MAX", limits, "metadata of a checkpoint or artifact, as JSON", "limit-exceeded"),
        Limit("WRITES_MAX", limits, "pending writes of a request", "invalid-request"),
        Limit(
            "HOLES_MAX",
            pieces,
            "[placeholders](large-values.md) in a value, and large leaves of it of which something is said",
            "invalid-request",
        ),
        Limit(
            "PREVIEWS_BYTES_MAX",
            limits,
            "all [previews of large values](large-values.md#previews) in a request",
            "limit-exceeded",
        ),
        Limit("LIST_ELEMENTS_MAX", pieces, "elements of a list that is compacted or converted", "limit-exceeded"),
        Limit(
            "KEPT_BYTES_MAX",
            compacting,
            "elements that [compaction](compaction.md) keeps, without large leaves",
            "limit-exceeded",
        ),
        Limit(
            "SUMMARY_OVER_QUOTA_BYTES_MAX",
            compacting,
            "the summary of a compaction by who is over its [quota of rows](operations/quotas.md#rows)",
            "quota-exceeded",
        ),
        Limit("ANCESTORS_MAX", links, "[ancestors](threads-and-links.md) of a thread that is linked", "limit-exceeded"),
        Limit("FAMILY_THREADS_MAX", links, "threads that are deleted with their family", "limit-exceeded"),
        Limit("BULK_ITEMS_MAX", limits, "threads or runs that one request prunes or deletes", "invalid-request"),
    ),
    "Answers": (
        Limit(
            "PAGE_ITEMS_MAX",
            limits,
            f"items of a page (`limit`); {limits.PAGE_ITEMS_DEFAULT} where nothing is said",
            "invalid-request",
        ),
        Limit("HISTORY_BYTES_MAX", reading, "state on a page of the history", "The page ends early, with a cursor."),
        Limit(
            "HISTORY_MANIFESTS_BYTES_MAX",
            reading,
            "metadata, and what else is sealed beside the state, on such a page, and on one of artifacts",
            "The page ends early, with a cursor.",
        ),
        Limit(
            "HISTORY_SCAN_ROWS_MAX",
            reading,
            "checkpoints that a filter opens for one page",
            "The page ends early, with a cursor.",
        ),
        Limit(
            "RESOLVED_BYTES_MAX",
            offload,
            "values of an answer, put together; see [large values](large-values.md#when-an-answer-would-be-too-large)",
            "state-too-large",
        ),
        Limit("TENANT_HELD_BYTES_MAX", limits, "an answer, as it is sent", "state-too-large"),
        Limit(
            "ANSWER_SECONDS_MAX", limits, "until a client takes the first bytes of an answer", "The connection is cut."
        ),
        Limit(
            "ANSWER_BYTES_PER_SECOND_MIN", limits, "the least pace at which it takes the rest", "The connection is cut."
        ),
        Limit(
            "STREAM_IDLE_SECONDS_MAX", limits, "a pause of who reads an artifact or export", "The connection is cut."
        ),
    ),
    "Artifacts": (
        Limit("ARTIFACT_BYTES_MAX", artifact_model, "an artifact", "body-too-large"),
        Limit("PART_BYTES_MAX", PART_BYTES, "a part of an upload, as its `part_bytes` says", "body-too-large"),
        Limit("PARTS_MAX", part_uploads, "parts of an upload", "part-invalid"),
        Limit(
            "PREVIEW_BYTES_MAX",
            limits,
            "a preview, of an artifact or of a [large value](large-values.md#previews)",
            "invalid-request",
        ),
        Limit("URL_SECONDS_MAX", artifact_urls, "the life of a URL for browsers", "invalid-request"),
        Limit(
            "INLINED_BYTES_EACH_MAX",
            limits,
            "an artifact whose content comes along with a state (`resolve=inline`)",
            "It comes as `too_large`.",
        ),
        Limit(
            "INLINED_BYTES_MAX",
            limits,
            "all contents that come along with one answer",
            "The others come as `too_large`.",
        ),
        Limit(
            "INLINED_ARTIFACTS_MAX", limits, "artifacts that are looked up for one answer", "The others are left out."
        ),
    ),
    "Claims and effects": (
        Limit("LEASE_SECONDS_MAX", claim_model, "a [claim](claims.md) until it is renewed", "invalid-request"),
        Limit("CLAIM_NOTE_BYTES_MAX", claim_model, "what is noted on a claim", "limit-exceeded"),
        Limit("TAKEOVERS_MAX", claim_model, "runs of a thread in a row that died and wrote nothing", "thread-stuck"),
        Limit("EFFECTS_MAX", effect_model, "[effects](effects.md) of a thread", "effects-exceeded"),
        Limit("EFFECT_EXECUTIONS_MAX", effect_model, "executions of one name, each on its line", "effects-exceeded"),
        Limit("EFFECT_ARGS_BYTES_MAX", effect_model, "an effect's arguments, as MessagePack", "limit-exceeded"),
        Limit("EFFECT_ARGS_VALUES_MAX", effect_model, "values in an effect's arguments", "limit-exceeded"),
        Limit("EFFECT_IDENTITY_MAX", effect_model, "pointers that say what is the same intent", "invalid-request"),
        Limit("EFFECT_POINTER_BYTES_MAX", effect_model, "such a pointer", "invalid-request"),
        Limit(
            "EFFECT_RESULT_BYTES_MAX", effect_model, "an effect's result; a larger one is an artifact", "limit-exceeded"
        ),
        Limit(
            "EFFECT_LEASE_SECONDS_MAX",
            effect_model,
            "an effect until whoever does it is taken for dead",
            "invalid-request",
        ),
        Limit(
            "REPEAT_WINDOW_SECONDS",
            effect_model,
            "in which the same is not done `once` under another name",
            "effect-repeats",
        ),
    ),
    "Approvals": (
        Limit("APPROVAL_ACTIONS_MAX", approval_model, "actions of an [approval](approvals.md)", "invalid-request"),
        Limit(
            "APPROVAL_CONTENT_BYTES_MAX",
            approval_model,
            "all that is asked in one, or said in a decision",
            "limit-exceeded",
        ),
        Limit("APPROVALS_PENDING_MAX", approval_model, "approvals of a thread that wait", "approvals-exceeded"),
        Limit(
            "APPROVALS_ENDED_MAX",
            approval_model,
            "those of it that are over",
            "The next question removes the oldest ones.",
        ),
        Limit("APPROVAL_POLICIES_MAX", approval_model, "approval policies of a tenant", "conflict"),
    ),
    "Items": (
        Limit("ITEM_LABELS_MAX", item_model, "labels of a [path](items.md)", "limit-exceeded"),
        Limit("ITEM_PATH_BYTES_MAX", item_model, "all labels of a path", "limit-exceeded"),
        Limit("ITEM_PATHS_MAX", item_model, "paths of a subject", "item-paths-exceeded"),
        Limit(
            "ITEM_VALUE_BYTES_MAX",
            item_model,
            "an item's value, as it is kept (MessagePack, or JSON)",
            "limit-exceeded",
        ),
        Limit("ITEM_OPERATIONS_MAX", item_model, "operations of a batch", "limit-exceeded"),
        Limit("ITEM_MODELS_MAX", item_model, "models by which an item has vectors", "item-models-exceeded"),
        Limit("ITEM_VECTORS_MAX", item_model, "vectors of an item by one model", "limit-exceeded"),
        Limit("ITEM_DIMENSIONS_MAX", item_model, "dimensions of a vector", "limit-exceeded"),
        Limit(
            "ITEM_INDEX_BYTES_MAX",
            item_index,
            "vectors of a subject by one model, a byte a dimension and 256 more",
            "item-index-too-large",
        ),
        Limit("ITEM_TTL_SECONDS_MAX", item_model, "an item's time to live", "invalid-request"),
        Limit("ITEM_OFFSET_MAX", item_model, "how many a search leaves out (`offset`)", "invalid-request"),
        Limit("ITEM_FILTER_BYTES_MAX", item_filters, "a filter", "limit-exceeded"),
        Limit("ITEM_FILTER_DEPTH_MAX", item_filters, "how deep a filter is", "invalid-request"),
        Limit("ITEM_FILTER_VALUES_MAX", item_filters, "values in a filter", "invalid-request"),
        Limit("ITEM_COMPARED_BYTES_MAX", item_filters, "a list or map that a filter compares", "It equals nothing."),
        Limit(
            "ITEM_SCAN_ROWS_MAX",
            item_searching,
            "items that the searches of a request look at",
            "The page ends early, with a cursor.",
        ),
        Limit("ITEM_OPENED_ROWS_MAX", item_searching, "items that they open", "The page ends early, with a cursor."),
        Limit(
            "ITEM_OPENED_BYTES_MAX",
            item_searching,
            "what they open, uncompressed",
            "The page ends early, with a cursor.",
        ),
    ),
    "State schemas": (
        Limit("DEFINITION_BYTES_MAX", state_schemas, "the definition of a version", "invalid-request"),
        Limit("SCHEMA_BYTES_MAX", state_schemas, "all versions of a schema together", "invalid-request"),
        Limit("VERSIONS_MAX", state_schemas, "versions of a schema", "invalid-request"),
        Limit("ADOPTIONS_MAX", adoptions, "[adoptions](state-schemas.md) of a tenant", "invalid-request"),
        Limit("SEARCHABLE_KEYS_MAX", tags, "searchable keys of a version", "invalid-request"),
        Limit("SEARCHABLE_KEY_BYTES_MAX", tags, "a searchable key", "invalid-request"),
        Limit("OPERATIONS_MAX", declarative, "operations of a step", "invalid-request"),
        Limit("EXPRESSION_CHARACTERS_MAX", conditions, "a condition", "invalid-request"),
        Limit("PATTERNS_MAX", json_schemas, "patterns of a JSON Schema", "invalid-request"),
        Limit("PATTERN_BYTES_MAX", patterns, "a pattern, compiled", "invalid-request"),
        Limit("SUBSCHEMAS_MAX", json_schemas, "schemas in a JSON Schema", "invalid-request"),
        Limit("EVALUATIONS_MAX", json_schemas, "how often a JSON Schema may look at one value", "invalid-request"),
        Limit("NODES_MAX", declarative, "values that a step looks at or builds", "state-upcast-failed"),
        Limit("WORK_MAX", document, "values that all steps of a conversion look at or build", "state-upcast-failed"),
        Limit("BYTES_MAX", document, "what the steps of a conversion make", "state-upcast-failed"),
        Limit("CPU_SECONDS_MAX", messages, "a processor's time for one check or conversion", "too-costly"),
        Limit(
            "KILLS_MAX",
            workers,
            f"checks and conversions that cost too much, within {workers.KILLS_SECONDS:g} s",
            "tenant-too-costly",
        ),
    ),
    "Retention, archive, moving": (
        Limit("AGENT_POLICIES_MAX", retention_policies, "agents with a policy of their own", "conflict"),
        Limit(
            "AGENT_POLICY_ROWS_MAX",
            retention_policies,
            "agents with a policy, and those whose policy was taken back since the last round",
            "conflict",
        ),
        Limit("AGENT_SAVE_POLICIES_MAX", save_policies, "agents with a save policy of their own", "conflict"),
        Limit(
            "ARCHIVE_BYTES_MAX",
            archives,
            "sealed rows of a thread that is archived as one object, without large values",
            "archive-too-large",
        ),
        Limit(
            "ARCHIVE_READ_BYTES_MAX",
            archive_views,
            "memory for what one read needs of an archive and of segments; a page ends early",
            "restore-needed",
        ),
        Limit("EXPORT_BYTES_MAX", limits, "an export that is imported", "body-too-large"),
        Limit("TRAJECTORY_STEPS_MAX", lines, "checkpoints that a trajectory looks through", "limit-exceeded"),
        Limit("TENANT_TRANSFERS_AT_ONCE", limits, "exports, imports and trajectories of a tenant", "transfer-busy"),
        Limit("TRANSFERS_AT_ONCE", limits, "exports, imports and trajectories of a process", "transfer-busy"),
    ),
    "At once": (
        Limit(
            "REQUESTS_IN_FLIGHT_MAX",
            settings,
            "requests of a process; a [setting](../README.md#settings)",
            "overloaded",
        ),
        Limit("TENANT_REQUESTS_IN_FLIGHT_MAX", limits, "requests of a tenant in a process", "tenant-busy"),
        Limit(
            "WAITERS_MAX",
            limits,
            "requests of a process that wait for [events](events.md) or [decisions](approvals.md#wait)",
            "too-many-waiters",
        ),
        Limit("TENANT_WAITERS_MAX", limits, "of a tenant in it", "too-many-waiters"),
        Limit("WAIT_SECONDS_MAX", limits, "how long each waits, but for streams (`wait_seconds`)", "invalid-request"),
        Limit(
            "WAITER_BYTES_MAX",
            limits,
            "what has happened and waits for a listener",
            "It reads what follows by itself; a stream that takes nothing meanwhile is cut.",
        ),
        Limit("CONNECTIONS_MAX", limits, "connections of clients to a process", "overloaded"),
        Limit("HELD_BYTES_MAX", limits, "bodies and answers in flight of a process", "overloaded"),
        Limit("TENANT_HELD_BYTES_MAX", limits, "of one tenant in it", "tenant-busy"),
        Limit("THREAD_WRITES_WAITING_MAX", limits, "writes that wait for their turn at one thread", "thread-busy"),
        Limit("THREAD_WAIT_SECONDS_MAX", limits, "how long each waits", "thread-busy"),
    ),
}

# What no client meets as a limit: sizes of slices and caches, pauses, and what only shapes the work of a process.
INNER: Final = frozenset({
    "ANSWER_SLICE_BYTES", "SLICED_BYTES_MIN", "INLINED_AT_ONCE", "THREAD_WRITES_ACTIVE_MAX", "PAGE_ITEMS_DEFAULT",
    "REFUSED_SECONDS_MAX", "TRANSFER_RETRY_SECONDS", "RETRY_AFTER_SECONDS",
})  # fmt: skip


def page() -> str:
    """The text of ``docs/limits.md``."""
    tables = "\n".join(
        f"## {title}\n\n| limit | number | what | beyond it |\n|---|---|---|---|\n"
        + "".join(each.row() + "\n" for each in rows)
        for title, rows in SECTIONS.items()
    )
    return f"""# Limits

Cost is bounded, not size: a thread may have any number of checkpoints, and its state may grow beyond what one request
may bring. These are the bounds of a request, an answer and a process; a problem names the one it is about in `limit`.
None of them can be set but the one that says so. 429 and 503 may be repeated after `Retry-After`; the others will be
refused again.

{tables}
A tenant also has [quotas](operations/quotas.md) of bytes (403 `quota-exceeded`), which its operator sets: a new one
begins with {settings.BLOB_QUOTA_BYTES // 1024**3} GiB in the object store and
{settings.ROW_QUOTA_BYTES // 1024**3} GiB of rows. How values nest and which numbers are kept is in
[values in JSON](json-values.md), what to do about each code in [problems](problems.md).

Generated by `python -m gateway.documents.limits_page`.
"""


if __name__ == "__main__":
    sys.stdout.write(page())
