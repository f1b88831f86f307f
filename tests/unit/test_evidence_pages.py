"""The pages that name proofs name tests and benchmarks that exist."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ACCEPTANCE = ROOT / "docs" / "acceptance.md"
THREATS = ROOT / "docs" / "threat-model.md"
PROOF = re.compile(r"`((?:tests|sdk)/[\w/.-]+\.py)::(\w+)`")
ROW = re.compile(r"^\| (\d+) \|(.*)\|$", re.MULTILINE)
OPEN = "open"  # a row that waits for a feature says so in place of a proof


@cache
def functions_of(file: str) -> frozenset[str]:
    tree = ast.parse((ROOT / file).read_text())
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, functions) and node.name[:5] == "test_")


def rows(page: Path) -> dict[int, list[str]]:
    found = {}
    for number, rest in ROW.findall(page.read_text()):
        assert int(number) not in found, number
        found[int(number)] = [cell.strip() for cell in rest.split(" | ")]
    return found


@pytest.mark.parametrize("page", [ACCEPTANCE, THREATS], ids=lambda page: page.stem)
def test_every_proof_that_is_named_is_a_test(page: Path) -> None:
    named = PROOF.findall(page.read_text())
    assert len(named) > 50
    assert [f"{file}::{name}" for file, name in named if name not in functions_of(file)] == []


@pytest.mark.parametrize(("page", "count"), [(ACCEPTANCE, 20), (THREATS, 29)], ids=["acceptance", "threats"])
def test_every_row_has_a_proof_or_says_that_it_is_open(page: Path, count: int) -> None:
    found = rows(page)
    assert list(found) == list(range(1, count + 1))
    for number, cells in found.items():
        proof = " ".join(cells[1:])
        assert PROOF.search(proof) or OPEN in cells, number


def test_every_benchmark_that_is_named_is_a_group() -> None:
    groups = set(re.findall(r'Group\(\s*"([\w-]+)"', (ROOT / "benchmarks" / "measures.py").read_text()))
    named = {
        name
        for line in ACCEPTANCE.read_text().splitlines()
        for listed in re.findall(r"benchmarks ((?:`[\w-]+`(?:, | and )?)+)", line)
        for name in re.findall(r"`([\w-]+)`", listed)
    }
    assert {"seal", "audit"} <= named <= groups


def test_a_name_that_does_not_exist_would_be_found() -> None:
    file, name = PROOF.findall(ACCEPTANCE.read_text())[0]
    assert name in functions_of(file)
    assert name + "_not" not in functions_of(file)
