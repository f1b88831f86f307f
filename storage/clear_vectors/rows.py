"""The table of clear vectors: what is put there, and what of it is near a vector.

The numbers are those of the sealed row: a direction of length 1 in 16-bit floats, and a length. So all metrics are
computed of the same inner product, and an index of directions serves the cosine. Whether an item is still there is not
known here: its own row says so, and the sealed row has the vectors that count.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from storage.format.items.vectors import Vector, VectorColumns, quantized
from storage.postgres.unit_of_work import Transaction
from storage.statements.items import clear_vectors as sql

# Up to so many vectors of a subject by one model all are compared, whatever indexes there are.
EXACT_MAX: Final = 20_000

Place = tuple[bytes, bytes]


async def put(transaction: Transaction, schema: str, written: Iterable[tuple[VectorColumns, Sequence[Vector]]]) -> None:
    """Put vectors in the place of those that the same items have by the same models."""
    models, rows = [], []
    for columns, vectors in written:
        model = {"path_id": columns.path_id, "key_id": columns.key_id, "model_id": columns.model_id}
        models.append(model)
        rows += [
            model | {
                "number": number, "revision": columns.revision, "sequence": columns.sequence,
                "length": each.length, "embedding": _text(each),
            }
            for number, each in enumerate(vectors)
        ]  # fmt: skip
    statements = sql.of(schema)
    if models:
        await transaction.run_many(statements.delete_model, models)
        await transaction.run_many(statements.put, rows)


async def delete(transaction: Transaction, schema: str, places: Iterable[Place]) -> None:
    """Remove all vectors of some items."""
    named = [{"path_id": path_id, "key_id": key_id} for path_id, key_id in places]
    if named:
        await transaction.run_many(sql.of(schema).delete_item, named)


class Nearest:
    """The nearest of a subject's clear vectors by one model, as far as they are asked for.

    Args:
        transaction: The search's snapshot.
        schema: Where the extension is.
        model_id: The name of the model in rows.
        path_ids: The paths that are searched.
        values: What is searched for.
        metric: How nearness is told; ``cosine``, ``dot`` or ``l2``.
        exact_max: Up to how many vectors all are compared.
    """

    def __init__(
        self,
        transaction: Transaction,
        schema: str,
        model_id: bytes,
        path_ids: Sequence[bytes],
        values: Sequence[float],
        metric: str,
        exact_max: int = EXACT_MAX,
    ) -> None:
        self._transaction = transaction
        self._statements = sql.of(schema)
        self._place: Mapping[str, object] = {"model_id": model_id, "path_ids": list(path_ids)}
        self._wanted = quantized(values)
        self._dimensions = len(values)
        self._metric = metric
        self._exact_max = exact_max
        self._exact: bool | None = None
        self.count = 0

    async def best(self, count: int) -> list[sql.ClearHit]:
        """The best so many, in their order."""
        if self._exact is None:
            self.count = await self._transaction.fetch_only(self._statements.count, **self._place)
            self._exact = self._metric != "cosine" or self.count < self._exact_max
            if not self._exact:
                await self._transaction.run(sql.ITERATE)
        values = {**self._place, "direction": _text(self._wanted), "limit": count}
        if not self._exact:
            hits = await self._transaction.fetch_all(self._statements.by_index(self._dimensions), **values)
            if len(hits) == min(count, self.count):
                return hits
            self._exact = True  # the index stopped looking before it had as many
        if self._metric == "l2":
            values["length"] = self._wanted.length
        return await self._transaction.fetch_all(self._statements.exact(self._metric), **values)


def _text(vector: Vector) -> str:
    """A vector's direction as the extension reads it; each number is exactly one of 16 bits."""
    return f"[{','.join(map(repr, vector.directions()))}]"
