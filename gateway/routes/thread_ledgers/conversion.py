"""Between bodies and the model of approvals: what is asked and decided, and how it is shown.

Owns what nobody is shown: where the asker hides a part of the arguments, a word stands that says how large it is.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from gateway.admission.slices import Work
from gateway.bodies.codec import value_in, value_out
from gateway.bodies.scanning import Format
from gateway.problems import pointer
from gateway.wire.thread_ledgers import approvals as wire
from storage.approvals import model
from storage.encoding import decode_json, encode_json, encode_msgpack
from storage.errors import InvalidState, LimitExceeded
from storage.model import NewAction, NewApproval, Value

_MAPS = {0xDE, 0xDF}
_INDEX_DIGITS_MAX = 6
_SLICE_APPROVALS = 16  # of up to 32 actions


# --- in -------------------------------------------------------------------------------------------------------------


def asked_in(sent: Sequence[wire.NewApproval], name: Format) -> Work[tuple[NewApproval, ...]]:
    """What a save or a task's writes ask people.

    Raises:
        InvalidState: Arguments are no map, or a schema is no object.
        LimitExceeded: A question is too large.
    """
    asked = []
    for number, each in enumerate(sent):
        asked.append((yield from _asked(each, name, pointer("approvals", number))))
        yield
    return tuple(asked)


def _asked(sent: wire.NewApproval, name: Format, where: str) -> Work[NewApproval]:
    actions = []
    for number, each in enumerate(sent.actions):
        actions.append((yield from _action(each, name, f"{where}/actions/{number}")))
        yield
    size = sum(len(each.args) + len(each.args_schema or b"") for each in actions)
    if size > model.APPROVAL_CONTENT_BYTES_MAX:
        raise LimitExceeded("APPROVAL_CONTENT_BYTES_MAX", model.APPROVAL_CONTENT_BYTES_MAX, size, where)
    return NewApproval(
        external_id=sent.external_id,
        actions=tuple(actions),
        kind=sent.kind,
        message=sent.message,
        display=sent.display,
        response_schema=_schema(sent.response_schema, name, f"{where}/response_schema"),
        expires_seconds=sent.expires_seconds,
        allowed=frozenset(sent.allowed),
        agent=sent.agent,
    )


def _action(sent: wire.NewApprovalAction, name: Format, where: str) -> Work[NewAction]:
    return NewAction(
        tool=sent.tool,
        args=(yield from _map(name, sent.args, f"{where}/args")),
        tool_digest=sent.tool_digest,
        args_schema=_schema(sent.args_schema, name, f"{where}/args_schema"),
        hide=tuple(sent.hide),
        description=sent.description,
    )


def _map(name: Format, raw: Raw, where: str) -> Work[bytes]:
    value = yield from value_in(name, raw, where)
    first = value.data[:1]
    if value.encoding != "msgpack" or not first or not (first[0] & 0xF0 == 0x80 or first[0] in _MAPS):
        raise InvalidState("arguments are an object, whose integers have 64 bits", where)
    return value.data


def _schema(raw: Raw | UnsetType, name: Format, where: str) -> bytes | None:
    """A JSON Schema, as JSON; null is none."""
    if raw is UNSET:
        return None
    try:
        tree = decode_json(bytes(raw)) if name == "json" else msgspec.msgpack.decode(raw)
        schema = encode_json(tree)
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError):
        raise InvalidState("a JSON Schema is plain JSON", where) from None
    if tree is None:
        return None
    if not isinstance(tree, dict):
        raise InvalidState("a JSON Schema is an object", where)
    return schema


def verdicts_in(sent: Sequence[wire.Verdict], name: Format) -> Work[tuple[model.Verdict, ...]]:
    """What is said of each action.

    Raises:
        InvalidState: A verdict has what belongs to another one, or lacks what it takes.
    """
    verdicts = []
    for number, each in enumerate(sent):
        where = pointer("verdicts", number)
        if (each.verdict == "edit") != (each.edited_args is not UNSET):
            raise InvalidState("edited_args belong to the verdict edit, which takes them", f"{where}/edited_args")
        if (each.verdict == "respond") != (each.response is not UNSET):
            raise InvalidState("a response belongs to the verdict respond, which takes one", f"{where}/response")
        edited = response = None
        if each.edited_args is not UNSET:
            edited = yield from _map(name, each.edited_args, f"{where}/edited_args")
        if each.response is not UNSET:
            response = yield from _value(name, each.response, f"{where}/response")
        verdicts.append(model.Verdict(each.verdict, edited, response, each.message))
    return tuple(verdicts)


def _value(name: Format, raw: Raw, where: str) -> Work[bytes]:
    value = yield from value_in(name, raw, where)
    if value.encoding != "msgpack":
        raise InvalidState("an answer must fit MessagePack (integers have 64 bits)", where)
    return value.data


# --- out ------------------------------------------------------------------------------------------------------------


def approval_out(approval: model.Approval) -> wire.Approval:
    """How an approval stands, as the API shows it."""
    return wire.Approval.of(
        approval,
        approval_id=str(approval.approval_id),
        actions=[wire.ApprovalActionState.of(each) for each in approval.actions],
        votes=[wire.ApprovalVote.of(each) for each in approval.votes],
    )


def approvals_out(approvals: Sequence[model.Approval]) -> Work[list[wire.Approval]]:
    """How approvals stand, as the API shows them."""
    shown = []
    for each in approvals:
        shown.append(approval_out(each))
        if len(shown) % _SLICE_APPROVALS == 0:
            yield
    return shown


def content_out(content: model.ApprovalContent, name: Format) -> Work[wire.ApprovalContent]:
    """What exactly is asked, without what nobody is shown."""
    actions = []
    for each in content.actions:
        actions.append((yield from _action_out(each, name)))
        yield
    return wire.ApprovalContent(
        approval_id=str(content.approval.approval_id),
        external_id=content.external_id,
        action_hash=content.action_hash,
        allowed=sorted(content.allowed),
        message=content.message,
        display=content.display,
        response_schema=_schema_out(content.response_schema, name),
        actions=actions,
        withheld=content.withheld,
    )


def _action_out(action: model.AskedAction, name: Format) -> Work[wire.ApprovalAction]:
    shown = wire.ApprovalAction(
        tool=action.tool,
        tool_digest=action.tool_digest,
        args=(yield from _shown(action.args, action.hide, name)),
        args_schema=_schema_out(action.args_schema, name),
        hide=[*action.hide],
        description=action.description,
        action_hash=action.action_hash,
        verdict=action.verdict,
    )
    if action.edited_args is not None:
        shown.edited_args = yield from _shown(action.edited_args, action.hide, name)
    if action.response is not None:
        shown.response = yield from value_out(name, Value("msgpack", action.response))
    if action.message is not None:
        shown.message = action.message
    return shown


def _shown(args: bytes, hide: Sequence[str], name: Format) -> Work[Raw]:
    return (yield from value_out(name, Value("msgpack", hidden(args, hide) if hide else args)))


def hidden(args: bytes, hide: Sequence[str]) -> bytes:
    """Arguments in which a word stands for what is hidden; a pointer to nothing hides nothing."""
    tree = msgspec.msgpack.decode(args)
    for each in hide:
        tree = _without(tree, [step.replace("~1", "/").replace("~0", "~") for step in each.split("/")[1:]])
    return encode_msgpack(tree)


def _without(tree: Any, steps: list[str]) -> Any:
    if not steps:
        return f"hidden, {len(encode_msgpack(tree)):,} bytes"
    place = tree
    for step in steps[:-1]:
        place = _below(place, step)
    key: Any = steps[-1]
    if isinstance(place, list):
        key = _index(place, key)
    elif not isinstance(place, dict) or key not in place:
        key = None
    if key is not None:
        place[key] = _without(place[key], [])
    return tree


def _below(place: Any, step: str) -> Any:
    if isinstance(place, dict):
        return place.get(step)
    index = _index(place, step) if isinstance(place, list) else None
    return None if index is None else place[index]


def _index(place: list[Any], step: str) -> int | None:
    plain = step.isascii() and step.isdecimal() and len(step) <= _INDEX_DIGITS_MAX and str(int(step)) == step
    return int(step) if plain and int(step) < len(place) else None


def _schema_out(schema: bytes | None, name: Format) -> Raw | None:
    if schema is None:
        return None
    return Raw(schema if name == "json" else encode_msgpack(decode_json(schema)))
