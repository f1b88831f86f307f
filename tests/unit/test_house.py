"""The house stays as it is drawn: rooms that can be looked over, and statements without positions."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PRODUCT = tuple(ROOT / name for name in ("crypto", "gateway", "migrations", "sdk/python/src", "storage"))
MODULES_MAX = 12  # what somebody looks over at once
POSITION = re.compile(r"\$\d")
FULFILS = re.compile(r"As `(?:\w+\.)*(\w+)\.(\w+)`")
ENTRY = re.compile(r"^ +\*{0,2}(\w+): (.+)$", re.MULTILINE)
SAYS_NOTHING = {"Whose.", "Who.", "Which.", "As given.", "As for the class."}
Described = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def _modules() -> list[Path]:
    return [path for folder in PRODUCT for path in folder.rglob("*.py")]


def test_no_folder_has_more_modules_than_can_be_looked_over():
    """But that of revisions, which is read one by one: each comes after another."""
    levels = Counter(path.parent.relative_to(ROOT) for path in _modules() if path.name != "__init__.py")
    assert levels.pop(Path("migrations/database/versions"))
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


@cache
def _described() -> list[tuple[str, Described]]:
    """Everything that may have a docstring, and the module that it is in."""
    return [
        (str(path.relative_to(ROOT)), node)
        for path in _modules()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, Described)
    ]


def _docstrings() -> Iterator[tuple[str, str, str]]:
    """Where each docstring is, the name of what it describes, and its text."""
    for module, node in _described():
        if text := ast.get_docstring(node):
            yield f"{module}:{node.body[0].lineno}", "" if isinstance(node, ast.Module) else node.name, text


def _protocols() -> set[str]:
    classes = [node for _, node in _described() if isinstance(node, ast.ClassDef)]
    return {each.name for each in classes if any("Protocol" in ast.unparse(base) for base in each.bases)}


def test_a_docstring_is_a_sentence():
    """Only a method that fulfils a protocol may say no more than which, as in "As `Rows.checkpoint`."."""
    protocols = _protocols()
    fragments = []
    for where, name, text in _docstrings():
        fulfils = FULFILS.match(text)
        if text.startswith("As ") and not (fulfils and fulfils[1] in protocols and fulfils[2] == name):
            fragments.append(f"{where} {text.splitlines()[0]}")
    assert fragments == []


def test_what_is_said_of_an_argument_is_more_than_its_name():
    empty = []
    for where, _, text in _docstrings():
        for name, said in ENTRY.findall(text):
            words = said.lower().removeprefix("the ").removesuffix(".").replace(" ", "_")
            if said in SAYS_NOTHING or (said.endswith(".") and words in {name, name.removesuffix("_id")}):
                empty.append(f"{where} {name}: {said}")
    assert empty == []
