"""With every predicate of ours gone, the database itself still shows a scope its own rows only (threat 1)."""

# ruff: noqa: S608  table and column names are constants of these tests

import json
import re
from datetime import UTC, datetime
from uuid import UUID, uuid4

import asyncpg
import pytest

from storage.administration.row_census import RowCounting
from storage.approvals.model import ApprovalQuery, Decision, Verdict, Voter
from storage.blobs.memory import MemoryBlobStore
from storage.clock import SystemClock
from storage.control.features import DECISIONS, ITEMS, SAVE_POLICIES, SEGMENTS
from storage.encoding import encode_msgpack
from storage.ledger.ledger import NewBlob, new_blob_id
from storage.model import Asker, Idempotency, NewAction, NewApproval, Save, SaveRule, TaskWrites
from storage.postgres.statement import Statement
from storage.postgres.tables import SUBJECT_TABLES
from storage.postgres.unit_of_work import bindings
from storage.retention.planner import Policy
from storage.scope import OperatorScope, Scope, TenantScope
from storage.statements.items import items
from storage.statements.items import paths as item_paths
from storage.statements.keys import keys
from storage.statements.objects import artifacts, blobs
from storage.statements.rules import retention, save_policies, vector_policies
from storage.statements.thread_ledgers import claims, effects, seals, verifying
from storage.statements.thread_ledgers import resealing as ledger_resealing
from storage.statements.threads import archives, checkpoints, pruning, tags, threads
from storage.threads.thinning import ThinningRule
from tests.support.archive_rows import opened
from tests.support.blob_rows import Blobs
from tests.support.features import switch_on
from tests.support.items import put as put_item
from tests.support.items import write as write_items
from tests.support.ledgers import claim, finish, start
from tests.support.states import document, put, save, state, write

SUBJECTS = [table.name for table in SUBJECT_TABLES]
TENANTS = [
    "tenant_keys", "blob_usage", "row_usage", "retention", "retention_rounds", "save_policies", "vector_policies",
]  # fmt: skip
TABLES = [*SUBJECTS, *TENANTS]
SEALED = {
    "threads": ["seal"],
    "heads": ["seal"],
    "checkpoints": ["manifest", "piece_ids"],
    "checkpoint_tags": ["tag"],
    "chunks": ["envelope", "children", "piece_id"],
    "pending_writes": ["value", "piece_ids", "task_path"],
    "tenant_keys": ["wrapped", "kcv"],
    "subject_keys": ["wrapped", "kcv"],
    "idempotency": ["request_digest", "receipt", "idempotency_key"],
    "api_keys": ["mac", "key_id"],
    "api_key_seals": ["mac", "key_id"],
    "removed_threads": ["removal"],
    "blobs": ["pointer", "content_id"],
    "blob_intents": ["record", "content_id"],
    "upload_parts": ["digest"],
    "artifacts": ["sealed", "name_digest"],
    "archives": ["sealed", "named_ids"],
    "retention": ["policy"],
    "thread_retention": ["policy"],
    "retention_rounds": ["progress"],
    "approvals": ["external_mac", "asked_mac", "action_mac", "request", "request_member", "mac"],
    "approval_actions": ["action_mac", "mac"],
    "approval_votes": ["digest", "mac"],
    "item_scopes": ["seal"],
    "item_paths": ["seal", "labels", "path_id", "share_check"],
    "items": ["envelope", "member", "path_id", "key_id"],
    "item_vectors": ["envelope", "member", "path_id", "key_id", "model_id"],
    "ledger_seals": ["seal"],
    "claims": ["note", "note_member", "mac"],
    "effects": [
        "name_mac",
        "intent_mac",
        "asked",
        "asked_member",
        "args",
        "args_member",
        "outcome",
        "outcome_member",
        "result",
        "result_member",
        "mac",
    ],
    "effect_tombstones": ["tombstone"],
}
STATEMENTS = {
    f"{module.__name__.rsplit('.', 1)[1]}.{name}": value
    for module in (
        checkpoints,
        threads,
        keys,
        blobs,
        artifacts,
        tags,
        archives,
        pruning,
        retention,
        save_policies,
        items,
        item_paths,
        seals,
        claims,
        effects,
        verifying,
        ledger_resealing,
    )
    for name, value in vars(module).items()
    for text in [value.text if isinstance(value, Statement) else value]
    if name.isupper()
    and name[0] != "_"
    and isinstance(text, str)
    and re.search(r"tenant_id = \$\d", text)
    and not text.startswith("(")  # part of others
}


