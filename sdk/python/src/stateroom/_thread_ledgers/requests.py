"""The calls about claims and effects, as steps without I/O.

What a claim of another, or an effect under way, refuses is told at once: whoever asked knows better than the client how
long waiting makes sense.
"""

from stateroom._protocol.core import Call, Steps, asked, encode_body, path
from stateroom._thread_ledgers.held import this_worker, unnamed_run
from stateroom._thread_ledgers.shapes import (
    CLAIM_LEASE_SECONDS,
    ClaimInfo,
    ClaimOptions,
    ClaimRelease,
    ClaimRenewal,
    ClaimRequest,
    ClaimsRequired,
    Effect,
    EffectFinish,
    EffectPage,
    EffectResolve,
    EffectStart,
    EffectStarted,
    EffectStatus,
    SilentThreadPage,
    UnknownEffectPage,
)


def _claim_path(thread_id: str, *more: str) -> str:
    return path("threads", ":", thread_id, "resume-claim", *more)


def _effect_path(thread_id: str, name: str, *more: str) -> str:
    return path("threads", ":", thread_id, "effects", ":", name, *more)


def wanted_claim(options: ClaimOptions, run_id: str | None, if_fence: int | None = None) -> ClaimRequest:
    """The claim that a caller's options ask for.

    Args:
        options: What ``ClaimOptions`` lists.
        run_id: The id of the run; ``None``: a new one.
        if_fence: The fence of the claim that it takes the place of.
    """
    return ClaimRequest(
        holder=options.get("holder") or this_worker(),
        run_id=unnamed_run() if run_id is None else run_id,
        lease_seconds=options.get("lease_seconds", CLAIM_LEASE_SECONDS),
        exclusive=options.get("exclusive", False),
        take_over=options.get("take_over", False),
        note=options.get("note"),
        if_fence=if_fence,
    )


def claim(thread_id: str, wanted: ClaimRequest) -> Steps[ClaimInfo]:
    """Claim a thread; the same holder and run get the same fence again, so that it may be repeated.

    One in the place of another's is refused when it is repeated, and handed out anew if nobody began to work on it.
    """
    body = encode_body(wanted)
    call = Call(method="POST", path=_claim_path(thread_id), body=body, repeatable=True, patient=False)
    return asked(call, ClaimInfo)


def renew(thread_id: str, fence: int, note: str | None = None) -> Steps[ClaimInfo]:
    """Renew a claim, and note something on it."""
    body = encode_body(ClaimRenewal(fence=fence, note=note))
    return asked(Call(method="POST", path=_claim_path(thread_id, "renew"), body=body, repeatable=True), ClaimInfo)


def release(thread_id: str, fence: int) -> Steps[ClaimInfo]:
    """Release a claim."""
    body = encode_body(ClaimRelease(fence=fence))
    return asked(Call(method="POST", path=_claim_path(thread_id, "release"), body=body, repeatable=True), ClaimInfo)


def show_claim(thread_id: str) -> Steps[ClaimInfo]:
    """The newest claim of a thread."""
    return asked(Call(method="GET", path=_claim_path(thread_id), repeatable=True), ClaimInfo)


def require_claims(thread_id: str, *, required: bool) -> Steps[None]:
    """Say whether a thread takes no write without a claim."""
    body = encode_body(ClaimsRequired(required=required))
    yield Call(method="PUT", path=_claim_path(thread_id, "required"), body=body, repeatable=True)


def silent_threads(
    limit: int, cursor: str | None, *, silent_seconds: int, agent: str | None, after_seconds: float = 0.0
) -> Steps[SilentThreadPage]:
    """A page of threads whose claim nobody renews any more."""
    query = (("silent_seconds", silent_seconds), ("agent", agent), ("limit", limit), ("cursor", cursor))
    call = Call(
        method="GET",
        path="/silent-threads",
        query=query,
        repeatable=True,
        subject_optional=True,
        after_seconds=after_seconds,
    )
    return asked(call, SilentThreadPage)


def start(thread_id: str, name: str, wanted: EffectStart) -> Steps[EffectStarted]:
    """Start an effect. Of what happens once, an attempt whose answer was lost is not repeated: it may have begun."""
    call = Call(
        method="PUT",
        path=_effect_path(thread_id, name),
        body=encode_body(wanted),
        repeatable=wanted.mode != "once",
        patient=False,
    )
    return asked(call, EffectStarted)


def finish(thread_id: str, name: str, ended: EffectFinish) -> Steps[Effect]:
    """Say how an effect ended."""
    body = encode_body(ended)
    call = Call(method="POST", path=_effect_path(thread_id, name, "finish"), body=body, repeatable=True)
    return asked(call, Effect)


def resolve(thread_id: str, name: str, found: EffectResolve) -> Steps[Effect]:
    """Say what became of an effect of unknown outcome."""
    body = encode_body(found)
    call = Call(method="POST", path=_effect_path(thread_id, name, "resolve"), body=body, repeatable=True)
    return asked(call, Effect)


def show(
    thread_id: str, name: str, namespace: str, execution: int | None = None, *, after_seconds: float = 0.0
) -> Steps[Effect]:
    """One execution of an effect, the newest unless one is named."""
    call = Call(
        method="GET",
        path=_effect_path(thread_id, name),
        query=(("namespace", namespace), ("execution", execution)),
        repeatable=True,
        after_seconds=after_seconds,
    )
    return asked(call, Effect)


def effects(
    thread_id: str, limit: int, cursor: str | None, *, status: EffectStatus | None, checkpoint_id: str | None
) -> Steps[EffectPage]:
    """A page of a thread's effects."""
    query = (("status", status), ("checkpoint_id", checkpoint_id), ("limit", limit), ("cursor", cursor))
    where = path("threads", ":", thread_id, "effects")
    return asked(Call(method="GET", path=where, query=query, repeatable=True), EffectPage)


def unknown_effects(limit: int, cursor: str | None) -> Steps[UnknownEffectPage]:
    """A page of effects of unknown outcome."""
    query = (("limit", limit), ("cursor", cursor))
    call = Call(method="GET", path="/unknown-effects", query=query, repeatable=True, subject_optional=True)
    return asked(call, UnknownEffectPage)
