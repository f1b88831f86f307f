"""Which root keys wrapped what is stored, and whether the one that is configured opens it.

Owns the question of a start and of `stateroom doctor`. With another root key of the same form everything would look
well until one subject's key is needed, and new tenants' keys would be wrapped under the wrong one. One wrapping of each
root key stands for the others; no key that is opened here is kept.
"""

from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import UUID

import msgspec

from crypto import CryptoError, KeyUnavailable, RootKey, WrappedKey, root_context
from storage.errors import SetupError
from storage.postgres.session import Session
from storage.postgres.statement import Statement

R = TypeVar("R")

# Wrappings of the deployment's own keys are bound to no tenant.
_DEPLOYMENT = UUID(int=0)
_BIND = Statement("SET LOCAL app.operator = 'on'")


class _UseRow(msgspec.Struct, frozen=True):
    of_tenants: bool
    provider: str
    root_key_id: str
    root_key_version: str
    keys: int


class _WrappingRow(msgspec.Struct, frozen=True):
    tenant_id: UUID
    purpose: str
    key_version: int
    wrapped: bytes


_USES = Statement(
    """
SELECT true AS of_tenants, provider, root_key_id, root_key_version, count(*) AS keys
FROM stateroom.tenant_keys WHERE wrapped IS NOT NULL GROUP BY 2, 3, 4
UNION ALL
SELECT false, provider, root_key_id, root_key_version, count(*) FROM stateroom.deployment_keys GROUP BY 2, 3, 4
ORDER BY 1, 2, 3, 4
""",
    _UseRow,
)
_ONE_OF_TENANTS = Statement(
    """
SELECT tenant_id, 'tenant' AS purpose, key_version, wrapped FROM stateroom.tenant_keys
WHERE provider = :provider AND root_key_id = :root_key_id AND root_key_version = :root_key_version
  AND wrapped IS NOT NULL LIMIT 1
""",
    _WrappingRow,
)
_ONE_OF_DEPLOYMENT = Statement(
    f"""
SELECT '{_DEPLOYMENT}'::uuid AS tenant_id, purpose, key_version, wrapped FROM stateroom.deployment_keys
WHERE provider = :provider AND root_key_id = :root_key_id AND root_key_version = :root_key_version LIMIT 1
""",
    _WrappingRow,
)


@dataclass(frozen=True, slots=True)
class Use:
    """What one version of a root key wrapped, and whether the configured root key opens it; None: not known now."""

    of_tenants: bool
    provider: str
    root_key_id: str
    root_key_version: str
    keys: int
    opens: bool | None

    def __str__(self) -> str:
        whose = "tenant keys" if self.of_tenants else "keys of the deployment"
        return f"{self.keys} {whose} under {self.provider} {self.root_key_id} version {self.root_key_version}"


async def uses(connection: Any, root_key: RootKey, deployment_id: UUID) -> list[Use]:
    """What every root key that the database names wrapped.

    The root key is asked where it does not recognise a wrapping by its names.
    """
    found = []
    for row in await _as_operator(connection, _USES):
        opens: bool | None = root_key.recognises(WrappedKey(row.provider, row.root_key_id, row.root_key_version, b""))
        if not opens:
            opens = await _opens(connection, root_key, deployment_id, row)
        found.append(Use(row.of_tenants, row.provider, row.root_key_id, row.root_key_version, row.keys, opens))
    return found


async def guard(connection: Any, root_key: RootKey, deployment_id: UUID) -> None:
    """Refuse a root key that a gateway must not serve with; arguments as for `uses`.

    It must open something of the tenants', where there is something, and all of the deployment's own. A tenant whose
    root key was taken away is that tenant's affair, and is refused when it comes.

    Raises:
        SetupError: what it does not open, and what to do.
    """
    found = await uses(connection, root_key, deployment_id)
    foreign = [use for use in found if use.opens is False]
    lost = [use for use in foreign if not use.of_tenants]
    if lost or (foreign and len(foreign) == len(found)):
        raise SetupError(
            f"the root key does not open {'; '.join(map(str, lost or foreign))}; set ROOT_KEY to the one that wrapped"
            " them, or list that one after a new one until everything is rewrapped"
        )


async def _as_operator(connection: Any, statement: Statement[R], **values: object) -> list[R]:
    session = Session(connection)
    async with connection.transaction(readonly=True):
        await session.run(_BIND)
        return await session.fetch_all(statement, **values)


async def _opens(connection: Any, root_key: RootKey, deployment_id: UUID, use: _UseRow) -> bool | None:
    rows = await _as_operator(
        connection,
        _ONE_OF_TENANTS if use.of_tenants else _ONE_OF_DEPLOYMENT,
        provider=use.provider,
        root_key_id=use.root_key_id,
        root_key_version=use.root_key_version,
    )
    if not rows:
        return None  # destroyed meanwhile
    (row,) = rows
    context = root_context(deployment_id, row.tenant_id, row.purpose, row.key_version)
    wrapped = WrappedKey(use.provider, use.root_key_id, use.root_key_version, row.wrapped)
    try:
        await root_key.unwrap(wrapped, context)
    except KeyUnavailable:
        return None
    except CryptoError:
        return False
    return True
