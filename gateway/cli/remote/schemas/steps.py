"""Steps of state schemas in a folder, with the states recorded for them. Local: no gateway, no database.

Owns the folder's shape::

    state_schemas/
      travel/                    a state schema; its name in lower case letters, digits and underscores
        v1_to_v2.py              a step in Python, or
        v3.json                  the definition of version 3, with its step declared (``up``, ``down``)
        recorded/v1_to_v2.json   states and what the step makes of them

The folder itself is what a deployment ships; ``v<n>.json`` is what a tenant registers. Recorded states are written as
the API shows them in JSON, ``{"$bytes": ...}`` and the like included.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import jsonschema_rs
import msgspec
from msgspec import Raw

from gateway.admission.slices import finish
from gateway.bodies.codec import value_in, value_out
from gateway.cli.failure import ExitCode, Failure
from gateway.problems import InvalidRequest, MalformedBody
from migrations.state.chain import Chain, Step
from migrations.state.checking import Case, Finding, RecordedWrite, record, record_write
from migrations.state.declarative import compile_operations
from migrations.state.document import Encoded
from migrations.state.errors import PathFault, StateMigrationError
from migrations.state.json_schemas import JsonSchema, shown
from migrations.state.loading import chains_of_folder
from storage.errors import InvalidState
from storage.model import Value
from storage.schemas.checks import refuse
from storage.schemas.registry import Definition
from storage.schemas.versions import is_control

SCHEMA_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,62}", re.ASCII)
_DEFINITION: Final = re.compile(r"v([1-9][0-9]{0,8})", re.ASCII)

_PYTHON_STEP: Final = '''"""{schema}: from version {source} to {target}.

Pure functions: the same state in, the same state out. They change nothing that they are given, and read no file,
network, clock or randomness. A value that is passed on as it is keeps its exact bytes.
"""

from typing import Any


def upcast(state: dict[str, Any]) -> dict[str, Any]:
    """The state at version {target}: a new dict of channels."""
    return dict(state)


def downcast(state: dict[str, Any]) -> dict[str, Any]:
    """The state at version {source} again, for programs of before. Leave it out if there is no way back."""
    return dict(state)
'''


class RecordedWriteFile(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A pending write in a file."""

    channel: str
    value: Raw
    becomes: dict[str, Raw] | None = None


