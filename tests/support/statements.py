"""Every statement that the product runs, by ``module.NAME``: what a test holds of one it holds of all."""

import importlib
import pkgutil
from typing import Any

from storage import postgres, statements
from storage.postgres.statement import Statement


def every_statement() -> dict[str, Statement[Any]]:
    """All that callers see; of several under one name, each by its key or position."""
    found = {}
    modules = (
        importlib.import_module(module.name)
        for package in (postgres, statements)
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
        if not module.ispkg
    )
    for module in modules:
        for name, value in vars(module).items():
            several = value if isinstance(value, dict) else dict(enumerate(value)) if isinstance(value, tuple) else {}
            for each, statement in ({"": value} | several).items():
                if isinstance(statement, Statement) and not name.startswith("_"):
                    found[f"{module.__name__.rpartition('.')[2]}.{name}{each}"] = statement
    return found
