"""Whose the schema's functions are, with whose rights they run, and what they do, as the revisions made them.

Owns what `storage.postgres.setup` and `stateroom doctor` compare the catalog with. A restore as a role that may not
give functions away leaves them to that role: a credential look-up that belongs to the owner of the tables, who is bound
by no policy, would read every row with its rights. One whose body was edited may leave out what a save depends on.
"""

import functools
from pathlib import Path

import msgspec

import migrations
from migrations.sql_files import bodies
from storage.postgres.statement import Statement

LOOK_UP_OWNER = "gw_auth"  # owns what runs with its owner's rights, and nothing else
LOOK_UPS = tuple(f"look_up_api_key{number}(text)" for number in ("", "_2", "_3", "_4"))  # what the revisions gave it
_SEARCH_PATH = "search_path=pg_catalog"  # so that no other tables are found instead of ours


class FunctionRow(msgspec.Struct, frozen=True):
    """A function as the catalog has it.

    ``definer``: it runs with the rights of ``owner``. ``tables_owner`` is whom the schema's tables belong to.
    """

    name: str
    body: str
    owner: str
    definer: bool
    settings: list[str]
    tables_owner: str


OF_THE_SCHEMA = Statement(
    """
SELECT p.proname AS name, p.prosrc AS body, p.proowner::regrole::text AS owner, p.prosecdef AS definer,
    coalesce(p.proconfig, '{}') AS settings,
    (SELECT c.relowner::regrole::text FROM pg_class c
     WHERE c.relnamespace = p.pronamespace AND c.relname = 'deployment') AS tables_owner
FROM pg_proc p WHERE p.pronamespace = 'stateroom'::regnamespace
ORDER BY 1
""",
    FunctionRow,
)


# A role that restores a dump need not be able to do this in the middle of it; the owner of the schema can, afterwards.
GIVE_BACK = (
    f"GRANT CREATE ON SCHEMA stateroom TO {LOOK_UP_OWNER}",
    *(f"ALTER FUNCTION stateroom.{each} OWNER TO {LOOK_UP_OWNER}" for each in LOOK_UPS),
    f"REVOKE CREATE ON SCHEMA stateroom FROM {LOOK_UP_OWNER}",
)


@functools.cache
def _made() -> dict[str, str]:
    """What this build's revisions make the functions do."""
    return bodies(Path(migrations.__file__).parent / "database" / "functions")


def faults(rows: list[FunctionRow], *, newer: bool) -> list[str]:
    """What is wrong with the functions, a line each.

    ``newer``: the schema is of a later release, which may have dropped some of this one's.
    """
    missing = [] if newer else sorted(_made().keys() - {row.name for row in rows})
    found = [f"function {name} is missing: CREATE it from migrations/database/functions" for name in missing]
    for row in rows:
        name, owner = row.name, row.owner
        expected = LOOK_UP_OWNER if row.definer else row.tables_owner
        if owner != expected:
            found.append(f"function {name} belongs to {owner} instead of {expected}: ALTER FUNCTION ... OWNER TO")
        if row.body != _made().get(name, row.body):
            found.append(
                f"function {name} does something else than this build's revisions made it do:"
                " CREATE OR REPLACE it from migrations/database/functions"
            )
        if row.definer and _SEARCH_PATH not in row.settings:
            found.append(f"function {name} runs as {owner} without {_SEARCH_PATH}")
    return found
