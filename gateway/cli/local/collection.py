"""Checks of the object store: `fsck` and `sweep`. Gateways may go on serving.

They take the gateway's own settings from the environment, or, with ``--data-dir``, what an embedded gateway's folder
holds; its engines are used while it runs, and started where it does not. Both look at rows and objects of tenants,
open nothing and need no key of theirs.
"""

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import rich_click as click

from gateway.cli import render
from gateway.cli.failure import ExitCode, Failure
from gateway.cli.local.running import run_with_settings, settings_from_environment
from gateway.cli.parameters import data_dir_option, json_option

if TYPE_CHECKING:
    from gateway.settings import Settings
    from storage.collection.fsck import FsckReport
    from storage.service import Store

_FINDING_COLUMNS = ("Tenant", "Fault", "What", "Subject", "Thread", "Mended", "Detail")

tenant_option = click.option("--tenant", "tenant_id", type=click.UUID, metavar="ID", help="Only this tenant.")
all_option = click.option("--all", "everything", is_flag=True, help="Every tenant of the deployment.")


def _chosen(tenant_id: UUID | None, *, everything: bool) -> None:
    if (tenant_id is None) is not everything:
        raise click.UsageError("Name one tenant with --tenant ID, or all of them with --all.")


def _with_store(work: "Callable[[Store], Coroutine[Any, Any, Any]]", data_dir: Path | None) -> Any:
    settings = None if data_dir is not None else settings_from_environment()
    if settings is not None and settings.s3_url is None and settings.archive_url is None:
        raise Failure(
            "there is no object store to look into",
            hint="STATEROOM_S3_URL names the bucket.",
            exit_code=ExitCode.USAGE,
        )
    return run_on_store(work, data_dir)


def run_on_store(work: "Callable[[Store], Coroutine[Any, Any, Any]]", data_dir: Path | None) -> Any:
    """Run ``work`` on the store that the settings describe, or an embedded gateway's folder.

    Raises:
        Failure: it cannot be opened, or refused.
    """
    return run_with_settings(lambda settings: _opened(settings, work), data_dir)


async def _opened(settings: "Settings", work: "Callable[[Store], Coroutine[Any, Any, Any]]") -> Any:
    from gateway.app import open_store

    async with open_store(settings, 4) as (store, _):
        return await work(store)


@click.command("fsck")
@tenant_option
@all_option
@click.option(
    "--repair", is_flag=True, help="Mend references and quotas, and hand objects without a row to the sweeper."
)
@click.option("--after", default="", metavar="KEY", help="With --tenant: list objects from here on, as a report said.")
@data_dir_option
@json_option
def fsck(
    *, tenant_id: UUID | None, everything: bool, repair: bool, after: str, data_dir: Path | None, as_json: bool
) -> None:
    """Prove that no pointer dangles and no object is forgotten; exit with 1 when something is found and not mended."""
    _chosen(tenant_id, everything=everything)
    if after and tenant_id is None:
        raise click.UsageError("--after goes with --tenant.")

    async def work(store: "Store") -> "list[FsckReport]":
        reports = []
        wanted = [tenant_id] if tenant_id is not None else [each async for each in store.fsck.tenants()]
        for each in wanted:
            reports.append(await store.fsck.run(each, repair=repair, progress=_say_progress, after=after))
            _say_report(reports[-1])
        return reports

    reports: list[FsckReport] = _with_store(work, data_dir)
    _print_findings(reports, as_json=as_json)
    if not all(report.clean for report in reports):
        raise Failure(
            "the object store and the database do not agree",
            detail="; ".join(
                f"{fault}: {count}" for report in reports for fault, count in sorted(report.faults.items())
            ),
            hint="stateroom fsck --repair mends all but dangling pointers; those need the object from a backup.",
        )


async def _say_progress(report: "FsckReport") -> None:
    render.say(
        f"tenant {report.tenant_id}, {report.stage}: {report.blobs:,} blobs, {report.threads:,} threads, "
        f"{report.objects:,} objects{f', at {report.position}' if report.position else ''}"
    )


def _say_report(report: "FsckReport") -> None:
    faults = sum(report.faults.values())
    render.say(
        f"tenant {report.tenant_id}: {report.blobs:,} blobs, {report.threads:,} threads, {report.objects:,} objects "
        f"({report.young:,} too young to judge); {faults:,} findings, {report.mended:,} mended."
    )


def _print_findings(reports: "list[FsckReport]", *, as_json: bool) -> None:
    from dataclasses import asdict

    if as_json:
        for report in reports:
            render.emit_json({**asdict(report), "clean": report.clean})
        return
    rows = [
        [
            str(report.tenant_id),
            *(render.cell(each) for each in (
                finding.fault, finding.what, finding.subject_id, finding.thread_id, finding.mended, finding.detail,
            )),
        ]
        for report in reports
        for finding in report.findings
    ]  # fmt: skip
    render.table(_FINDING_COLUMNS, rows, empty="Nothing found.")


@click.command("sweep")
@tenant_option
@all_option
@data_dir_option
@json_option
def sweep(*, tenant_id: UUID | None, everything: bool, data_dir: Path | None, as_json: bool) -> None:
    """Sweep now what gateways sweep by themselves: expired uploads, unreferenced blobs, what no backup needs."""
    _chosen(tenant_id, everything=everything)

    async def work(store: "Store") -> dict[str, int]:
        from dataclasses import asdict

        from storage.collection.sweep import Swept

        total = Swept()
        wanted = [tenant_id] if tenant_id is not None else [each async for each in store.fsck.tenants()]
        for each in wanted:
            swept = await store.sweep.tenant(each, now=True)
            if swept is not None:
                total.add(swept)
                render.say(f"tenant {each}: {swept.deleted:,} deleted, {swept.freed_bytes:,} bytes freed")
        return asdict(total)

    done: dict[str, int] = _with_store(work, data_dir)
    if as_json:
        render.emit_json(done)
    else:
        render.record({name: f"{count:,}" for name, count in done.items()})


COMMANDS = (fsck, sweep)
