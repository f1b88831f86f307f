"""Work on tenants' state that worker processes do: checks by JSON Schemas, conversions from version to version.

Owns which work is so small and so plain that it is done here instead: a check by a schema whose cost is known to be
linear (`migrations.state.json_schemas.Cost`), of no more bytes than `PLAIN_BYTES_MAX`. Whatever is converted, and all
else, goes to a worker (`storage.schemas.workers`): what a step or a condition takes is known only when it has run.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NoReturn

from migrations.state.errors import StateTooNew, UpcastFailed
from migrations.state.json_schemas import JsonSchema, Misfit
from migrations.state.tasks import (
    Answer,
    Check,
    Checked,
    Convert,
    Converted,
    Failed,
    Invalid,
    Learn,
    Learned,
    Program,
    Rename,
    Renamed,
    Request,
    Shape,
    TooNew,
)
from storage.errors import InvalidState, StateSchemaInvalid, TooCostly
from storage.model import Value
from storage.schemas.checks import Checkable
from storage.schemas.registry import Schema
from storage.schemas.workers import Workers
from storage.scope import Scope

# What of a save is checked in this process, on the event loop: mostly less than a millisecond. The worst legal request
# are 16 Ki empty objects in a list and a schema of 60 members or 20 alternatives for each: 30 ms.
PLAIN_BYTES_MAX = 16 * 1024
PLAIN_STEPS_MAX = 1_000_000
# A schema that is larger is not compiled here: 16 KiB take less than a millisecond.
PLAIN_SCHEMA_BYTES_MAX = 16 * 1024


class StateWork:
    """Asks the workers, in the name of a tenant."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers

    async def misfit(self, scope: Scope, known: Schema, number: int, checkable: Checkable) -> Misfit | None:
        """Where a part of a state does not fit the JSON Schema of its version, if it does not.

        Raises:
            InvalidState: it is nested too deeply to be looked at.
            StateSchemaInvalid: the JSON Schema cannot be used any more.
            TooCostly, TenantTooCostly, Unavailable: as `Workers.ask`.
        """
        program = known.program(number, checkable.part)
        if program is None:
            return None
        plain = known.plain.get(program.digest)
        if plain is None:
            learned, _ = await self._ask(scope, known, number, program, Learn(program.digest, program.text))
            if not isinstance(learned, Learned):
                _refuse(learned, known, number)
            plainly = learned.plain and program.size_bytes <= PLAIN_SCHEMA_BYTES_MAX
            validator = JsonSchema(known.json_schema(number), checkable.part) if plainly else None
            plain = known.plain[program.digest] = (validator, learned.steps)
        validator, steps = plain
        size = checkable.size_bytes
        if validator is not None and size <= PLAIN_BYTES_MAX and size * steps <= PLAIN_STEPS_MAX:
            return validator.misfit(checkable.shown())
        shapes, values = _shapes((name, each) for name, several in checkable.channels.items() for each in several)
        lists = [len(each) for each in checkable.channels.values()] if checkable.part == "elements" else None
        request = Check(program.digest, shapes, lists)
        answer, _ = await self._ask(scope, known, number, program, request, values)
        if not isinstance(answer, Checked):
            _refuse(answer, known, number)
        if answer.too_deep:
            raise InvalidState("the state is nested too deeply for its JSON Schema", checkable.prefix)
        return None if answer.rule is None else Misfit(answer.rule, answer.steps)

    async def converted(
        self, scope: Scope, known: Schema, saved: int, wanted: int, channels: Mapping[str, Value], *,
        partial: bool = False, names: Sequence[str] = (),
    ) -> tuple[dict[str, tuple[Value, str | None]], list[list[str]]]:  # fmt: skip
        """Channels at another version, each with the name of the given one that it is unchanged, or None.

        ``partial``: the one channel is a pending write's. ``names`` are names to tell what becomes of, as `names` does.

        Raises:
            StateTooNew: no steps lead there.
            UpcastFailed: a step cannot be applied.
            StateSchemaInvalid: the steps cannot be used any more.
            TooCostly, TenantTooCostly, Unavailable: as `Workers.ask`.
        """
        shapes, values = _shapes(channels.items())
        request = Convert(known.steps.digest, saved, wanted, shapes, partial, list(names))
        answer, made = await self._ask(scope, known, wanted, known.steps, request, values)
        if not isinstance(answer, Converted):
            _refuse(answer, known, wanted)
        rest = iter(made)
        return {
            name: (Value(encoding, next(rest)), None) if origin is None else (channels[origin], origin)
            for name, encoding, origin in answer.channels
        }, answer.names

    async def names(
        self, scope: Scope, known: Schema, saved: int, wanted: int, names: Sequence[str]
    ) -> list[list[str]]:
        """Under which names channels are found at another version; none where nothing leads anywhere.

        Raises:
            StateTooNew, StateSchemaInvalid, TooCostly, TenantTooCostly, Unavailable: as `converted`.
        """
        request = Rename(known.steps.digest, saved, wanted, list(names))
        answer, _ = await self._ask(scope, known, wanted, known.steps, request)
        if not isinstance(answer, Renamed):
            _refuse(answer, known, wanted)
        return answer.names

    async def _ask(
        self, scope: Scope, known: Schema, number: int, program: Program, request: Request, values: Sequence[bytes] = ()
    ) -> tuple[Answer, list[bytes]]:
        try:
            return await self._workers.ask(scope.tenant_id, program, request, values)
        except TooCostly as error:
            raise TooCostly(f"Version {number} of state schema {known.schema!r}: {error}") from None


def _shapes(channels: Iterable[tuple[str, Value]]) -> tuple[list[Shape], list[bytes]]:
    shapes, values = [], []
    for name, value in channels:
        shapes.append((name, value.encoding))
        values.append(value.data)
    return shapes, values


def _refuse(answer: Answer, known: Schema, number: int) -> NoReturn:
    match answer:
        case TooNew():
            raise StateTooNew(answer.schema, answer.saved, answer.wanted, answer.why)
        case Failed():
            raise UpcastFailed(answer.schema, answer.step, answer.why, answer.pointer)
        case Invalid():
            raise StateSchemaInvalid(f"version {number} of {known.schema!r}: {answer.why}", answer.pointer)
        case _:
            raise AssertionError(type(answer).__name__)
