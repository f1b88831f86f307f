"""A worker that is killed: takes threads and does random steps on them by the SDK, until somebody ends it.

What its tools do in the world is a line in a file that all workers append to and flush. What it is about to do, and
what it was told, goes into a journal, of which a SIGKILL leaves whole lines. A seed says what it does; what the others
do meanwhile is not in it.
"""

import random  # noqa: TID251 - seeded
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from stateroom import Client, NewAction, NewApproval, StateroomError
from stateroom._thread_ledgers import requests
from stateroom._thread_ledgers.shapes import EffectStart, EffectStarted
from stateroom._threads.effect_calls import current_effect
from stateroom._threads.thread import Thread
from tests.support.decisions.history import GUARDED_TOOL, Line
from tests.support.decisions.journal import Journal
from tests.support.decisions.watched import watched

AGENT = "machine"
LEASE_SECONDS = 5  # the shortest there is, of claims and effects
TOOLS = ("pay", "mail", GUARDED_TOOL)
PEOPLE = ("ann", "bob", "eve")


class CertainlyNot(Exception):
    """The tool did nothing."""


class AnswerLost(Exception):
    """The tool did something, and does not know."""


class _Attempt:
    """What a worker was told to do, and by which approval it asked."""

    def __init__(self, started: EffectStarted, args: dict[str, Any], asked: int, *, repeat: bool) -> None:
        self.told = time.monotonic_ns()
        self.effect, self.must_run = started.effect, started.must_run
        self.args, self.asked, self.repeat = args, asked, repeat


def named_approval(name: str) -> tuple[str | None, int | None]:
    """The approval that an effect of this name is begun with, and the position: names say so."""
    kind, _, rest = name.partition(" ")
    if kind not in {"approved", "again"}:
        return None, None
    approval, _, position = rest.partition(":")
    return approval, int(position)


