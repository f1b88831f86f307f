"""What a tenant has, put into the database as a gateway writes it: through the API it would take minutes.

A store of its own, which is the deployment's: all features are on, as long after an upgrade, and it also does what goes
on in the background of any gateway.
"""

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from uuid import UUID

import msgpack

from crypto.roots import create_root_key
from storage.control.features import KNOWN
from storage.control.rows import adoption_row, policy_row, save_policy_row, schema_row
from storage.format.items.vectors import quantized
from storage.items.finding.index import ITEM_INDEX_BYTES_MAX, VECTOR_BYTES
from storage.items.finding.searching import ITEM_SCAN_ROWS_MAX
from storage.items.model import (
    ITEM_LABELS_MAX,
    ITEM_PATHS_MAX,
    ITEM_VALUE_BYTES_MAX,
    ITEM_VECTORS_MAX,
    Batch,
    ItemName,
    ItemWrite,
    ModelVectors,
)
from storage.model import SaveRule, ThreadLink, Value
from storage.postgres.statement import Statement
from storage.retention.policies import AGENT_POLICIES_MAX, AGENT_POLICY_ROWS_MAX
from storage.schemas.adoptions import ADOPTIONS_MAX
from storage.schemas.registry import SCHEMA_BYTES_MAX, VERSIONS_MAX
from storage.schemas.save_policies import AGENT_SAVE_POLICIES_MAX
from storage.scope import Scope, TenantScope
from storage.service import Store
from storage.statements.rules import adoptions as adoptions_sql
from storage.statements.rules import retention as retention_sql
from storage.statements.rules import save_policies as save_policies_sql
from storage.statements.rules import state_schemas as schemas_sql
from storage.threads.links import ANCESTORS_MAX, FAMILY_THREADS_MAX
from tests.support.events import events_on
from tests.support.features import switch_on
from tests.support.production import Deployment

HEAVY_ITEMS = 200
_PUT_AT_ONCE = 100
# Few, so that there are many vectors.
DIMENSIONS = 16
MODELS = ("m0", "m1", "m2")
COUNTED_ROWS = 300_000  # sixty pages of a count
_FILL = Statement("""
INSERT INTO stateroom.pending_writes
    (tenant_id, subject_id, thread_id, namespace, checkpoint_id, task_id, idx, task_path, channel, created_at,
     key_version, piece_ids, value, member)
SELECT :tenant_id, :subject_id, 'counted', '', 'c', n::text, 0, '', 'a', now(),
    1, '', '', decode(repeat('00', 16), 'hex')
FROM generate_series(1, :count) n
""")
_SINCE = datetime(2026, 1, 1, tzinfo=UTC)
_SAVE_RULE = SaveRule(strict=False, compact_elements=1, compact_bytes=1)  # every save has lists to name
_SAID, _TAKEN_BACK = b'{"idle_ttl_seconds":31536000}', b"{}"


@asynccontextmanager
async def opened(deployment: Deployment) -> AsyncIterator[Store]:
    """The deployment's store, its features switched on."""
    store = await Store.open(
        deployment.environ["STATEROOM_DATABASE_URL"],
        root_key=create_root_key(deployment.environ["STATEROOM_ROOT_KEY"]),
        deployment_id=UUID(deployment.environ["STATEROOM_DEPLOYMENT_ID"]),
        connections_max=2,
    )
    try:
        for feature in KNOWN:
            await switch_on(store, feature)
        yield store
    finally:
        await store.close()


def agent_of(number: int) -> str:
    """One of as many agents as may have a policy; as long a name as there may be."""
    return f"agent-{number}-".ljust(255, "a")


async def policies(store: Store, tenant_id: UUID) -> None:
    """As many save policies, retention policies and those that were taken back as there may be, and adoptions."""
    await store.control.ready()
    prove = store.control.proof
    async with store.unit_of_work.begin(TenantScope(tenant_id)) as transaction:
        for number in range(AGENT_SAVE_POLICIES_MAX):
            agent = agent_of(number)
            proof = prove(save_policy_row(tenant_id, agent, _SAVE_RULE, _SINCE))
            await transaction.run(
                save_policies_sql.PUT, agent=agent, strict=_SAVE_RULE.strict,
                compact_elements=_SAVE_RULE.compact_elements, compact_bytes=_SAVE_RULE.compact_bytes,
                updated_at=_SINCE, **proof._asdict(),
            )  # fmt: skip
        for number in range(AGENT_POLICY_ROWS_MAX):
            agent, body = agent_of(number), _SAID if number < AGENT_POLICIES_MAX else _TAKEN_BACK
            proof = prove(policy_row(tenant_id, "agent", (agent,), body, False, _SINCE))
            await transaction.run(
                retention_sql.PUT, owner=tenant_id, level="agent", target=agent, policy=body, legal_hold=False,
                updated_at=_SINCE, **proof._asdict(),
            )  # fmt: skip


