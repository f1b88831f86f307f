"""Features as they are long after an upgrade was finished."""

from datetime import UTC, datetime

from storage.features import Feature
from storage.scope import OperatorScope
from storage.service import Store


async def switch_on(store: Store, feature: Feature) -> None:
    """Switch a feature of a deployment on, if nobody has: every process that reads it from now on acts on it."""
    await store.features.refresh()
    if feature.name not in store.features.since():
        async with store.unit_of_work.begin(OperatorScope()) as transaction:
            await store.features.add(transaction, feature, datetime(2020, 1, 1, tzinfo=UTC))
        await store.features.refresh()
