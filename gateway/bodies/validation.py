"""What is wrong with a body or a query, in words: msgspec's validation errors without its types, and without values.

It explains one error at a time; `gateway.bodies.faults` finds all of a body's.
"""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import msgspec
from msgspec import inspect

from gateway.wire.base import NOT_BLANK, WITHOUT_NUL, alternatives

# What the bounds of shapes in `gateway.wire` are called: by type and member, or else by type and bound.
_LIMITS = {
    ("int", "limit"): "PAGE_ITEMS_MAX",
    ("str", "namespace"): "NAMESPACE_BYTES_MAX",
    ("array", "channel"): "CHANNELS_MAX",
    ("array", "history"): "CHANNELS_MAX",
    ("array", "writes"): "WRITES_MAX",
    ("array", "thread_ids"): "BULK_ITEMS_MAX",
    ("array", "run_ids"): "BULK_ITEMS_MAX",
    ("array", "10000"): "HOLES_MAX",
    ("str", "255"): "NAME_BYTES_MAX",
    ("str", "1024"): "ID_CHARACTERS_MAX",
    ("str", "2048"): "TASK_PATH_CHARACTERS_MAX",
    ("str", "64"): "WORD_CHARACTERS_MAX",
    ("bytes", "4096"): "PREVIEW_BYTES_MAX",
}
_WHERE = re.compile(r"(?P<what>.*?)(?: - at (?P<key>`key` in )?`\$(?P<path>[^`]*)`)?\Z", re.DOTALL)
_ERROR_ENDS = 500  # characters at either end of an error that are read: what is wrong, and where
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}\Z")
_NAMED = re.compile(r"Object (?:(?P<missing>missing required)|contains unknown) field `(?P<name>.*)`\Z", re.DOTALL)
_TYPES = re.compile(r"Expected `(?P<wanted>[a-z |]+)`, got `(?P<got>[A-Za-z]+)`\Z")
_REGEX = re.compile(r"Expected `str` matching regex '(?P<regex>.*)'\Z", re.DOTALL)
_BOUND = re.compile(r"Expected `(?P<type>\w+)` (?:of length )?(?P<sign>[<>]=) (?P<bound>-?\d+)\Z")
_WORDS = {
    "int": "an integer", "float": "a number", "str": "text", "bool": "true or false", "array": "a list",
    "object": "an object", "bytes": "base64", "datetime": "a time", "null": "null", "None": "null",
}  # fmt: skip
A_TIME = "must be a time as RFC 3339 has it, with a zone, such as 2026-03-01T09:00:00Z"
_FORMS = {
    "Invalid RFC3339 encoded datetime": A_TIME,
    "Expected `datetime` with a timezone component": A_TIME,
    "Invalid UUID": "must be a UUID, such as 01988d2e-7c31-7f60-9a3b-0d4c5e6f7081",
    "Invalid base64 encoded string": "must be base64",
    "Number out of range": "must be within the range of a 64-bit float",
}
_PATTERNS = {WITHOUT_NUL: "must not hold the character NUL (U+0000)", NOT_BLANK: "must not be blank"}
# What lengths are counted in, by type, and numbers, by how their name ends.
_UNITS = {"str": "characters", "bytes": "bytes", "array": "elements", "object": "members"}
_ENDINGS = {"_per_second": "a second", "_seconds": "seconds", "_bytes": "bytes"}
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]|(\[\.\.\.\])")


class ClientName(str):
    """A step of a path that is a word of the client's: what a map has at that name. It is in pointers only."""

    __slots__ = ()


Steps: TypeAlias = Sequence[str | int]


class Difference(NamedTuple):
    """How a body or a query differs from what was wanted: what to say, the steps to it, the limit that it exceeds."""

    what: str
    steps: Steps
    limit: str | None = None


def explain(error: msgspec.ValidationError, shape: Any = None, at: Steps = ()) -> Difference:
    """What is wrong and where, without the value that is wrong.

    Below a map whose keys are the client's, the path ends at the map.

    Args:
        error: The validator's error.
        shape: The shape that was wanted: with it, the message names the words and numbers that a place may have.
        at: The steps to what has this shape.
    """
    text = str(error)
    if len(text) > 2 * _ERROR_ENDS:  # it repeats a name or a word of the client's, which can be as long as a body
        text = text[:_ERROR_ENDS] + text[-_ERROR_ENDS:]
    match = _WHERE.match(text)
    what, path = (match["what"], match["path"] or "") if match else ("invalid", "")
    below: list[str | int] = []
    is_inside = False
    for name, index, wild in _STEP.findall(path):
        is_inside = bool(wild)
        if wild:
            break
        below.append(name or int(index))
    steps = (*at, *below)
    if named := _NAMED.match(what):
        return missing_member(named["name"], steps) if named["missing"] else unknown_member(named["name"], steps)
    is_key = match is not None and match["key"] is not None
    label, in_map = _called(steps)
    kinds = [] if is_inside else _kinds(shape, below)
    if is_key:
        kinds = [key for each in kinds if isinstance(each, inspect.DictType) for key in alternatives(each.key_type)]
    message, limit = _in_words(what, kinds, label), _exceeded(what, "" if in_map else label)
    if message.startswith("must "):
        if is_key:
            label = f"a name in {label or 'the body'}"
        elif label and (in_map or is_inside):
            label = f"what is in {label}"
        message = f"{label} {message}".lstrip()
    return Difference(message, steps, limit)