@pytest.fixture(scope="module")
async def scopes(store, database, root_key):
    """Three scopes with the same ids: two subjects of a tenant, and another tenant."""
    tenant_id = uuid4()
    await switch_on(store, SAVE_POLICIES)
    await switch_on(store, ITEMS)
    await switch_on(store, DECISIONS)
    made = [Scope(tenant_id, "user-1"), Scope(tenant_id, "user-2"), Scope(uuid4(), "user-1")]
    for each in made:
        await save(store, each, "gone", idempotency=Idempotency("k", b"d" * 32))
        await store.threads.delete(each, "gone")
        await store.checkpoints.save(
            each,
            Save(
                thread_id="asked",
                content=state(a="b"),
                approvals=(NewApproval("q", (NewAction("tool", encode_msgpack({})),)),),
                asker=Asker("key", "key"),
            ),
        )
        voter = Voter("other", "other", datetime(2020, 1, 1, tzinfo=UTC))
        (asked,) = (await store.approvals.list(each, ApprovalQuery())).approvals
        shown = await store.approvals.open(each, asked.approval_id, voter)
        said = Decision(asked.approval_id, shown.action_hash, (Verdict("approve"),))
        await store.approvals.decide(each, said, voter)
        await save(
            store, each, checkpoint_id="c", content=state(a=document("a")), run_id="r", metadata={"k": 1},
            searchable=("k",),
        )  # fmt: skip
        await put(store, each, "c", write(0, "a", document("b")))
        await store.checkpoints.put_writes(
            each, TaskWrites("t1", "", "early", "task", "", [write(-1, "__error__", 1)], "failed")
        )
        await store.threads.put(each, "gone")
        await store.threads.delete(each, "gone")
        await keep_blobs(store, each)
        await keep_ledgers(store, each)
        await write_items(store.items, each, put_item("k", {"n": 1}), put_item("over", {}, ttl_seconds=1))
        await keep_vectors(database, each)
        await store.retention_policies.put(TenantScope(each.tenant_id), None, Policy(idle_ttl_seconds=86_400))
        await RowCounting(store.unit_of_work, store.row_quotas).tenant(each.tenant_id)
        await store.retention_policies.put_thread(each, "t1", Policy(archive_ttl_seconds=86_400))
        await store.save_policies.put(TenantScope(each.tenant_id), "a", SaveRule(strict=True))
        async with store.unit_of_work.begin(TenantScope(each.tenant_id)) as transaction:
            said = {"vectors": "sealed", "accepted": "", "complete": False, "updated_at": datetime.now(UTC)}
            await transaction.run(vector_policies.PUT, **said, mac=bytes(32), mac_format=1)
    await switch_on(store, SEGMENTS)
    async with opened(database, root_key, archive=MemoryBlobStore()) as archiving:
        for each in made:
            await save(archiving, each, "archived")
            await archiving.archives.archive(each, "archived")
            for _ in range(2):
                await save(archiving, each, "segmented")
            await archiving.archives.segmenting.move(each, "segmented", ThinningRule(keep_last=1), actor="test")
    return made


async def keep_ledgers(store, scope):
    """A claim, an effect that ended and one that did not, and the name of one whose thread is gone."""
    await claim(store, scope, note="half way")
    await finish(store, scope, await start(store, scope, run_id="r"), result={"id": 7}, error="E")
    await start(store, scope, "call-2", args={"to": "eve"})
    await save(store, scope, "done")
    await start(store, scope, thread_id="done")
    await store.threads.delete(scope, "done")


