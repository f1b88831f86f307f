"""Features as they are long after an upgrade was finished."""

from datetime import UTC, datetime
from uuid import UUID

from crypto.roots import create_root_key
from storage.control.features import Feature
from storage.scope import OperatorScope
from storage.service import Store
from tests.support.production import Deployment


async def switch_on(store: Store, feature: Feature) -> None:
    """Switch a feature of a deployment on, if nobody has: every process that reads it from now on acts on it."""
    await store.features.refresh()
    if feature.name not in store.features.since():
        async with store.unit_of_work.begin(OperatorScope()) as transaction:
            await store.features.add(transaction, feature, datetime(2020, 1, 1, tzinfo=UTC))
        await store.features.refresh()


async def finish_upgrade(deployment: Deployment, *features: Feature) -> None:
    """Switch features of a deployment on, as `stateroom db finish-upgrade` did long ago."""
    environ = deployment.environ
    store = await Store.open(
        environ["STATEROOM_DATABASE_URL"],
        root_key=create_root_key(environ["STATEROOM_ROOT_KEY"]),
        deployment_id=UUID(environ["STATEROOM_DEPLOYMENT_ID"]),
        connections_max=2,
    )
    for feature in features:
        await switch_on(store, feature)
    await store.close()
