"""What a saver knows of decisions: the approvals that go along with its writes, and those that were decided.

This module owns which write brings an approval and which one only names it, and which approval an interrupt waits for.
The graph is run by ``stateroom.langgraph.decisions``.
"""

import hashlib
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.serde.types import INTERRUPT
from langgraph.types import Interrupt, StateSnapshot

from stateroom._approvals import requests
from stateroom._approvals.shapes import Approval, ApprovalContent, NewApproval
from stateroom._decisions.actions import canonical
from stateroom._langgraph.columns import ConfigIds
from stateroom._langgraph.decisions.acting import Acting
from stateroom._langgraph.decisions.answering import WAITING, answer
from stateroom._langgraph.decisions.asking import DecisionRules, Questions
from stateroom._langgraph.decisions.gate import Opened, Permits, permits
from stateroom._langgraph.decisions.tools import ToolForm
from stateroom._langgraph.effects.places import effect_place
from stateroom._langgraph.runs import pin
from stateroom._protocol.core import Endpoint, Pinned, Steps
from stateroom._remembered.pieces import owner_tag
from stateroom._threads.effect_calls import EffectPlace, EffectPolicy, ToolCall
from stateroom.errors import ApprovalConsumed, ApprovalRequired

R = TypeVar("R")
_PAGE = 100
_NAME_DIGITS = 32
_NAME_CHARACTERS = 80


class Asked(msgspec.Struct, frozen=True):
    """What a write brings: questions that are asked in its namespace, and ids of those that an inner one asks."""

    approvals: list[NewApproval] = []
    refs: list[str] = []


class Waiting(msgspec.Struct, frozen=True):
    """An interrupt that a graph waits with.

    Attributes:
        interrupt: What it asks.
        task_id: The task of the root graph that it is in.
    """

    interrupt: Interrupt[Any]
    task_id: str


class Decided(msgspec.Struct, frozen=True):
    """What was decided of what a graph waits for.

    Attributes:
        values: By interrupt, what to resume with.
        waiting: By interrupt, how the approval stands that nobody has decided; ``None``: there is none.
    """

    values: dict[str, Any]
    waiting: dict[str, Approval | None]


