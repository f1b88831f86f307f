"""The optional table for clear vectors: made and removed by the owner of the schema, when an operator says so.

No revision makes it, because it needs the extension pgvector, which not every server has; every check of a database
accepts one with and without it. Embeddings are as good as the text they were made of, so that nothing is written there
but for tenants that accepted that (`storage.clear_vectors.policies`).
"""

from dataclasses import dataclass
from typing import Any, Final

import asyncpg

from storage.errors import SetupError
from storage.postgres.server import QUOTED_NAME
from storage.postgres.session import Session
from storage.postgres.setup import connect
from storage.postgres.statement import Statement

# Where the extension is put if nobody put it elsewhere: beside the schema, whose functions are all its own.
EXTENSION_SCHEMA: Final = "stateroom_pgvector"
# Scans that go on until there are enough (hnsw.iterative_scan) came with this one.
VERSION_MIN: Final = (0, 8)
# What an index takes of a 16-bit float vector.
INDEX_DIMENSIONS_MAX: Final = 4_000
_LOCK_SECONDS: Final = 10

_VERSION = Statement("SELECT extversion FROM pg_extension WHERE extname = 'vector'", str)
_AVAILABLE = Statement("SELECT default_version FROM pg_available_extensions WHERE name = 'vector'", str)
_SCHEMA = Statement(
    """
SELECT n.nspname::text FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace WHERE e.extname = 'vector'
""",
    str,
)
_OWNER = Statement("SELECT tableowner::text FROM pg_tables WHERE schemaname = 'stateroom' AND tablename = 'items'", str)
_TABLE = Statement("SELECT to_regclass('stateroom.item_clear_vectors') IS NOT NULL", bool)
_INDEX = Statement(
    """
SELECT i.indisvalid FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
WHERE c.relnamespace = 'stateroom'::regnamespace AND c.relname = :name
""",
    bool,
)
_IN_USE = Statement(
    """
SELECT count(DISTINCT tenant_id) FROM (
    SELECT tenant_id FROM stateroom.vector_policies
    UNION ALL (SELECT tenant_id FROM stateroom.item_clear_vectors LIMIT 1)) used
""",
    int,
)
_CONDITION: Final = (
    "tenant_id = (NULLIF(current_setting('app.tenant_id', true), ''))::uuid"
    " AND (subject_id = NULLIF(current_setting('app.subject_id', true), ''))"
)
_TABLE_SCRIPT: Final = """
CREATE TABLE stateroom.item_clear_vectors (
    tenant_id uuid NOT NULL,
    subject_id text NOT NULL COLLATE "C",
    path_id bytea NOT NULL,
    key_id bytea NOT NULL,
    model_id bytea NOT NULL,
    number smallint NOT NULL,
    revision bigint NOT NULL,
    sequence bigint NOT NULL,
    length real NOT NULL,
    embedding {schema}.halfvec NOT NULL,
    dimensions smallint NOT NULL GENERATED ALWAYS AS ({schema}.vector_dims(embedding)) STORED,
    CONSTRAINT item_clear_vectors_pkey PRIMARY KEY (tenant_id, subject_id, path_id, key_id, model_id, number)
) WITH (toast_tuple_target = 8160, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
    autovacuum_analyze_scale_factor = 0.05);
CREATE INDEX item_clear_vectors_by_model ON stateroom.item_clear_vectors (tenant_id, subject_id, model_id, path_id);
ALTER TABLE stateroom.item_clear_vectors ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY subject_rows ON stateroom.item_clear_vectors TO gw_app USING ({condition}) WITH CHECK ({condition});
CREATE POLICY clear_columns ON stateroom.item_clear_vectors FOR SELECT TO gw_ops USING (true);
GRANT SELECT, INSERT, DELETE, UPDATE ON stateroom.item_clear_vectors TO gw_app;
GRANT SELECT (tenant_id, subject_id, number, revision, sequence, dimensions)
    ON stateroom.item_clear_vectors TO gw_ops;
"""


@dataclass(frozen=True, slots=True)
class Enabled:
    """What there is now, and what of it was made.

    Attributes:
        version: The extension's.
        schema: Where the extension is.
        done: What was done, a line each; nothing, if all was there already.
    """

    version: str
    schema: str
    done: tuple[str, ...]


