"""The verbs on effects."""

from storage.access.access import Access
from storage.administration.audit import Audit
from storage.control.features import Features
from storage.effects.approving import Approving, NoApprovals
from storage.effects.model import (
    Effect,
    EffectFinish,
    EffectResolve,
    EffectStart,
    EffectStarted,
    EffectStatus,
    UnknownEffect,
)
from storage.model import Page
from storage.scope import ClientShare, Scope, TenantListing


class Effects:
    """The verbs on effects."""

    def __init__(self, access: Access, features: Features, audit: Audit, approving: Approving | None = None) -> None:
        self._access = access
        self._features = features
        self._audit = audit
        self._approving = approving or NoApprovals()

    async def start(
        self, scope: Scope, wanted: EffectStart, *, key_id: str, share: ClientShare | None = None
    ) -> EffectStarted:
        """Ask whether a tool is to run; if so, that it was started is committed before this returns.

        Args:
            scope: The tenant and subject.
            wanted: What is about to happen.
            key_id: The id of the API key that asks; kept in clear as ``started_by``.
            share: The client's share of the thread's keys.

        Raises:
            FeatureOff: A process of an older build may run.
            ThreadNotFound: There is no such thread.
            CheckpointNotFound: It names a checkpoint that its namespace does not have.
            InvalidState: A pointer leads nowhere, or the arguments have no canonical form.
            ClaimLost: Its fence is not the thread's (412).
            ThreadClaimed: The thread takes no write without a claim (409).
            EffectMismatch: The name was used for something else (422 `effect-mismatch`).
            EffectInProgress: Somebody does it now (409 `effect-in-progress`).
            EffectUnknown: Nobody knows whether it happened (409 `effect-unknown`).
            EffectRepeats: The same was done before (409 `effect-repeats`).
            EffectsExceeded: The thread has too many (409 `effects-exceeded`).
            ApprovalNotFound, ApprovalRequired: As `storage.effects.approving` says.
        """
        raise NotImplementedError

    async def finish(self, scope: Scope, ended: EffectFinish, *, share: ClientShare | None = None) -> Effect:
        """Say what became of a call; the same again changes nothing. No fence is asked for: what happened, happened.

        Raises:
            ThreadNotFound, EffectNotFound: There is none.
            EffectSuperseded: It is another attempt's, or it ended otherwise (409 `effect-superseded`).
        """
        raise NotImplementedError

    async def resolve(
        self,
        scope: Scope,
        found: EffectResolve,
        *,
        principal: str,
        actor: str,
        share: ClientShare | None = None,
    ) -> Effect:
        """Say whether an effect happened of which nobody knew; the same again changes nothing. It is audited.

        Args:
            scope: The tenant and subject.
            found: What was found out.
            principal: Who says so: the id of the API key. Unless a program looked, not the one that started it.
            actor: ``api-key:<id>``, for the audit log.
            share: The client's share of the thread's keys; needed to keep a result of a thread under one.

        Raises:
            ThreadNotFound, EffectNotFound: There is none.
            EffectNotUnknown: It is known (409 `effect-not-unknown`).
            EffectResolverStarted: The principal started it (403 `effect-own-key`).
        """
        raise NotImplementedError

    async def get(
        self,
        scope: Scope,
        thread_id: str,
        namespace: str,
        name: str,
        *,
        execution: int | None = None,
        share: ClientShare | None = None,
    ) -> Effect:
        """One execution of a named effect with its result; None: the newest.

        Raises:
            ThreadNotFound, EffectNotFound: There is none.
        """
        raise NotImplementedError

    async def list(
        self,
        scope: Scope,
        thread_id: str,
        *,
        status: EffectStatus | None = None,
        checkpoint_id: str | None = None,
        limit: int = 100,
        after: tuple[str, ...] | None = None,
        share: ClientShare | None = None,
    ) -> Page[Effect]:
        """Effects of a thread without their results, by tag of the name and execution; ``checkpoint_id``: the anchor.

        Raises:
            ThreadNotFound: There is none.
        """
        raise NotImplementedError

    async def unknown(
        self, scope: TenantListing | Scope, *, limit: int = 100, after: tuple[str, ...] | None = None
    ) -> Page[UnknownEffect]:
        """Effects of which nobody knows whether they happened, by subject and thread: clear columns, nothing opened.

        What was started by somebody who died since is not among them before its start is asked for again.
        """
        raise NotImplementedError