async def keep_vectors(database, scope):
    """A row that looks like the vectors of an item: nobody opens it here."""
    connection = await asyncpg.connect(database.dsn(database.superuser_url))
    await connection.execute(
        "INSERT INTO stateroom.item_vectors VALUES ($1, $2, $3, $3, $3, 1, 1, $3, $3)",
        scope.tenant_id, scope.subject_id, b"v" * 16,
    )  # fmt: skip
    await connection.execute(
        "UPDATE stateroom.items SET expires_at = now() - interval '1 h' WHERE ttl_seconds = 1 AND tenant_id = $1",
        scope.tenant_id,
    )
    await connection.close()


async def keep_blobs(store, scope):
    """A live blob that a checkpoint names, an artifact that one refers to, and an upload in parts."""
    by = Blobs(store, MemoryBlobStore())
    blob_id = await by.stored(scope, thread_id="blobs")
    upload_id = new_blob_id()
    await by.ledger.reserve(scope, await by.sealer(scope), [NewBlob(upload_id, "artifact", 10)], SystemClock().now())
    await by.ledger.record_part(scope, upload_id, blobs.UploadedPart(0, "etag", 10, b"digest"))
    async with store.unit_of_work.begin(scope) as transaction:
        row = artifacts.ArtifactRow(blob_id, "blobs", b"n", 1, blob_id, 0, 1, False, 1, SystemClock().now(), b"s")
        await by.ledger.add_artifact(transaction, row)
        await by.ledger.refer_artifacts(transaction, "blobs", [blob_id])


@pytest.fixture
async def unbound(database):
    """A connection as gw_app that nobody was ever bound on; whatever it does is rolled back."""
    connection = await asyncpg.connect(database.dsn(database.app_url))
    await connection.execute("BEGIN")
    yield connection
    await connection.close()


@pytest.fixture(scope="module")
async def connection(database):
    """One for all: each new one learns the catalogue anew. It remembers no statement that was taken from it."""
    opened = await asyncpg.connect(database.dsn(database.app_url), statement_cache_size=0)
    yield opened
    await opened.close()


@pytest.fixture
async def app(connection):
    """A connection as gw_app; whatever it does is rolled back."""
    await connection.execute("BEGIN")
    yield connection
    await connection.execute("ROLLBACK; DEALLOCATE ALL")


async def act_as(connection, scope):
    await connection.execute(bindings(scope))


def own(table, scope):
    if table in TENANTS:
        return {(scope.tenant_id, None)}
    return {(scope.tenant_id, scope.subject_id)}


def owners(table):
    subject = "NULL" if table in TENANTS else "subject_id"
    return f"SELECT tenant_id, {subject} AS subject_id FROM stateroom.{table}"


async def seen(connection, table):
    return {tuple(row) for row in await connection.fetch(owners(table))}


@pytest.mark.parametrize("table", TABLES)
async def test_a_bound_scope_sees_its_own_rows_only(app, admin, scopes, table):
    everybody = {owner for each in scopes for owner in own(table, each)}
    assert everybody <= await seen(admin, table)
    for each in scopes:
        await act_as(app, each)
        assert await seen(app, table) == own(table, each)


@pytest.mark.parametrize("table", TABLES)
async def test_an_unbound_connection_sees_nothing(unbound, scopes, table):
    assert await seen(unbound, table) == set()
    for text in ("", "not-a-uuid"):
        await unbound.execute("SAVEPOINT before")
        await unbound.execute(f"SET LOCAL app.tenant_id = '{text}'; SET LOCAL app.subject_id = ''")
        try:
            assert await seen(unbound, table) == set()
        except asyncpg.InvalidTextRepresentationError:
            assert text
        await unbound.execute("ROLLBACK TO before")


@pytest.mark.parametrize("table", SUBJECTS)
@pytest.mark.parametrize("scope_type", [TenantScope, OperatorScope])
async def test_a_scope_without_a_subject_sees_no_subjects_rows(app, scopes, table, scope_type):
    await act_as(app, TenantScope(scopes[0].tenant_id) if scope_type is TenantScope else OperatorScope())
    # Administration lists the tenant's subjects; the sweeper finds those it has to work for; a tenant of which a thread
    # is held is not shredded. Retention finds whose items are over.
    if scope_type is TenantScope and table in {"subject_keys", "blobs", "blob_intents", "thread_retention", "items"}:
        assert await seen(app, table) == {(each.tenant_id, each.subject_id) for each in scopes[:2]}
        return
    assert await seen(app, table) == set()