class RecordedCase(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A case in a file. Without ``after`` it is to be recorded yet."""

    name: str
    before: dict[str, Raw]
    after: dict[str, Raw] | None = None
    back: dict[str, Raw] | None = None
    writes: list[RecordedWriteFile] = []


class RecordedFile(msgspec.Struct, forbid_unknown_fields=True):
    """The states recorded for a step."""

    cases: list[RecordedCase]


@dataclass(frozen=True, slots=True)
class SchemaFolder:
    """One schema in the folder."""

    path: Path
    chain: Chain

    @property
    def name(self) -> str:
        """The schema's name."""
        return self.path.name

    @property
    def newest(self) -> int:
        """The newest version that a step leads to; 1 if there is no step."""
        return self.chain.steps[-1].target if self.chain.steps else 1

    def recorded_path(self, step: str) -> Path:
        """Where the states for a step are recorded."""
        return self.path / "recorded" / f"{step}.json"

    def cases(self) -> dict[str, list[Case]]:
        """The recorded cases by step; those that are not recorded to their end are left out.

        Raises:
            Failure: a file is not what it should be.
        """
        return {step.name: self._cases_of(step) for step in self.chain.steps}

    def _cases_of(self, step: Step) -> list[Case]:
        path = self.recorded_path(step.name)
        return [
            _case(path, index, each) for index, each in enumerate(read_recorded(path).cases) if each.after is not None
        ]

    def misfits(self, recorded: Mapping[str, Iterable[Case]]) -> list[Finding]:
        """Recorded results that do not fit the JSON Schema of their version, as a save of them would not.

        Raises:
            Failure: a definition, or its JSON Schema, is not one.
        """
        findings = []
        for step in self.chain.steps:
            definition = _definition(self.path / f"v{step.target}.json")
            if definition is None or definition.json_schema is None:
                continue
            try:
                validator = JsonSchema(definition.json_schema)
            except (ValueError, jsonschema_rs.ReferencingError):
                raise Failure(f"{self.path / f'v{step.target}.json'} has no usable JSON Schema") from None
            for case in recorded.get(step.name, ()):
                after = {
                    name: shown(each.encoding, each.data) for name, each in case.after.items() if not is_control(name)
                }
                misfit = validator.misfit(after)
                if misfit is not None:
                    error = refuse(misfit, step.target, "")
                    why = f"what it makes does not fit the JSON Schema of version {step.target}, at "
                    findings.append(Finding(step.name, case.name, f"{why}{error.pointer or '/'}: {error}"))
        return findings

    def accept(self) -> list[Path]:
        """Record what the steps make now of the states, and write what changed; returns the files written.

        Raises:
            Failure: a step cannot be applied to a state, or a file is not what it should be.
        """
        return [path for step in self.chain.steps if (path := self._accept(step)) is not None]

    def _accept(self, step: Step) -> Path | None:
        path = self.recorded_path(step.name)
        recorded = read_recorded(path)
        for index, case in enumerate(recorded.cases):
            where = f"/cases/{index}"
            before = _state(path, case.before, f"{where}/before")
            try:
                after = record(step, before)
                case.after = _shown(after)
                if case.back is not None and step.down is not None:
                    case.back = _shown(Chain(self.name, [step]).convert(after, step.target, step.source))
                for place, write in enumerate(case.writes):
                    value = _encoded(path, write.value, f"{where}/writes/{place}/value")
                    write.becomes = _shown(record_write(step, write.channel, value))
            except (PathFault, StateMigrationError) as fault:
                detail = f"{case.name}: {fault}" + (f" at {fault.pointer}" if isinstance(fault, PathFault) else "")
                raise Failure(f"{step.name} of {self.name} cannot be applied", detail=detail) from None
        return path if recorded.cases and write_recorded(path, recorded) else None


def read_folder(folder: Path, only: str | None = None) -> list[SchemaFolder]:
    """The schemas in a folder.

    Args:
        folder: The folder of schemas.
        only: One of them.

    Raises:
        Failure: there is no such folder or schema, or its steps do not form a line.
    """
    if not folder.is_dir():
        hint = "stateroom state new-version SCHEMA makes one, or name it with --folder."
        raise Failure(f"there is no folder {folder}", hint=hint, exit_code=ExitCode.NOT_FOUND)
    paths = sorted(path for path in folder.iterdir() if path.is_dir() and path.name != "__pycache__")
    if only is not None and only not in {path.name for path in paths}:
        raise Failure(f"there is no schema {only!r} in {folder}", exit_code=ExitCode.NOT_FOUND)
    try:
        written = chains_of_folder(folder)
    except StateMigrationError as fault:
        raise Failure("the steps do not form a line", detail=f"{getattr(fault, 'step', '')}: {fault}") from None
    return [_schema(path, written[path.name].steps) for path in paths if only in {None, path.name}]


def _schema(path: Path, written: Iterable[Step]) -> SchemaFolder:
    steps = [*written, *(step for each in sorted(path.glob("*.json")) if (step := _declared(each)) is not None)]
    try:
        return SchemaFolder(path, Chain(path.name, steps))
    except StateMigrationError as fault:
        raise Failure(f"the steps of {path.name} do not form a line", detail=f"{fault.args[0]}") from None


def _definition(path: Path) -> Definition | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Definition)
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Failure(f"{path} is not a definition of a version", detail=str(error)) from None


def _declared(path: Path) -> Step | None:
    """The step that a definition declares; None if it is the first version's, or names a deployment's."""
    match = _DEFINITION.fullmatch(path.stem)
    if match is None:
        raise Failure(f"{path}: a definition's file is named v<number>.json")
    definition = _definition(path)
    if definition is None or definition.up is None:
        return None
    target = int(match[1])
    try:
        down = None if definition.down is None else compile_operations(definition.down, "/down")
        return Step(target - 1, target, compile_operations(definition.up, "/up"), down)
    except StateMigrationError as fault:
        raise Failure(f"{path} declares no step", detail=f"{getattr(fault, 'pointer', '')}: {fault}") from None


