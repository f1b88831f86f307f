"""Whatever opens many rows, or seals many pieces, lets others go first in between: it takes turns of the loop.

Whoever asks about one thread opens no more of a tenant's policies than concern it.
"""

import json
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import msgpack
import pytest

from gateway.authentication.api_keys import NewKey, mint
from storage.artifacts.model import PREVIEW_BYTES_MAX, NewArtifact
from storage.checkpoints.reading import HISTORY_MANIFESTS_BYTES_MAX
from storage.clock import SystemClock
from storage.concurrency.turns import PAUSE_BYTES, PAUSE_ROW_BYTES, loop_turn
from storage.control.features import SAVE_POLICIES
from storage.control.rows import adoption_row, policy_row, save_policy_row, schema_row
from storage.format.pieces import CUT_BESIDE_ELEMENTS_MIN, is_long_to_cut, list_header
from storage.keys.key_seals import Pepper, Peppers
from storage.model import ChannelHistoryQuery, HistoryQuery, Precondition, SaveRule, TaskWritesQuery
from storage.retention.planner import Policy
from storage.retention.policies import RetentionPolicies
from storage.retention.preview import RetentionPreview
from storage.retention.rounds import Acts, Retaining
from storage.schemas.registry import StateSchemas
from storage.schemas.save_policies import SavePolicies
from storage.scope import TenantScope
from storage.statements.rules import state_schemas as schemas_sql
from tests.support.archive_rows import opened
from tests.support.features import switch_on
from tests.support.states import load, patch, put, save, state, write

CHECKPOINT = "1f0c0000-0000-6000-8000-000000000001"
PEPPERS = Peppers(Pepper(1, b"pepper" * 6))
WHEN = datetime(2026, 11, 21, tzinfo=UTC)
ROWS = 300
TURNS = ROWS * PAUSE_ROW_BYTES // PAUSE_BYTES  # at least, of so many rows however small


@pytest.fixture
async def store(database, root_key):
    async with opened(database, root_key) as made:
        yield made


async def turns(work):
    """What ``work`` returns, and how many turns of the loop it took for itself."""
    before = loop_turn().taken
    answer = await work
    return answer, loop_turn().taken - before


async def test_pending_writes_are_opened_and_put_together_in_turns(store, scope):
    await save(store, scope, checkpoint_id=CHECKPOINT)
    await put(store, scope, CHECKPOINT, *(write(number, "a", number) for number in range(ROWS)))
    loaded, taken = await turns(load(store, scope))
    assert len(loaded.writes) == ROWS
    assert taken >= 2 * TURNS
    found, taken = await turns(store.checkpoints.task_writes(scope, TaskWritesQuery("t1", "", CHECKPOINT, "task")))
    assert len(found) == ROWS
    assert taken >= 2 * TURNS
    after = await save(store, scope)
    histories, taken = await turns(
        store.checkpoints.channel_history(scope, ChannelHistoryQuery("t1", "", after.checkpoint_id, ["a"]))
    )
    assert len(histories.channels["a"].writes) == ROWS
    assert taken >= 2 * TURNS


async def test_the_pieces_of_a_large_value_are_sealed_and_opened_in_turns(store, scope):
    content = [f"{number}:" + "e" * 1000 for number in range(10_000)]
    _, taken = await turns(save(store, scope, content=state(a=content)))
    assert taken >= 30
    loaded, taken = await turns(load(store, scope))
    assert msgpack.unpackb(loaded.channels["a"].value.data) == content
    assert taken >= 30


async def test_a_page_of_threads_jobs_keys_or_events_is_opened_in_turns(store, scope):
    tenant = TenantScope(scope.tenant_id)
    await store.jobs.ready()
    for number in range(100):
        await save(store, scope, f"t{number}")
        record, _ = mint(
            PEPPERS, NewKey(kind="service", permissions=["state:read"], now=WHEN, tenant_id=scope.tenant_id)
        )
        await store.tenants.add_key(tenant, record)
        async with store.unit_of_work.begin(tenant) as transaction:
            await store.jobs.add(transaction, scope.tenant_id, "verify", "*", "")
    pages = (
        lambda: store.threads.list(scope, limit=1000),
        lambda: store.jobs.list(tenant, limit=1000),
        lambda: store.tenants.list_keys(tenant, limit=1000),
        lambda: store.audit.page(tenant, "tester", limit=1000),
    )
    for read in pages:
        page, taken = await turns(read())
        assert len(page.items) >= 100
        assert taken >= len(page.items) * PAUSE_ROW_BYTES // PAUSE_BYTES