@pytest.mark.parametrize("table", TABLES)
async def test_an_update_or_delete_of_everything_touches_ones_own_rows_only(app, admin, scopes, table):
    await act_as(app, scopes[0])
    mine = await app.fetchval(f"SELECT count(*) FROM stateroom.{table}")
    assert await app.execute(f"UPDATE stateroom.{table} SET tenant_id = tenant_id") == f"UPDATE {mine}"
    assert await app.execute(f"DELETE FROM stateroom.{table}") == f"DELETE {mine}"
    assert mine < await admin.fetchval(f"SELECT count(*) FROM stateroom.{table}")


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("verb", ["insert", "update"])
async def test_rows_cannot_be_written_for_another_subject_or_tenant(app, scopes, table, verb):
    me, *others = scopes
    if table in TENANTS:
        others = others[1:]
    columns = {
        row["column_name"]
        for row in await app.fetch(
            "SELECT column_name FROM information_schema.columns WHERE table_schema = 'stateroom' AND table_name = $1",
            table,
        )
    }
    rest = ", ".join(sorted(columns - {"tenant_id", "subject_id"}))
    subject = [] if table in TENANTS else ["subject_id"]
    for other in others:
        await app.execute("SAVEPOINT before")
        await act_as(app, me)
        values = [f"'{other.tenant_id}'::uuid", *([f"'{other.subject_id}'"] if subject else [])]
        names = ["tenant_id", *subject]
        if verb == "insert":
            text = (
                f"INSERT INTO stateroom.{table} ({', '.join(names)}, {rest})"
                f" SELECT {', '.join(values)}, {rest} FROM stateroom.{table}"
            )
        else:
            assignments = ", ".join(f"{name} = {value}" for name, value in zip(names, values, strict=True))
            text = f"UPDATE stateroom.{table} SET {assignments}"
        with pytest.raises(asyncpg.InsufficientPrivilegeError, match="row-level security"):
            await app.execute(text)
        await app.execute("ROLLBACK TO before")


def stripped(text):
    """The statement without its tenant and subject predicates; parameters keep their types."""
    for column, kind in (("tenant_id", "uuid"), ("subject_id", "text")):
        text = re.sub(rf"(\w+\.)?\b{column} = (\$\d+)", rf"\2::{kind} IS NOT NULL", text)
        text = re.sub(rf"(\w+\.)?\b{column} = \w+\.{column}\b", "true", text)
    return text


def text_of(statement):
    return getattr(statement, "text", statement)


def arguments_of(statement, scope, values):
    bound = {"tenant_id": scope.tenant_id, "subject_id": scope.subject_id}
    return statement.arguments({name: bound[name] for name in statement.names if name in bound}, values)


