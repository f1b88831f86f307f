"""What an interrupt of a graph asks a person, as an approval.

This module knows the shapes in which graphs ask: Agent Inbox's list of ``HumanInterrupt``, LangChain's ``HITLRequest``
and ``ToolApprovalRequest``, and any other value. It owns which shape a value has, and where an interrupt that several
namespaces record is asked. It is pure, but for that it remembers.
"""

import datetime as dt
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Literal

import msgspec
from langchain_core.tools import BaseTool
from langgraph.types import Interrupt
from pydantic import BaseModel

from stateroom._approvals.shapes import ApprovalKind, NewAction, NewApproval, VerdictWord
from stateroom._decisions.actions import plain
from stateroom._langgraph.decisions.tools import ToolForm
from stateroom._remembered.recent import Recent

Shape = Literal["inbox", "batch", "call", "value"]
# The action of a question that names none.
VALUE_TOOL = "interrupt"
_WORDS: tuple[VerdictWord, ...] = ("approve", "edit", "reject", "respond")
_INBOX_WORDS: dict[str, VerdictWord] = {
    "allow_accept": "approve",
    "allow_edit": "edit",
    "allow_ignore": "reject",
    "allow_respond": "respond",
}


class DecisionRules:
    """How a saver makes approvals of the interrupts of a graph.

    Args:
        tools: The tools that the graph asks about: LangChain's, or pydantic models of their arguments. What one takes
            is known of these only, so that an approval of another holds for its arguments as the model named them.
        hide: By tool, JSON pointers into its arguments that nobody is shown.
        expires_seconds: How long a question can be decided; left out: as the tenant's policy says.
        display: What is shown of a question to whoever does not have the client share of its thread.

    Raises:
        TypeError: A tool is neither.
    """

    def __init__(
        self,
        tools: Iterable[BaseTool | type[BaseModel]] = (),
        *,
        hide: Mapping[str, Sequence[str]] | None = None,
        expires_seconds: int | None = None,
        display: Callable[[NewApproval], str | None] | None = None,
    ) -> None:
        self._forms: dict[str, ToolForm] = {}
        self._hide = hide or {}
        self._expires_seconds = expires_seconds
        self._display = display
        for tool in tools:
            self.add(ToolForm.of(tool))

    def add(self, form: ToolForm) -> None:
        """Know what a tool takes.

        Raises:
            ValueError: Another tool of that name is known, so that nobody could say which one was approved.
        """
        if self._forms.setdefault(form.name, form).digest != form.digest:
            raise ValueError(f"two tools are called {form.name}")

    def approval(self, interrupt: Interrupt[Any], agent: str | None) -> NewApproval:
        """What an interrupt asks.

        Raises:
            ValueError: What it says has no canonical form, so that nobody could say what was decided.
        """
        value = interrupt.value
        kind: ApprovalKind = "tool_call"
        schema: Any = None
        match shape_of(value):
            case "inbox":
                requests = value if isinstance(value, list | tuple) else [value]
                actions = [self._inbox_action(each) for each in requests]
                allowed = _common(_inbox_allowed(each["config"]) for each in requests)
            case "batch":
                actions = [
                    self._action(each["name"], each["args"], each.get("description"))
                    for each in value["action_requests"]
                ]
                configs = {each["action_name"]: each for each in value["review_configs"]}
                allowed = _common(_decisions(configs.get(each.tool, {}).get("allowed_decisions")) for each in actions)
            case "call":
                actions = [self._action(value["name"], value["args"], value.get("description"))]
                allowed = _decisions(_branches(interrupt.response_schema))
            case "value":
                kind, schema = "input", interrupt.response_schema
                actions = [NewAction(tool=VALUE_TOOL, args={"value": _plain_value(value)})]
                allowed = ["approve", "reject", "respond"] if schema is None else ["respond"]
        made = NewApproval(
            external_id=interrupt.id, actions=actions, kind=kind, response_schema=schema,
            expires_seconds=self._expires_seconds, allowed=allowed, agent=agent,
        )  # fmt: skip
        return made if self._display is None else msgspec.structs.replace(made, display=self._display(made))

    def _inbox_action(self, request: Mapping[str, Any]) -> NewAction:
        action = request["action_request"]
        return self._action(action["action"], action["args"], request.get("description"))

    def _action(self, name: str, args: Mapping[str, Any], description: str | None) -> NewAction:
        form = self._forms.get(name)
        hidden = tuple(self._hide.get(name, ()))
        if form is None:
            return NewAction(tool=name, args=plain(args), hide=hidden, description=description)
        try:
            in_form = form.arguments(args)
        except ValueError:  # the tool refuses them as well; a person may still say what is right
            in_form = plain(args)
        return NewAction(
            tool=name, args=in_form, tool_digest=form.digest, args_schema=form.args_schema, hide=hidden,
            description=description,
        )  # fmt: skip