async def enable(owner_url: str, dimensions: tuple[int, ...] = ()) -> Enabled:
    """Make the table for clear vectors, and indexes for vectors of some numbers of dimensions; again changes nothing.

    Args:
        owner_url: The credentials of gw_migrate, or of a superuser.
        dimensions: For which an index is made; without one, large subjects are compared vector by vector.

    Raises:
        DatabaseAway: The database cannot be reached.
        SetupError: The extension cannot be had, or the schema is older than this build. It says what to do.
    """
    connection = await connect(owner_url)
    try:
        session = Session(connection)
        done: list[str] = []
        async with connection.transaction():
            await connection.execute(f"SET LOCAL lock_timeout = '{_LOCK_SECONDS}s'")
            owner = await _owner(session)
            schema = await _extension(connection, session, done)
            version = await _version(session)
            await connection.execute(f"SET LOCAL ROLE {await session.fetch_only(QUOTED_NAME, name=owner)}")
            if not await session.fetch_only(_TABLE):
                quoted = await session.fetch_only(QUOTED_NAME, name=schema)
                await connection.execute(_TABLE_SCRIPT.format(schema=quoted, condition=_CONDITION))
                done.append("made the table stateroom.item_clear_vectors")
        await connection.execute(f"SET ROLE {await session.fetch_only(QUOTED_NAME, name=owner)}")
        for each in dimensions:
            await _index(connection, session, schema, each, done)
    except asyncpg.PostgresError as error:
        raise SetupError(f"the table for clear vectors was not made: {error}") from None
    finally:
        await connection.close()
    return Enabled(version, schema, tuple(done))


async def remove(owner_url: str) -> bool:
    """Remove the table, if no tenant has a policy of vectors and nothing is there; returns whether it was there.

    The extension stays: others may use it.

    Raises:
        DatabaseAway: The database cannot be reached.
        SetupError: It is in use.
    """
    connection = await connect(owner_url)
    try:
        session = Session(connection)
        async with connection.transaction():
            await connection.execute(f"SET LOCAL lock_timeout = '{_LOCK_SECONDS}s'")
            if not await session.fetch_only(_TABLE):
                return False
            # Nobody says anything of vectors, or writes some, between the question and its consequence.
            await connection.execute(
                "LOCK TABLE stateroom.vector_policies, stateroom.item_clear_vectors IN ACCESS EXCLUSIVE MODE"
            )
            if tenants := await session.fetch_only(_IN_USE):
                raise SetupError(
                    f"clear vectors are in use by {tenants} tenants or more: set their vector policies to sealed, and"
                    " wait until the jobs that remove the vectors have ended; nothing was changed"
                )
            await connection.execute("DROP TABLE stateroom.item_clear_vectors")
    except asyncpg.PostgresError as error:
        raise SetupError(f"the table for clear vectors was not removed: {error}") from None
    finally:
        await connection.close()
    return True


async def _owner(session: Session) -> str:
    owner = await session.fetch_one(_OWNER)
    if owner is None:
        raise SetupError("the schema is missing or older than this build; run 'stateroom db upgrade' first")
    return owner


async def _extension(connection: Any, session: Session, done: list[str]) -> str:
    """The extension's schema; the extension is made if it is missing."""
    schema = await session.fetch_one(_SCHEMA)
    if schema is None:
        if await session.fetch_one(_AVAILABLE) is None:
            raise SetupError("this server has no extension vector: install pgvector 0.8 or newer on it first")
        try:
            async with connection.transaction():
                await connection.execute(
                    f"CREATE SCHEMA IF NOT EXISTS {EXTENSION_SCHEMA};"
                    f" CREATE EXTENSION vector SCHEMA {EXTENSION_SCHEMA};"
                    f" GRANT USAGE ON SCHEMA {EXTENSION_SCHEMA} TO PUBLIC"
                )
        except asyncpg.InsufficientPrivilegeError:
            raise SetupError(
                "this role may not make the extension; have a superuser run, in this database:"
                f" CREATE SCHEMA {EXTENSION_SCHEMA}; CREATE EXTENSION vector SCHEMA {EXTENSION_SCHEMA};"
                f" GRANT USAGE ON SCHEMA {EXTENSION_SCHEMA} TO PUBLIC; and then this command again"
            ) from None
        done.append(f"made the extension vector in the schema {EXTENSION_SCHEMA}")
        return EXTENSION_SCHEMA
    return schema


async def _version(session: Session) -> str:
    version = await session.fetch_only(_VERSION)
    if tuple(int(each) for each in version.split(".")[:2]) < VERSION_MIN:
        raise SetupError(
            f"the extension vector {version} is older than 0.8: upgrade it (ALTER EXTENSION vector UPDATE)"
        )
    return version


async def _index(connection: Any, session: Session, schema: str, dimensions: int, done: list[str]) -> None:
    """Make an index while others write; one that was left unfinished is made anew."""
    if not 0 < dimensions <= INDEX_DIMENSIONS_MAX:
        raise SetupError(f"an index is of 1 to {INDEX_DIMENSIONS_MAX} dimensions")
    name = f"item_clear_vectors_{dimensions}"
    valid = await session.fetch_one(_INDEX, name=name)
    if valid:
        return
    if valid is not None:
        await connection.execute(f"DROP INDEX CONCURRENTLY stateroom.{name}")
    quoted = await session.fetch_only(QUOTED_NAME, name=schema)
    await connection.execute(
        f"CREATE INDEX CONCURRENTLY {name} ON stateroom.item_clear_vectors USING hnsw"
        f" ((embedding::{quoted}.halfvec({dimensions})) {quoted}.halfvec_ip_ops) WHERE dimensions = {dimensions}"
    )
    done.append(f"made an index for vectors of {dimensions} dimensions")
