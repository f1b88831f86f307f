"""The house stays as it is drawn: rooms that can be looked over, and statements without positions."""

import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
PRODUCT = tuple(ROOT / name for name in ("crypto", "gateway", "migrations", "sdk/python/src", "storage"))
MODULES_MAX = 12  # what somebody looks over at once
POSITION = re.compile(r"\$\d")


def _modules() -> list[Path]:
    return [path for folder in PRODUCT for path in folder.rglob("*.py")]


def test_no_folder_has_more_modules_than_can_be_looked_over():
    levels = Counter(path.parent.relative_to(ROOT) for path in _modules() if path.name != "__init__.py")
    assert levels
    assert {str(folder): modules for folder, modules in levels.items() if modules > MODULES_MAX} == {}


def test_statements_name_their_parameters():
    """Only `storage.postgres.statement` numbers them."""
    by_position = [
        str(path.relative_to(ROOT))
        for path in (ROOT / "storage").rglob("*.py")
        if path.name != "statement.py" and POSITION.search(path.read_text())
    ]
    assert by_position == []