T1, ARCHIVED = {"thread_id": "t1"}, {"thread_id": "archived"}
SEGMENTED = {"thread_id": "segmented"}
HISTORY_WANTED = (
    "thread_id", "namespace", "before", "status", "step", "run_id", "source", "agent", "since", "until", "after_id",
    "after_thread", "after_namespace",
)  # fmt: skip
READS = {
    "checkpoints.ONE": {"thread_id": "t1", "namespace": "", "checkpoint_id": "c"},
    "checkpoints.HEAD_AND_NEWEST": {"thread_id": "t1", "namespace": ""},
    "checkpoints.LEFT_OVER": T1,
    "checkpoints.WRITES_OF": {"namespace": "", "checkpoint_ids": ["c", "early"], "task_id": None, **T1},
    "checkpoints.HISTORY": {**dict.fromkeys(HISTORY_WANTED), "limit": 100},
    "checkpoints.ANCESTORS": {"namespace": "", "checkpoint_id": "c", "limit": 10, **T1},
    "checkpoints.AFTER": {"namespace": "", "after": "", "limit": 100, **T1},
    "threads.ONE": T1,
    "threads.LIST": {**dict.fromkeys(("status", "agent", "tier", "after_at", "after_thread")), "limit": 100},
    "threads.LOCK": T1,
    "threads.HEADS": T1,
    "threads.WRITES_AFTER": {
        "namespace": "",
        "checkpoint_id": "",
        "task_id": "",
        "idx": -100,
        "limit": 100,
        **T1,
    },
    "keys.SUBJECT_KEYS": {},
    "keys.HASH_NOW": {},
    "pruning.CHECKPOINT_IDS": {"namespace": "", **T1},
    "pruning.CHECKPOINTS": {"namespace": "", "checkpoint_ids": ["c"], **T1},
    "pruning.WRITES": T1,
    "pruning.GARBAGE": {"namespaces": [""], "checkpoint_ids": ["c"], **T1},
    "pruning.REFERS_TO_UNNAMED": {"thread_id": "blobs"},
    "pruning.THREADS_OF_RUNS": {"run_ids": ["r"]},
    "pruning.NEWEST": {"namespace": "", "limit": 10, **T1},
    "pruning.NEW_WRITES": {"members": [], **T1},
    "pruning.WRITES_AT": {"namespaces": ["", ""], "checkpoint_ids": ["c", "early"], **T1},
    "pruning.DELETE_WRITES_OF": {"namespaces": ["", ""], "checkpoint_ids": ["c", "early"], **T1},
    "pruning.DELETE_CHECKPOINTS": {"namespaces": [""], "checkpoint_ids": ["c"], **T1},
    "pruning.DELETE_HEADS": {"namespaces": [""], **T1},
    "retention.THREAD_ONE": T1,
    "retention.THREAD_HELD": T1,
    "retention.SUBJECT_HELD": {},
    "retention.FACTS_OF": T1,
    "retention.COUNTS_OF": {
        "written_before": datetime(2100, 1, 1, tzinfo=UTC),
        "written_since": datetime(1970, 1, 1, tzinfo=UTC),
        "made_before": datetime(2100, 1, 1, tzinfo=UTC),
        "overdue_before": datetime(2100, 1, 1, tzinfo=UTC),
        "volumes_since": datetime(2000, 1, 1, tzinfo=UTC),
        "overdue_since": datetime(1970, 1, 1, tzinfo=UTC),
        "leaving": "%",
        **T1,
    },
    "retention.HOT_BYTES": {"thread_ids": ["t1", "archived"]},
    "archives.STUB": ARCHIVED,
    "archives.STUBS_AFTER": {"after_thread": "", "after_segment": 0, "limit": 10},
    "archives.SEGMENTS": SEGMENTED,
    "archives.SEGMENT_TOTALS": SEGMENTED,
    "archives.SEGMENT_STUBS": SEGMENTED,
    "archives.SEGMENT_STUB": {"segment": 1, **SEGMENTED},
    "archives.LISTED": {"segment": 1, **SEGMENTED},
    "archives.DELETE_STUBS": SEGMENTED,
    "archives.COLD_NAMESPACES": SEGMENTED,
    "archives.WITH_HEAD": {"namespaces": [""], **T1},
    "archives.WITH_WRITES": {"namespaces": [""], **T1},
    "archives.SIZED_THREAD": ARCHIVED,
    "archives.LOCK_STUB": ARCHIVED,
    "archives.DELETE_STUB": {"segment": 0, **ARCHIVED},
    "blobs.REFERRED_BLOBS": {"thread_id": "blobs"},
    "blobs.LIVE_AFTER": {"after": UUID(int=0), "limit": 10},
    "blobs.THREADS_NAMING": {"after": "", "limit": 10},
    "blobs.WALK": {"after": UUID(int=0), "limit": 10},
    "blobs.DROP_BLOB_REFS": {"thread_id": "blobs"},
    "artifacts.LIST": {"thread_id": "blobs", "name_digest": None, "after": None, "limit": 10},
    "artifacts.REFERRED": {"thread_id": "blobs"},
    "artifacts.DROP_REFS": {"thread_id": "blobs"},
    "artifacts.LOCK_OF_THREAD": {"thread_id": "blobs"},
    "items.PLACES": {"updated_at": None, "path_id": b"", "key_id": b"", "page_rows": 10},
    "seals.LOCK_THREAD": T1,
    "seals.THREAD": T1,
    "seals.READ": T1,
    "seals.AFTER": {"after": "", "thread_id": None, "limit": 10},
    "claims.ONE": T1,
    "effects.MACS": {"parts": list(range(16)), **T1},
    "effects.LISTED": {
        "status": None,
        "checkpoint_id": None,
        "after_at": None,
        "after_namespace": "",
        "after_name": b"",
        "after_execution": 0,
        "limit": 10,
        **T1,
    },
    "effects.HEAD": {"namespace": "", **T1},
    "effects.LINE": {"namespace": "", "checkpoint_id": "c", "limit": 10, **T1},
    "effects.STORED": {"namespace": "", "checkpoint_ids": ["c"], **T1},
    "effects.BUSY": T1,
    "effects.BURIED": {"tombstone": b"", "days": 30},
    "effects.FORGET_BURIED": {"days": -1},
    "verifying.TRACES_OF": T1,
    "verifying.EFFECTS_AFTER": {
        "after_namespace": "",
        "after_name": b"",
        "after_execution": 0,
        "limit": 10,
        **T1,
    },
    "resealing.STALE_EFFECTS": {
        "version": bytes(4),
        "thread_id": "",
        "namespace": "",
        "name_mac": b"",
        "execution": 0,
        "page_rows": 10,
    },
    "resealing.STALE_CLAIMS": {"version": bytes(4), "thread_id": "", "page_rows": 10},
    "paths.SCOPE": {},
    "paths.LOCK_SCOPE": {},
    "paths.LABELS_AFTER": {"path_id": b"", "page_rows": 10},
    "paths.PATHS_AFTER": {"path_id": b"", "page_rows": 10},
}


