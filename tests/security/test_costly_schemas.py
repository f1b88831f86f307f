"""What a tenant registers to be costly is refused, or ends in a worker process, while everybody else goes on.

The schemas are those with which one tenant stopped all others: some of a few kilobytes, all within every limit of size.
Some were accepted once, under bounds that did not see their cost: stored as they are, they must not harm either.
"""

import asyncio
import time

import pytest

from migrations.state.errors import UpcastFailed
from migrations.state.tasks import Learned
from storage.clock import SystemClock
from storage.errors import InvalidState, StateSchemaInvalid, TenantTooCostly, TooCostly
from storage.model import Load, Page, Patch, Save
from storage.schemas.registry import Definition, StateSchemas
from storage.schemas.versions import WantedVersions
from storage.schemas.workers import KILLS_MAX
from storage.scope import TenantScope
from tests.support.states import contents, packed, state

CLASS = r"[\p{L}\p{N}]{90}"
OBJECTS = [{"k": number} for number in range(8_000)]
V2 = WantedVersions(any_schema=2)


def patterns(count):
    return {"properties": {f"c{number}": {"pattern": f"{CLASS}{number}"} for number in range(count)}}


def elsewhere(levels):
    """The library decodes the reference, and finds another schema than its letters say; a small one, for ever."""
    doubling = {f"a{n}": {"anyOf": [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(levels)}
    ends = {f"a{levels}": {"type": "string"}, "a%30": {}}
    return {"$defs": doubling | ends, "properties": {"a": {"$ref": "#/$defs/a%30"}}}


class Unbounded:
    """Accepts whatever is registered, as builds did that could not tell what it costs."""

    async def learn(self, tenant_id, program):
        return Learned()


async def stored_before(store, scope, *definitions):
    """Versions that an earlier build accepted."""
    schemas = StateSchemas(store.unit_of_work, store.audit, SystemClock(), store.control, Unbounded())
    for number, each in enumerate(definitions, 1):
        await schemas.put(TenantScope(scope.tenant_id), "bomb", number, each)


async def save(store, scope, **channels):
    return await store.states.save(
        scope, Save(thread_id="t", content=state(**channels), state_schema="bomb", state_version=1)
    )


class Others:
    """Whoever else is served by this event loop: the longest that they had to wait."""

    async def __aenter__(self):
        self.longest, self._last, self._began = 0.0, time.monotonic(), time.monotonic()
        self._ticking = asyncio.create_task(self._tick())
        return self

    async def _tick(self):
        while True:
            await asyncio.sleep(0)
            now = time.monotonic()
            self.longest, self._last = max(self.longest, now - self._last), now

    async def __aexit__(self, *_):
        self.spent = time.monotonic() - self._began
        await asyncio.sleep(0)
        self._ticking.cancel()


@pytest.mark.parametrize(
    "schema", [patterns(40), patterns(300), elsewhere(40), {"properties": {"a": {"items": {"enum": OBJECTS}}}}]
)
async def test_a_schema_that_costs_too_much_is_refused_when_it_is_registered(store, scope, schema):
    with pytest.raises((StateSchemaInvalid, TooCostly)):
        await store.state_schemas.put(TenantScope(scope.tenant_id), "bomb", 1, Definition(json_schema=schema))
    assert await store.state_schemas.names(TenantScope(scope.tenant_id)) == Page([], None)


@pytest.mark.parametrize(
    ("schema", "element"),
    [
        ({"properties": {"a": {"items": {"enum": OBJECTS}}}}, {"k": 7_999}),
        ({"properties": {"a": {"items": {"enum": [number + 0.5 for number in range(8_000)]}}}}, 7_999.5),
        ({"properties": {"a": {"items": {"enum": [[number] for number in range(8_000)]}}}}, [7_999]),
        (patterns(300), 0),
        (elsewhere(14), 0),
    ],
)
async def test_a_schema_that_was_accepted_before_its_cost_was_known_stops_nobody(store, scope, schema, element):
    await stored_before(store, scope, Definition(json_schema=schema))
    async with Others() as others:
        with pytest.raises(TooCostly):
            await save(store, scope, a=[element] * 4_000)
    assert others.longest < others.spent / 2, "others waited for the check"


async def test_a_schema_of_before_is_used_while_it_stays_within_a_tasks_time(store, scope):
    await stored_before(store, scope, Definition(json_schema={"properties": {"a": {"items": {"enum": OBJECTS}}}}))
    await save(store, scope, a=[{"k": 7_999}] * 3)
    with pytest.raises(InvalidState) as refused:
        await save(store, scope, a=[{"k": 7_999}, {"k": -1}])
    assert refused.value.pointer == "/state/a/1"


async def test_a_condition_of_before_stops_nobody_who_reads(store, scope):
    # The first one may be used, and takes some 60 ms to compile, which a loop that did it would stand still for.
    dear, bypass = (f"value.matches('\\x5cpL{{{count}}}') || " * 14 + "false" for count in (20, 190))
    removes = [{"op": "remove", "path": "/a", "when": when} for when in (dear, bypass, bypass)]
    await stored_before(store, scope, Definition(), Definition(up=removes))
    await save(store, scope, a="x" * 1000)
    async with Others() as others:
        with pytest.raises(UpcastFailed, match="cannot be used any more"):
            await store.states.load(scope, V2, Load("t", "", None, with_state=True))
    assert others.longest < others.spent / 2, "others waited for the condition"


async def test_a_tenant_is_refused_only_what_needs_a_worker_and_its_neighbour_nothing(store, scope):
    await stored_before(store, scope, Definition(json_schema={"properties": {"a": {"items": {"enum": OBJECTS}}}}))
    for _ in range(KILLS_MAX):
        with pytest.raises(TooCostly):
            await save(store, scope, a=[{"k": 7_999}] * 4_000)
    with pytest.raises(TenantTooCostly):
        await save(store, scope, a=[{"k": 1}])
    saved = await store.checkpoints.save(scope, Save(thread_id="t", content=state(a=1)))
    loaded = await store.states.load(scope, V2, Load("t", "", saved.checkpoint_id, with_state=True))
    assert contents(loaded.checkpoint) == {"a": 1}


@pytest.mark.parametrize("size", [1, 3_000])
async def test_small_and_large_saves_are_told_the_same(store, scope, size):
    """One is checked on the event loop, the other by a worker."""
    schema = {
        "properties": {"a": {"items": {"type": "object", "properties": {"text": {"type": "string"}}}}},
        "required": ["a"],
    }
    await store.state_schemas.put(TenantScope(scope.tenant_id), "bomb", 1, Definition(json_schema=schema))
    fits = {"text": "x" * 50}
    await save(store, scope, a=[fits] * size)
    with pytest.raises(InvalidState, match=r"\(type\)") as refused:
        await save(store, scope, a=[fits] * size + [{"text": 1}])
    assert refused.value.pointer == f"/state/a/{size}/text"
    with pytest.raises(InvalidState, match=r"\(required\)"):
        await save(store, scope, b=[fits] * size)
    await save(store, scope, a=[])
    appended = Patch({}, {"a": [packed(each).data for each in [fits] * size + [{"text": 1}]]}, [])
    with pytest.raises(InvalidState) as refused:
        await store.states.save(scope, Save(thread_id="t", content=appended, state_schema="bomb", state_version=1))
    assert refused.value.pointer == f"/changes/append/a/{size}/text"
