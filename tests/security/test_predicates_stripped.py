"""Row-level security stands behind every statement there is, not only behind those somebody thought of (threat 11).

Every statement is planned as the serving role with its own tenant and subject predicates taken out.
Whatever still reads a tenant's table must then be filtered by the policy, in the plan that PostgreSQL would run.
"""

import json
import re
from typing import Any

import asyncpg
import pytest

from storage.postgres.tables import SUBJECT_TABLES, metadata
from storage.postgres.unit_of_work import bindings
from storage.scope import Scope
from tests.support.statements import every_statement

PROTECTED = {table.name for table in metadata.tables.values() if "tenant_id" in table.primary_key.columns}
OF_SUBJECTS = {table.name for table in SUBJECT_TABLES}
VERBS = re.compile(r"\s*(?:--[^\n]*\n\s*)*(SELECT|INSERT|UPDATE|DELETE|WITH)\b")


STATEMENTS = {name: statement.text for name, statement in every_statement().items() if VERBS.match(statement.text)}


def stripped(text: str) -> str:
    """The statement without its tenant and subject predicates; parameters keep their types."""
    for column, kind in (("tenant_id", "uuid"), ("subject_id", "text")):
        text = re.sub(rf"(?:\w+\.)*\b{column} = (\$\d+)(?:::\w+)?", rf"\1::{kind} IS NOT NULL", text)
        text = re.sub(rf"(?:\w+\.)*\b{column} = \w+\.{column}\b", "true", text)
    return text


def _scans(plan: dict[str, Any]) -> Any:
    if plan.get("Relation Name") in PROTECTED and plan["Node Type"] != "ModifyTable":
        yield plan
    for child in plan.get("Plans", ()):
        yield from _scans(child)


def _quals(scan: dict[str, Any]) -> str:
    own = [scan.get(name, "") for name in ("Index Cond", "Filter", "Recheck Cond", "TID Cond")]
    return " ".join([*own, *(_quals(child) for child in scan.get("Plans", ()) if "Bitmap" in child["Node Type"])])


@pytest.fixture(scope="module")
async def connection(database):
    """One for all: each new one learns the catalogue anew. It remembers no statement that was taken from it."""
    opened = await asyncpg.connect(database.dsn(database.app_url), statement_cache_size=0)
    yield opened
    await opened.close()


async def _plan(app: asyncpg.Connection, scope: Scope, text: str) -> dict[str, Any]:
    await app.execute(bindings(scope))
    await app.execute("SET LOCAL plan_cache_mode = force_generic_plan")
    await app.execute(f"PREPARE statement AS {text}")
    nothing = ", ".join(["NULL"] * max((int(each) for each in re.findall(r"\$(\d+)", text)), default=0))
    execute = f"EXECUTE statement({nothing})" if nothing else "EXECUTE statement"
    (plan,) = json.loads(await app.fetchval(f"EXPLAIN (FORMAT JSON) {execute}"))
    return plan["Plan"]


def _unfiltered(plan: dict[str, Any]) -> list[str]:
    wrong = []
    for scan in _scans(plan):
        quals = _quals(scan)
        if scan["Node Type"] == "Result" or scan["Node Type"] == "Tid Scan":
            continue
        if "app.operator" in quals and "app.tenant_id" not in quals:
            continue  # an operators' statement, which no tenant's binding lets see a row
        needed = ["app.tenant_id"] + (["app.subject_id"] if scan["Relation Name"] in OF_SUBJECTS else [])
        wrong += [f"{scan['Relation Name']}: {need}" for need in needed if need not in quals]
    return wrong


async def test_a_statement_without_its_predicates_is_still_filtered_by_the_policies(
    connection: asyncpg.Connection, scope: Scope
) -> None:
    unfiltered = {}
    for name, text in STATEMENTS.items():
        await connection.execute("BEGIN")
        try:
            found = _unfiltered(await _plan(connection, scope, stripped(text)))
        except asyncpg.PostgresError as error:
            found = [str(error)]
        await connection.execute("ROLLBACK; DEALLOCATE ALL")
        if found:
            unfiltered[name] = found
    assert unfiltered == {}


async def test_without_the_policies_the_same_check_finds_every_read(database, admin, scope: Scope) -> None:
    """The owner bypasses row-level security: what passes above must fail here, or the check looks at nothing."""
    owner = await asyncpg.connect(database.dsn(database.owner_url))
    missed = []
    try:
        for name in (
            "checkpoints.WRITES_OF",
            "checkpoints.HISTORY",
            "threads.LIST",
            "keys.TENANT_KEYS",
            "audit.EVENTS",
        ):
            await owner.execute("BEGIN")
            if not _unfiltered(await _plan(owner, scope, stripped(STATEMENTS[name]))):
                missed.append(name)
            await owner.execute("ROLLBACK; DEALLOCATE ALL")
    finally:
        await owner.close()
    assert missed == []


def test_the_statements_are_all_there() -> None:
    assert [name for name, text in STATEMENTS.items() if "tenant_id = $" in text and stripped(text) == text] == []
    assert len(STATEMENTS) > 90
    assert {"checkpoints.OPEN", "checkpoints.LOAD", "tenants.KEYS", "audit.EVENTS", "shred.DESTROY_SUBJECT"} <= set(
        STATEMENTS
    )
