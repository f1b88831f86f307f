"""Whose the schema's functions are, and with whose rights they run, as the revisions made them.

Owns what `storage.postgres.setup` and `stateroom doctor` compare the catalog with. A restore as a role that may not
give functions away leaves them to that role: a credential look-up that belongs to the owner of the tables, who is bound
by no policy, would read every row with its rights. What the functions do is not compared here.
"""

from collections.abc import Mapping
from typing import Any

LOOK_UP_OWNER = "gw_auth"  # owns what runs with its owner's rights, and nothing else
LOOK_UPS = ("look_up_api_key(text)", "look_up_api_key_2(text)")  # what the revisions gave it
_SEARCH_PATH = "search_path=pg_catalog"  # so that nobody's tables are found instead of ours

OF_THE_SCHEMA = """
SELECT p.proname AS name, p.proowner::regrole::text AS owner, p.prosecdef AS definer,
    coalesce(p.proconfig, '{}') AS settings,
    (SELECT c.relowner::regrole::text FROM pg_class c
     WHERE c.relnamespace = p.pronamespace AND c.relname = 'deployment') AS tables_owner
FROM pg_proc p WHERE p.pronamespace = 'stateroom'::regnamespace
ORDER BY 1
"""


# A role that restores a dump need not be able to do this in the middle of it; the owner of the schema can, afterwards.
GIVE_BACK = (
    f"GRANT CREATE ON SCHEMA stateroom TO {LOOK_UP_OWNER}",
    *(f"ALTER FUNCTION stateroom.{each} OWNER TO {LOOK_UP_OWNER}" for each in LOOK_UPS),
    f"REVOKE CREATE ON SCHEMA stateroom FROM {LOOK_UP_OWNER}",
)


def faults(rows: list[Mapping[str, Any]]) -> list[str]:
    """What is wrong with the owners and rights of functions, a line each.

    Args:
        rows: What `OF_THE_SCHEMA` found.
    """
    found = []
    for row in rows:
        name, owner = row["name"], row["owner"]
        expected = LOOK_UP_OWNER if row["definer"] else row["tables_owner"]
        if owner != expected:
            found.append(f"function {name} belongs to {owner} instead of {expected}: ALTER FUNCTION ... OWNER TO")
        if row["definer"] and _SEARCH_PATH not in row["settings"]:
            found.append(f"function {name} runs as {owner} without {_SEARCH_PATH}")
    return found