def unknown_member(name: str, at: Steps) -> Difference:
    """A member that is not one of those that a place has.

    A name that cannot be one of the API's is in no pointer either: it may be content that slipped a level.
    """
    return Difference("unknown member", (*at, name) if _PLAIN_NAME.match(name) else at)


def missing_member(name: str, at: Steps) -> Difference:
    """A member that a place must have, and has not."""
    return Difference(f"{name} is required", (*at, name))


def _called(steps: Steps) -> tuple[str, bool]:
    """What the API calls a place, the last member's name with the places in its lists; whether it is in a map below."""
    label, in_map = "", False
    for step in steps:
        if isinstance(step, ClientName):
            in_map = True
        elif isinstance(step, str):
            label, in_map = step, False
        elif not in_map:
            label += f"[{step}]"
    return label, in_map


def _in_words(what: str, kinds: Sequence[inspect.Type], label: str) -> str:
    """What the validator says, without its types."""
    if parts := _TYPES.match(what):
        wanted, got = ([_WORDS.get(each, each) for each in parts[group].split(" | ")] for group in ("wanted", "got"))
        if "an integer" in wanted and got == ["a number"]:
            got = ["a float; in JSON, a whole number up to 2^53 may have a point or an exponent"]
        return f"must be {' or '.join(wanted)}, not {got[0]}"
    if what.startswith("Invalid enum value"):
        allowed = [str(value) for each in kinds if isinstance(each, inspect.LiteralType) for value in each.values]
        return f"must be one of {', '.join(allowed) or 'the allowed values'}"
    if parts := _REGEX.match(what):
        pattern = parts["regex"].replace(r"\\", "\\")
        return _PATTERNS.get(pattern) or f"must match {pattern}".removesuffix(r"\Z")
    if parts := _BOUND.match(what):
        return _bounds(parts, kinds, label)
    return _FORMS.get(what, what)


def _bounds(stated: re.Match[str], kinds: Sequence[inspect.Type], label: str) -> str:
    """Both bounds of a place, where its shape has two, and what they count."""
    bound = int(stated["bound"])
    low, high = (bound, None) if stated["sign"] == ">=" else (None, bound)
    for each in kinds:
        match each:
            case inspect.IntType() if stated["type"] == "int":
                low = each.ge if each.gt is None else each.gt + 1
                high = each.le if each.lt is None else each.lt - 1
            case inspect.StrType() | inspect.BytesType() | inspect.ListType() if stated["type"] == _LENGTHS[type(each)]:
                low, high = each.min_length, each.max_length
    is_number = stated["type"] == "int"
    unit = _UNITS.get(stated["type"]) or next((unit for end, unit in _ENDINGS.items() if label.endswith(end)), "")
    if low is None or high is None:
        numbers = f"at least {low:,}" if high is None else f"at most {high:,}"
    else:
        numbers = f"{low:,} to {high:,}"
    unit = unit.removesuffix("s") if numbers.endswith(" 1") else unit
    return f"must {'be' if is_number else 'have'} {numbers} {unit}".rstrip()


_LENGTHS = {inspect.StrType: "str", inspect.BytesType: "bytes", inspect.ListType: "array"}


def _exceeded(what: str, label: str) -> str | None:
    """The name of the limit that is exceeded."""
    match = _BOUND.match(what)
    if match is None or match["sign"] != "<=":
        return None
    return _LIMITS.get((match["type"], label)) or _LIMITS.get((match["type"], match["bound"]))


def _kinds(shape: Any, steps: Steps) -> list[inspect.Type]:
    """The types that a place of a shape may have; none, if there is no shape."""
    types = alternatives(inspect.type_info(Any if shape is None else shape))
    for step in steps:
        below: list[inspect.Type] = []
        for each in types:
            match each:
                case inspect.StructType(fields=fields):
                    below += [field.type for field in fields if field.encode_name == step]
                case inspect.CollectionType(item_type=item):
                    below.append(item)
        types = [kind for each in below for kind in alternatives(each)]
    return types
