"""Claims and effects in a line, what of them the database holds, and time that passes for a claim or an effect."""

# ruff: noqa: S608  table and column names are constants of these tests

from datetime import timedelta
from typing import Any

import asyncpg

from storage.claims.model import Claim, ClaimRequest
from storage.effects.model import (
    REPEAT_WINDOW_SECONDS,
    Effect,
    EffectFinish,
    EffectResolve,
    EffectStart,
    EffectStarted,
)
from storage.effects.rows import EffectChange
from storage.encoding import encode_msgpack
from storage.format.thread_ledgers.names import effect_name_mac
from storage.scope import ClientShare, Scope
from storage.service import Store
from storage.statements.thread_ledgers import effects as sql
from storage.thread_ledgers.locked import LockedLedger

ACTOR = "api-key:worker"
KEY = "worker"
SHARE = ClientShare(b"s" * 32)
TABLES = ("claims", "effects", "ledger_seals")


async def claim(
    store: Store,
    scope: Scope,
    holder: str = "one",
    thread_id: str = "t1",
    share: ClientShare | None = None,
    **more: Any,
) -> Claim:
    """Claim a thread."""
    return await store.claims.claim(
        scope, ClaimRequest(thread_id=thread_id, holder=holder, **more), actor=ACTOR, share=share
    )


async def start(
    store: Any,
    scope: Scope,
    name: str = "call-1",
    *,
    thread_id: str = "t1",
    share: ClientShare | None = None,
    key_id: str = KEY,
    **parts: Any,
) -> EffectStarted:
    """Ask whether a tool is to run."""
    args = encode_msgpack(parts.pop("args", {"to": "bob", "amount": 50}))
    parts = {"namespace": "", "tool": "pay", **parts}
    wanted = EffectStart(thread_id=thread_id, name=name, args=args, **parts)
    return await store.effects.start(scope, wanted, key_id=key_id, share=share)


async def finish(
    store: Any,
    scope: Scope,
    started: EffectStarted | Effect,
    status: Any = "done",
    share: ClientShare | None = None,
    **parts: Any,
) -> Effect:
    """Say what became of it."""
    effect = started.effect if isinstance(started, EffectStarted) else started
    if "result" in parts:
        parts["result"] = encode_msgpack(parts["result"])
    ended = EffectFinish(
        thread_id=effect.thread_id, namespace=effect.namespace, name=effect.name, execution=effect.execution,
        attempt=effect.attempt, status=status, **parts,
    )  # fmt: skip
    return await store.effects.finish(scope, ended, share=share)


async def resolve(
    store: Any, scope: Scope, effect: Effect, *, happened: bool, principal: str = "person", **parts: Any
) -> Effect:
    """Say whether it happened."""
    share = parts.pop("share", None)
    found = EffectResolve(
        thread_id=effect.thread_id, namespace=effect.namespace, name=effect.name, execution=effect.execution,
        **{"attempt": effect.attempt, "happened": happened, **parts},
    )  # fmt: skip
    return await store.effects.resolve(scope, found, principal=principal, actor=f"api-key:{principal}", share=share)


async def rows(admin: asyncpg.Connection, scope: Scope, table: str) -> list[dict[str, Any]]:
    """A subject's rows of a table as they are stored, in order."""
    found = await admin.fetch(
        f"SELECT * FROM stateroom.{table} WHERE tenant_id = $1 AND subject_id = $2", scope.tenant_id, scope.subject_id
    )
    return sorted((dict(row) for row in found), key=repr)


async def put_back(admin: asyncpg.Connection, scope: Scope, table: str, stored: list[dict[str, Any]]) -> None:
    """Put a subject's rows of a table back to what they were."""
    await admin.execute(
        f"DELETE FROM stateroom.{table} WHERE tenant_id = $1 AND subject_id = $2", scope.tenant_id, scope.subject_id
    )
    for row in stored:
        numbers = ", ".join(f"${number}" for number in range(1, len(row) + 1))
        await admin.execute(f"INSERT INTO stateroom.{table} ({', '.join(row)}) VALUES ({numbers})", *row.values())


async def claim_over(admin: asyncpg.Connection, scope: Scope, seconds: float = 0.0, thread_id: str = "t1") -> None:
    """Let the claim of a thread be over since a while; the column is not sealed, because it only delays."""
    await admin.execute(
        "UPDATE stateroom.threads SET claimed_until = clock_timestamp() - make_interval(secs => $4)"
        " WHERE tenant_id = $1 AND subject_id = $2 AND thread_id = $3",
        scope.tenant_id, scope.subject_id, thread_id, seconds,
    )  # fmt: skip


async def _changed(store: Store, scope: Scope, names: list[str], thread_id: str, change: Any) -> None:
    """Change columns of effects by the product's own code, as time would have."""
    sealer = await store.keys.sealer(scope)
    async with store.unit_of_work.begin(scope) as transaction:
        ledger = await LockedLedger.lock(transaction, sealer, thread_id, without_share=True)
        effects = EffectChange(transaction, ledger, lambda _: None)
        for row in await transaction.fetch_all(
            sql.LISTED, thread_id=thread_id, status=None, checkpoint_id=None, after_at=None, after_namespace="",
            after_name=b"", after_execution=0, limit=1000,
        ):  # fmt: skip
            named = {effect_name_mac(sealer, thread_id, row.namespace, name) for name in names}
            if not names or row.name_mac in named:
                await effects.set(row, **change(row))


async def effect_over(store: Store, scope: Scope, name: str = "call-1", thread_id: str = "t1") -> None:
    """Let the lease of an effect be over."""
    await _changed(store, scope, [name], thread_id, lambda row: {"leased_until": row.started_at})


async def window_over(store: Store, scope: Scope, thread_id: str = "t1") -> None:
    """Let it be longer ago that effects were started than repeats are asked about."""
    earlier = timedelta(seconds=REPEAT_WINDOW_SECONDS)
    await _changed(store, scope, [], thread_id, lambda row: {"started_at": row.started_at - earlier})
