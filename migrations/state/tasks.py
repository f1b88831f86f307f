"""What worker processes are asked about tenants' state, and how they answer: shapes, and the pure work itself.

A *program* is what a tenant registered, by the digest of its text: a JSON Schema, or the steps of a state schema. It is
learned once by a worker and then named. Values travel beside the shapes, as they are stored, so that nothing copies
them on the way; what no step touches does not travel back.

It promises nothing about time and memory: `worker` bounds both, from outside of this code.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from migrations.state.chain import Chain, Step
from migrations.state.declarative import Declared, compile_operations
from migrations.state.document import Document, Encoded
from migrations.state.errors import ChainInvalid, PathFault, SchemaInvalid, StateTooNew, StepInvalid, UpcastFailed
from migrations.state.json_schemas import JsonSchema, Part, TooDeep, check_json_schema, cost_of, shown

# Programs that a worker keeps compiled; another one is learned again.
PROGRAMS_MAX: Final = 64
# Values that a lone channel is tried with to learn what becomes of its name. None of them is a default that a step
# would set, which a step's result is compared with.
_PROBES: Final = tuple(
    Encoded("msgpack", msgspec.msgpack.encode(each))
    for each in (["stateroom probe"], "stateroom probe", {"stateroom probe": 0}, -7_405_926, None)
)
Shape = tuple[str, str]  # the name of a channel and its encoding; its value travels beside it


class SchemaText(Struct, frozen=True, tag="json-schema"):
    """A JSON Schema, as JSON, as far as it goes for a part of a state."""

    text: bytes
    part: Part


class StepText(Struct, frozen=True, array_like=True):
    """The step to a version: operations, or the name of a schema of the deployment's."""

    up: list[dict[str, Any]] | None = None
    down: list[dict[str, Any]] | None = None
    deployment: str | None = None


class StepsText(Struct, frozen=True, tag="steps"):
    """The steps of a state schema, by the versions they lead to, each a `StepText` as JSON."""

    schema: str
    steps: dict[int, bytes]


class Program:
    """What a tenant registered, named by its digest."""

    __slots__ = ("digest", "size_bytes", "text")

    def __init__(self, text: SchemaText | StepsText) -> None:
        encoded = msgspec.msgpack.encode(text)
        self.text = text
        self.size_bytes = len(encoded)
        self.digest = hashlib.blake2b(encoded, digest_size=16).digest()


class Learn(Struct, frozen=True, tag="learn"):
    """Compile a program and keep it; ``new``: it is being registered, under the bounds of today."""

    program: bytes
    text: SchemaText | StepsText
    new: bool = False


class Check(Struct, frozen=True, tag="check"):
    """Check channels by a JSON Schema. ``lists``: how many of the values make a channel; None: each is one."""

    program: bytes
    channels: list[Shape]
    lists: list[int] | None = None


class Convert(Struct, frozen=True, tag="convert"):
    """Bring channels from one version to another."""

    program: bytes
    saved: int
    wanted: int
    channels: list[Shape]
    partial: bool = False
    names: list[str] = []


class Rename(Struct, frozen=True, tag="rename"):
    """Tell under which names channels are found at another version."""

    program: bytes
    saved: int
    wanted: int
    names: list[str]


class Learned(Struct, frozen=True, tag="learned"):
    """The program is kept; what a JSON Schema's checks take (`Cost`)."""

    plain: bool = False
    steps: int = 0


class Invalid(Struct, frozen=True, tag="invalid"):
    """The program cannot be used: why, and where in its definition."""

    why: str
    pointer: str


class NotLearned(Struct, frozen=True, tag="not-learned"):
    """The program is not kept, or not any more: teach it first."""


class Checked(Struct, frozen=True, tag="checked"):
    """The channels fit if there is no ``rule``; else the keyword they do not fit, and the way to where."""

    rule: str | None = None
    steps: list[str | int] = []
    too_deep: bool = False


class Converted(Struct, frozen=True, tag="converted"):
    """Channels at the other version: name, encoding, and which given one it is unchanged, or None: made.

    The made ones' values travel beside, in order. ``names`` are those of the given names.
    """

    channels: list[tuple[str, str, str | None]]
    names: list[list[str]]


class Renamed(Struct, frozen=True, tag="renamed"):
    """The names of each; none where no value of it leads anywhere."""

    names: list[list[str]]


class TooNew(Struct, frozen=True, tag="too-new"):
    """See `StateTooNew`."""

    schema: str
    saved: int
    wanted: int
    why: str


class Failed(Struct, frozen=True, tag="failed"):
    """See `UpcastFailed`."""

    schema: str
    step: str
    why: str
    pointer: str


Request = Learn | Check | Convert | Rename
Answer = Learned | Invalid | NotLearned | Checked | Converted | Renamed | TooNew | Failed


