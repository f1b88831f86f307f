"""What state versions cost: ``python -m benchmarks.upcasts``.

1. Upcasts a second of states of 10 KB and 400 KB through 1 and 10 steps, as a ratio to decoding the same state once:
   the least that anybody pays who looks at it.
2. What a reader's version adds to a load of state that is current: the time of `States.load` with a wanted version over
   the same load without, taken in turns on one embedded PostgreSQL.

Only ratios of one run mean something; each is the median of rounds, with the least and the greatest.
"""

import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from uuid import UUID, uuid4

import msgpack

from crypto import MemoryRootKey
from gateway.embedded.postgres import EmbeddedPostgres
from migrations.state.chain import Chain, PythonDirection, Step
from migrations.state.declarative import compile_operations
from migrations.state.document import Encoded
from storage.model import ChannelValue, FullState, Load, Save, Value
from storage.postgres.setup import prepare
from storage.schemas.registry import Definition
from storage.schemas.versions import AS_SAVED, WantedVersions
from storage.scope import Scope, TenantScope
from storage.service import Store

ROUNDS = 15
ROUND_SECONDS = 0.1
LOADS = 100


def state_of(size: int) -> dict[str, Encoded]:
    """A chat of about ``size`` bytes, with a profile that the steps change."""
    messages = [{"role": "user", "content": "x" * 980, "id": str(number)} for number in range(max(1, size // 1024))]
    channels = {"messages": messages, "profile_1": {"seat": "aisle", "name": "Ada Lovelace"}, "step": 3}
    return {name: Encoded("msgpack", msgpack.packb(value)) for name, value in channels.items()}


def chain_of(sort: str, steps: int) -> Chain:
    """Steps that rename a channel; that look into the small one; that look into every message; or that are Python."""

    def step(number: int) -> Step:
        if sort == "python":

            def upcast(state: dict[str, object]) -> dict[str, object]:
                after = dict(state)
                after[f"profile_{number + 1}"] = after.pop(f"profile_{number}")
                return after

            return Step(number, number + 1, PythonDirection(upcast))
        operations: list[dict[str, object]] = [
            {"op": "rename", "from": f"/profile_{number}", "to": f"/profile_{number + 1}"}
        ]
        if sort == "field":
            operations.append({"op": "set_default", "path": f"/profile_{number + 1}/field_{number}", "value": 1})
        if sort == "messages":
            each = {"op": "set_default", "path": f"/field_{number}", "value": 1}
            operations.append({"op": "for_each", "path": "/messages", "operations": [each]})
        return Step(number, number + 1, compile_operations(operations))

    return Chain("benchmark", [step(number) for number in range(1, steps + 1)])


def rate(work: Callable[[], object]) -> float:
    """How often ``work`` is done in a second."""
    done, started = 0, time.perf_counter()
    while (spent := time.perf_counter() - started) < ROUND_SECONDS:
        work()
        done += 1
    return done / spent


def spread(ratios: list[float]) -> str:
    """Median, least and greatest."""
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"


def upcasts() -> None:
    """Print the first table."""
    print("| state | steps | sort | upcasts/s | time over decoding it once |\n|---|---|---|---|---|")
    for size in (10 * 1024, 400 * 1024):
        state = state_of(size)

        def decode(state: dict[str, Encoded] = state) -> None:
            for each in state.values():
                msgpack.unpackb(each.data, ext_hook=msgpack.ExtType, strict_map_key=False)

        for sort in ("rename", "field", "messages", "python"):
            for steps in (1, 10):
                chain = chain_of(sort, steps)

                def convert(
                    chain: Chain = chain, state: dict[str, Encoded] = state, wanted: int = steps + 1
                ) -> dict[str, Encoded]:
                    return chain.convert(state, 1, wanted)

                pairs = [(rate(convert), rate(decode)) for _ in range(ROUNDS)]
                ratios = [decoded / converted for converted, decoded in pairs]
                fast = statistics.median(converted for converted, _ in pairs)
                print(f"| {size // 1024} KB | {steps} | {sort} | {fast:,.0f} | {spread(ratios)} |")


async def loads() -> None:
    """Print the second table."""
    with tempfile.TemporaryDirectory(prefix="stateroom-upcasts-") as folder:
        Path(folder).chmod(0o711)  # noqa: ASYNC240  once; engines run as an unprivileged user where this is root
        postgres = EmbeddedPostgres(Path(folder))
        await asyncio.to_thread(postgres.start)
        try:
            _, app_url = await prepare(
                postgres.superuser_url(), database="upcasts", owner_password="o" * 20, app_password="a" * 20
            )
            store = await Store.open(
                app_url,
                root_key=MemoryRootKey(),
                deployment_id=UUID(int=1),
                connections_max=2,
                durable=False,
            )
            try:
                await _loads(store)
            finally:
                await store.close()
        finally:
            await asyncio.to_thread(postgres.stop)


async def _loads(store: Store) -> None:
    scope = Scope(uuid4(), "user")
    tenant = TenantScope(scope.tenant_id)
    await store.state_schemas.put(tenant, "benchmark", 1, Definition())
    await store.state_schemas.put(
        tenant, "benchmark", 2, Definition(up=[{"op": "rename", "from": "/profile_1", "to": "/profile_2"}])
    )
    print("\n| load | wanted | time over the same load as saved |\n|---|---|---|")
    for size in (10 * 1024, 400 * 1024):
        content = FullState(
            {name: ChannelValue(None, Value(each.encoding, each.data)) for name, each in state_of(size).items()}
        )
        thread_id = f"t{size}"
        await store.states.save(
            scope, Save(thread_id=thread_id, content=content, state_schema="benchmark", state_version=1)
        )

        async def spent(wanted: WantedVersions, thread_id: str = thread_id) -> float:
            started = time.perf_counter()
            for _ in range(LOADS):
                await store.states.load(scope, wanted, Load(thread_id, "", None, with_state=True))
            return time.perf_counter() - started

        for name, wanted in (("current", WantedVersions(any_schema=1)), ("upcast", WantedVersions(any_schema=2))):
            ratios = []
            for number in range(ROUNDS):
                if number % 2:
                    with_version, without = await spent(wanted), await spent(AS_SAVED)
                else:
                    without, with_version = await spent(AS_SAVED), await spent(wanted)
                ratios.append(with_version / without)
            print(f"| {size // 1024} KB | {name} | {spread(ratios)} |")


if __name__ == "__main__":
    upcasts()
    asyncio.run(loads())