def read_recorded(path: Path) -> RecordedFile:
    """The states in a file; none if there is no file.

    Raises:
        Failure: it is not a file of recorded states.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=RecordedFile)
    except FileNotFoundError:
        return RecordedFile([])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Failure(f"{path} is not a file of recorded states", detail=str(error)) from None


def write_recorded(path: Path, recorded: RecordedFile) -> bool:
    """Write states to a file, readable and in a stable order; returns whether it changed."""
    text = json.dumps(json.loads(msgspec.json.encode(recorded)), indent=2, ensure_ascii=False) + "\n"
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return False
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return True


def scaffold(folder: Path, schema: str, *, declared: bool, recorded: list[RecordedCase]) -> list[Path]:
    """Make the next step of a schema and the file of its states; returns what was made.

    Args:
        folder: The folder of schemas; made if it is not there.
        schema: The schema's name.
        declared: Whether the step is to be declared, instead of written in Python.
        recorded: States to begin with; without any, what the step before made of its own.

    Raises:
        Failure: the name cannot be a schema's, or what is in the folder is not in order.
    """
    if not SCHEMA_NAME.fullmatch(schema):
        raise Failure(
            f"{schema!r} cannot be a schema's name",
            hint="Lower case letters, digits and underscores, a letter first.",
            exit_code=ExitCode.USAGE,
        )
    (folder / schema).mkdir(parents=True, exist_ok=True)
    (existing,) = read_folder(folder, schema)
    source, target = existing.newest, existing.newest + 1
    previous = (
        read_recorded(existing.recorded_path(existing.chain.steps[-1].name)).cases if existing.chain.steps else []
    )
    cases = recorded or [RecordedCase(each.name, each.after) for each in previous if each.after is not None]
    if declared:
        step = existing.path / f"v{target}.json"
        operations = [{"op": "rename", "from": "/old_name", "to": "/new_name"}]
        back = [{"op": "rename", "from": "/new_name", "to": "/old_name"}]
        text = json.dumps({"label": f"{target}.0.0", "up": operations, "down": back}, indent=2) + "\n"
    else:
        step = existing.path / f"v{source}_to_v{target}.py"
        text = _PYTHON_STEP.format(schema=schema, source=source, target=target)
    states = existing.recorded_path(f"v{source}_to_v{target}")
    made = [step, states]
    first = existing.path / "v1.json"
    if declared and source == 1 and not first.exists():
        first.write_text(json.dumps({"label": "1.0.0"}, indent=2) + "\n", encoding="utf-8")
        made.insert(0, first)
    step.write_text(text, encoding="utf-8")
    write_recorded(states, RecordedFile(cases or [RecordedCase("an empty state", {})]))
    return made


def case_of_checkpoint(checkpoint: Mapping[str, Any]) -> RecordedCase:
    """A case of what a gateway answered in JSON: state and pending writes, without what belongs to frameworks."""
    return RecordedCase(
        checkpoint["thread_id"],
        {name: _raw(value) for name, value in checkpoint["state"].items() if not is_control(name)},
        writes=[
            RecordedWriteFile(write["channel"], _raw(write["value"]))
            for write in checkpoint.get("pending_writes", ())
            if not is_control(write["channel"])
        ],
    )


def trees(state: Mapping[str, Encoded]) -> dict[str, Any]:
    """A state as the API shows it in JSON."""
    return {name: json.loads(bytes(value)) for name, value in _shown(state).items()}


def _raw(value: Any) -> Raw:
    return Raw(msgspec.json.encode(value))


def _case(path: Path, index: int, recorded: RecordedCase) -> Case:
    where = f"/cases/{index}"
    return Case(
        recorded.name,
        _state(path, recorded.before, f"{where}/before"),
        _state(path, recorded.after or {}, f"{where}/after"),
        None if recorded.back is None else _state(path, recorded.back, f"{where}/back"),
        tuple(
            RecordedWrite(
                each.channel,
                _encoded(path, each.value, f"{where}/writes/{place}/value"),
                None if each.becomes is None else _state(path, each.becomes, f"{where}/writes/{place}/becomes"),
            )
            for place, each in enumerate(recorded.writes)
        ),
    )


def _state(path: Path, channels: Mapping[str, Raw], where: str) -> dict[str, Encoded]:
    return {name: _encoded(path, raw, f"{where}/{name}") for name, raw in channels.items()}


def _encoded(path: Path, raw: Raw, where: str) -> Encoded:
    try:
        value = finish(value_in("json", raw, where))
    except (InvalidState, InvalidRequest, MalformedBody) as error:
        raise Failure(f"{path} is not a file of recorded states", detail=f"{where}: {error}") from None
    return Encoded(value.encoding, value.data)


def _shown(state: Mapping[str, Encoded]) -> dict[str, Raw]:
    return {name: finish(value_out("json", Value(each.encoding, each.data))) for name, each in state.items()}