async def schema_of_many_versions(store: Store, tenant_id: UUID) -> None:
    """A schema of as many versions, and as many bytes, as there may be, and as many adoptions at it."""
    await store.control.ready()
    prove = store.control.proof
    async with store.unit_of_work.begin(TenantScope(tenant_id)) as transaction:
        for number in range(1, VERSIONS_MAX + 1):
            label = b'{"label":"%b"}' % (b"v" * (SCHEMA_BYTES_MAX // VERSIONS_MAX - 20))
            proof = prove(schema_row(tenant_id, "s", number, label, _SINCE))
            await transaction.run(
                schemas_sql.ADD, schema="s", number=number, definition=label, created_at=_SINCE, **proof._asdict()
            )
        for number in range(ADOPTIONS_MAX):
            agent = agent_of(number)
            proof = prove(adoption_row(tenant_id, agent, "", 1, "s", 1, _SINCE))
            await transaction.run(
                adoptions_sql.ADD, agent=agent, namespace="", number=1, state_schema="s", state_version=1,
                adopted_at=_SINCE, **proof._asdict(),
            )  # fmt: skip


async def families(store: Store, tenant_id: UUID) -> None:
    """A thread with one child more than a family may have, and one with as many ancestors as there may be."""
    scope = Scope(tenant_id, "attacker")
    for number in range(FAMILY_THREADS_MAX):
        await store.links.link(scope, f"child-{number}", ThreadLink("wide"))
    for number in range(ANCESTORS_MAX):
        await store.links.link(scope, f"deep-{number + 1}", ThreadLink(f"deep-{number}"))


async def many_paths(store: Store, tenant_id: UUID) -> None:
    """As many paths of items as there may be, of as many labels, with an item in each."""
    labels = tuple(f"label-{number}" for number in range(ITEM_LABELS_MAX - 1))
    await _put(store, tenant_id, [((*labels, f"p{number}"), "k", b"\x80") for number in range(ITEM_PATHS_MAX)])


async def many_items(store: Store, tenant_id: UUID) -> None:
    """As many items in a path as the searches of a request look at."""
    value = msgpack.packb({"kind": "fact", "text": "remembered " * 20, "tags": [[]] * 40})
    await _put(store, tenant_id, [(("many",), f"k{number}", value) for number in range(ITEM_SCAN_ROWS_MAX)])


async def heavy_items(store: Store, tenant_id: UUID) -> None:
    """Items of as many bytes as there may be: random ones, empty lists, one text, and as many members."""
    size = ITEM_VALUE_BYTES_MAX - 1024
    values = (
        {"a": os.urandom(size)},
        {"a": [[]] * (size // 2), "b": [[]] * (size // 4), "c": "x"},
        {"a": "a" * size},
        {f"{number:x}": 0 for number in range(size // 7)},
    )
    await _put(
        store, tenant_id, [(("heavy",), f"k{n}", msgpack.packb(values[n % len(values)])) for n in range(HEAVY_ITEMS)]
    )


async def many_vectors(store: Store, tenant_id: UUID) -> None:
    """As many vectors as are searched, by each of three models: more than a process keeps open."""
    scope = Scope(tenant_id, "attacker")
    vectors = tuple(quantized([*os.urandom(DIMENSIONS)]) for _ in range(ITEM_VECTORS_MAX))
    by_models = tuple(ModelVectors(model, vectors) for model in MODELS)
    count = ITEM_INDEX_BYTES_MAX // ((DIMENSIONS + VECTOR_BYTES) * ITEM_VECTORS_MAX)
    for start in range(0, count, _PUT_AT_ONCE):
        writes = [
            ItemWrite(ItemName(("means",), f"k{number}"), Value("msgpack", b"\x80"), vectors=by_models)
            for number in range(start, min(start + _PUT_AT_ONCE, count))
        ]
        await store.items.run(scope, Batch(writes=writes))


async def events(store: Store, tenant_id: UUID) -> None:
    """The tenant's events are on."""
    await events_on(store, tenant_id)


async def _put(store: Store, tenant_id: UUID, items: Sequence[tuple[tuple[str, ...], str, bytes]]) -> None:
    scope = Scope(tenant_id, "attacker")
    for start in range(0, len(items), _PUT_AT_ONCE):
        writes = [
            ItemWrite(ItemName(path, key), Value("msgpack", value))
            for path, key, value in items[start : start + _PUT_AT_ONCE]
        ]
        await store.items.run(scope, Batch(writes=writes))


async def rows_to_count(store: Store, tenant_id: UUID) -> None:
    """More rows of one subject than are looked at in an hour of saves; nobody opens them."""
    async with store.unit_of_work.begin(Scope(tenant_id, "counted")) as transaction:
        await transaction.run(_FILL, count=COUNTED_ROWS)


async def count(store: Store, tenant_id: UUID) -> None:
    """Count a tenant's rows, whatever the time."""
    assert await store.row_counting.tenant(tenant_id, now=True) is not None
