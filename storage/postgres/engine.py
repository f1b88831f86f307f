"""The connection pool, with every option explicit.

SQLAlchemy keeps the pool; statements run on the pooled asyncpg connection itself, of which SQLAlchemy then does not
know whether a transaction is open. A request cancelled in the middle would hand its open transaction, tenant binding
and half a write to the next one, so a connection that comes back closed, inside a transaction or in the middle of a
statement is invalidated instead of pooled. The driver itself does not say the last: until the server has answered
BEGIN, it reports no transaction. Code that uses a connection therefore marks it `UNFINISHED` while it does.

Nothing here or above relies on a session's state from one transaction to the next, except prepared statements. A URL
that says ``statement_cache_size=0`` gives those up, which a pooler in transaction mode (PgBouncer) needs. Such a pooler
also drops what is set at connect; that the role has the same settings is then the administrator's affair.
"""

from importlib.metadata import version
from typing import Any
from urllib.parse import urlencode

from sqlalchemy import event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import ConnectionPoolEntry

from storage.errors import SetupError

CONNECT_TIMEOUT_SECONDS = 5.0
POOL_TIMEOUT_SECONDS = 5.0
COMMAND_TIMEOUT_SECONDS = 30.0

UNFINISHED = "stateroom.unfinished"

BUILD = version("stateroom-gateway")
# Names the sessions of a build that enters itself in the registry of processes; those from before it say the second.
APPLICATION_NAME = f"stateroom {BUILD}"
UNREGISTERED_APPLICATION_NAME = "stateroom"

# A thread's lock is held for one save; a save that waits longer is behind something broken and should be told so.
LOCK_TIMEOUT_MS = 5_000
STATEMENT_TIMEOUT_MS = 30_000
IDLE_IN_TRANSACTION_TIMEOUT_MS = 30_000

# What libpq's URLs say of TLS.
_TLS = frozenset(
    {
        "sslmode", "sslnegotiation", "sslrootcert", "sslcrl", "sslcert", "sslkey", "sslpassword",
        "ssl_min_protocol_version", "ssl_max_protocol_version",
    }
)  # fmt: skip

PARAMETERS = _TLS | {"host", "port", "statement_cache_size", "target_session_attrs"}  # what a URL's query may have


def for_asyncpg(database_url: str) -> tuple[URL, dict[str, str]]:
    """A URL as SQLAlchemy takes it, and the arguments of a connection that say the rest.

    SQLAlchemy makes an argument of each parameter; asyncpg knows those about TLS in a URL only, so that they get one.
    """
    url = make_url(database_url).set(drivername="postgresql+asyncpg")
    tls = {name: texts[-1] for name, texts in url.normalized_query.items() if name in _TLS}
    return url.difference_update_query(tls), {"dsn": f"postgresql://?{urlencode(tls)}"} if tls else {}


def create_engine(database_url: str, *, connections_max: int) -> AsyncEngine:
    """Make the pool; nothing connects yet.

    Args:
        database_url: ``postgresql://`` or ``postgresql+asyncpg://`` with the role gw_app. Its query may have asyncpg's
            ``statement_cache_size``: how many prepared statements a connection keeps; 0 behind a pooler in
            transaction mode; and what libpq's URLs say of TLS, such as ``sslmode=verify-full``.
        connections_max: how many connections this process may hold.

    Raises:
        SetupError: ``statement_cache_size`` is not a whole number from 0.
    """
    url, tls = for_asyncpg(database_url)
    statements = _statement_cache(url)
    engine = create_async_engine(
        url,
        pool_size=connections_max,
        max_overflow=0,
        pool_timeout=POOL_TIMEOUT_SECONDS,
        pool_recycle=3600,
        pool_use_lifo=True,
        pool_reset_on_return=None,
        hide_parameters=True,
        connect_args={
            "timeout": CONNECT_TIMEOUT_SECONDS,
            "command_timeout": COMMAND_TIMEOUT_SECONDS,
            **statements,
            **tls,
            "server_settings": {
                "application_name": APPLICATION_NAME,
                "timezone": "UTC",
                "jit": "off",
                "lock_timeout": str(LOCK_TIMEOUT_MS),
                "statement_timeout": str(STATEMENT_TIMEOUT_MS),
                "idle_in_transaction_session_timeout": str(IDLE_IN_TRANSACTION_TIMEOUT_MS),
            },
        },
    )
    event.listen(engine.sync_engine.pool, "reset", invalidate_unfinished)
    return engine


def speaks_to_a_pooler(database_url: str) -> bool:
    """Whether a URL gives up prepared statements: its connections are a pooler's and not PostgreSQL's own."""
    return _statement_cache(make_url(database_url)) == {"statement_cache_size": 0}


def _statement_cache(url: URL) -> dict[str, int]:
    """The arguments of a connection that follow from the URL's ``statement_cache_size``."""
    text = url.query.get("statement_cache_size")
    if text is None:
        return {}
    if not isinstance(text, str) or not (text.isascii() and text.isdecimal()):
        raise SetupError("statement_cache_size in the database URL is not a whole number from 0")
    return {"statement_cache_size": int(text)}


def invalidate_unfinished(dbapi_connection: Any, record: ConnectionPoolEntry, _state: Any) -> None:
    """Pool ``reset`` listener: never pool a connection whose last user did not finish with it."""
    driver = dbapi_connection.driver_connection
    if record.info.pop(UNFINISHED, False) or driver.is_closed() or driver.is_in_transaction():
        record.invalidate()
