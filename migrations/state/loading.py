"""Python steps: found in folders and packages, imported once, at start.

A step is a module named ``v1_to_v2`` in a folder (or package) named after its schema, with a function
``upcast(state) -> state`` and, as far as they are wanted, ``upcast_write(channel, value)``, ``downcast(state)`` and
``downcast_write(channel, value)``. This is operators' code: it is imported from where the deployment says and from
nowhere else, and a tenant can only name a schema that was found here.
"""

import importlib
import importlib.util
import pkgutil
import re
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from migrations.state.chain import Chain, PythonDirection, Step
from migrations.state.errors import ChainInvalid

SHIPPED: Final = Path(__file__).parent / "schemas"
ENTRY_POINT_GROUP: Final = "stateroom.state_schemas"
_STEP: Final = re.compile(r"v([1-9][0-9]{0,8})_to_v([1-9][0-9]{0,8})\Z", re.ASCII)
_SCHEMA: Final = re.compile(r"[a-z][a-z0-9_]{0,62}\Z", re.ASCII)


def chains_of_folder(folder: Path) -> dict[str, Chain]:
    """The chains in a folder of schemas; anything in it that is no step is refused, not passed over.

    Raises:
        ChainInvalid: a file is not a step, or steps do not form a line.
    """
    chains: dict[str, Chain] = {}
    for schema in sorted(each for each in folder.iterdir() if each.is_dir() and each.name != "__pycache__"):
        steps = [
            _step(path.stem, _import_file(schema.name, path))
            for path in sorted(schema.glob("*.py"))
            if path.stem != "__init__"
        ]
        chains[_schema_name(schema.name)] = Chain(schema.name, steps)
    return chains


def chains_of_package(package: ModuleType) -> dict[str, Chain]:
    """The chains in an installed package of schemas.

    Raises:
        ChainInvalid: as `chains_of_folder`.
    """
    chains: dict[str, Chain] = {}
    for schema in pkgutil.iter_modules(package.__path__):
        inside = importlib.import_module(f"{package.__name__}.{schema.name}")
        steps = [
            _step(each.name, importlib.import_module(f"{inside.__name__}.{each.name}"))
            for each in pkgutil.iter_modules(getattr(inside, "__path__", []))
        ]
        chains[_schema_name(schema.name)] = Chain(schema.name, steps)
    return chains


def chains_of_entry_points() -> dict[str, Chain]:
    """The chains of every installed package that announces itself as ``stateroom.state_schemas``.

    Raises:
        ChainInvalid: as `chains_of_folder`, or two packages have a schema of one name.
    """
    chains: dict[str, Chain] = {}
    for found in entry_points(group=ENTRY_POINT_GROUP):
        for name, chain in chains_of_package(found.load()).items():
            if name in chains:
                raise ChainInvalid(f"two packages have a schema {name!r}", found.name)
            chains[name] = chain
    return chains


def shipped_chains() -> dict[str, Chain]:
    """What this build and the packages installed beside it ship: schema to chain.

    Raises:
        ChainInvalid: as `chains_of_folder`, or a package has a schema of the build's.
    """
    chains = chains_of_folder(SHIPPED)
    for name, chain in chains_of_entry_points().items():
        if name in chains:
            raise ChainInvalid(f"a package has a schema {name!r}, which this build ships", name)
        chains[name] = chain
    return chains


def _schema_name(name: str) -> str:
    if not _SCHEMA.match(name):
        raise ChainInvalid("a schema's folder is named in lower case letters, digits and underscores", name)
    return name


def _import_file(schema: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"stateroom_state_schemas.{schema}.{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ChainInvalid("this file cannot be imported", path.stem)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _functions(module: ModuleType, name: str) -> Iterator[Callable[..., Any] | None]:
    for each in (name, f"{name}_write"):
        function = getattr(module, each, None)
        if function is not None and not callable(function):
            raise ChainInvalid(f"{each} is not a function", module.__name__.rpartition(".")[2])
        yield function


def _step(name: str, module: ModuleType) -> Step:
    match = _STEP.match(name)
    if match is None:
        raise ChainInvalid("a step's file is named v<from>_to_v<to>.py", name)
    up, up_write = _functions(module, "upcast")
    down, down_write = _functions(module, "downcast")
    if up is None:
        raise ChainInvalid("a step needs a function upcast(state)", name)
    back = None if down is None else PythonDirection(down, down_write)
    return Step(int(match[1]), int(match[2]), PythonDirection(up, up_write), back)
