"""Statements on clear vectors: the table that an operator made with ``stateroom db enable-pgvector``.

Where the table is not, none of them runs; so they are made (`of`) for the schema that the extension of their types and
operators is in, which `storage.statements.rules.vector_policies` tells. A vector is stored as its direction, which has
length 1, in 16-bit floats, beside its length: the numbers of the sealed row (`storage.format.items.vectors`).
"""

import functools
from typing import Final

import msgspec

from storage.postgres.statement import Statement


class ClearRows(msgspec.Struct, frozen=True):
    """The vectors of an item by one model, without them; ``numbers`` -1: they are of several puts, or not whole."""

    path_id: bytes
    key_id: bytes
    model_id: bytes
    revision: int
    sequence: int
    numbers: int


class ClearHit(msgspec.Struct, frozen=True):
    """Whose a vector is that is near."""

    path_id: bytes
    key_id: bytes
    revision: int
    sequence: int


_OF: Final = "tenant_id = :tenant_id AND subject_id = :subject_id"
# The negative inner product of two vectors of length 1; `_ORDERS` makes of it what grows with the distance.
_NEAR: Final = "(embedding{cast} OPERATOR({schema}.<#>) :direction::text::{schema}.halfvec{dimensions})"
_ORDERS: Final = {
    "cosine": "{near}",
    "dot": "length::float8 * {near}",
    "l2": "length::float8 * length::float8 + 2 * :length::float8 * length::float8 * {near}",
}


class ClearStatements:
    """All of them, for an extension in one schema."""

    def __init__(self, schema: str) -> None:
        self._schema = '"' + schema.replace('"', '""') + '"'
        self.put = Statement(f"""
INSERT INTO stateroom.item_clear_vectors
    (tenant_id, subject_id, path_id, key_id, model_id, number, revision, sequence, length, embedding)
VALUES (:tenant_id, :subject_id, :path_id, :key_id, :model_id, :number, :revision, :sequence, :length,
    :embedding::text::{self._schema}.halfvec)
""")
        self.delete_item = Statement(f"""
DELETE FROM stateroom.item_clear_vectors WHERE {_OF} AND path_id = :path_id AND key_id = :key_id
""")
        self.delete_model = Statement(f"""
DELETE FROM stateroom.item_clear_vectors
WHERE {_OF} AND path_id = :path_id AND key_id = :key_id AND model_id = :model_id
""")
        self.count = Statement(
            f"""
SELECT count(*) FROM (
    SELECT FROM stateroom.item_clear_vectors
    WHERE {_OF} AND model_id = :model_id AND path_id = ANY(:path_ids::bytea[]) LIMIT :at_most) few
""",
            int,
        )
        self.of_path = Statement(
            f"""
SELECT path_id, key_id, model_id, min(revision) AS revision, min(sequence) AS sequence,
    CASE WHEN min(revision) = max(revision) AND min(sequence) = max(sequence) AND min(number) = 0
        AND max(number) = count(*) - 1 THEN count(*) ELSE -1 END AS numbers
FROM stateroom.item_clear_vectors
WHERE {_OF} AND path_id = :path_id AND (key_id, model_id) > (:key_id, :model_id)
GROUP BY path_id, key_id, model_id ORDER BY key_id, model_id LIMIT :page_rows
""",
            ClearRows,
        )
        # Whether some are in no path that there is, and whether there are any at all.
        self.strays = Statement(
            f"""
SELECT EXISTS (SELECT FROM stateroom.item_clear_vectors c
    WHERE {_OF} AND NOT EXISTS (SELECT FROM stateroom.item_paths p
        WHERE p.tenant_id = :tenant_id AND p.subject_id = :subject_id AND p.path_id = c.path_id))
""",
            bool,
        )
        self.any = Statement(f"SELECT EXISTS (SELECT FROM stateroom.item_clear_vectors WHERE {_OF})", bool)
        page = f"""
DELETE FROM stateroom.item_clear_vectors WHERE {_OF} AND (path_id, key_id, model_id, number) IN (
    SELECT path_id, key_id, model_id, number FROM stateroom.item_clear_vectors c
    WHERE {_OF} %s LIMIT :page_rows)
"""
        self.purge = Statement(page % "ORDER BY path_id, key_id, model_id, number")
        # Those that are of no sealed row as it is now.
        self.purge_strays = Statement(
            page
            % """AND NOT EXISTS (SELECT FROM stateroom.item_vectors v
        WHERE v.tenant_id = :tenant_id AND v.subject_id = :subject_id AND v.path_id = c.path_id
          AND v.key_id = c.key_id AND v.model_id = c.model_id AND v.revision = c.revision
          AND v.sequence = c.sequence)"""
        )

    @functools.cache  # noqa: B019  there is one object for a schema, for ever
    def exact(self, metric: str) -> Statement[ClearHit]:
        """The nearest, of all of them compared."""
        near = _NEAR.format(schema=self._schema, cast="", dimensions="")
        order = _ORDERS[metric].format(near=near)
        return self._nearest(f"{order}, path_id, key_id, number", "AND dimensions = :dimensions")

    @functools.cache  # noqa: B019  as above, for each number of dimensions that there may be
    def by_index(self, dimensions: int) -> Statement[ClearHit]:
        """The nearest by their directions, along the index of a number of dimensions, where there is one."""
        cast = f"::{self._schema}.halfvec({dimensions})"
        near = _NEAR.format(schema=self._schema, cast=cast, dimensions=f"({dimensions})")
        return self._nearest(near, f"AND dimensions = {dimensions}")

    def _nearest(self, order: str, also: str = "") -> Statement[ClearHit]:
        return Statement(
            f"""
SELECT path_id, key_id, revision, sequence FROM stateroom.item_clear_vectors
WHERE {_OF} AND model_id = :model_id AND path_id = ANY(:path_ids::bytea[]) {also}
ORDER BY {order} LIMIT :limit
""",
            ClearHit,
        )


@functools.cache
def of(schema: str) -> ClearStatements:
    """The statements for an extension in a schema."""
    return ClearStatements(schema)


# Along the index until there are as many as wanted, in the order of the distance, whatever is passed over; looking at
# five times as many as it would by itself, so that fewer are missed.
ITERATE: Final = Statement(
    "SET LOCAL hnsw.iterative_scan = strict_order; SET LOCAL hnsw.ef_search = 200; SET LOCAL enable_sort = off"
)
