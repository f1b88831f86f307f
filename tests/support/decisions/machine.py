"""The machine: two gateways, four workers and three people on one database, of which a seeded one is killed and begun
again, as often as it is asked for; then its history.

It waits for what it can see: a process is killed when so many lines were written since. So its moments are wherever a
run is, and the number of kills says when it ends.
"""

import asyncio
import contextlib
import random  # noqa: TID251 - seeded
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import httpx
import msgspec

from crypto.roots import create_root_key
from stateroom import AsyncClient, Timeouts
from stateroom.errors import ApprovalNotFound
from storage.scope import Scope
from storage.service import Store
from tests.support.decisions.balancer import Balancer
from tests.support.decisions.history import ACTIONS, GUARDED_TOOL, History, Line, Replayed, Shown
from tests.support.decisions.journal import Tail
from tests.support.decisions.nursery import Nursery
from tests.support.decisions.people import Approver, Resolver
from tests.support.decisions.watched import watched_on_loop
from tests.support.production import Deployment, Launcher, ProductionGateway, serving

GATEWAYS, WORKERS, THREADS = 2, 4, 8
# So that no thread gets as many ended approvals as are kept: each so many kills, workers go on with others.
KILLS_A_GENERATION = 100
POLL_SECONDS = 0.005
SUBJECT = "user-1"
IMPATIENT = Timeouts(total_seconds=0.3)
WORKER = ("state:read", "state:write", "state:delete", "approval:read", "approval:open", "subject:act_as")
PERSON = ("state:read", "approval:read", "approval:decide", "subject:act_as")


class Keys(msgspec.Struct):
    """A tenant's keys: the texts, and of people the ids, too."""

    tenant_id: UUID
    admin: str
    worker: str
    people: list[tuple[str, str]]


async def new_tenant(url: str, operator_key: str) -> Keys:
    """A tenant whose founding key made one of workers, and one each for three people, before anything was asked."""
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:

        async def asks(path: str, body: dict[str, Any], key: str) -> dict[str, Any]:
            answer = await client.post(path, json=body, headers={"Authorization": f"Bearer {key}"})
            assert answer.status_code == 201, answer.text
            return dict(answer.json())

        founded = await asks("/v1/admin/tenants", {"name": f"machine-{time.monotonic_ns()}"}, operator_key)
        admin = founded["api_key"]
        made = [
            await asks("/v1/api-keys", {"kind": "service", "permissions": permissions}, admin)
            for permissions in (WORKER, PERSON, PERSON, PERSON)
        ]
        policy = await client.put(
            "/v1/approval-policies",
            params={"tool": GUARDED_TOOL},
            json={"required": True},
            headers={"Authorization": f"Bearer {admin}"},
        )
        assert policy.status_code == 200, policy.text
    worker, *people = made
    return Keys(
        UUID(founded["tenant_id"]), admin, worker["api_key"], [(each["key_id"], each["api_key"]) for each in people]
    )


class _Worker:
    """One of the workers, in all of its lives."""

    def __init__(self, name: str) -> None:
        self.name, self.life, self.pid, self.lines = name, 0, 0, 0
        self.thread: str | None = None  # where it was when it was last heard of


