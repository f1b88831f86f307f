"""Effects: start one, say how it ended, say what became of an unknown one, look."""

from typing import Annotated

from msgspec import UNSET, Meta, Raw, Struct

from gateway import wire
from gateway.authentication.principals import LISTING, SUBJECT, check_permission
from gateway.bodies.codec import value_in, value_out
from gateway.bodies.scanning import Format
from gateway.http.cursors import PageQuery
from gateway.http.exchange import Answer, Exchange, path_id
from gateway.routes.places import check_checkpoint_id, check_namespace
from gateway.routing.operations import Call, Operation
from gateway.wire.thread_ledgers import effects as bodies
from storage.concurrency.turns import Pauses
from storage.effects.model import Effect, EffectFinish, EffectResolve, EffectStart
from storage.errors import InvalidState
from storage.model import Value
from storage.scope import Scope, TenantListing

_EFFECT = "/v1/threads/{thread_id}/effects/{effect_name}"
_CHANGING = (
    "thread-not-found", "thread-busy", "thread-archived", "integrity-failure", "key-destroyed", "commit-unknown",
    "limit-exceeded",
)  # fmt: skip


class EffectQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    """Which namespace's, and which execution; absent: the newest."""

    namespace: wire.base.Namespace = ""
    execution: Annotated[int, Meta(ge=1, lt=2**31)] | None = None


class EffectsQuery(PageQuery, kw_only=True, forbid_unknown_fields=True):
    """Which effects."""

    status: bodies.EffectStatus | None = None
    checkpoint_id: wire.base.CheckpointIdText | None = None


async def _plain(exchange: Exchange, name: Format, raw: Raw, where: str) -> bytes:
    """A value of a body as MessagePack.

    Raises:
        InvalidState: It has no such form.
    """
    value = await exchange.reservation.run(value_in(name, raw, where), len(memoryview(raw)))
    if value.encoding != "msgpack":
        raise InvalidState("must be plain: integers of 64 bits, and no $encoded", where)
    return value.data


async def _shown(exchange: Exchange, effect: Effect) -> bodies.Effect:
    """An effect as it is shown, with its arguments and its result where they have been read."""
    shown = bodies.Effect.of(
        effect,
        provider_key=str(effect.provider_key),
        artifact_id=None if effect.artifact_id is None else str(effect.artifact_id),
        result_digest=UNSET if effect.result_digest is None else effect.result_digest,
        args=UNSET,
        result=UNSET,
    )
    if effect.args is not None:
        shown.args = await _value(exchange, effect.args)
    if effect.result is not None:
        shown.result = await _value(exchange, effect.result)
    return shown


async def _value(exchange: Exchange, data: bytes) -> Raw:
    return await exchange.reservation.run(value_out(exchange.format, Value("msgpack", data)), len(data))


@Operation(
    f"PUT {_EFFECT}",
    reach=SUBJECT,
    summary="Start an effect: whether its tool is to run now, committed before it does; or what it did the other time.",
    permission="state:write",
    body=bodies.EffectStartRequest,
    returns=bodies.EffectStarted,
    headers=("Stateroom-Client-Share",),
    problems=(*_CHANGING, "effect-in-progress", "effect-mismatch", "effect-repeats", "effect-unknown",
              "effects-exceeded", "claim-lost", "thread-claimed", "approval-not-found", "approval-required",
              "approval-undecided", "approval-rejected", "approval-consumed", "approval-lapsed", "action-changed",
              "feature-off", "quota-exceeded"),
)  # fmt: skip
async def start_effect(call: Call[Scope], thread_id: str, effect_name: str) -> Answer:
    request, form, _ = await call.exchange.body(bodies.EffectStartRequest)
    thread = path_id(thread_id, "thread_id")
    start = EffectStart(
        thread_id=thread,
        namespace=check_namespace(request.namespace, pointer="/namespace"),
        name=path_id(effect_name, "effect_name"),
        tool=request.tool,
        args=await _plain(call.exchange, form, request.args, "/args"),
        identity=("",) if request.identity is UNSET else tuple(request.identity),
        mode=request.mode,
        checkpoint_id=_checkpoint(request.checkpoint_id),
        run_id=request.run_id,
        fence=request.fence,
        lease_seconds=request.lease_seconds,
        approval_id=request.approval_id,
        approval_position=request.approval_position,
        tool_digest=request.tool_digest,
        needs_approval=request.needs_approval,
        repeat=request.repeat,
    )
    starting = call.store.effects.start(
        call.scope, start, key_id=call.principal.key_id, share=call.exchange.client_share()
    )
    started = await call.services.write(call.scope, thread, starting)
    shown = await _shown(call.exchange, started.effect)
    return call.exchange.reply(bodies.EffectStarted(must_run=started.must_run, effect=shown), compressed=True)


def _checkpoint(checkpoint_id: str | None) -> str | None:
    return None if checkpoint_id is None else check_checkpoint_id(checkpoint_id, "/checkpoint_id")


