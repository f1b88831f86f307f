"""Statements on tenants and credentials, built from the metadata once and compiled for asyncpg."""

from typing import Any

from sqlalchemy import Select, bindparam, func, literal_column, select, tuple_, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.engine import make_url
from sqlalchemy.sql import ClauseElement

from storage.postgres.tables import api_keys, tenants

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


_KEY_COLUMNS = list(api_keys.columns)

LOOK_UP = "SELECT * FROM stateroom.look_up_api_key($1)"

# Nothing comes back from these two if the id is taken. Whoever takes it at the same moment is waited for.
ADD_TENANT = Compiled(
    insert(tenants)
    .values({"tenant_id": bindparam("tenant_id"), "name": bindparam("name"), "created_at": bindparam("created_at")})
    .on_conflict_do_nothing()
    .returning(literal_column("1"))
)
ADD_KEY = Compiled(insert(api_keys).on_conflict_do_nothing().returning(literal_column("1")))
ONE_KEY = Compiled(select(*_KEY_COLUMNS).where(api_keys.c.key_id == bindparam("wanted")))
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
    select(*_KEY_COLUMNS).where(api_keys.c.tenant_id == bindparam("wanted")),
    api_keys.c.created_at,
    api_keys.c.key_id,
)
OPERATOR_KEYS = _page(
    select(*_KEY_COLUMNS).where(api_keys.c.tenant_id.is_(None)), api_keys.c.created_at, api_keys.c.key_id
)

_revoke = update(api_keys).where(api_keys.c.key_id == bindparam("wanted"))
REVOKE = Compiled(
    _revoke.values(revoked_at=func.coalesce(api_keys.c.revoked_at, bindparam("moment"))).returning(literal_column("1"))
)
TOUCH = Compiled(_revoke.values(last_used_at=func.greatest(api_keys.c.last_used_at, bindparam("moment"))))
