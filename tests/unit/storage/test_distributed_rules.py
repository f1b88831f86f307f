"""What ADR 40 asks of every statement, as far as its text tells."""

import re
from pathlib import Path

import migrations
from migrations.sql_files import bodies
from tests.support.statements import every_statement

# They lock the thread in their first part and read in the others, which see more where each has its own snapshot; what
# is stored on it is decided by the statement after it.
LOCKING = {"checkpoints.OPEN", "checkpoints.OPEN_WRITES", "pieces.OPEN"}
# It is of a table that no tenant's rows are in, and that is not distributed.
LOCAL = {"processes.BEAT"}
# Functions of builds before this one, which nothing here calls.
EARLIER = {"save_on_4", "save_on_6", "put_writes_on_4", "put_writes_on_5"}
FUNCTIONS = bodies(Path(migrations.__file__).parent / "database" / "functions")
STATEMENTS = {name: statement.text for name, statement in every_statement().items()}


def in_parentheses(text, at):
    """What stands between the parenthesis at a position and the one that closes it."""
    depth = 0
    for end in range(at, len(text)):
        depth += (text[end] == "(") - (text[end] == ")")
        if not depth:
            return text[at : end + 1]
    raise AssertionError(text[at:])


def test_no_value_of_an_insert_and_no_conflict_is_a_sub_select():
    for name, text in STATEMENTS.items():
        for found in re.finditer(r"\bVALUES\s*\(", text):
            assert "SELECT" not in in_parentheses(text, found.end() - 1), name
        for found in re.finditer(r"\bON CONFLICT\b", text):
            clause = re.split(r"\bRETURNING\b|\n\)", text[found.end() :])[0]
            assert "SELECT" not in clause, name


def test_a_part_that_inserts_stands_alone():
    """Beside it no other part reads a table: it would have another snapshot."""
    for name in STATEMENTS.keys() - LOCKING - LOCAL:
        text = STATEMENTS[name]
        if re.match(r"\s*WITH\b", text) and "INSERT INTO" in text:
            parts = re.findall(r"\bFROM\s+stateroom\.\w+", text)
            assert parts == [], name


def test_a_lateral_names_the_tenant_by_its_parameter():
    for name, text in STATEMENTS.items():
        for found in re.finditer(r"\bLATERAL\s*\(", text):
            lateral = in_parentheses(text, found.end() - 1)
            assert not re.search(r"\btenant_id = \w+\.tenant_id\b", lateral), name


def test_no_function_counts_rows_that_it_selected_to_insert():
    for name in FUNCTIONS.keys() - EARLIER:
        for insert, after in re.findall(r"(INSERT INTO[^;]*ON CONFLICT[^;]*);\s*([^;]*);", FUNCTIONS[name]):
            if re.search(r"\)\s*SELECT\b", insert):
                assert "FOUND" not in after, name
                assert "ROW_COUNT" not in after, name


def test_what_an_update_sets_or_returns_is_the_same_wherever_it_is_computed():
    """A volatile function in it would be called by each server that has a copy of the row."""
    volatile = re.compile(r"\b(?:clock_timestamp|random|gen_random_uuid|uuidv7|nextval|timeofday)\s*\(")
    for name, text in STATEMENTS.items():
        for found in re.finditer(r"\bSET\b(?! LOCAL)|\bRETURNING\b", text):
            clause = re.split(r"\bWHERE\b|\n\)", text[found.end() :])[0]
            assert not volatile.search(clause), name


def test_a_lock_that_belongs_to_no_row_is_taken_by_a_statement_that_names_no_table():
    """Beside a table it would be taken wherever the rows are, and not where everybody asks for it."""
    for name, text in STATEMENTS.items():
        if "pg_advisory" in text:
            assert "stateroom." not in text, name