class Machine:
    """One run.

    Args:
        launcher: Starts gateways.
        deployment: What they serve.
        folder: Where the world and the journal are kept.
        seed: Says what everybody does, as far as others let them.
    """

    def __init__(self, launcher: Launcher, deployment: Deployment, folder: Path, seed: int) -> None:
        self._launcher, self._deployment, self._folder, self._seed = launcher, deployment, folder, seed
        self._rng = self._random("killer")
        self._gateways = [
            ProductionGateway(launcher, deployment, database_connections_max="6") for _ in range(GATEWAYS)
        ]
        self._workers = [_Worker(f"w{number}") for number in range(WORKERS)]
        self._balancer = Balancer(self._random("balancer"))
        self._world, self._journal = Tail(folder / "world"), Tail(folder / "journal")
        self._restarts: set[asyncio.Task[None]] = set()
        self._lines = 0
        self.history = History()
        self.kills = 0

    def _random(self, who: str) -> random.Random:
        return random.Random(f"{self._seed}/{who}")  # noqa: S311

    # --- What is seen -----------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Read what was written since the last time."""
        self.lines()
        for each in self._journal.lines():
            self._lines += 1
            worker = self._workers[int(each["worker"][1:])]
            worker.lines += each["life"] == worker.life
            worker.thread = each.get("thread", worker.thread)
            match each["kind"]:
                case "did":
                    self.history.actions[each["action"]] += 1
                case "replayed":
                    said = {name: each[name] for name in ("thread", "name", "tool", "args", "nonce")}
                    self.history.replayed.append(Replayed(**said))
                case "refused":
                    self._refused(each["request"], each["status"], each["code"])

    def lines(self) -> list[Line]:
        """What happened in the world so far."""
        found = self._world.lines()
        self._lines += len(found)
        self.history.lines += msgspec.convert(found, list[Line])
        return self.history.lines

    def _refused(self, request: str, status: int, code: str) -> None:
        self.history.codes[code] += 1
        if status == 500:
            self.history.failures.append(f"{request} was answered 500 ({code})")

    def _seen(self, method: str, path: str, status: int, code: str) -> None:
        if status >= 400:
            self._refused(f"{method} {path}", status, code)

    async def _until(self, reached: Any) -> None:
        """Wait until something is seen. Other processes write it: there is nothing to await."""
        self._look()
        while not reached():
            await asyncio.sleep(POLL_SECONDS)
            self._look()
            for task in [each for each in self._running if each.done()]:
                task.result()

    # --- Who lives --------------------------------------------------------------------------------------------------

    async def _begin_gateway(self, gateway: ProductionGateway) -> None:
        await gateway.start()
        port = urlsplit(gateway.url).port
        assert port is not None
        self._balancer.up.add(port)

    def _begin_worker(self, worker: _Worker) -> None:
        generation = self.kills // KILLS_A_GENERATION
        worker.life, worker.lines = worker.life + 1, 0
        settings = {
            "name": worker.name, "life": worker.life, "seed": self._seed, "url": self._balancer.url,
            "folder": str(self._folder), "api_key": self._keys.worker, "subject": SUBJECT,
            "resumed": worker.thread, "threads": [f"t{generation}-{number}" for number in range(THREADS)],
        }  # fmt: skip
        worker.pid = self._nursery.begin(settings, self._folder / f"{worker.name}.log")

    def _kill_worker(self, worker: _Worker) -> None:
        code = self._nursery.kill(worker.pid)
        if code != -9:
            log = (self._folder / f"{worker.name}.log").read_text()
            self.history.failures.append(f"{worker.name} ended by itself: {log[-3000:]}")
        worker.pid = 0

    async def _kill_gateway(self, gateway: ProductionGateway) -> None:
        self._balancer.up.discard(urlsplit(gateway.url).port or 0)
        await gateway.kill()
        if "Traceback" in gateway.log:
            self.history.failures.append(f"a gateway logged {gateway.log[-3000:]}")

    async def _kill(self) -> None:
        """Kill one of those that are up, wherever it is, and begin it again."""
        if self._rng.random() < 0.3:
            up = [each for each in self._gateways if urlsplit(each.url).port in self._balancer.up]
            if up:
                gateway = self._rng.choice(up)
                seen = self._lines + self._rng.randrange(1, 16)
                await self._until(lambda: self._lines >= seen)
                await self._kill_gateway(gateway)
                task = asyncio.create_task(self._begin_gateway(gateway))
                self._restarts.add(task)
                task.add_done_callback(self._restarts.discard)
                return
        worker = self._rng.choice(self._workers)
        seen, own = self._lines + self._rng.randrange(1, 16), self._rng.randrange(1, 16)
        await self._until(lambda: self._lines >= seen and worker.lines >= own)
        self._kill_worker(worker)
        self.history.actions["crash"] += 1
        self._begin_worker(worker)

    # --- The run ----------------------------------------------------------------------------------------------------

    async def run(self, kills: int) -> History:
        """Run until so many were killed, and every action happened; then look at what is left."""
        self._nursery = Nursery()
        try:
            async with self._balancer, self._store() as store:
                await asyncio.gather(*map(self._begin_gateway, self._gateways))
                self._keys = await new_tenant(self._gateways[0].url, self._deployment.operator_key)
                scope = Scope(self._keys.tenant_id, SUBJECT)
                await self._live(kills, store, scope)
                await asyncio.gather(*self._restarts)
                for gateway in self._gateways:
                    await self._kill_gateway(gateway)
                async with serving(self._launcher, self._deployment) as gateway:
                    await self._show(gateway.url)
                    await self._verify(gateway.url)
                    if "Traceback" in gateway.log:
                        self.history.failures.append(f"a gateway logged {gateway.log[-3000:]}")
        finally:
            await asyncio.to_thread(self._nursery.close)
            self._world.close()
            self._journal.close()
            for gateway in self._gateways:
                if gateway.pid:
                    await gateway.kill()
        return self.history

    @asynccontextmanager
    async def _store(self) -> AsyncIterator[Store]:
        environ = self._deployment.environ
        store = await Store.open(
            environ["STATEROOM_DATABASE_URL"],
            root_key=create_root_key(environ["STATEROOM_ROOT_KEY"]),
            deployment_id=UUID(environ["STATEROOM_DEPLOYMENT_ID"]),
            connections_max=2,
        )
        try:
            yield store
        finally:
            await store.close()

    async def _live(self, kills: int, store: Store, scope: Scope) -> None:
        actions = self.history.actions
        ids, keys = zip(*self._keys.people, strict=True)
        url, given_up = self._balancer.url, set[str]()
        clients = [
            watched_on_loop(AsyncClient(url, keys[0], subject=None), self._seen),
            # The second one is impatient: what it said is often not known to have been heard.
            watched_on_loop(AsyncClient(url, keys[1], subject=None, timeouts=IMPATIENT), self._seen),
            watched_on_loop(AsyncClient(url, keys[2], subject=SUBJECT), self._seen),
        ]
        approvers = [Approver(clients[n], ids[n], self._random(f"approver {n}"), actions) for n in range(2)]
        resolver = Resolver(clients[2], self._random("resolver"), actions)
        self._running = [asyncio.create_task(each.decide(store, scope, given_up)) for each in approvers]
        self._running.append(asyncio.create_task(resolver.resolve(self.lines)))
        try:
            for worker in self._workers:
                self._begin_worker(worker)
            while self.kills < kills:
                await self._kill()
                self.kills += 1
                if not self.kills % KILLS_A_GENERATION:
                    print(f"{self.kills} kills, {len(self.history.lines)} effects", flush=True)  # noqa: T201
            await self._until(lambda: all(actions[each] for each in ACTIONS))
            for worker in self._workers:
                self._kill_worker(worker)
            self._look()
        finally:
            for task in self._running:
                task.cancel()
            await asyncio.gather(*self._running, return_exceptions=True)
            for client in clients:
                await client.close()
        self.history.words = resolver.words
        self.history.decisions = [decision for each in approvers for decision in each.decisions]
        self.history.failures += [wrong for each in approvers for wrong in each.wrong]

    # --- What is left -----------------------------------------------------------------------------------------------

    async def _show(self, url: str) -> None:
        """Read every approval that somebody decided about, and what the audit chain has of it."""
        recorded: dict[str, list[tuple[str, list[str]]]] = {}
        consumed: dict[str, list[int]] = {}
        headers = {"Authorization": f"Bearer {self._keys.admin}"}
        async with httpx.AsyncClient(base_url=url, timeout=60, headers=headers) as admin:
            cursor: dict[str, str] = {}
            while True:
                answer = await admin.get("/v1/audit", params={"limit": 1000, **cursor})
                assert answer.status_code == 200, answer.text
                page = answer.json()
                for event in page["events"]:
                    approval, key = event["target"].partition(":")[2], event["actor"].partition(":")[2]
                    if event["action"] == "approval.decided":
                        recorded.setdefault(approval, []).append((key, event["detail"]["verdicts"]))
                    elif event["action"] == "approval.consumed":
                        consumed.setdefault(approval, []).append(event["detail"]["position"])
                if page["next_cursor"] is None:
                    break
                cursor = {"cursor": page["next_cursor"]}
        _, key = self._keys.people[0]
        async with AsyncClient(url, key, subject=None) as client:
            watched_on_loop(client, self._seen)
            for approval in {each.approval for each in self.history.decisions}:
                with contextlib.suppress(ApprovalNotFound):
                    shown = await self._shown(client, approval)
                    shown.recorded, shown.consumed = recorded.get(approval, []), consumed.get(approval, [])
                    self.history.shown[approval] = shown

    async def _shown(self, client: AsyncClient, approval: str) -> Shown:
        stands, content = await client.approvals.get(approval), await client.approvals.open(approval)
        return Shown(
            approval=approval,
            status=stands.status,
            votes=[(each.key_id, each.verdict) for each in stands.votes],
            actions=[(each.status, each.verdict) for each in stands.actions],
            args=[each.edited_args if each.edited_args is not msgspec.UNSET else each.args for each in content.actions],
        )

    async def _verify(self, url: str) -> None:
        """Open every row of the subject."""
        headers = {"Authorization": f"Bearer {self._keys.worker}", "Stateroom-Subject": SUBJECT}
        async with httpx.AsyncClient(base_url=url, timeout=60, headers=headers) as client:
            cursor: dict[str, str] = {}
            threads = 0
            while True:
                answer = await client.post("/v1/threads:verify", json=cursor)
                assert answer.status_code == 200, answer.text
                report = answer.json()
                threads += report["threads"]
                self.history.failures += [f"verification found {each}" for each in report["findings"]]
                if report["next_cursor"] is None:
                    break
                cursor = {"cursor": report["next_cursor"]}
        if not threads:
            self.history.failures.append("verification saw no threads")

    def account(self, seconds: float) -> str:
        """The run in some lines."""
        history = self.history
        decided = Counter(each.outcome for each in history.decisions)
        verdicts = Counter(word for each in history.decisions if each.outcome != "refused" for word in each.verdicts)
        per = Counter(each.mode for each in history.lines)
        crashes, approved = history.actions["crash"], sum(each.approval is not None for each in history.lines)
        unheard = sum(each.answered is None for each in history.words)
        return "\n".join([
            f"seed {self._seed}: {self.kills} kills in {seconds:,.0f} s, {crashes} of them of workers",
            f"actions: {_counted(history.actions)}",
            f"effects in the world: {len(history.lines)} ({_counted(per)}; {approved} under an approval)",
            f"decisions: {_counted(decided)}; verdicts: {_counted(verdicts)}",
            f"words about effects: {len(history.words)}, of which {unheard} may not have been heard",
            f"refused: {_counted(history.codes)}",
        ])  # fmt: skip


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.most_common())
