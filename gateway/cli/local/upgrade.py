"""What comes with an upgrade: `db processes`, `db finish-upgrade` and `db adopt-control-rows`.

They take the gateway's own settings from the environment, or, with ``--data-dir``, what an embedded gateway's folder
holds. Gateways go on serving.
"""

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import rich_click as click

from gateway.cli import render
from gateway.cli.failure import ExitCode, Failure
from gateway.cli.local.collection import run_on_store
from gateway.cli.parameters import data_dir_option, json_option

if TYPE_CHECKING:
    from storage.control.processes import Process
    from storage.keys.key_seals import Peppers
    from storage.service import Store
    from storage.upgrades import Finished

_COLUMNS = ("Place", "Build", "Seen", "Started", "Lacks")


@click.command("processes")
@data_dir_option
@json_option
def database_processes(*, data_dir: Path | None, as_json: bool) -> None:
    """List the gateways and workers that were there within the last hour, and what of this build's they do not know."""
    from storage.control.features import KNOWN_NAMES

    async def ask(store: "Store") -> "tuple[list[Process], int]":
        return await store.processes.all(), await store.processes.unregistered()

    registered, unregistered = run_on_store(ask, data_dir)
    if as_json:
        for each in registered:
            render.emit_json(
                {
                    "instance": each.instance,
                    "place": each.place,
                    "build": each.build,
                    "features": list(each.features),
                    "started_at": each.started_at.isoformat(),
                    "seen_at": each.seen_at.isoformat(),
                    "running": each.running,
                }
            )
    else:
        rows = [
            (
                each.place,
                each.build,
                f"{each.age_seconds:.0f} s ago" + ("" if each.running else ", gone"),
                _moment(each.started_at),
                ", ".join(name for name in KNOWN_NAMES if name not in each.features) or "-",
            )
            for each in registered
        ]
        render.table(_COLUMNS, rows, empty="No process is entered.")
    if unregistered:
        render.say(f"A build that enters no registry has {unregistered} sessions in the database.")


@click.command("finish-upgrade")
@click.option(
    "--no-older-process",
    is_flag=True,
    help="I have seen to it that no process of a build before 0.1.0 runs: needed behind a pooler, which hides them.",
)
@click.option("--dry-run", is_flag=True, help="Only list what would be switched on.")
@data_dir_option
@json_option
def database_finish_upgrade(*, no_older_process: bool, dry_run: bool, data_dir: Path | None, as_json: bool) -> None:
    """Once every process is of this build, switch on what older ones would misread; there is no way back after that.

    Refuses while a process of an older build is entered or has sessions in the database. Run again, it changes nothing.
    """
    import os

    from storage.errors import OlderProcess
    from storage.postgres.engine import speaks_to_a_pooler

    url = os.environ.get("STATEROOM_DATABASE_URL", "")
    if data_dir is None and not no_older_process and not dry_run and url and speaks_to_a_pooler(url):
        raise Failure(
            "whose sessions there are in the database cannot be seen through a pooler",
            hint="See to it that no process of a build before 0.1.0 runs; then add --no-older-process.",
            exit_code=ExitCode.CONFLICT,
        )

    async def finish(store: "Store") -> "Finished":
        from storage.upgrades import Finished

        if dry_run:
            return Finished(await store.upgrades.pending(), None)
        try:
            return await _finish(store, _peppers(data_dir), no_older_process=no_older_process)
        except OlderProcess as older:
            raise Failure(
                "the upgrade cannot be finished yet",
                detail=str(older),
                hint="Restart it with this build, or stop it, and wait a minute; stateroom db processes lists all.",
                exit_code=ExitCode.CONFLICT,
            ) from None

    done: Finished = run_on_store(finish, data_dir)
    if as_json:
        since = None if done.since is None else done.since.isoformat()
        for feature in done.features:
            render.emit_json({"feature": feature.name, "does": feature.does, "since": since})
        return
    for feature in done.features:
        render.line(f"{feature.name}: {feature.does}")
    if not done.features:
        render.say("Everything this build knows is on already.")
    elif done.since is None:
        render.say("Nothing was switched on.")
    else:
        render.say("stateroom doctor names tenants whose administrators cannot make keys for their agents.")
        render.say(f"On from {_moment(done.since)}: a build that does not know it refuses this database from now on.")


async def _finish(store: "Store", peppers: "Peppers", *, no_older_process: bool) -> "Finished":
    """Switch on what is pending; API keys that an older build made are sealed before theirs counts."""
    from storage.control.features import SEALED_API_KEYS

    if SEALED_API_KEYS not in await store.upgrades.pending():
        return await store.upgrades.finish(no_older_process=no_older_process)
    await store.tenants.adopt_keys(peppers)
    finished = await store.upgrades.finish(no_older_process=no_older_process)
    await store.tenants.adopt_keys(peppers)  # what an older build made meanwhile; it makes no more
    return finished


def _peppers(data_dir: Path | None) -> "Peppers":
    """What the keys of the gateways with these settings, or of an embedded one's folder, are sealed with."""
    from gateway.cli.local.instance import Instance
    from gateway.cli.local.running import settings_from_environment

    return settings_from_environment().peppers if data_dir is None else Instance(data_dir).identity().peppers


@click.command("adopt-control-rows")
@click.option("--dry-run", is_flag=True, help="Only list them: adopting believes what they say.")
@data_dir_option
@json_option
def database_adopt_control_rows(*, dry_run: bool, data_dir: Path | None, as_json: bool) -> None:
    """Give schemas, policies, holds and jobs from before revision a21 the MAC that they lack, each on the record.

    They are refused without. Rows whose MAC is wrong are left as they are: they are damaged.
    """

    async def adopt(store: "Store") -> int:
        repair = store.control_repair
        count = 0
        async for each in repair.without_mac() if dry_run else repair.adopt():
            count += 1
            says = [value.decode(errors="replace") if isinstance(value, bytes) else value for value in each.row.says]
            if as_json:
                shown = [str(value) if isinstance(value, datetime) else value for value in says]
                render.emit_json({"tenant_id": str(each.tenant_id), "row": str(each.row), "says": shown})
            else:
                render.line(f"tenant {each.tenant_id}: {each.row} says {' | '.join(map(str, says))}")
        return count

    count = run_on_store(adopt, data_dir)
    render.say(f"{count} rows have no MAC." if dry_run else f"{count} rows were adopted.")


COMMANDS = (database_processes, database_finish_upgrade, database_adopt_control_rows)


def _moment(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S}Z"