class Tasks:
    """Does what is asked, with the programs it has learned."""

    def __init__(self, shipped: Mapping[str, Chain]) -> None:
        """Begin without any program; ``shipped`` are the deployment's own steps, by schema."""
        self._shipped = shipped
        self._programs: OrderedDict[bytes, JsonSchema | Chain] = OrderedDict()

    def forget(self) -> None:
        """Keep no program any longer."""
        self._programs.clear()

    def perform(self, request: Request, values: Sequence[bytes]) -> tuple[Answer, list[bytes]]:
        """The answer, and the values that travel beside it."""
        if isinstance(request, Learn):
            return self._learn(request), []
        program = self._programs.get(request.program)
        if program is None:
            return NotLearned(), []
        self._programs.move_to_end(request.program)
        if isinstance(request, Check):
            assert isinstance(program, JsonSchema)  # noqa: S101  for the type checker: who asks knows what it taught
            return _check(program, request, values), []
        assert isinstance(program, Chain)  # noqa: S101  likewise
        try:
            if isinstance(request, Rename):
                return Renamed([renamed(program, each, request.saved, request.wanted) for each in request.names]), []
            return _convert(program, request, values)
        except StateTooNew as error:
            return TooNew(error.schema, error.saved, error.wanted, error.why), []
        except UpcastFailed as error:
            return Failed(error.schema, error.step, error.why, error.pointer), []

    def _learn(self, request: Learn) -> Answer:
        text = request.text
        learned = Learned()
        program: JsonSchema | Chain
        try:
            if isinstance(text, SchemaText):
                schema = msgspec.json.decode(text.text)
                if request.new:
                    check_json_schema(schema)
                cost = cost_of(schema, text.part)
                program, learned = JsonSchema(schema, text.part), Learned(cost.plain, cost.steps)
            else:
                program = self._chain(text, newest=max(text.steps) if request.new else None)
        except (SchemaInvalid, StepInvalid) as fault:
            return Invalid(str(fault), fault.pointer)
        except ChainInvalid as fault:
            return Invalid(f"{fault.step}: {fault}", "")
        except ValueError:
            return Invalid("the JSON Schema cannot be used", "/json_schema")
        self._programs[request.program] = program
        if len(self._programs) > PROGRAMS_MAX:
            self._programs.popitem(last=False)
        return learned

    def _chain(self, text: StepsText, newest: int | None) -> Chain:
        first = min(text.steps)
        texts = {number: msgspec.json.decode(each, type=StepText) for number, each in text.steps.items()}
        if texts[first].up is not None or texts[first].deployment is not None:
            raise StepInvalid("the first version has no step: nothing leads to it", "/up")
        steps = [self._step(number, each) for number, each in texts.items() if number != first]
        for step in steps:
            for direction in (step.up, step.down):
                if step.target == newest and isinstance(direction, _Later):
                    try:
                        direction.compiled()
                    except StepInvalid as fault:
                        raise StepInvalid(f"{step.name}: {fault}", fault.pointer) from None
        return Chain(text.schema, steps)

    def _step(self, number: int, text: StepText) -> Step:
        name = f"v{number - 1}_to_v{number}"
        if (text.up is None) == (text.deployment is None):
            raise StepInvalid(f"{name}: a version after the first has either up or deployment", "/up")
        if text.up is not None:
            down = None if text.down is None else _Later(text.down, "/down")
            return Step(number - 1, number, _Later(text.up, "/up"), down)
        assert text.deployment is not None  # noqa: S101  for the type checker: one of the two is there
        chain = self._shipped.get(text.deployment)
        for step in () if chain is None else chain.steps:
            if (step.source, step.target) == (number - 1, number):
                return step
        raise StepInvalid(f"this deployment ships no step {name} of {text.deployment!r}", "/deployment")


class _Later:
    """A direction that is compiled when it is needed: a state goes through few of the steps that a schema has."""

    __slots__ = ("_compiled", "_operations", "_pointer")

    def __init__(self, operations: list[dict[str, Any]], pointer: str) -> None:
        self._operations = operations
        self._pointer = pointer
        self._compiled: Declared | None = None

    def compiled(self) -> Declared:
        """The direction.

        Raises:
            StepInvalid: it cannot be used.
        """
        if self._compiled is None:
            self._compiled = compile_operations(self._operations, self._pointer)
        return self._compiled

    def __call__(self, document: Document, *, partial: bool) -> Document:
        """See `Direction`."""
        try:
            direction = self.compiled()
        except StepInvalid as fault:
            raise PathFault(f"the step cannot be used any more: {fault}") from None
        return direction(document, partial=partial)


def renamed(chain: Chain, name: str, saved: int, wanted: int) -> list[str]:
    """Under which names a channel is found at another version; none if no value of it leads anywhere.

    Steps look at values, and this has none: it tries some, and believes the first that a step can be applied to. A
    channel that is renamed for some of its values only is not followed.

    Raises:
        StateTooNew: no steps lead there.
    """
    chain.path(saved, wanted)
    for probe in _PROBES:
        try:
            return list(chain.convert({name: probe}, saved, wanted, partial=True))
        except UpcastFailed:
            continue
    return []


def _check(program: JsonSchema, request: Check, values: Sequence[bytes]) -> Checked:
    trees = [shown(encoding, value) for (_, encoding), value in zip(request.channels, values, strict=True)]
    names = [name for name, _ in request.channels]
    given: dict[str, Any] = dict(zip(names, trees, strict=True))
    if request.lists is not None:
        given, at = {}, 0
        for count in request.lists:
            given[names[at]] = trees[at : at + count]
            at += count
    try:
        misfit = program.misfit(given)
    except TooDeep:
        return Checked(too_deep=True)
    return Checked() if misfit is None else Checked(misfit.rule, misfit.steps)


def _convert(chain: Chain, request: Convert, values: Sequence[bytes]) -> tuple[Answer, list[bytes]]:
    given = {name: Encoded(encoding, value) for (name, encoding), value in zip(request.channels, values, strict=True)}
    origins = {id(each): name for name, each in given.items()}
    after = chain.convert(given, request.saved, request.wanted, partial=request.partial)
    channels = [(name, each.encoding, origins.get(id(each))) for name, each in after.items()]
    made = [each.data for each in after.values() if id(each) not in origins]
    names = [renamed(chain, each, request.saved, request.wanted) for each in request.names]
    return Converted(channels, names), made
