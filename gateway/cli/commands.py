"""The commands of `stateroom` as one group, and `--version`.

Nothing here or in the command modules imports a server, a database or an SDK before a command runs, so that
every `--help` answers at once. It does not end the process: `gateway.cli.main` does.
"""

import rich_click as click
from rich_click.utils import CommandGroupDict

from gateway.cli import completion
from gateway.cli.local import collection, replay, running, upgrade, waiting
from gateway.cli.remote import (
    archive,
    artifacts,
    checkpoints,
    events,
    items,
    keys,
    retention,
    threads,
    transfer,
    verification,
    workspaces,
)
from gateway.cli.remote.administration import api_keys, audit, break_glass, tenants
from gateway.cli.remote.schemas import save_policies, states, vector_policies
from gateway.cli.remote.thread_ledgers import approval_policies, approvals, claims, effects

COMMAND_GROUPS: list[CommandGroupDict] = [
    {"name": "Run a gateway", "commands": ["serve", "worker", "init", "doctor", "db", "root-key", "fsck", "sweep"]},
    {
        "name": "Use a gateway over HTTP",
        "commands": [
            "tenant",
            "api-key",
            "operator-key",
            "thread",
            "effects",
            "checkpoint",
            "artifact",
            "workspace",
            "item",
            "events",
            "approvals",
            "approval-policy",
            "audit",
            "archive",
            "restore",
            "state",
            "retention",
            "save-policy",
            "vector-policy",
            "verify",
            "key",
            "subject",
            "job",
            "jobs",
            "decrypt",
            "export",
            "import",
            "transfer-key",
            "accept-unbound-import",
        ],
    },
    {"name": "Test an agent", "commands": ["replay"]},
    {"name": "In your shell", "commands": ["completion"]},
]
EPILOGUE = (
    "Exit codes: 0 done, 1 failure, 2 wrong usage, 3 not found, 4 denied, "
    "5 gateway or database unavailable, 6 conflict, 7 still under way after --timeout."
)


def _print_version(context: click.Context, _parameter: click.Parameter, asked: bool) -> None:
    if asked and not context.resilient_parsing:
        from importlib.metadata import version

        print(f"stateroom {version('stateroom-gateway')}")
        context.exit()


@click.group(
    name="stateroom",
    epilog=EPILOGUE,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_print_version,
    help="Print the version and exit.",
)
def commands() -> None:
    """Stateroom: secure multi-tenant persistence for AI agents, their save game.

    `stateroom serve --embedded` starts a whole gateway on this machine.
    """


for _module in (
    running, collection, tenants, api_keys, threads, checkpoints, archive, artifacts, workspaces, items, events,
    approvals, approval_policies, effects, audit, verification, states, keys, break_glass, transfer, retention,
    save_policies, vector_policies,
    replay, completion,
):  # fmt: skip
    for _command in _module.COMMANDS:
        commands.add_command(_command)
for _command in claims.COMMANDS:
    threads.thread_group.add_command(_command)
for _command in (*upgrade.COMMANDS, *waiting.COMMANDS):
    running.database_group.add_command(_command)
click.rich_click.COMMAND_GROUPS = {"stateroom": COMMAND_GROUPS}
