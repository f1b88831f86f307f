"""The people of the machine: two who decide what is asked, and one who says what became of effects. Nobody kills them.

Each remembers what it said and whether it was heard, and looks again at what it said before. That time passes for a
question is done here, too, by the product's own code: nobody waits for a minute, which is the shortest there is.
"""

import asyncio
import random  # noqa: TID251 - seeded
import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

from stateroom import AsyncClient, AsyncThread, Effect, StateroomError, Verdict
from stateroom._approvals.shapes import Approval, ApprovalContent
from stateroom.errors import ApprovalExpired, Busy, GatewayUnavailable
from storage.approvals.rows import ThreadApprovals
from storage.errors import ApprovalNotFound as NoApproval
from storage.errors import StorageError
from storage.scope import Scope
from storage.service import Store
from storage.thread_ledgers.locked import LockedLedger
from tests.support.decisions.history import Decision, Line, Word
from tests.support.decisions.watched import sent_by

PAUSE_SECONDS = 0.05
# After these nobody knows whether what was said was heard.
_LOST = (GatewayUnavailable, Busy)


async def let_expire(store: Store, scope: Scope, thread_id: str, approval_id: str) -> None:
    """Let the time for a question be over, as a minute would."""
    wanted = UUID(approval_id)

    async def attempt(sealer):
        async with store.unit_of_work.begin(scope) as transaction:
            ledger = await LockedLedger.lock(transaction, sealer, thread_id, without_share=True)
            held = await ThreadApprovals.read(transaction, ledger)
            if wanted in held.approvals and held.approvals[wanted].status == "pending":
                await transaction._connection.execute(
                    "UPDATE stateroom.approvals SET expires_at = $1 WHERE approval_id = $2",
                    ledger.now - timedelta(seconds=1),
                    wanted,
                )
                past = {"expires_at": ledger.now - timedelta(seconds=1)}
                await held.change(held.approvals[wanted], **past)
                await ledger.store(transaction, lambda _: None)

    await store.checkpoints._access.with_existing_keys(scope, attempt, NoApproval())


class Approver:
    """Somebody who decides what waits."""

    def __init__(self, client: AsyncClient, key: str, rng: random.Random, actions: Counter[str]) -> None:
        self._client, self._key, self._rng, self._actions = client, key, rng, actions
        self.decisions: list[Decision] = []
        self.wrong: list[str] = []

    async def decide(self, store: Store, scope: Scope, given_up: set[str]) -> None:
        """Decide for ever. What somebody does not know to be decided nobody decides again."""
        while True:
            try:
                waiting = [each async for each in self._client.approvals.list(status="pending", limit=10)]
                waiting = [each for each in waiting if each.approval_id not in given_up]
                if not waiting:
                    await asyncio.sleep(PAUSE_SECONDS)  # others' processes, whose word is a row
                    continue
                approval = self._rng.choice(waiting)
                if self._rng.random() < 0.08:
                    await self._comes_late(store, scope, approval)
                else:
                    await self._decides(approval, given_up)
                if self.decisions and self._rng.random() < 0.3:
                    await self._looks_again(self._rng.choice(self.decisions[-100:]))
            except (StateroomError, StorageError):
                continue

    def _verdicts(self, content: ApprovalContent) -> list[Verdict]:
        verdicts = []
        for action in content.actions:
            word = self._rng.choices(["approve", "edit", "reject"], [7, 2, 1])[0]
            if word == "edit":
                verdicts.append(Verdict.edit(action.args | {"amount": self._rng.randrange(1_000_000)}))
            else:
                verdicts.append(Verdict.approve() if word == "approve" else Verdict.reject())
        return verdicts

    async def _comes_late(self, store: Store, scope: Scope, approval: Approval) -> None:
        content = await self._client.approvals.open(approval.approval_id)
        await let_expire(store, scope, approval.thread_id, approval.approval_id)
        try:
            await self._client.approvals.decide(
                approval.approval_id, [Verdict.reject()] * len(content.actions), action_hash=content.action_hash
            )
        except ApprovalExpired:
            self._actions["expire"] += 1

    async def _decides(self, approval: Approval, given_up: set[str]) -> None:
        content = await self._client.approvals.open(approval.approval_id)
        verdicts = self._verdicts(content)
        sent, outcome = time.monotonic_ns(), "lost"  # and so it is where the end of the run comes first
        try:
            await self._client.approvals.decide(approval.approval_id, verdicts, action_hash=content.action_hash)
            outcome = "acknowledged"
        except _LOST:
            given_up.add(approval.approval_id)
        except StateroomError:
            outcome = "refused"
        finally:
            args = [
                action.args if each.verdict == "approve" else each.edited_args if each.verdict == "edit" else None
                for each, action in zip(verdicts, content.actions, strict=True)
            ]
            words = [each.verdict for each in verdicts]
            self.decisions.append(
                Decision(
                    approval=approval.approval_id, thread=approval.thread_id, key=self._key, verdicts=words, args=args,
                    sent=sent, outcome=outcome,
                )
            )  # fmt: skip
        if outcome == "acknowledged":
            self._actions.update(words)

    async def _looks_again(self, decision: Decision) -> None:
        """What was acknowledged is there, while others are killed, too."""
        if decision.outcome != "acknowledged":
            return
        approval = await self._client.approvals.get(decision.approval)
        if self._key not in {each.key_id for each in approval.votes}:
            self.wrong.append(f"a decision about {decision.approval} was not there when it was looked at again")


class Resolver:
    """Somebody who says what became of effects: by what happened in the world, and sometimes not."""

    def __init__(self, client: AsyncClient, rng: random.Random, actions: Counter[str]) -> None:
        self._client, self._rng, self._actions = client, rng, actions
        self.words: list[Word] = []

    async def resolve(self, world: Callable[[], list[Line]]) -> None:
        """Resolve for ever."""
        while True:
            try:
                unknown = [each async for each in self._client.unknown_effects(limit=50)]
                if not unknown:
                    await asyncio.sleep(PAUSE_SECONDS)  # as above
                    continue
                thread = self._client.thread(self._rng.choice(unknown).thread_id)
                open_effects = [
                    each
                    for status in ("unknown", "started")
                    async for each in thread.effects(status=status, limit=50)
                    if each.mode == "once"
                ]
                if not open_effects:
                    await asyncio.sleep(PAUSE_SECONDS)
                    continue
                effect = self._rng.choice(open_effects)
                place = (effect.thread_id, effect.name, effect.execution)
                happened = any((*each.place, each.attempt) == (*place, effect.attempt) for each in world())
                if self._rng.random() < 0.2:
                    happened = not happened
                await self._says(thread, effect, happened=happened)
            except StateroomError:
                continue

    async def _says(self, thread: AsyncThread[Any], effect: Effect, *, happened: bool) -> None:
        sent, before = time.monotonic_ns(), sent_by(self._client)
        heard, answered = True, None
        try:
            await thread.resolve_effect(effect, happened=happened)
            answered = time.monotonic_ns()
            self._actions["resolve"] += 1
        except _LOST:
            pass
        except StateroomError:
            heard = sent_by(self._client) - before > 1  # an attempt before the one that was refused may have been
        finally:  # the end of the run may have come first
            if heard:
                self.words.append(
                    Word(
                        thread=effect.thread_id, name=effect.name, execution=effect.execution, attempt=effect.attempt,
                        happened=happened, sent=sent, answered=answered,
                    )
                )  # fmt: skip
