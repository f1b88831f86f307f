"""Which root keys wrapped what is stored, and whether the one that is configured opens it.

Owns the question of a start and of `stateroom doctor`. With another root key of the same form everything would look
well until somebody's key is needed, and new tenants' keys would be wrapped under the wrong one. One wrapping of each
root key stands for the others; no key that is opened here is kept.
"""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from crypto import CryptoError, KeyUnavailable, RootKey, WrappedKey
from storage.errors import SetupError

# Wrappings of the deployment's own keys are bound to no tenant.
_DEPLOYMENT = UUID(int=0)
_BIND = "SET LOCAL app.operator = 'on'"
_USES = """
SELECT true AS of_tenants, provider, root_key_id, root_key_version, count(*) AS keys
FROM stateroom.tenant_keys WHERE wrapped IS NOT NULL GROUP BY 2, 3, 4
UNION ALL
SELECT false, provider, root_key_id, root_key_version, count(*) FROM stateroom.deployment_keys GROUP BY 2, 3, 4
ORDER BY 1, 2, 3, 4
"""
_ONE_OF_TENANTS = """
SELECT tenant_id, 'tenant' AS purpose, key_version, wrapped FROM stateroom.tenant_keys
WHERE provider = $1 AND root_key_id = $2 AND root_key_version = $3 AND wrapped IS NOT NULL LIMIT 1
"""
_ONE_OF_DEPLOYMENT = """
SELECT $4::uuid AS tenant_id, purpose, key_version, wrapped FROM stateroom.deployment_keys
WHERE provider = $1 AND root_key_id = $2 AND root_key_version = $3 LIMIT 1
"""


@dataclass(frozen=True, slots=True)
class Use:
    """What one version of a root key wrapped, and whether the configured root key opens it; None: nobody knows now."""

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

    Args:
        connection: As the serving role.
        root_key: The one that is configured. It is asked where it does not recognise a wrapping by its names.
        deployment_id: Bound into every wrapping.
    """
    found = []
    for row in await _as_operator(connection, _USES):
        names = (row["provider"], row["root_key_id"], row["root_key_version"])
        opens: bool | None = root_key.recognises(WrappedKey(*names, b""))
        if not opens:
            opens = await _opens(connection, root_key, deployment_id, row["of_tenants"], names)
        found.append(Use(row["of_tenants"], *names, row["keys"], opens))
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


async def _as_operator(connection: Any, statement: str, *arguments: Any) -> list[Any]:
    async with connection.transaction(readonly=True):
        await connection.execute(_BIND)
        return await connection.fetch(statement, *arguments)  # type: ignore[no-any-return]


async def _opens(
    connection: Any, root_key: RootKey, deployment_id: UUID, of_tenants: bool, names: tuple[str, str, str]
) -> bool | None:
    statement, more = (_ONE_OF_TENANTS, ()) if of_tenants else (_ONE_OF_DEPLOYMENT, (_DEPLOYMENT,))
    rows = await _as_operator(connection, statement, *names, *more)
    if not rows:
        return None  # destroyed meanwhile
    (row,) = rows
    context = {
        "deployment": str(deployment_id),
        "tenant": str(row["tenant_id"]),
        "purpose": row["purpose"],
        "version": str(row["key_version"]),
    }
    try:
        await root_key.unwrap(WrappedKey(*names, row["wrapped"]), context)
    except KeyUnavailable:
        return None
    except CryptoError:
        return False
    return True
