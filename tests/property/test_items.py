"""Any sequence of operations on items equals a model that is written here anew: dictionaries, and nothing clever."""

import asyncio
from datetime import UTC, datetime
from typing import Any, NamedTuple
from uuid import UUID, uuid4

import asyncpg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from storage.control.features import ITEMS
from storage.encoding import encode_msgpack
from storage.errors import ItemExists, ItemMoved
from storage.items import filters
from storage.items.model import Batch, ItemGet, ItemName, ItemSearch, ItemWrite, PathSearch
from storage.model import Value
from storage.scope import ClientShare, Scope, TenantScope
from tests.support.archive_rows import opened
from tests.support.features import switch_on

SUBJECTS = ("ada", "bob")
SHARES = (None, ClientShare(b"s" * 32))
PATHS = (("a",), ("a", "b"), ("a", "*"), ("b", "a"), ("b", "a", "c"))
KEYS = ("", "k", "ключ")
VALUES = ({}, {"n": 1}, {"n": 2, "t": "x"}, {"n": None}, {"m": {"n": 2}}, {"n": "1"}, {"l": [1, 2]})
FILTERS: tuple[Any, ...] = (
    None, {}, {"n": 1}, {"n": {"$gt": 1}}, {"n": {"$ne": 1}}, {"n": None}, {"m": {"n": 2}}, {"l": [1, 2]},
    {"$or": [{"n": 1}, {"t": "x"}]}, {"n": {"$in": [1, "1"]}},
)  # fmt: skip
MANY = 1_000


class Place(NamedTuple):
    """Whose items, by the subject and whether a share is sent."""

    subject: str
    shared: bool


class Kept(NamedTuple):
    """An item of the model; ``over``: its time is over."""

    value: dict[str, Any]
    revision: int
    ttl: int | None
    changed: int  # the number of the batch that put it


class Model:
    """What items should be."""

    def __init__(self) -> None:
        self.items: dict[Place, dict[tuple[tuple[str, ...], str], Kept]] = {}
        self.over: set[tuple[Place, tuple[str, ...], str]] = set()
        self.revisions: dict[Place, set[tuple[tuple[str, ...], int]]] = {}
        self.batches = 0

    def living(self, place: Place) -> dict[tuple[tuple[str, ...], str], Kept]:
        return {name: kept for name, kept in self.items.get(place, {}).items() if (place, *name) not in self.over}


def is_like(wanted: Any, value: dict[str, Any]) -> bool:
    """What the filters of this test mean, each said by itself."""
    n = value.get("n", "absent")
    return {
        "None": True,
        "{}": True,
        "{'n': 1}": n == 1,
        "{'n': {'$gt': 1}}": isinstance(n, int) and n > 1,
        "{'n': {'$ne': 1}}": "n" in value and n != 1,
        "{'n': None}": "n" in value and n is None,
        "{'m': {'n': 2}}": value.get("m") == {"n": 2},
        "{'l': [1, 2]}": value.get("l") == [1, 2],
        "{'$or': [{'n': 1}, {'t': 'x'}]}": n == 1 or value.get("t") == "x",
        "{'n': {'$in': [1, '1']}}": n in {1, "1"},
    }[str(wanted)]


WRITES = st.lists(
    st.tuples(
        st.sampled_from(PATHS), st.sampled_from(KEYS), st.sampled_from([None, *VALUES]), st.sampled_from([None, 60]),
        st.sampled_from(["none", "none", "absent", "current", "stale"]),
    ),
    min_size=1,
    max_size=5,
)  # fmt: skip
PREFIXES = st.sampled_from([(), ("a",), ("b", "a"), ("*",), ("z",)])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), WRITES, st.booleans()),
        st.tuples(st.just("expire"), st.sampled_from(PATHS), st.sampled_from(KEYS), st.booleans()),
        st.tuples(st.just("search"), PREFIXES, st.sampled_from(FILTERS), st.integers(1, 4), st.integers(0, 3)),
        st.tuples(st.just("paths"), PREFIXES, PREFIXES, st.sampled_from([None, 1, 2]), st.integers(1, 3)),
    ).flatmap(lambda step: st.tuples(st.just(step), st.sampled_from(SUBJECTS), st.booleans())),
    min_size=4,
    max_size=25,
)