async def test_without_a_subject_what_is_over_can_be_seen_but_not_changed(app, scopes):
    await act_as(app, TenantScope(scopes[0].tenant_id))
    assert await app.execute("UPDATE stateroom.items SET expires_at = now()") == "UPDATE 0"
    assert await app.execute("DELETE FROM stateroom.items") == "DELETE 0"


async def test_without_a_subject_the_tenants_blobs_can_be_seen_but_not_changed(app, scopes):
    await act_as(app, TenantScope(scopes[0].tenant_id))
    for table in ("blobs", "blob_intents"):
        assert await app.execute(f"UPDATE stateroom.{table} SET key_version = key_version") == "UPDATE 0"
        assert await app.execute(f"DELETE FROM stateroom.{table}") == "DELETE 0"


async def test_without_a_subject_the_policies_of_threads_can_be_seen_but_not_changed(app, scopes):
    await act_as(app, TenantScope(scopes[0].tenant_id))
    assert await app.execute("UPDATE stateroom.thread_retention SET legal_hold = true") == "UPDATE 0"
    assert await app.execute("DELETE FROM stateroom.thread_retention") == "DELETE 0"


async def test_operators_see_what_every_tenant_keeps_and_change_none_of_it(app, scopes):
    await act_as(app, OperatorScope())
    assert await seen(app, "blob_usage") >= {(each.tenant_id, None) for each in scopes}
    assert await seen(app, "row_usage") >= {(each.tenant_id, None) for each in scopes}
    for table in ("blob_usage", "row_usage"):
        assert await app.execute(f"UPDATE stateroom.{table} SET quota_bytes = 0") == "UPDATE 0"


CLOCK = {"present", "now"}  # the database's clock, which goes on from one result to the next


@pytest.mark.parametrize("name", READS)
async def test_our_statements_without_their_predicates_return_the_same(app, scopes, name):
    text = text_of(STATEMENTS[name])
    assert stripped(text) != text
    for each in scopes:
        arguments = arguments_of(STATEMENTS[name], each, READS[name])
        results = []
        for variant in (text, stripped(text)):
            await app.execute("SAVEPOINT before")
            await act_as(app, each)
            if "DELETE" in variant:
                statement = await app.prepare(variant)
                await statement.fetch(*arguments)
                results.append(statement.get_statusmsg())
            else:
                rows = await app.fetch(variant, *arguments)
                results.append([[each for each in row.items() if each[0] not in CLOCK] for row in rows])
            await app.execute("ROLLBACK TO before")
        assert results[0] == results[1]
        assert results[0]