class Questions:
    """Tells where an interrupt is asked from where it is merely passed on.

    An interrupt of a subgraph is recorded in each namespace from the innermost outwards, by one saver, with the same
    id. The id is of the task that raised it, so that what was seen once stays true.
    """

    def __init__(self) -> None:
        self._asked_in = Recent[str](8192)

    def is_asked_in(self, thread: tuple[Any, ...], namespace: str, interrupt_id: str) -> bool:
        """Whether it is asked in a namespace: no inner one has recorded it."""
        innermost = self._asked_in.get((*thread, interrupt_id))
        if innermost is not None and innermost != namespace and _is_below(innermost, namespace):
            return False
        self._asked_in.note((*thread, interrupt_id), namespace)
        return True


def shape_of(value: Any) -> Shape:
    """The shape in which something is asked."""
    if isinstance(value, Mapping):
        if value.get("type") == "tool_approval" and _is_action(value, "name"):
            return "call"
        requests, configs = value.get("action_requests"), value.get("review_configs")
        if _are(requests, lambda each: _is_action(each, "name")) and _are(configs, lambda each: "action_name" in each):
            return "batch"
        return "inbox" if _is_inbox(value) else "value"
    return "inbox" if _are(value, _is_inbox) else "value"


def _are(values: Any, are: Callable[[Mapping[str, Any]], bool]) -> bool:
    is_list = isinstance(values, list | tuple) and len(values) > 0
    return is_list and all(isinstance(each, Mapping) and are(each) for each in values)


def _is_inbox(value: Mapping[str, Any]) -> bool:
    return isinstance(value.get("config"), Mapping) and _is_action(value.get("action_request"), "action")


def _is_action(value: Any, name: str) -> bool:
    if not isinstance(value, Mapping):
        return False
    return isinstance(value.get(name), str) and isinstance(value.get("args"), Mapping)


def _is_below(inner: str, outer: str) -> bool:
    return inner.startswith(f"{outer}|") if outer else bool(inner)


def _inbox_allowed(config: Mapping[str, Any]) -> list[VerdictWord]:
    return [word for name, word in _INBOX_WORDS.items() if config.get(name)]


def _decisions(words: Sequence[Any] | None) -> list[VerdictWord]:
    """The verdicts that a tool allows; LangChain's own default where it does not say."""
    return ["approve", "edit", "reject"] if words is None else [word for word in _WORDS if word in words]


def _branches(schema: Any) -> list[str] | None:
    """The decisions that a JSON Schema of LangChain's ``Decision`` has."""
    if not isinstance(schema, Mapping):
        return None
    mapping = (schema.get("discriminator") or {}).get("mapping")
    if isinstance(mapping, Mapping):
        return [*mapping]
    word = ((schema.get("properties") or {}).get("type") or {}).get("const")
    return None if word is None else [word]


def _common(allowed: Iterable[Sequence[VerdictWord]]) -> list[VerdictWord]:
    """What may be said of each action; of actions that have nothing in common, that they are not done."""
    each = [set(words) for words in allowed]
    common = set.intersection(*each)
    return [word for word in _WORDS if word in common] or ["reject"]


def _plain_value(value: Any) -> Any:
    """Any value of a graph, as a person can be shown it."""
    kept = (bytes, dt.datetime, dt.date, Decimal)
    try:
        return plain(msgspec.to_builtins(value, enc_hook=_described, builtin_types=kept, str_keys=True))
    except (TypeError, ValueError):
        return repr(value)


def _described(value: Any) -> Any:
    dump = getattr(value, "model_dump", None)  # pydantic's models, among them LangChain's messages
    return dump(mode="json") if callable(dump) else repr(value)