class Machine:
    """Does each step to the model and to the store, and compares."""

    def __init__(self, store: Any, admin: asyncpg.Connection, tenant_id: UUID) -> None:
        self._store, self._admin, self._tenant_id = store, admin, tenant_id
        self._model = Model()

    async def run(self, batch: Batch, place: Place) -> Any:
        scope = Scope(self._tenant_id, place.subject)
        return await self._store.items.run(scope, batch, share=SHARES[place.shared])

    async def write(self, place: Place, sent: Any, atomic: bool) -> None:
        items = self._model.items.setdefault(place, {})
        before, was_over = dict(items), set(self._model.over)
        self._model.batches += 1
        writes, expected = [], []
        start = self._model.living(place)
        for path, key, value, ttl, condition in sent:
            name = (path, key)
            living = self._model.living(place).get(name)
            known = start.get(name)
            if_revision = {"current": known.revision if known else 10**9, "stale": 0}.get(condition)
            if_absent = condition == "absent" and value is not None
            writes.append(
                ItemWrite(
                    ItemName(path, key), None if value is None else Value("msgpack", encode_msgpack(value)),
                    None if value is None else ttl, if_revision, if_absent,
                )
            )  # fmt: skip
            if if_absent and living is not None:
                expected.append(ItemExists)
            elif if_revision is not None and (living is None or living.revision != if_revision):
                expected.append(ItemMoved)
            elif value is None:
                expected.append("absent" if living is None else "deleted")
                if living is not None:
                    del items[name]
            else:
                expected.append("created" if living is None else "replaced")
                items[name] = Kept(value, -len(expected), ttl, self._model.batches)
                self._model.over.discard((place, *name))
        outcomes = (await self.run(Batch(writes=writes, atomic=atomic), place)).writes
        if atomic and any(isinstance(each, type) for each in expected):
            self._model.items[place], self._model.over = before, was_over
            expected = [each if isinstance(each, type) else None for each in expected]
        assert [self._told(each) for each in outcomes] == expected
        for number, outcome in enumerate(outcomes, 1):
            revision = getattr(outcome, "revision", None)
            if not isinstance(outcome, Exception) and revision is not None:
                seen = self._model.revisions.setdefault(place, set())
                assert (sent[number - 1][0], revision) not in seen
                seen.add((sent[number - 1][0], revision))
                name = (sent[number - 1][0], sent[number - 1][1])
                kept = self._model.items[place].get(name)
                if kept is not None and kept.revision == -number:
                    self._model.items[place][name] = kept._replace(revision=revision)

    @staticmethod
    def _told(outcome: Any) -> Any:
        return type(outcome) if isinstance(outcome, Exception) else getattr(outcome, "status", None)

    async def expire(self, place: Place, path: Any, key: str, sweep: bool) -> None:
        kept = self._model.living(place).get((path, key))
        if kept is not None and kept.ttl is not None:
            (read,) = (await self.run(Batch(gets=[ItemGet(ItemName(path, key), refresh=False)]), place)).gets
            done = await self._admin.execute(
                "UPDATE stateroom.items SET expires_at = $5 WHERE tenant_id = $1 AND subject_id = $2 AND revision = $3"
                " AND updated_at = $4 AND ttl_seconds IS NOT NULL AND expires_at = $6",
                self._tenant_id, place.subject, read.revision, read.updated_at, datetime(2020, 1, 1, tzinfo=UTC),
                read.expires_at,
            )  # fmt: skip
            if done == "UPDATE 1":
                self._model.over.add((place, path, key))
            else:  # two paths have an item of this revision from one batch
                await self._admin.execute(
                    "UPDATE stateroom.items SET expires_at = $2 WHERE tenant_id = $1 AND expires_at = $3",
                    self._tenant_id, read.expires_at, datetime(2020, 1, 1, tzinfo=UTC),
                )  # fmt: skip
                for other, names in self._model.items.items():
                    for name in names:
                        self._model.over.discard((other, *name))
        if sweep:
            async for _ in self._store.items.expiring.run(TenantScope(self._tenant_id)):
                pass
            for other, over_path, over_key in self._model.over:
                self._model.items.get(other, {}).pop((over_path, over_key), None)
            self._model.over.clear()

    async def search(self, place: Place, prefix: Any, wanted: Any, limit: int, offset: int) -> None:
        parsed = None if wanted is None else filters.parse(wanted, "")
        pages, after = [], None
        while True:
            asked = ItemSearch(prefix=prefix, filter=parsed, limit=limit, offset=offset, after=after)
            page = (await self.run(Batch(searches=[asked]), place)).searches[0]
            pages.append([*page.items])
            after = page.after
            if after is None:
                break
        assert all(len(each) == limit for each in pages[:-1])
        found = [each for page in pages for each in page]
        model = {
            name: kept
            for name, kept in self._model.living(place).items()
            if name[0][: len(prefix)] == prefix and is_like(wanted, kept.value)
        }
        order = [model[each.name].changed for each in found]
        assert order == sorted(order, reverse=True)
        assert len({each.name for each in found}) == len(found) == max(len(model) - offset, 0)
        for each in found:
            kept = model[each.name]
            assert (each.value.data, each.revision, each.ttl_seconds) == (
                encode_msgpack(kept.value), kept.revision, kept.ttl,
            )  # fmt: skip
        assert not offset or sorted((kept.changed for kept in model.values()), reverse=True)[offset:] == order

    async def paths(self, place: Place, prefix: Any, suffix: Any, depth: int | None, limit: int) -> None:
        found, after = [], None
        while True:
            asked = PathSearch(prefix=prefix, suffix=suffix, max_depth=depth, limit=limit, after=after)
            page = (await self.run(Batch(paths=[asked]), place)).paths[0]
            found += page.items
            after = page.after
            if after is None:
                break

        def fits(labels: Any, pattern: Any) -> bool:
            return len(labels) == len(pattern) and all(
                p in ("*", each) for each, p in zip(labels, pattern, strict=True)
            )

        wanted = {
            path[:depth]
            for path, _ in self._model.living(place)
            if fits(path[: len(prefix)], prefix) and fits(path[len(path) - len(suffix) :] if suffix else (), suffix)
        }
        assert found == sorted(wanted)

    async def gets(self) -> None:
        """Every name, of everybody."""
        for subject in SUBJECTS:
            for shared in (False, True):
                place = Place(subject, shared)
                names = [ItemName(path, key) for path in PATHS for key in KEYS]
                found = (await self.run(Batch(gets=[ItemGet(name) for name in names]), place)).gets
                living = self._model.living(place)
                for name, item in zip(names, found, strict=True):
                    kept = living.get((name.path, name.key))
                    assert (item is None) == (kept is None), name
                    if item is not None and kept is not None:
                        assert (item.value.data, item.revision) == (encode_msgpack(kept.value), kept.revision)


async def _do(store: Any, admin: asyncpg.Connection, steps: Any) -> None:
    machine = Machine(store, admin, uuid4())
    for (verb, *arguments), subject, shared in steps:
        await getattr(machine, verb)(Place(subject, shared), *arguments)
    await machine.gets()


@pytest.mark.parametrize("times", [1, pytest.param(25, marks=pytest.mark.soak)], ids=["short", "long"])
def test_items_are_what_a_model_says(database, root_key, times):
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        opening = opened(database, root_key, connections_max=2)
        store = runner.run(_entered(opening))
        admin = runner.run(asyncpg.connect(database.dsn(database.superuser_url)))
        try:

            @settings(max_examples=60 * times, deadline=None, suppress_health_check=list(HealthCheck))
            @given(steps=STEPS)
            def run(steps: Any) -> None:
                runner.run(_do(store, admin, steps))

            run()
        finally:
            runner.run(admin.close())
            runner.run(_left(opening))


async def _entered(opening: Any) -> Any:
    store = await opening.__aenter__()
    await switch_on(store, ITEMS)
    return store


async def _left(opening: Any) -> None:
    await opening.__aexit__(None, None, None)