def scans(plan):
    if "Relation Name" in plan or plan["Node Type"] == "Bitmap Index Scan":
        yield plan
    for child in plan.get("Plans", ()):
        yield from scans(child)


def reads_tenant_rows(scan):
    return scan["Node Type"] not in {"ModifyTable", "Bitmap Heap Scan", "Tid Scan"}


@pytest.mark.parametrize("name", sorted(STATEMENTS))
async def test_tenant_id_is_a_condition_of_every_index_scan(app, scopes, name):
    await act_as(app, scopes[0])
    await app.execute("SET LOCAL enable_seqscan = off")
    await app.execute("SET LOCAL plan_cache_mode = force_generic_plan")
    text = text_of(STATEMENTS[name])
    await app.execute(f"PREPARE statement AS {text}")
    nothing = ", ".join(["NULL"] * max(int(each) for each in re.findall(r"\$(\d+)", text)))
    (plan,) = json.loads(await app.fetchval(f"EXPLAIN (FORMAT JSON) EXECUTE statement({nothing})"))
    found = [each for each in scans(plan["Plan"]) if reads_tenant_rows(each)]
    for scan in found:
        assert "tenant_id" in scan.get("Index Cond", ""), (scan["Node Type"], scan.get("Relation Name"))
    assert found or "INSERT" in text


@pytest.fixture
async def role(admin):
    """Acts as a role in a transaction that is rolled back."""
    await admin.execute("BEGIN")

    async def become(name):
        await admin.execute(f"SET LOCAL ROLE {name}")
        return admin

    yield become
    await admin.execute("ROLLBACK")


async def refused(connection, text):
    await connection.execute("SAVEPOINT before")
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await connection.execute(text)
    await connection.execute("ROLLBACK TO before")


async def test_operators_can_ask_which_agents_failed_at_step_5_in_the_last_24_hours(store, role):
    scopes = [Scope(uuid4(), "user-1") for _ in range(2)]
    for each in scopes:
        await save(store, each, step=5, status="failed", agent="travel")
        await save(store, each, step=5, checkpoint_id="ffffffff", agent="by task")
        await put(store, each, "ffffffff", write(-1, "__error__", "x"), status="failed")
        await save(store, each, step=6, checkpoint_id="fffffffff", status="failed", agent="other")
    ops = await role("gw_ops")
    rows = await ops.fetch(
        "SELECT tenant_id, agent FROM stateroom.checkpoints"
        " WHERE step = 5 AND coalesce(outcome, status) = 'failed' AND created_at > now() - interval '24 hours'"
        " AND tenant_id = ANY($1)",
        [each.tenant_id for each in scopes],
    )
    assert {tuple(row) for row in rows} == {
        (each.tenant_id, agent) for each in scopes for agent in ("travel", "by task")
    }


@pytest.mark.parametrize(("table", "column"), [(table, column) for table in SEALED for column in SEALED[table]])
async def test_operators_are_refused_every_sealed_column(role, table, column):
    ops = await role("gw_ops")
    await refused(ops, f"SELECT {column} FROM stateroom.{table}")
    await refused(ops, f"SELECT * FROM stateroom.{table}")


async def test_operators_can_read_no_binary_column_of_any_table(admin, role):
    """Whatever is sealed, wrapped, hashed or keyed is bytes: tables that come later are asked as well."""
    rows = await admin.fetch(
        "SELECT c.relname, a.attname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid"
        " WHERE c.relnamespace = 'stateroom'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm')"
        " AND a.attnum > 0 AND NOT a.attisdropped AND a.atttypid = 'bytea'::regtype"
    )
    found = {(row["relname"], row["attname"]) for row in rows}
    assert {("checkpoints", "manifest"), ("artifacts", "sealed"), ("state_schemas", "definition")} < found
    assert {("audit_log", "body"), ("pending_writes", "member"), ("deployment_keys", "wrapped")} < found
    ops = await role("gw_ops")
    for table, column in sorted(found):
        await refused(ops, f"SELECT {column} FROM stateroom.{table}")
        await refused(ops, f"SELECT count(*) FROM stateroom.{table} WHERE {column} IS NOT NULL")