class Worker:
    """One life of a worker."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.name, self.life = settings["name"], settings["life"]
        self.rng = random.Random(f"{settings['seed']}/{self.name}/{self.life}")  # noqa: S311
        folder = Path(settings["folder"])
        self.world, self._journal = Journal(folder / "world", durable=True), Journal(folder / "journal")
        self.threads: list[str] = settings["threads"]
        client = Client(settings["url"], settings["api_key"], subject=settings["subject"])
        self.client = watched(client, self._seen)
        self.steps: list[tuple[float, Callable[[Thread[Any]], None]]] = [
            (2, self.saves), (5, self.asks), (7, self.does_what_was_approved), (3, self.misuses_an_approval),
            (4, self.does_once), (1, self.does_again), (5, self.goes_on_with_an_effect), (1, self.forks),
            (0.4, self.prunes), (0.4, self.copies), (0.2, self.archives),
        ]  # fmt: skip

    def note(self, kind: str, **what: Any) -> None:
        """Write into the journal."""
        self._journal.write({"kind": kind, "worker": self.name, "life": self.life, **what})

    def did(self, action: str) -> None:
        """An action of the machine happened."""
        self.note("did", action=action)

    def _seen(self, method: str, path: str, status: int, code: str) -> None:
        if status >= 400:
            self.note("refused", code=code, status=status, request=f"{method} {path}")

    # --- Which thread, and how it is taken --------------------------------------------------------------------------

    def live(self, resumed: str | None) -> None:
        """Go on with threads for ever; first with that on which this worker died."""
        if resumed is not None:
            with suppress(StateroomError):
                self.resumes(resumed)
        while True:
            with suppress(StateroomError):
                self.recovers() if self.rng.random() < 0.1 else self.takes_one()

    def resumes(self, thread_id: str) -> None:
        """Do again what was begun before, under the same claim or another one."""
        thread: Thread[Any] = self.client.thread(thread_id, agent=AGENT)
        is_same = self.rng.random() < 0.3
        run_id = self.name if is_same else f"{self.name}-{self.life}"
        with thread.claim(holder=self.name, run_id=run_id, lease_seconds=LEASE_SECONDS, take_over=not is_same):
            self.did("claim")
            thread.load()
            for _ in range(3):
                with suppress(StateroomError, CertainlyNot, AnswerLost):
                    self.goes_on_with_an_effect(thread)

    def recovers(self) -> None:
        """Go on with a thread whose worker died."""
        handed = self.client.recover(agent=AGENT, holder=self.name, follow=False, lease_seconds=LEASE_SECONDS)
        for run in handed:
            with run as thread:
                self.did("recover")
                thread.load()
                self.acts(thread)
            break
        handed.close()  # type: ignore[attr-defined]  # it is a generator, and gives back what it claimed

    def takes_one(self) -> None:
        """Go on with any thread, or with one where something was approved, under a claim or without one."""
        waiting = list(self.client.approvals.list(status="approved", limit=8)) if self.rng.random() < 0.5 else []
        waiting_threads = [each.thread_id for each in waiting if each.thread_id in self.threads]
        thread: Thread[Any] = self.client.thread(self.rng.choice(waiting_threads or self.threads), agent=AGENT)
        how = self.rng.choices(["claims", "takes over", "beside"], [5, 2, 3])[0]
        with ExitStack() as claimed:
            if how != "beside":
                run_id = self.name if self.rng.random() < 0.5 else f"{self.name}-{self.life}"
                claimed.enter_context(
                    thread.claim(
                        holder=self.name, run_id=run_id, lease_seconds=LEASE_SECONDS, take_over=how == "takes over"
                    )
                )
                self.did("claim")
            thread.load()
            self.acts(thread)

    def acts(self, thread: Thread[Any]) -> None:
        """Do some steps; one that is refused ends nothing."""
        weights, steps = zip(*self.steps, strict=True)
        for step in self.rng.choices(steps, weights, k=self.rng.randrange(2, 9)):
            with suppress(StateroomError, CertainlyNot, AnswerLost):
                step(thread)

    # --- The state --------------------------------------------------------------------------------------------------

    def _state(self) -> dict[str, Any]:
        return {"by": self.name, "n": self.rng.randrange(1_000_000)}

    def _new_args(self) -> dict[str, Any]:
        return {"amount": self.rng.randrange(1_000_000), "to": self.rng.choice(PEOPLE)}

    def saves(self, thread: Thread[Any]) -> None:
        self.note("saving", thread=thread.thread_id)
        thread.save(self._state())
        self.did("save")

    def asks(self, thread: Thread[Any]) -> None:
        """Some questions have a name that others have, too, and supersede them."""
        count = self.rng.choice([1, 1, 2, 3])
        actions = [NewAction(tool=self.rng.choice(TOOLS), args=self._new_args()) for _ in range(count)]
        name = str(uuid4()) if self.rng.random() < 0.8 else f"question {self.rng.randrange(3)}"
        question = NewApproval(external_id=name, actions=actions, allowed=["approve", "reject", "edit"])
        self.note("asking", thread=thread.thread_id)
        thread.save(self._state(), approvals=[question], status="waiting")
        self.did("ask")

    def forks(self, thread: Thread[Any]) -> None:
        older = list(thread.history(limit=6))
        if older:
            forked = thread.fork(self.rng.choice(older).checkpoint_id)
            forked.save(self._state())
            self.did("fork")
            self.does_once(forked)

    def prunes(self, thread: Thread[Any]) -> None:
        self.note("pruning", thread=thread.thread_id)
        self.client.prune([thread.thread_id])
        self.did("prune")

    def copies(self, thread: Thread[Any]) -> None:
        """Go on with a copy, which has the effects as history."""
        target = f"{thread.thread_id}-copy-{uuid4().hex[:8]}"
        self.note("copying", thread=thread.thread_id)
        thread.copy(target)
        self.did("copy")
        copied: Thread[Any] = self.client.thread(target, agent=AGENT)
        copied.load()
        for _ in range(3):
            with suppress(StateroomError, CertainlyNot, AnswerLost):
                self.goes_on_with_an_effect(copied)

    def archives(self, thread: Thread[Any]) -> None:
        thread.archive()
        self.did("archive")

    # --- Effects ----------------------------------------------------------------------------------------------------

    def _perform(self, thread: Thread[Any], attempt: _Attempt) -> dict[str, str]:
        """Do what the gateway says is to be done now: one line in the world, and what it gave."""
        effect = attempt.effect
        self.note("told", thread=thread.thread_id, name=effect.name, attempt=effect.attempt)
        if self.rng.random() < 0.05:
            self.note("fails", thread=thread.thread_id, name=effect.name, attempt=effect.attempt)
            raise CertainlyNot
        nonce = uuid4().hex
        approval, position = named_approval(effect.name)
        self.world.write(
            Line(
                thread=thread.thread_id, name=effect.name, execution=effect.execution, attempt=effect.attempt,
                mode=effect.mode, tool=effect.tool, args=attempt.args, provider_key=effect.provider_key, nonce=nonce,
                asked=attempt.asked, told=attempt.told, approval=approval, position=position, repeat=attempt.repeat,
            )
        )  # fmt: skip
        self.note("done", thread=thread.thread_id, name=effect.name, attempt=effect.attempt)
        if self.rng.random() < 0.15:
            raise AnswerLost
        return {"nonce": nonce}

    def _starts(self, thread: Thread[Any], name: str, wanted: EffectStart) -> None:
        """Start an effect as the gate of LangGraph does, do what is to be done, and say how it ended."""
        place = thread._place_of(name)
        wanted = EffectStart(
            tool=wanted.tool, args=wanted.args, mode=wanted.mode, approval_id=wanted.approval_id,
            approval_position=wanted.approval_position, needs_approval=wanted.needs_approval, repeat=wanted.repeat,
            checkpoint_id=place.checkpoint_id, run_id=place.run_id, fence=place.fence, lease_seconds=LEASE_SECONDS,
        )  # fmt: skip
        self.note("starting", thread=thread.thread_id, name=name)
        asked = time.monotonic_ns()
        started = self.client.drive(requests.start(thread.thread_id, name, wanted))
        attempt = _Attempt(started, wanted.args, asked, repeat=wanted.repeat)
        if not attempt.must_run:
            self._replayed(thread, name, wanted.tool, wanted.args, started.effect.result)
            return
        self.did("start")
        if self.rng.random() < 0.03:
            self.note("forgets", thread=thread.thread_id, name=name)  # nobody says what became of it
            return
        try:
            result = self._perform(thread, attempt)
        except CertainlyNot:
            thread.finish_effect(started.effect, "failed")
            raise
        except AnswerLost:
            thread.finish_effect(started.effect, "unknown")
            raise
        thread.finish_effect(started.effect, result=result)
        self.did("finish")

    def _replayed(self, thread: Thread[Any], name: str, tool: str, args: dict[str, Any], result: Any) -> None:
        nonce = None if result is None else result["nonce"]
        self.note("replayed", thread=thread.thread_id, name=name, tool=tool, args=args, nonce=nonce)
        self.did("replay")

    def does_what_was_approved(self, thread: Thread[Any]) -> None:
        approved = list(self.client.approvals.list(status="approved", thread=thread.thread_id, limit=4))
        if approved:
            self._uses(thread, self.rng.choice(approved).approval_id)

    def misuses_an_approval(self, thread: Thread[Any]) -> None:
        """Use one that waits, was denied, or used up; or do something else by it, or under a second name."""
        found = list(self.client.approvals.list(thread=thread.thread_id, limit=10))
        if found:
            self._uses(thread, self.rng.choice(found).approval_id, honestly=False)

    def _uses(self, thread: Thread[Any], approval_id: str, *, honestly: bool = True) -> None:
        actions = self.client.approvals.open(approval_id).actions
        position = self.rng.randrange(len(actions))
        action = actions[position]
        args = action.edited_args if isinstance(action.edited_args, dict) else action.args
        kind = "approved"
        if not honestly and self.rng.random() < 0.5:
            args = args | {"amount": args["amount"] + 1}
        elif not honestly:
            kind = "again"
        wanted = EffectStart(
            tool=action.tool, args=args, mode=self.rng.choice(["once", "once", "once", "idempotent"]),
            approval_id=approval_id, approval_position=position, needs_approval=True, repeat=self.rng.random() < 0.8,
        )  # fmt: skip
        self._starts(thread, f"{kind} {approval_id}:{position}", wanted)

    def does_once(self, thread: Thread[Any]) -> None:
        """Call a function whose effects are kept; few names and arguments, so that many of them meet."""
        number, tool = self.rng.randrange(3), self.rng.choice(TOOLS)
        args = {"amount": number if self.rng.random() < 0.9 else number + 1}
        asked = time.monotonic_ns()
        ran = False

        @thread.effect(
            name=f"call {tool} {number}", mode="once", tool=tool, definite=(CertainlyNot,), lease_seconds=LEASE_SECONDS
        )
        def call(amount: int) -> Any:  # a person who says that it happened knows no result
            nonlocal ran
            ran = True
            effect = current_effect()
            assert effect is not None
            self.did("start")
            started = EffectStarted(must_run=True, effect=effect)
            return self._perform(thread, _Attempt(started, {"amount": amount}, asked, repeat=False))

        self.note("starting", thread=thread.thread_id, name=f"call {tool} {number}")
        result = call(args["amount"])
        if ran:
            self.did("finish")
        else:
            self._replayed(thread, f"call {tool} {number}", tool, args, result)

    def does_again(self, thread: Thread[Any]) -> None:
        """Do what may be repeated."""
        number = self.rng.randrange(3)
        mode = self.rng.choice(["read", "idempotent"])
        wanted = EffectStart(tool="mail", args={"to": PEOPLE[number]}, mode=mode)
        self._starts(thread, f"{mode} {number}", wanted)

    def goes_on_with_an_effect(self, thread: Thread[Any]) -> None:
        """Begin again what was begun before, as a run that is repeated does: it is told, done again, or refused."""
        found = list(thread.effects(limit=60))
        left = [each for each in found if each.status != "done"]
        if not found:
            return
        effect = thread.get_effect(self.rng.choice(left if left and self.rng.random() < 0.8 else found).name)
        approval, _ = named_approval(effect.name)
        wanted = EffectStart(tool=effect.tool, args=effect.args, mode=effect.mode, needs_approval=approval is not None)
        self._starts(thread, effect.name, wanted)


def run(settings: dict[str, Any]) -> None:
    """Live until somebody ends it."""
    Worker(settings).live(settings["resumed"])
