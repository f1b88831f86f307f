"""The table of clear vectors: what is put there, and what of it is near a vector.

The numbers are those of the sealed row: a direction of length 1 in 16-bit floats, and a length. So all metrics are
computed of the same inner product, and an index of directions serves the cosine. Whether an item is still there is not
known here: its own row says so, and the sealed row has the vectors that count.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from storage.concurrency.turns import Pauses
from storage.format.items.vectors import Vector, VectorColumns, quantized
from storage.postgres.unit_of_work import Transaction
from storage.statements.items import clear_vectors as sql

# Up to so many vectors of a subject by one model all are compared, whatever indexes there are.
EXACT_MAX: Final = 20_000
# Texts of vectors that are put at once, or those of one item.
_PUT_BYTES: Final = 2 * 1024 * 1024

Place = tuple[bytes, bytes]


async def put(transaction: Transaction, schema: str, written: Iterable[tuple[VectorColumns, Sequence[Vector]]]) -> None:
    """Put vectors in the place of those that the same items have by the same models."""
    statements = sql.of(schema)
    pauses = Pauses()
    models: list[Mapping[str, object]] = []
    rows: list[Mapping[str, object]] = []
    size = 0
    for columns, vectors in written:
        model = {"path_id": columns.path_id, "key_id": columns.key_id, "model_id": columns.model_id}
        models.append(model)
        put_at = {"revision": columns.revision, "sequence": columns.sequence}
        for number, each in enumerate(vectors):
            text = _text(each)
            rows.append(model | put_at | {"number": number, "length": each.length, "embedding": text})
            size += len(text)
            await pauses.after(len(text))
        if size >= _PUT_BYTES:
            await transaction.run_many(statements.delete_model, models)
            await transaction.run_many(statements.put, rows)
            models, rows, size = [], [], 0
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

    async def best(self, count: int) -> list[sql.ClearHit]:
        """The best so many, in their order; fewer are all that there are."""
        if self._exact is None:
            self._exact = self._metric != "cosine" or await self._are_few()
            if not self._exact:
                await self._transaction.run(sql.ITERATE)
        values = {**self._place, "direction": _text(self._wanted), "limit": count}
        if not self._exact:
            hits = await self._transaction.fetch_all(self._statements.by_index(self._dimensions), **values)
            if len(hits) == count:
                return hits
            self._exact = True  # there are not as many, or the index stopped looking before it had them
        if self._metric == "l2":
            values["length"] = self._wanted.length
        values["dimensions"] = self._dimensions
        return await self._transaction.fetch_all(self._statements.exact(self._metric), **values)

    async def _are_few(self) -> bool:
        few = await self._transaction.fetch_only(self._statements.count, **self._place, at_most=self._exact_max)
        return few < self._exact_max


def _text(vector: Vector) -> str:
    """A vector's direction as the extension reads it; each number is exactly one of 16 bits."""
    return f"[{','.join(map(repr, vector.directions()))}]"