class Deciding:
    """The part of a saver that has to do with decisions; ``saver.decisions``."""

    def __init__(
        self,
        rules: DecisionRules,
        endpoint: Endpoint,
        drive: Callable[[Steps[Any], Pinned], Any],
        adrive: Callable[[Steps[Any], Pinned], Coroutine[Any, Any, Any]],
        acting: Acting,
    ) -> None:
        self.rules = rules
        self._endpoint = endpoint
        self._drive = drive
        self._adrive = adrive
        self._acting = acting
        self._questions = Questions()
        self._opened = Opened()

    def run(self, config: RunnableConfig, steps: Steps[R]) -> R:
        """Carry out calls for whom the run of a config acts."""
        done: R = self._drive(steps, pin(self._endpoint, config))
        return done

    async def arun(self, config: RunnableConfig, steps: Steps[R]) -> R:
        """Carry out calls for whom the run of a config acts."""
        done: R = await self._adrive(steps, pin(self._endpoint, config))
        return done

    def asked(self, ids: ConfigIds, writes: Iterable[tuple[str, Any]], agent: str | None, pinned: Pinned) -> Asked:
        """What the writes of a task ask.

        Raises:
            ValueError: An interrupt's arguments have no canonical form.
        """
        thread = owner_tag(pinned), ids.thread_id
        asked = Asked([], [])
        interrupts = {each.id: each for channel, value in writes if channel == INTERRUPT for each in _interrupts(value)}
        for interrupt_id, interrupt in interrupts.items():
            if self._questions.is_asked_in(thread, ids.namespace, interrupt_id):
                asked.approvals.append(self.rules.approval(interrupt, agent))
            else:
                asked.refs.append(interrupt_id)
        return asked

    def act(self, config: RunnableConfig, form: ToolForm, policy: EffectPolicy, called: ToolCall) -> Any:
        """Call a tool's function with keyword arguments that somebody approved, at most once.

        Args:
            config: That of the step.
            form: Of the tool.
            policy: How its effects are kept.
            called: The function, and its arguments.

        Raises:
            ActionChanged: Something else of the tool is approved.
            ApprovalRequired: Nothing of it is.
            ApprovalConsumed: It was approved, and begun by another call.
            EffectUnknown: It may have happened.
        """
        args = form.called(called.kwargs)
        found = self.run(config, self._permits(config, form, args))
        place = self._place(config, form, args)
        *approved, last = found.starts(place, policy, form, args)
        pinned = pin(self._endpoint, config)
        used: ApprovalConsumed | None = None
        for wanted in approved:
            try:
                return self._acting.act(pinned, place, policy, called, wanted)
            except ApprovalConsumed as error:  # the same may have been approved twice
                used = error
        try:
            return self._acting.act(pinned, place, policy, called, last)
        except ApprovalRequired as error:
            raise used or found.refused(form, error) from None

    async def aact(self, config: RunnableConfig, form: ToolForm, policy: EffectPolicy, called: ToolCall) -> Any:
        """Call a tool's function that is a coroutine; as ``act``."""
        args = form.called(called.kwargs)
        found = await self.arun(config, self._permits(config, form, args))
        place = self._place(config, form, args)
        *approved, last = found.starts(place, policy, form, args)
        pinned = pin(self._endpoint, config)
        used: ApprovalConsumed | None = None
        for wanted in approved:
            try:
                return await self._acting.aact(pinned, place, policy, called, wanted)
            except ApprovalConsumed as error:
                used = error
        try:
            return await self._acting.aact(pinned, place, policy, called, last)
        except ApprovalRequired as error:
            raise used or found.refused(form, error) from None

    def _permits(self, config: RunnableConfig, form: ToolForm, args: Mapping[str, Any]) -> Steps[Permits]:
        return permits(ConfigIds.of(config).thread_id, form, args, self._opened)

    def _place(self, config: RunnableConfig, form: ToolForm, args: Mapping[str, Any]) -> EffectPlace:
        """Where a call stands. Calls of a step that go on in another order have the same names: by what they do."""
        action = hashlib.sha256(canonical(args)).hexdigest()[:_NAME_DIGITS]
        return effect_place(self._endpoint, config, None, f"{form.name[:_NAME_CHARACTERS]}/{action}")

    def decided(self, state: StateSnapshot) -> Steps[Decided]:
        """What was decided of what a graph waits for in a state."""
        ids = ConfigIds.of(state.config)
        open_ = {each.interrupt.id: each for each in _waiting(state)}
        decided = Decided({}, dict.fromkeys(open_))
        cursor: str | None = None
        while open_:
            page = yield from requests.page({"thread": ids.thread_id}, _PAGE, cursor)
            for approval in page.approvals:
                # Newest first: what superseded another was met before that.
                if approval.status == "superseded" or not _may_be_of(approval, ids, open_.values()):
                    continue
                content = yield from self._opened.content(approval)
                waiting = open_.pop(content.external_id or "", None)
                if waiting is not None:
                    _note(decided, waiting.interrupt, approval, content)
            cursor = page.next_cursor
            if cursor is None:
                break
        return decided


def _note(decided: Decided, interrupt: Interrupt[Any], approval: Approval, content: ApprovalContent) -> None:
    value = answer(interrupt, approval, content)
    if value is WAITING:
        decided.waiting[interrupt.id] = approval
    else:
        del decided.waiting[interrupt.id]
        decided.values[interrupt.id] = value


def _interrupts(value: Any) -> Sequence[Interrupt[Any]]:
    return [each for each in value if isinstance(each, Interrupt)] if isinstance(value, list | tuple) else []


def _waiting(state: StateSnapshot) -> list[Waiting]:
    return [Waiting(each, task.id) for task in state.tasks for each in task.interrupts]


def _may_be_of(approval: Approval, ids: ConfigIds, waiting: Iterable[Waiting]) -> bool:
    """Whether an approval can be about what waits, as its clear columns say."""
    if approval.namespace == ids.namespace.partition("|")[0]:
        return ids.checkpoint_id is None or approval.checkpoint_id == ids.checkpoint_id
    # A subgraph's namespace is called by the task that runs it, but for one that goes on from call to call.
    name, _, task_id = approval.namespace.partition(":")
    return bool(name) and (not task_id or any(each.task_id == task_id for each in waiting))