@Operation(
    f"POST {_EFFECT}/finish",
    reach=SUBJECT,
    summary="Say how an effect ended. The same again changes nothing.",
    permission="state:write",
    body=bodies.EffectFinishRequest,
    returns=bodies.Effect,
    headers=("Stateroom-Client-Share",),
    problems=(*_CHANGING, "effect-not-found", "effect-superseded", "quota-exceeded"),
)
async def finish_effect(call: Call[Scope], thread_id: str, effect_name: str) -> Answer:
    request, form, _ = await call.exchange.body(bodies.EffectFinishRequest)
    thread = path_id(thread_id, "thread_id")
    result = request.result
    finish = EffectFinish(
        thread_id=thread,
        namespace=check_namespace(request.namespace, pointer="/namespace"),
        name=path_id(effect_name, "effect_name"),
        execution=request.execution,
        attempt=request.attempt,
        status=request.status,
        result=None if result is UNSET else await _plain(call.exchange, form, result, "/result"),
        result_digest=request.result_digest,
        result_bytes=request.result_bytes,
        artifact_id=request.artifact_id,
        error=request.error,
    )
    finishing = call.store.effects.finish(call.scope, finish, share=call.exchange.client_share())
    return call.exchange.reply(
        await _shown(call.exchange, await call.services.write(call.scope, thread, finishing)), compressed=True
    )


@Operation(
    f"POST {_EFFECT}/resolve",
    reach=SUBJECT,
    summary="Say of an effect of unknown outcome whether it happened: a person with approval:decide, by another key "
    "than the one that started it, or by_check a program that asked the service, with state:write.",
    permission="state:read",
    body=bodies.EffectResolveRequest,
    returns=bodies.Effect,
    headers=("Stateroom-Client-Share",),
    problems=(
        *_CHANGING,
        "effect-not-found",
        "effect-not-unknown",
        "effect-own-key",
        "effect-superseded",
        "effect-in-progress",
        "quota-exceeded",
    ),
)
async def resolve_effect(call: Call[Scope], thread_id: str, effect_name: str) -> Answer:
    request, form, _ = await call.exchange.body(bodies.EffectResolveRequest)
    check_permission(call.principal, "state:write" if request.by_check else "approval:decide")
    thread = path_id(thread_id, "thread_id")
    result = request.result
    resolve = EffectResolve(
        thread_id=thread,
        namespace=check_namespace(request.namespace, pointer="/namespace"),
        name=path_id(effect_name, "effect_name"),
        execution=request.execution,
        attempt=request.attempt,
        happened=request.happened,
        result=None if result is UNSET else await _plain(call.exchange, form, result, "/result"),
        by_check=request.by_check,
    )
    resolving = call.store.effects.resolve(
        call.scope,
        resolve,
        principal=call.principal.key_id,
        actor=call.actor,
        share=call.exchange.client_share(),
    )
    return call.exchange.reply(
        await _shown(call.exchange, await call.services.write(call.scope, thread, resolving)), compressed=True
    )


@Operation(
    f"GET {_EFFECT}",
    reach=SUBJECT,
    summary="Show an execution of an effect, the newest unless one is named, with its result.",
    permission="state:read",
    query=EffectQuery,
    returns=bodies.Effect,
    headers=("Stateroom-Client-Share",),
    problems=("thread-not-found", "effect-not-found", "integrity-failure", "key-destroyed"),
)
async def get_effect(call: Call[Scope], thread_id: str, effect_name: str) -> Answer:
    query = call.exchange.query(EffectQuery)
    found = await call.store.effects.get(
        call.scope,
        path_id(thread_id, "thread_id"),
        check_namespace(query.namespace, parameter="namespace"),
        path_id(effect_name, "effect_name"),
        execution=query.execution,
        share=call.exchange.client_share(),
    )
    return call.exchange.reply(await _shown(call.exchange, found), compressed=True)


@Operation(
    "GET /v1/threads/{thread_id}/effects",
    reach=SUBJECT,
    summary="List a thread's effects, of all namespaces, without their results.",
    permission="state:read",
    query=EffectsQuery,
    returns=bodies.EffectPage,
    headers=("Stateroom-Client-Share",),
    problems=("thread-not-found", "integrity-failure", "key-destroyed"),
)
async def list_effects(call: Call[Scope], thread_id: str) -> Answer:
    query = call.exchange.query(EffectsQuery)
    thread = path_id(thread_id, "thread_id")
    scope = call.scope
    cursor = call.cursor(query.cursor, scope.tenant_id, scope.subject_id, thread, query.status, query.checkpoint_id)
    page = await call.store.effects.list(
        call.scope,
        thread,
        status=query.status,
        checkpoint_id=query.checkpoint_id,
        limit=query.limit,
        after=cursor.after,
        share=call.exchange.client_share(),
    )
    effects, pauses = [], Pauses()
    for each in page.items:
        await pauses.after(0)
        effects.append(await _shown(call.exchange, each))
    return call.exchange.reply(bodies.EffectPage(effects=effects, next_cursor=cursor.next(page.after)), compressed=True)


@Operation(
    "GET /v1/unknown-effects",
    reach=LISTING,
    summary="Effects that may have happened or not: of the subject, or of the tenant; clear columns only, nothing is "
    "opened.",
    permission="state:read",
    query=PageQuery,
    returns=bodies.UnknownEffectPage,
)
async def list_unknown_effects(call: Call[Scope | TenantListing]) -> Answer:
    query = call.exchange.query(PageQuery)
    whose = call.scope.subject_id if isinstance(call.scope, Scope) else None
    cursor = call.cursor(query.cursor, call.scope.tenant_id, whose)
    page = await call.store.effects.unknown(call.scope, limit=query.limit, after=cursor.after)
    effects = [bodies.UnknownEffect.of(each) for each in page.items]
    return call.exchange.reply(bodies.UnknownEffectPage(effects=effects, next_cursor=cursor.next(page.after)))