@pytest.fixture
async def policies(store, scope, admin):
    """A save policy and a retention policy of each of `ROWS` agents."""
    await switch_on(store, SAVE_POLICIES)
    await store.control.ready()
    tenant, body = scope.tenant_id, b'{"idle_ttl_seconds":3600}'
    for name in map("agent-{}".format, range(ROWS)):
        await admin.execute(
            "INSERT INTO stateroom.save_policies VALUES ($1, $2, false, $3, $4, $5)",
            tenant, name, WHEN, *store.control.proof(save_policy_row(tenant, name, SaveRule(strict=False), WHEN)),
        )  # fmt: skip
        proof = store.control.proof(policy_row(tenant, "agent", (name,), body, False, WHEN))
        await admin.execute(
            "INSERT INTO stateroom.retention"
            " (tenant_id, level, target, policy, legal_hold, updated_at, mac, mac_format)"
            " VALUES ($1, 'agent', $2, $3, false, $4, $5, $6)",
            tenant, name, body, WHEN, *proof,
        )  # fmt: skip


async def test_all_policies_of_a_tenant_are_checked_in_turns(store, scope, policies):
    tenant = TenantScope(scope.tenant_id)
    for of_tenant in (
        lambda: store.save_policies.get(tenant),
        lambda: store.save_policies.put(tenant, "agent-1", SaveRule(strict=True)),
        lambda: store.retention_policies.get(tenant),
        lambda: store.retention_policies.put(tenant, "agent-1", Policy(idle_ttl_seconds=7200)),
    ):
        said, taken = await turns(of_tenant())
        assert len(said.agents) == ROWS
        assert TURNS <= taken < 2 * TURNS  # each is checked once


async def test_what_could_hold_a_thread_is_checked_in_turns_before_it_is_removed(store, scope, policies):
    await save(store, scope)
    _, taken = await turns(store.threads.delete(scope, "t1"))
    assert taken >= TURNS


async def test_the_versions_of_a_schema_and_what_was_adopted_are_checked_in_turns(store, scope, admin):
    await store.control.ready()
    tenant = scope.tenant_id
    for number in range(1, ROWS + 1):
        version, adopted = ("s", number, b"{}", WHEN), (f"agent-{number}", "", 1, "s", 1, WHEN)
        await admin.execute(
            "INSERT INTO stateroom.state_schemas"
            " (tenant_id, schema, number, definition, created_at, mac, mac_format)"
            " VALUES ($1, $2, $3, $4, $5, $6, $7)",
            tenant, *version, *store.control.proof(schema_row(tenant, *version)),
        )  # fmt: skip
        await admin.execute(
            "INSERT INTO stateroom.state_adoptions"
            " (tenant_id, agent, namespace, number, state_schema, state_version, adopted_at, mac, mac_format)"
            " VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
            tenant, *adopted, *store.control.proof(adoption_row(tenant, *adopted)),
        )  # fmt: skip
    versions, taken = await turns(store.state_schemas.get(scope, "s"))
    assert len(versions) == ROWS
    assert taken >= TURNS
    adoptions, taken = await turns(store.adoptions.list(TenantScope(tenant)))
    assert [is_authentic for _, is_authentic in adoptions] == [True] * ROWS
    assert taken >= TURNS
    known, taken = await turns(store.adoptions.known(scope))
    assert known.covering("agent-1", "") == adoptions[0][0]
    assert taken >= TURNS


async def test_a_page_of_threads_is_looked_at_for_retention_in_turns(store, scope):
    for number in range(100):
        await save(store, scope, f"t{number}")
    page, taken = await turns(store.retention_preview.page(TenantScope(scope.tenant_id)))
    assert page.threads == 100
    assert taken >= 100 * PAUSE_ROW_BYTES // PAUSE_BYTES


class CountedChecks:
    """Control rows, how many were checked, and how many of them while no transaction of ``readers`` was open."""

    def __init__(self, control, readers=None):
        self._control, self._readers = control, readers
        self.count = self.outside = 0

    def is_sound(self, row, proof):
        self.count += 1
        self.outside += self._readers is not None and not self._readers.open
        return self._control.is_sound(row, proof)

    def proof(self, row):
        return self._control.proof(row)

    async def ready(self):
        await self._control.ready()

    async def ready_to_check(self):
        await self._control.ready_to_check()


class Readers:
    """The way to the rows, and how many snapshots are open."""

    def __init__(self, unit_of_work):
        self._unit_of_work = unit_of_work
        self.open = 0

    @asynccontextmanager
    async def snapshot(self, scope):
        async with self._unit_of_work.snapshot(scope) as transaction:
            self.open += 1
            try:
                yield transaction
            finally:
                self.open -= 1


async def test_rows_that_others_go_before_are_in_memory_for_no_more_readers_than_have_a_connection(
    store, scope, policies
):
    tenant, readers = TenantScope(scope.tenant_id), Readers(store.unit_of_work)
    control = CountedChecks(store.control, readers)
    async with store.unit_of_work.begin(tenant) as transaction:
        proof = store.control.proof(schema_row(scope.tenant_id, "s", 1, b"{}", WHEN))
        await transaction.run(
            schemas_sql.ADD, schema="s", number=1, definition=b"{}", created_at=WHEN, **proof._asdict()
        )
    await SavePolicies(readers, store.audit, control).get(tenant)
    await RetentionPolicies(readers, store.audit, control).get(tenant)
    await StateSchemas(readers, store.audit, SystemClock(), control, store.workers).get(tenant, "s")
    assert control.count == 2 * ROWS + 1
    assert control.outside == 0


