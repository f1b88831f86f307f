"""What handlers work with: the parts of the running process, wired once by `gateway.app`.

Handlers get this and a scope injected; a scope is the only way to storage.
"""

from collections.abc import Awaitable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from gateway.admission.limits import Admission, Commits, Drain
from gateway.admission.waiting import Waiters
from gateway.authentication.principals import Authenticator
from gateway.events.hub import Hub
from gateway.events.on_record import OnRecord
from gateway.events.positions import Positions
from gateway.events.undecided import Undecided
from gateway.http.artifact_urls import ArtifactUrls
from gateway.http.cursors import Cursors
from gateway.readiness import Readiness
from gateway.settings import Settings
from gateway.telemetry import Metrics
from storage.clock import Clock
from storage.scope import Scope
from storage.service import Store

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Services:
    """The parts by name, and how a write is run."""

    settings: Settings
    store: Store
    authenticator: Authenticator
    admission: Admission
    commits: Commits
    cursors: Cursors
    waiters: Waiters
    hub: Hub
    undecided: Undecided
    event_positions: Positions
    listeners_on_record: OnRecord
    artifact_urls: ArtifactUrls
    drain: Drain
    metrics: Metrics
    readiness: Readiness
    clock: Clock
    openapi_document: bytes
    documentation_page: bytes

    def write(self, scope: Scope, thread_id: str, operation: Coroutine[Any, Any, T]) -> Awaitable[T]:
        """Run a write to a thread when its turn comes, to COMMIT even if the client hangs up.

        Raises:
            ThreadBusy: too many writes to the thread wait, or the turn did not come in time.
        """

        async def admitted() -> T:
            try:
                async with self.admission.thread((scope.tenant_id, scope.subject_id, thread_id)):
                    return await operation
            finally:
                operation.close()  # a coroutine that never got its turn; no effect on one that ran

        return self.commits.run(admitted())
