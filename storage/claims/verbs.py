"""The verbs on claims."""

from storage.access.access import Access
from storage.administration.audit import Audit
from storage.claims.model import Claim, ClaimRequest, SilentThread
from storage.control.features import Features
from storage.model import Page
from storage.scope import ClientShare, Scope, TenantListing


class Claims:
    """The verbs on claims."""

    def __init__(self, access: Access, features: Features, audit: Audit) -> None:
        self._access = access
        self._features = features
        self._audit = audit

    async def claim(
        self, scope: Scope, request: ClaimRequest, *, actor: str, share: ClientShare | None = None
    ) -> Claim:
        """Claim a thread; again by the same holder and run while it is live: renew it.

        Args:
            scope: The tenant and subject.
            request: Who wants to go on, and how.
            actor: ``api-key:<id>``, for the audit log, which has takeovers of live claims and of stuck threads.
            share: The client's share of the thread's keys.

        Raises:
            FeatureOff: A process of an older build may run.
            ThreadNotFound: There is no such thread.
            ClaimHeld: Another one's claim is live (409 `claim-held`, with Retry-After).
            ThreadStuck: One holder after the other died (409 `thread-stuck`).
            ThreadArchived: It is to be restored first; that is done by asking.
        """
        raise NotImplementedError

    async def renew(
        self,
        scope: Scope,
        thread_id: str,
        fence: int,
        *,
        lease_seconds: int | None = None,
        note: str | None = None,
        share: ClientShare | None = None,
    ) -> Claim:
        """Renew a claim, also one that is over and that nobody else took; what is not given stays.

        Raises:
            ThreadNotFound: There is no such thread.
            ClaimLost: The claim is another's, or was released (412 `claim-lost`).
        """
        raise NotImplementedError

    async def release(self, scope: Scope, thread_id: str, fence: int) -> Claim:
        """Release a claim; one that is released stays so. No share is needed.

        Raises:
            ThreadNotFound: There is no such thread.
            ClaimLost: The claim is another's.
        """
        raise NotImplementedError

    async def get(self, scope: Scope, thread_id: str, *, share: ClientShare | None = None) -> Claim:
        """The newest claim of a thread, whatever became of it.

        Raises:
            ThreadNotFound: There is no such thread.
            ClaimNotFound: Nobody ever claimed it.
        """
        raise NotImplementedError

    async def set_required(self, scope: Scope, thread_id: str, *, required: bool, actor: str) -> None:
        """Say whether nobody writes to a thread without a claim; lifting that is audited.

        Raises:
            FeatureOff: A process of an older build may run.
            ThreadNotFound: There is no such thread.
        """
        raise NotImplementedError

    async def silent(
        self,
        scope: TenantListing | Scope,
        *,
        silent_seconds: int = 0,
        agent: str | None = None,
        limit: int = 100,
        after: tuple[str, ...] | None = None,
    ) -> Page[SilentThread]:
        """Threads whose claim is over for at least so long and was not released, by subject and thread.

        Clear columns only: nothing is opened, and nothing of it is proved. Whoever claims one is told the truth.
        """
        raise NotImplementedError
