"""`db wait`: what starts beside a database waits for it, in containers and units that begin in any order.

Owns how long, and what a person reads meanwhile; `storage.postgres.setup` says what is still in the way. It takes the
database's URL alone, none of the other settings, and changes nothing.
"""

import os
from typing import TYPE_CHECKING

import rich_click as click

from gateway.cli import render
from gateway.cli.failure import ExitCode, Failure

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

POLL_SECONDS = 0.5
# A line for each change, and one after so long without, so that a log shows that the command waits.
SAY_AGAIN_SECONDS = 10.0


@click.command("wait")
@click.option(
    "--timeout",
    "timeout_seconds",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    default=60,
    show_default=True,
    help="Wait at most this long; then the exit code is 7.",
)
@click.option(
    "--revision",
    is_flag=True,
    help="Wait also for the schema, at the revision that this build requires or a newer one.",
)
def database_wait(*, timeout_seconds: float, revision: bool) -> None:
    """Wait until the database answers, and lets the role of STATEROOM_DATABASE_URL in (or of ..._OWNER_URL without it).

    A role or password that is not there yet is waited for, too. A server that is too old is a failure at once.
    """
    import asyncio
    from functools import partial

    from storage.errors import SetupError
    from storage.postgres import setup

    obstacle = partial(setup.obstacle, _url(), migrated=revision)
    try:
        asyncio.run(_wait(obstacle, timeout_seconds))
    except SetupError as error:
        raise Failure("waiting does not help", detail=str(error)) from None


async def _wait(obstacle: "Callable[[], Awaitable[str | None]]", timeout_seconds: float) -> None:
    """Ask until there is no obstacle left.

    Raises:
        Failure: there still is one after ``timeout_seconds``.
    """
    import asyncio
    import time

    begun = time.monotonic()
    said, said_at = None, begun
    while (found := await obstacle()) is not None:
        now = time.monotonic()
        if found != said or now - said_at >= SAY_AGAIN_SECONDS:
            said, said_at = found, now
            render.say(f"waiting for the database ({now - begun:.0f} s): {found}")
        if now - begun >= timeout_seconds:
            raise Failure(
                f"the database is not there after {timeout_seconds:g} s",
                detail=found,
                hint="Check the URL, the network, the password, and that the server and its migration run.",
                exit_code=ExitCode.TIMED_OUT,
            )
        await asyncio.sleep(min(POLL_SECONDS, max(0.0, begun + timeout_seconds - now)))
    render.say(f"The database is there ({time.monotonic() - begun:.0f} s).")


def _url() -> str:
    from gateway.settings import SettingsError, owner_url, serving_url

    try:
        url = serving_url(os.environ) or owner_url(os.environ)
    except SettingsError as error:
        raise Failure(str(error), exit_code=ExitCode.USAGE) from None
    if url is None:
        raise Failure(
            "STATEROOM_DATABASE_URL is not set",
            hint="Set it, or STATEROOM_DATABASE_OWNER_URL, to postgresql://user:password@host/database.",
            exit_code=ExitCode.USAGE,
        )
    return url


COMMANDS = (database_wait,)
