"""A store in memory for tests of pure HTTP rules; it keeps the signatures of the real one and little else."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

from crypto import KeyDestroyed
from gateway.authentication import api_keys
from gateway.settings import Settings
from storage import model
from storage.approvals import model as approvals
from storage.clock import ManualClock
from storage.control.clock_check import ClockOffset
from storage.errors import ApprovalNotFound, CheckpointNotFound, ThreadNotFound
from storage.events import model as events
from storage.keys.key_seals import Pepper, Peppers
from storage.schemas.versions import WantedVersions
from storage.scope import ClientShare, OperatorScope, Scope, TenantListing, TenantScope
from storage.service import Health

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
PEPPER = bytes(range(32))
PEPPERS = Peppers(Pepper(1, PEPPER))


class Checkpoints:
    def __init__(self) -> None:
        self.saves: list[tuple[Scope, model.Save]] = []
        self.writes: list[model.PendingWrite] = []
        self.queries: list[model.HistoryQuery] = []
        self.gate: asyncio.Event | None = None
        self.reached = asyncio.Event()
        self.error: Exception | None = None
        self.after: tuple[str, ...] | None = None

    async def save(
        self, scope: Scope, save: model.Save, share: ClientShare | None = None, beside: object = None
    ) -> model.Saved:
        self.reached.set()
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            raise self.error
        self.saves.append((scope, save))
        return model.Saved(
            thread_id=save.thread_id, namespace=save.namespace, checkpoint_id=save.checkpoint_id or "c1",
            parent_id=None, step=0, status=save.status, sequence=len(self.saves), created_at=NOW,
            created=True, head_id="c1",
        )  # fmt: skip

    def _checkpoint(self, save: model.Save, *, with_state: bool) -> model.Checkpoint:
        channels = {}
        if isinstance(save.content, model.FullState):
            channels = {
                name: model.Channel(version=channel.version, value=channel.value)
                for name, channel in save.content.channels.items()
                if channel.value is not None
            }
        return model.Checkpoint(
            thread_id=save.thread_id, namespace=save.namespace, checkpoint_id=save.checkpoint_id or "c1",
            parent_id=None, step=0, status=save.status, source=save.source, agent=save.agent,
            run_id=save.run_id, created_at=NOW, state_schema=None, state_version=None, model=save.model,
            usage=save.usage, metadata=save.metadata,
            delta_channels=save.delta_channels, channels=channels if with_state else None,
            writes=list(self.writes) if with_state else None,
        )  # fmt: skip

    async def load(self, scope: Scope, load: model.Load, share: ClientShare | None = None) -> model.Loaded:
        for owner, save in reversed(self.saves):
            if (owner, save.thread_id, save.namespace) == (scope, load.thread_id, load.namespace):
                checkpoint = self._checkpoint(save, with_state=load.with_state)
                histories = None if load.history is None else self._histories(load.history, load.mark)
                return model.Loaded(checkpoint=checkpoint, head_id="c1", token="token", histories=histories)
        raise CheckpointNotFound

    async def history(
        self, scope: Scope, query: model.HistoryQuery, share: ClientShare | None = None
    ) -> model.Page[model.Checkpoint]:
        self.queries.append(query)
        items = [self._checkpoint(save, with_state=query.with_state) for owner, save in self.saves if owner == scope]
        return model.Page(items, self.after)

    async def put_writes(
        self, scope: Scope, new: model.TaskWrites, share: ClientShare | None = None
    ) -> model.WritesReceipt:
        self.writes += [
            model.PendingWrite(
                task_id=new.task_id, idx=write.idx, task_path=new.task_path, channel=write.channel, value=write.value
            )
            for write in new.writes
        ]
        return model.WritesReceipt(stored=len(new.writes), unchanged=0)

    async def task_writes(
        self, scope: Scope, query: model.TaskWritesQuery, share: ClientShare | None = None
    ) -> list[model.PendingWrite]:
        return [write for write in self.writes if write.task_id == query.task_id]

    async def channel_history(
        self, scope: Scope, query: model.ChannelHistoryQuery, share: ClientShare | None = None
    ) -> model.ChannelHistories:
        return self._histories(query.channels, query.mark)

    @staticmethod
    def _histories(channels: Sequence[str], mark: str | None) -> model.ChannelHistories:
        histories = {name: model.ChannelHistory(writes=[], seed=None) for name in channels}
        return model.ChannelHistories(channels=histories, mark=mark)


class States:
    """Gives state as it was saved, whatever version is asked for, and passes the rest on."""

    def __init__(self, checkpoints: Checkpoints) -> None:
        self._checkpoints = checkpoints
        self.wanted: list[WantedVersions] = []
        self.save = checkpoints.save
        self.put_writes = checkpoints.put_writes

    async def load(self, scope: Scope, wanted: WantedVersions, *place: Any, **how: Any) -> model.Loaded:
        self.wanted.append(wanted)
        return await self._checkpoints.load(scope, *place, **how)

    async def history(
        self, scope: Scope, wanted: WantedVersions, query: model.HistoryQuery, share: ClientShare | None = None
    ) -> model.Page[model.Checkpoint]:
        self.wanted.append(wanted)
        return await self._checkpoints.history(scope, query, share)

    async def task_writes(
        self, scope: Scope, wanted: WantedVersions, *place: Any, **how: Any
    ) -> list[model.PendingWrite]:
        self.wanted.append(wanted)
        return await self._checkpoints.task_writes(scope, *place, **how)

    async def channel_history(
        self, scope: Scope, wanted: WantedVersions, *place: Any, **how: Any
    ) -> model.ChannelHistories:
        self.wanted.append(wanted)
        return await self._checkpoints.channel_history(scope, *place, **how)


class Threads:
    def __init__(self) -> None:
        self.seen: list[tuple[Any, ...]] = []

    async def list(
        self,
        scope: Scope,
        *,
        status: str | None = None,
        agent: str | None = None,
        tier: str | None = None,
        limit: int = 100,
        after: tuple[str, ...] | None = None,
    ) -> model.Page[model.Thread]:
        self.seen.append(("list", scope, status, limit, after))
        return model.Page([], ("2026-01-02T03:04:05Z", "t1"))

    async def get(self, scope: Scope, thread_id: str) -> model.Thread:
        self.seen.append(("get", scope, thread_id))
        raise ThreadNotFound

    async def put(
        self,
        scope: Scope,
        thread_id: str,
        *,
        strict: bool | None = None,
        agent: str | None = None,
        agent_given: bool = False,
        share: ClientShare | None = None,
    ) -> model.Thread:
        return model.Thread(
            thread_id=thread_id, agent=agent, status="active", tier="hot", strict=bool(strict),
            client_share=share is not None, created_at=NOW, updated_at=NOW, head_id=None,
        )  # fmt: skip

    async def delete(self, scope: Scope, thread_id: str) -> model.Removal:
        return model.Removal(threads=1, checkpoints=0, pending_writes=0)

    async def copy(self, scope: Scope, source: str, target: str) -> model.Copied:
        return model.Copied(thread_id=target, checkpoints=0, pending_writes=0)

    async def prune(
        self, scope: Scope, thread_ids: Sequence[str], strategy: model.Strategy, share: ClientShare | None = None
    ) -> model.Removal:
        return model.Removal(threads=0, checkpoints=0, pending_writes=0)

    async def delete_runs(
        self, scope: Scope, run_ids: Sequence[str], share: ClientShare | None = None
    ) -> model.Removal:
        return model.Removal(threads=0, checkpoints=0, pending_writes=0)


class Tenants:
    def __init__(self) -> None:
        self.api_keys: dict[str, model.ApiKeyRecord] = {}
        self.tenants: dict[UUID, model.Tenant] = {}
        self.look_ups: list[str] = []
        self.touched: dict[tuple[UUID | None, str], datetime] = {}

    async def maker_of(self, scope: TenantScope, key_id: str, peppers: Any) -> str | None:
        return None

    async def principal_of(self, scope: TenantScope, key_id: str, peppers: Any) -> str | None:
        return key_id

    async def create(
        self, scope: OperatorScope, tenant: model.Tenant, first_key: model.ApiKeyRecord, actor: str
    ) -> model.Tenant:
        assert scope.founding == tenant.tenant_id == first_key.tenant_id
        self.tenants[tenant.tenant_id] = tenant
        self.api_keys[first_key.key_id] = first_key
        return tenant

    async def list(self, scope: OperatorScope, limit: int, after: tuple[str, ...] | None) -> model.Page[model.Tenant]:
        return model.Page([*self.tenants.values()][:limit], None)

    async def get(self, scope: OperatorScope, tenant_id: UUID) -> model.Tenant:
        return self.tenants[tenant_id]

    async def look_up_key(self, key_id: str) -> model.ApiKeyRecord | None:
        self.look_ups.append(key_id)
        return self.api_keys.get(key_id)

    async def seals_needed(self) -> bool:
        return False

    async def may_allow_exports(self) -> bool:
        return True

    async def add_key(
        self, scope: TenantScope | OperatorScope, record: model.ApiKeyRecord, actor: str
    ) -> model.ApiKeyRecord:
        return self.api_keys.setdefault(record.key_id, record)

    async def list_keys(
        self, scope: TenantScope, limit: int, after: tuple[str, ...] | None
    ) -> model.Page[model.ApiKeyRecord]:
        return model.Page([key for key in self.api_keys.values() if key.tenant_id == scope.tenant_id], None)

    async def revoke_key(
        self, scope: TenantScope, key_id: str, peppers: Peppers, actor: str, *, force: bool = False
    ) -> None:
        self.api_keys[key_id] = replace(self.api_keys[key_id], revoked_at=NOW)

    async def restamp_keys(self, stamped: Iterable[tuple[model.ApiKeyRecord, model.ApiKeyRecord]]) -> None:
        self.api_keys.update({fresh.key_id: fresh for _, fresh in stamped})

    async def touch_keys(self, used: Mapping[tuple[UUID | None, str], datetime]) -> None:
        self.touched.update(used)


class Audit:
    def __init__(self) -> None:
        self.notes: list[tuple[UUID, str, str, str, int]] = []
        self.flushes = 0

    def note(self, tenant_id: UUID, actor: str, action: str, target: str, status: int) -> None:
        self.notes.append((tenant_id, actor, action, target, status))

    async def flush(self) -> None:
        self.flushes += 1


class Anchors:
    async def ensure_signing_key(self) -> UUID | None:
        return None

    async def watch(self):
        pass

    async def anchor_due(self) -> int:
        return 0


class Shreds:
    async def uphold(self):
        return 0


class HeadAnchors:
    async def flush(self) -> None:
        pass


class Runner:
    async def keep_running(self, failed: Callable[[Exception], None]) -> None:
        await asyncio.Event().wait()


class Sweep:
    async def keep_running(
        self,
        swept: Callable[[Any], None],
        failed: Callable[[Exception], None],
        counted: Callable[[Any], None],
    ) -> None:
        await asyncio.Event().wait()


class Retaining:
    async def keep_running(
        self,
        done: Callable[[Any], None],
        failed: Callable[[Exception], None],
        counted: Callable[[Any], None],
    ) -> None:
        await asyncio.Event().wait()


class RowCounting:
    async def keep_running(
        self,
        counted: Callable[[int], None],
        failed: Callable[[Exception], None],
        told: Callable[[Any], None],
    ) -> None:
        await asyncio.Event().wait()


class RowQuotas:
    async def keep_fresh(self, failed: Callable[[Exception], None]) -> None:
        await asyncio.Event().wait()


class Processes:
    async def beat(self) -> None:
        pass

    async def leave(self) -> None:
        pass


class Features:
    async def refresh(self) -> None:
        pass

    async def ready(self) -> None:
        pass

    def is_switched_on(self, feature: object) -> bool:
        return True


class Items:
    async def flush(self) -> None:
        pass


class EventRelay:
    async def keep_running(self, failed: Callable[[Exception], None], *more: Callable[[Any], None]) -> None:
        await asyncio.Event().wait()


class Events:
    """Events of one tenant, by hand."""

    def __init__(self) -> None:
        self.told: list[events.Event] = []
        self.reads = 0
        self.error: Exception | None = None
        self._woken = asyncio.Event()

    def happen(self, event: events.Event) -> None:
        self.told.append(event)
        self._woken.set()

    async def read(self, scope: Scope | TenantScope, query: events.EventQuery) -> events.EventPage:
        self.reads += 1
        if self.error is not None:
            raise self.error
        newest = self.told[-1] if self.told else None
        last = (
            events.EventPosition(0, None) if newest is None else events.EventPosition(newest.sequence, newest.event_id)
        )
        if query.after is None:
            return events.EventPage([], last, more=False)
        behind = [each for each in self.told if each.sequence > query.after.sequence]
        shown = [
            each
            for each in behind
            if (not isinstance(scope, Scope) or each.subject_id == scope.subject_id)
            and (not query.types or each.type in query.types)
            and query.thread_id in {None, each.thread_id}
        ]
        page = shown[: query.limit]
        if len(page) < len(shown):
            return events.EventPage(page, events.EventPosition(page[-1].sequence, page[-1].event_id), more=True)
        return events.EventPage(page, last, more=False)

    async def newest(self, tenant_id: UUID) -> int:
        return self.told[-1].sequence if self.told else 0

    def woken(self, tenant_id: UUID) -> asyncio.Event:
        return self._woken


class Approvals:
    """Approvals of one tenant, which stand as a test says."""

    def __init__(self) -> None:
        self.stored: dict[UUID, approvals.Approval] = {}
        self.content: approvals.ApprovalContent | None = None
        self.queries: list[tuple[Scope | TenantListing, approvals.ApprovalQuery]] = []
        self.decisions: list[tuple[Scope | TenantListing, approvals.Decision, approvals.Voter]] = []
        self.opened: list[tuple[approvals.Voter, ClientShare | None]] = []
        self.error: Exception | None = None

    async def list(self, scope: Scope | TenantListing, query: approvals.ApprovalQuery) -> approvals.ApprovalPage:
        self.queries.append((scope, query))
        return approvals.ApprovalPage(list(self.stored.values()), next(iter(self.stored), None))

    async def get(self, scope: Scope | TenantListing, approval_id: UUID) -> approvals.Approval:
        found = self.stored.get(approval_id)
        if found is None or (isinstance(scope, Scope) and scope.subject_id != found.subject_id):
            raise ApprovalNotFound
        return found

    async def open(
        self,
        scope: Scope | TenantListing,
        approval_id: UUID,
        voter: approvals.Voter,
        share: ClientShare | None = None,
    ) -> approvals.ApprovalContent:
        await self.get(scope, approval_id)
        self.opened.append((voter, share))
        assert self.content is not None
        return self.content

    async def decide(
        self,
        scope: Scope | TenantListing,
        decision: approvals.Decision,
        voter: approvals.Voter,
        share: ClientShare | None = None,
    ) -> approvals.Approval:
        if self.error is not None:
            raise self.error
        found = await self.get(scope, decision.approval_id)
        self.decisions.append((scope, decision, voter))
        self.stored[decision.approval_id] = replace(found, status="approved")
        return self.stored[decision.approval_id]

    async def cancel(self, scope: Scope, approval_id: UUID, voter: approvals.Voter) -> approvals.Approval:
        found = await self.get(scope, approval_id)
        self.stored[approval_id] = replace(found, status="cancelled")
        return self.stored[approval_id]


class ApprovalPolicies:
    def __init__(self) -> None:
        self.set: dict[tuple[str | None, str | None], approvals.ApprovalPolicy] = {}

    async def put(
        self,
        scope: TenantScope,
        agent: str | None,
        tool: str | None,
        policy: approvals.ApprovalPolicy | None,
        actor: str = "",
    ) -> list[approvals.PolicyEntry]:
        if policy is None:
            self.set.pop((agent, tool), None)
        else:
            self.set[agent, tool] = policy
        return self._entries()

    def _entries(self) -> list[approvals.PolicyEntry]:
        return [approvals.PolicyEntry(*key, policy, NOW) for key, policy in self.set.items()]

    async def list(self, scope: TenantScope) -> list[approvals.PolicyEntry]:
        return self._entries()


class Keys:
    def __init__(self) -> None:
        self.shredded_ids: set[str] = set()

    async def check_stored(self, scope: Scope) -> None:
        if scope.subject_id in self.shredded_ids:
            raise KeyDestroyed


class ApprovalsExpiring:
    async def run_once(self) -> int:
        return 0


class MemoryStore:
    def __init__(self) -> None:
        self.processes = Processes()
        self.features = Features()
        self.checkpoints = Checkpoints()
        self.states = States(self.checkpoints)
        self.threads = Threads()
        self.tenants = Tenants()
        self.audit = Audit()
        self.anchors = Anchors()
        self.head_anchors = HeadAnchors()
        self.items = Items()
        self.events = Events()
        self.keys = Keys()
        self.approvals = Approvals()
        self.approval_policies = ApprovalPolicies()
        self.event_relay = EventRelay()
        self.shred = Shreds()
        self.runner = Runner()
        self.sweep = Sweep()
        self.approvals_expiring = ApprovalsExpiring()
        self.retaining = Retaining()
        self.row_counting = RowCounting()
        self.row_quotas = RowQuotas()
        self.health_found = Health(writable=True, db_revision="a1", revision_ok=True, clock=ClockOffset(0.0, 0.0))
        self.clock = ManualClock(NOW)
        self.tenant_id = uuid4()

    def empty(self) -> None:
        """Forget what was saved, and how saves were to go; keys stay."""
        self.checkpoints = Checkpoints()
        self.states = States(self.checkpoints)

    async def enter(self) -> None:
        pass

    async def health(self) -> Health:
        return self.health_found

    def mint(
        self,
        kind: str = "subject",
        permissions: Sequence[str] | None = None,
        subject_id: str | None = None,
        **more: Any,
    ) -> str:
        granted = {
            "subject": ("state:read", "state:write", "state:delete"),
            "service": ("state:read", "state:write", "state:delete", "subject:act_as", "tenant:admin"),
            "operator": ("operator",),
        }[kind]
        record, text = api_keys.mint(
            PEPPERS,
            api_keys.NewKey(
                kind=kind,
                permissions=tuple(granted if permissions is None else permissions),
                now=NOW,
                tenant_id=None if kind == "operator" else self.tenant_id,
                subject_id=(subject_id or "user-1") if kind == "subject" else None,
                **more,
            ),
        )
        self.tenants.api_keys[record.key_id] = record
        return text


def settings(**changes: Any) -> Settings:
    return Settings(
        **{
            "database_url": "postgresql://nobody@127.0.0.1/none",
            "root_key": "file:none",
            "api_key_pepper": PEPPER,
            "deployment_id": UUID(int=1),
            "drain_seconds": 0.0,
            **changes,
        }
    )
