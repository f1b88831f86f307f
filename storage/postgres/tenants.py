"""Statements on tenants and credentials, built from the metadata once and compiled for asyncpg."""

from typing import Any

from sqlalchemy import Select, Text, bindparam, func, literal_column, select, tuple_, update
from sqlalchemy.dialects.postgresql import ARRAY, insert
from sqlalchemy.engine import make_url
from sqlalchemy.sql import ClauseElement

from storage.postgres.tables import api_key_seals, api_keys, tenants

_DIALECT = make_url("postgresql+asyncpg://").get_dialect()()


class Compiled:
    """A statement's text with positional parameters, and the order of its named ones."""

    def __init__(self, statement: ClauseElement) -> None:
        compiled: Any = statement.compile(dialect=_DIALECT, compile_kwargs={"render_postcompile": True})
        self.text = str(compiled)
        self._names: list[str] = list(compiled.positiontup)

    def arguments(self, **values: object) -> list[object]:
        """Arguments in the order the text wants them."""
        return [values[name] for name in self._names]


# A key with its seal, where it has one.
_KEYS = select(
    *api_keys.columns,
    api_key_seals.c.grants,
    api_key_seals.c.mac.label("seal_mac"),
    api_key_seals.c.pepper_version.label("seal_pepper_version"),
).select_from(api_keys.outerjoin(api_key_seals, api_key_seals.c.key_id == api_keys.c.key_id))

EVERY_TENANT = "SELECT tenant_id FROM stateroom.tenants WHERE tenant_id > $1 ORDER BY tenant_id LIMIT $2"

LOOK_UP = "SELECT * FROM stateroom.look_up_api_key_2($1)"

# Nothing comes back from these two if the id is taken. Whoever takes it at the same moment is waited for.
ADD_TENANT = Compiled(
    insert(tenants)
    .values({"tenant_id": bindparam("tenant_id"), "name": bindparam("name"), "created_at": bindparam("created_at")})
    .on_conflict_do_nothing()
    .returning(literal_column("1"))
)
ADD_KEY = Compiled(insert(api_keys).on_conflict_do_nothing().returning(literal_column("1")))
ONE_KEY = Compiled(_KEYS.where(api_keys.c.key_id == bindparam("wanted")))
_sealed = insert(api_key_seals)
SEAL_KEY = Compiled(
    _sealed.on_conflict_do_update(
        index_elements=[api_key_seals.c.key_id],
        set_={name: _sealed.excluded[name] for name in ("grants", "mac", "pepper_version")},
    )
)
# All but those that were shredded.
LIVING_TENANTS = """
SELECT tenant_id, name, suspended_at FROM stateroom.tenants t
WHERE NOT EXISTS (SELECT FROM stateroom.tenant_keys k WHERE k.tenant_id = t.tenant_id)
   OR EXISTS (SELECT FROM stateroom.tenant_keys k WHERE k.tenant_id = t.tenant_id AND k.state <> 'destroyed')
ORDER BY tenant_id
"""
# Of two operators who take a name at once, the second waits and then finds it taken.
LOCK_NAMES = "SELECT pg_advisory_xact_lock(hashtextextended('stateroom/tenant-names', 0))"
NAME_TAKEN = "SELECT EXISTS (SELECT FROM stateroom.tenants WHERE name = $1 AND tenant_id <> $2)"
RENAME = "UPDATE stateroom.tenants SET name = $2 WHERE tenant_id = $1"
SUSPEND = "UPDATE stateroom.tenants SET suspended_at = coalesce(suspended_at, $2) WHERE tenant_id = $1"
RESUME = "UPDATE stateroom.tenants SET suspended_at = NULL WHERE tenant_id = $1"
IS_SUSPENDED = "SELECT suspended_at IS NOT NULL FROM stateroom.tenants WHERE tenant_id = $1"
ONE_TENANT = Compiled(select(tenants).where(tenants.c.tenant_id == bindparam("wanted")))


def _page(statement: Select[Any], moment: Any, identity: Any) -> Compiled:
    """Newest first, from after (``after_at``, ``after_id``), ``page_rows`` long."""
    return Compiled(
        statement.where(tuple_(moment, identity) < tuple_(bindparam("after_at"), bindparam("after_id")))
        .order_by(moment.desc(), identity.desc())
        .limit(bindparam("page_rows"))
    )


TENANTS = _page(select(tenants), tenants.c.created_at, tenants.c.tenant_id)
KEYS = _page(
    _KEYS.where(api_keys.c.tenant_id == bindparam("wanted")),
    api_keys.c.created_at,
    api_keys.c.key_id,
)
OPERATOR_KEYS = _page(_KEYS.where(api_keys.c.tenant_id.is_(None)), api_keys.c.created_at, api_keys.c.key_id)

# Of the scope's keys, those that are not revoked and may do one thing. Locked in one order; whoever waited for a row
# looks again at whether it is still one of them.
LOCK_ALLOWED = """
SELECT key_id FROM stateroom.api_keys
WHERE tenant_id IS NOT DISTINCT FROM $1 AND revoked_at IS NULL AND $2 = ANY(permissions)
ORDER BY key_id FOR UPDATE
"""
LOCK_KEY = """
SELECT key_id FROM stateroom.api_keys WHERE tenant_id IS NOT DISTINCT FROM $1 AND key_id = $2 FOR UPDATE
"""
STANDING_KEYS = Compiled(
    _KEYS.where(api_keys.c.tenant_id.is_not_distinct_from(bindparam("wanted")), api_keys.c.revoked_at.is_(None))
)
LOCK_UNSEALED = """
SELECT key_id FROM stateroom.api_keys k
WHERE tenant_id IS NOT DISTINCT FROM $1
  AND NOT EXISTS (SELECT FROM stateroom.api_key_seals s WHERE s.key_id = k.key_id)
ORDER BY key_id FOR UPDATE
"""
SOME_KEYS = Compiled(_KEYS.where(api_keys.c.key_id == func.any(bindparam("wanted", type_=ARRAY(Text)))))

_key = update(api_keys).where(api_keys.c.key_id == bindparam("wanted"))
REVOKE = Compiled(_key.values(revoked_at=bindparam("moment"), mac=bindparam("struck")))
RESTAMP = Compiled(_key.values(mac=bindparam("fresh"), pepper_version=bindparam("version")))
TOUCH = Compiled(_key.values(last_used_at=func.greatest(api_keys.c.last_used_at, bindparam("moment"))))
