"""Python steps: found in folders and packages, imported once, at start.

A step is a module named ``v1_to_v2`` in a folder (or package) named after its schema, with a function
``upcast(state) -> state`` and, as far as they are wanted, ``upcast_write(channel, value)``, ``downcast(state)`` and
``downcast_write(channel, value)``. This is operators' code: it is imported from where the deployment says and from
nowhere else, and a tenant can only name a schema that was found here.

A file is read once and what was read is run: no bytecode beside it is, and a file of a configured folder is checked on
the descriptor that it is read from.
"""

import importlib
import os
import pkgutil
import re
import stat
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


def _anybodys(_status: os.stat_result, _place: Path) -> None:
    return


def chains_of_folder(folder: Path, *, check: Callable[[os.stat_result, Path], None] = _anybodys) -> dict[str, Chain]:
    """The chains in a folder of schemas; anything in it that is no step is refused, not passed over.

    ``check`` is asked about each folder, and about each file before it is run; it raises what it does not like.

    Raises:
        ChainInvalid: a file is not a step, cannot be imported, or steps do not form a line.
    """
    chains: dict[str, Chain] = {}
    for schema in sorted(each for each in folder.iterdir() if each.is_dir() and each.name != "__pycache__"):
        check(schema.lstat(), schema)
        steps = [
            _step(path.stem, _import_file(schema.name, path, check))
            for path in sorted(schema.glob("*.py"))
            if path.stem != "__init__"
        ]
        chains[_schema_name(schema.name)] = Chain(schema.name, steps)
    return chains


def chains_of_own_folder(folder: Path) -> dict[str, Chain]:
    """The chains in a folder that a deployment names, which only root and this process's user can change.

    That holds for the folder, for the folders it is in (others may add to one that is sticky, as ``/tmp`` is), and for
    what is in it; symbolic links in it are not followed.

    Raises:
        ChainInvalid: as `chains_of_folder`; or another user can change what would be run; or there is no such folder.
    """
    try:
        place = folder.resolve(strict=True)
        for each in place.parents:
            _check_owned(each.stat(), each, sticky_is_safe=True)
        _check_owned(place.stat(), place)
        if not place.is_dir():
            raise ChainInvalid("this is not a folder", str(folder))
        return chains_of_folder(place, check=_check_owned)
    except OSError as error:
        raise ChainInvalid(f"cannot be read: {error.strerror}", str(error.filename or folder)) from None


def _check_owned(status: os.stat_result, place: Path, *, sticky_is_safe: bool = False) -> None:
    if stat.S_ISLNK(status.st_mode):
        raise ChainInvalid("this is a symbolic link; name what it leads to", str(place))
    if status.st_uid not in {0, os.geteuid()}:
        why = f"this belongs to user {status.st_uid}, who is neither root nor this process's user {os.geteuid()}"
        raise ChainInvalid(why, str(place))
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not (sticky_is_safe and status.st_mode & stat.S_ISVTX):
        raise ChainInvalid(f"other users can change this, and it is run; run chmod go-w {place}", str(place))


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


def ships_steps(folder: Path | None = None) -> bool:
    """Whether `shipped_chains` may find any step; nothing is imported."""
    here = any(each.is_dir() and each.name != "__pycache__" for each in SHIPPED.iterdir())
    return here or folder is not None or bool(entry_points(group=ENTRY_POINT_GROUP))


def shipped_chains(folder: Path | None = None) -> dict[str, Chain]:
    """What this build, the packages installed beside it and the deployment's own folder ship: schema to chain.

    Raises:
        ChainInvalid: as `chains_of_folder` and `chains_of_own_folder`, or two of them have a schema of one name.
    """
    chains = chains_of_folder(SHIPPED)
    packages = chains_of_entry_points()
    own = {} if folder is None else chains_of_own_folder(folder)
    for source, earlier, found in (
        ("a package", "this build", packages),
        ("the folder", "this build or a package", own),
    ):
        for name, chain in found.items():
            if name in chains:
                raise ChainInvalid(f"{source} has a schema {name!r}, which {earlier} ships", name)
            chains[name] = chain
    return chains


def _schema_name(name: str) -> str:
    if not _SCHEMA.match(name):
        raise ChainInvalid("a schema's folder is named in lower case letters, digits and underscores", name)
    return name


def _import_file(schema: str, path: Path, check: Callable[[os.stat_result, Path], None]) -> ModuleType:
    check(path.lstat(), path)
    with path.open("rb") as file:
        check(os.fstat(file.fileno()), path)
        source = file.read()
    module = ModuleType(f"stateroom_state_schemas.{schema}.{path.stem}")
    module.__file__ = str(path)
    try:
        exec(compile(source, str(path), "exec"), module.__dict__)  # noqa: S102  what an operator put there to be run
    except Exception as error:
        raise ChainInvalid(f"importing {path} raised {type(error).__name__}: {error}", path.stem) from error
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
