"""Writing vectors of items: with the items, under the locks of their paths, and counted by their seals.

Owns that an item that is put or deleted loses what vectors it had, that those that are given to it take the place of
what it had by the same models, and by how many models it may have them; and the same beside, where the tenant has
vectors in clear. It decides on no write.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from crypto import Sealer
from storage.clear_vectors import policies, rows
from storage.concurrency.turns import Pauses
from storage.control.rows import ControlRows
from storage.errors import ItemModelsExceeded
from storage.format.items.vectors import VectorColumns, model_id, seal_vectors, vectors_mac
from storage.items.model import ITEM_MODELS_MAX, ModelVectors
from storage.items.paths import LockedPath
from storage.postgres.unit_of_work import Transaction
from storage.scope import Scope
from storage.statements.items import vectors as sql
from storage.statements.items.items import FoundRow

Place = tuple[bytes, bytes]
_ByModel = dict[bytes, tuple[VectorColumns, ModelVectors]]


class VectorWrites:
    """The vectors of one request's writes."""

    def __init__(self, transaction: Transaction, sealer: Sealer, control: ControlRows, scope: Scope) -> None:
        self._transaction = transaction
        self._sealer = sealer
        self._control = control
        self._scope = scope
        self._stored: defaultdict[Place, dict[bytes, sql.VectorsMember]] = defaultdict(dict)
        self._new: defaultdict[Place, _ByModel] = defaultdict(dict)
        self._lost: set[Place] = set()

    async def look(self, places: Iterable[Place]) -> None:
        """Look at what vectors some items have; their paths are locked."""
        for member in await _members(self._transaction, [*places]):
            self._stored[member.path_id, member.key_id][member.model_id] = member

    def put(self, place: Place, revision: int, sequence: int, given: Sequence[ModelVectors]) -> None:
        """Give an item that is put these vectors, and no others."""
        self.delete(place)
        self._give(place, revision, sequence, given)

    def add(self, place: Place, revision: int, sequence: int, given: Sequence[ModelVectors]) -> None:
        """Give an item these vectors beside those it has by other models.

        Raises:
            ItemModelsExceeded: It would have vectors by more models than it may.
        """
        kept = {} if place in self._lost else self._stored.get(place, {})
        models = {*kept, *self._new.get(place, {}), *(self._model_id(each) for each in given)}
        if len(models) > ITEM_MODELS_MAX:
            raise ItemModelsExceeded
        self._give(place, revision, sequence, given)

    def _give(self, place: Place, revision: int, sequence: int, given: Sequence[ModelVectors]) -> None:
        for each in given:
            columns = VectorColumns(*place, self._model_id(each), revision, sequence)
            self._new[place][columns.model_id] = columns, each

    def delete(self, place: Place) -> None:
        """Take away what an item has, and what was given to it."""
        self._lost.add(place)
        self._new.pop(place, None)

    def has(self, place: Place) -> bool:
        """Whether an item that is put has vectors."""
        return place in self._new

    def _model_id(self, given: ModelVectors) -> bytes:
        return model_id(self._sealer, given.model, given.dimensions)

    async def store(
        self, found: Mapping[Place, FoundRow], paths: Mapping[bytes, LockedPath]
    ) -> dict[bytes, LockedPath]:
        """Store what was given, in the place of what is there.

        Args:
            found: What is stored under the names of all writes.
            paths: The paths, which are locked; their live sets are changed.

        Returns:
            The paths in which something changed.

        Raises:
            ClearVectorsUnavailable: Some are to be in clear, and there is no table for them.
        """
        for place, by_model in self._stored.items():
            for named, member in by_model.items():
                if place in self._lost or named in self._new.get(place, {}):
                    _subtract(self._sealer, paths[place[0]], member)
        gone = [place for place in self._stored if place in self._lost]
        if gone:
            await self._transaction.run_many(sql.DELETE_VECTORS, _named(sorted(gone)))
        puts = []
        pauses = Pauses()
        for place, given in sorted(self._new.items()):
            path = paths[place[0]]
            for columns, each in given.values():
                sealed = seal_vectors(self._sealer, columns, each.model, each.vectors)
                path.vectors = path.vectors.add(vectors_mac(self._sealer, columns, sealed.member))
                puts.append(msgspec.structs.asdict(columns) | msgspec.structs.asdict(sealed))
                await pauses.after(len(sealed.envelope))
        if puts:
            await self._transaction.run_many(sql.PUT_VECTORS, puts)
        first = [place for place in self._new if place not in self._lost and not found[place].indexed]
        if first:
            await self._transaction.run_many(sql.SET_INDEXED, _named(sorted(first)))
        if (gone or self._new) and not self._sealer.shared:
            await self._in_clear(gone)
        return {place[0]: paths[place[0]] for place in (*gone, *self._new)}

    async def _in_clear(self, gone: Sequence[Place]) -> None:
        """Do the same with what is in clear; what is under a client's share never is."""
        now = await policies.vectors_now(self._transaction, self._control, self._scope.tenant_id)
        if now.has_policy and now.schema is not None:
            await rows.delete(self._transaction, now.schema, gone)
        if now.clear and self._new:
            given = (each for by_model in self._new.values() for each in by_model.values())
            written = [(columns, vectors.vectors) for columns, vectors in given]
            await rows.put(self._transaction, now.required(), written)


async def remove_vectors(
    transaction: Transaction, sealer: Sealer, places: Sequence[Place], paths: Mapping[bytes, LockedPath]
) -> None:
    """Remove what vectors some items have; their paths are locked, and their live sets are changed."""
    members = await _members(transaction, places)
    for member in members:
        _subtract(sealer, paths[member.path_id], member)
    if members:
        gone = sorted({(member.path_id, member.key_id) for member in members})
        await transaction.run_many(sql.DELETE_VECTORS, _named(gone))
        schema = None if sealer.shared else await policies.table(transaction)
        if schema is not None:
            await rows.delete(transaction, schema, gone)


async def _members(transaction: Transaction, places: Sequence[Place]) -> list[sql.VectorsMember]:
    if not places:
        return []
    path_ids, key_ids = zip(*places, strict=True)
    return await transaction.fetch_all(sql.MEMBERS, path_ids=list(path_ids), key_ids=list(key_ids))


def _subtract(sealer: Sealer, path: LockedPath, member: sql.VectorsMember) -> None:
    path.vectors = path.vectors.subtract(vectors_mac(sealer, member, member.member))


def _named(places: Sequence[Place]) -> list[dict[str, object]]:
    return [{"path_id": path_id, "key_id": key_id} for path_id, key_id in places]