async def test_what_holds_for_a_thread_takes_no_policies_of_other_agents(store, scope, policies):
    tenant = TenantScope(scope.tenant_id)
    await save(store, scope, agent="agent-1")
    control = CountedChecks(store.control)
    asked = RetentionPolicies(store.unit_of_work, store.audit, control)
    said = await asked.get_thread(scope, "t1")
    assert said.effective.idle_ttl_seconds == 3600
    assert control.count == 1
    preview = RetentionPreview(store.unit_of_work, store.pruning, store.archives, control)
    page = await preview.page(tenant, draft=("agent-2", Policy(idle_ttl_seconds=60)))
    assert page.threads == 1
    assert control.count == 3
    await asked.put(tenant, "agent-1", Policy(idle_ttl_seconds=60))
    assert control.count == 4 + ROWS  # and all of them for the answer
    rounds = Retaining(
        store.unit_of_work,
        store.audit,
        SystemClock(),
        Acts(
            store.threads,
            store.pruning,
            store.archives,
            store.items.expiring,
            store.event_keeping,
            store.approvals_expiring,
        ),
        control,
    )
    assert (await rounds.tenant(scope.tenant_id, now=True)).threads == 1
    assert control.count == 5 + ROWS


async def test_a_copied_thread_is_read_and_sealed_in_turns(store, scope):
    for number in range(40):
        await save(store, scope, content=state(a=number), metadata={"a": [[]] * 1000})
    copied, taken = await turns(store.threads.copy(scope, "t1", "t2"))
    assert copied.checkpoints == 40
    assert taken >= 40 * (1000 + PAUSE_ROW_BYTES) // PAUSE_BYTES - 1


async def test_a_page_of_checkpoints_is_opened_in_turns(store, scope):
    for number in range(40):
        await save(store, scope, content=state(a=number), metadata={"a": [[]] * 1000})
    page, taken = await turns(store.checkpoints.history(scope, HistoryQuery(thread_id="t1", limit=40)))
    assert len(page.items) == 40
    assert taken >= 40 * (1000 + PAUSE_ROW_BYTES) // PAUSE_BYTES - 1


async def content():
    yield b"a"


async def test_a_page_of_artifacts_is_opened_in_turns_and_ends_early_when_it_is_heavy(store, scope):
    metadata = {"a": [[]] * 4000}
    new = NewArtifact(name="a", metadata=metadata, preview=b"p" * PREVIEW_BYTES_MAX)
    each = len(json.dumps(metadata, separators=(",", ":"))) + PREVIEW_BYTES_MAX
    count = HISTORY_MANIFESTS_BYTES_MAX // each + 10
    for _ in range(count):
        await store.artifacts.create(scope, "t1", new, content())
    numbers, after = [], None
    for _ in range(2):
        page, taken = await turns(store.artifacts.list(scope, "t1", limit=1000, after=after))
        numbers += [each.number for each in page.items]
        after = page.after
        assert taken >= len(page.items) * each // (PAUSE_BYTES + each) - 1
    assert after is None
    assert numbers == list(range(count, 0, -1))


def test_what_is_long_to_cut_is_known_by_its_bytes_and_by_its_elements():
    many = msgpack.packb([0] * CUT_BESIDE_ELEMENTS_MIN)
    assert is_long_to_cut([many])
    assert is_long_to_cut([msgpack.packb([0] * 100)] * (CUT_BESIDE_ELEMENTS_MIN // 100))
    assert is_long_to_cut([list_header(CUT_BESIDE_ELEMENTS_MIN), *[b"\x00"] * CUT_BESIDE_ELEMENTS_MIN])
    assert not is_long_to_cut([many[:1], b"", msgpack.packb("a" * 10_000)])


async def test_elements_that_are_appended_are_cut_beside_the_loop_as_they_would_be_on_it(store, scope):
    few, many = list(range(10)), list(range(10, 2 * CUT_BESIDE_ELEMENTS_MIN))
    before = await save(store, scope, content=state(a=few))
    on = Precondition(before.checkpoint_id)
    saved = await save(store, scope, content=patch(append={"a": many}), precondition=on)
    await save(store, scope, "t2", content=state(a=[*few, *many]))
    one, other = await load(store, scope), await load(store, scope, "t2")
    assert one.checkpoint_id == saved.checkpoint_id
    assert msgpack.unpackb(one.channels["a"].value.data) == [*few, *many]
    assert one.channels["a"].value == other.channels["a"].value