@pytest.mark.parametrize("name", ["gw_ops", "gw_worker", "gw_auth"])
@pytest.mark.parametrize("table", [*TABLES, "tenants", "api_keys", "api_key_seals"])
async def test_roles_that_only_look_change_nothing(role, name, table):
    connection = await role(name)
    await refused(connection, f"DELETE FROM stateroom.{table}")
    await refused(connection, f"UPDATE stateroom.{table} SET tenant_id = tenant_id")
    await refused(connection, f"TRUNCATE stateroom.{table}")
    await refused(connection, f"DROP TABLE stateroom.{table}")


async def test_workers_list_tenant_ids_and_nothing_else(admin, role):
    await admin.execute("INSERT INTO stateroom.tenants VALUES ($1, 'acme', now())", UUID(int=77))
    worker = await role("gw_worker")
    assert UUID(int=77) in {row["tenant_id"] for row in await worker.fetch("SELECT tenant_id FROM stateroom.tenants")}
    await refused(worker, "SELECT name FROM stateroom.tenants")
    for table in (*TABLES, "api_keys", "api_key_seals"):
        await refused(worker, f"SELECT count(*) FROM stateroom.{table}")
    await refused(worker, "SELECT * FROM stateroom.look_up_api_key('x')")


async def test_the_look_up_role_reads_credentials_and_nothing_else(role):
    auth = await role("gw_auth")
    await auth.fetch("SELECT * FROM stateroom.api_keys")
    await auth.fetch("SELECT * FROM stateroom.api_key_seals")
    await auth.fetch("SELECT tenant_id, suspended_at FROM stateroom.tenants")
    await refused(auth, "SELECT name FROM stateroom.tenants")
    for table in TABLES:
        await refused(auth, f"SELECT count(*) FROM stateroom.{table}")


async def test_the_serving_role_looks_up_one_credential_but_lists_none(app, admin):
    await admin.execute(
        "INSERT INTO stateroom.api_keys (key_id, kind, name, tenant_id, permissions, mac, pepper_version, created_at)"
        " VALUES ('k1', 'service', 'n', $1, '{}', $2, 1, $3)",
        uuid4(),
        bytes(32),
        datetime.now(UTC),
    )
    assert await app.fetch("SELECT * FROM stateroom.api_keys") == []
    assert [row["key_id"] for row in await app.fetch("SELECT * FROM stateroom.look_up_api_key('k1')")] == ["k1"]
    await act_as(app, OperatorScope())
    assert await app.fetch("SELECT * FROM stateroom.api_keys") == []


async def test_the_serving_role_can_neither_switch_protection_off_nor_change_the_schema(app):
    for text in (
        "ALTER TABLE stateroom.checkpoints DISABLE ROW LEVEL SECURITY",
        "ALTER TABLE stateroom.checkpoints NO FORCE ROW LEVEL SECURITY",
        "CREATE TABLE stateroom.mine (x int)",
        "TRUNCATE stateroom.checkpoints",
        "DROP POLICY subject_rows ON stateroom.checkpoints",
        "SET ROLE gw_migrate",
        "UPDATE stateroom.deployment SET deployment_id = gen_random_uuid()",
        "UPDATE stateroom.db_revision SET version_num = 'x'",
    ):
        await refused(app, text)


async def test_a_subject_id_cannot_break_out_of_its_literal(app, scopes):
    hostile = Scope(scopes[0].tenant_id, "x'; SET LOCAL app.subject_id = 'user-1'; --")
    await act_as(app, hostile)
    assert await app.fetchval("SELECT current_setting('app.subject_id')") == hostile.subject_id
    assert await seen(app, "checkpoints") == set()
