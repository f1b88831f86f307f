"""Retention over HTTP: `retention get|set|preview|ceilings`.

`set` changes what is named and leaves the rest as it is; ``none`` takes back what was said. `preview` asks the gateway
page after page what a round would do, by what is said or by what the options would make of it, and adds up; how far it
is goes to stderr.
"""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import rich_click as click

from gateway.cli import render
from gateway.cli.calling import Remote, as_operator, as_subject, as_tenant
from gateway.cli.parameters import COUNT, STATUSES, UNIT_SECONDS, Command, OrNone, seconds_of

_PAGE_THREADS = 500
_THINNING = ("every", "keep_first", "keep_last", "keep_statuses")
_KEEP_HOT = tuple(f"hot_{name}" for name in _THINNING)

_PERIOD = OrNone("period", seconds_of, "period such as 90d, 12h or 2y")
_CAPPED = (
    click.option("--idle-ttl", "idle_ttl_seconds", type=_PERIOD, help="Since the last write: 90d, 12h, 2y, or none."),
    click.option("--absolute-ttl", "absolute_ttl_seconds", type=_PERIOD, help="Since the thread was made, or none."),
    click.option("--done-ttl", "done_ttl_seconds", type=_PERIOD, help="Since it was done, or none."),
    click.option("--checkpoints-max", type=COUNT, help="Thin down to so many when there are a quarter more, or none."),
    click.option(
        "--pending-writes",
        "pending_writes_seconds",
        type=_PERIOD,
        help="How long pending writes that nobody resumes from stay, or none.",
    ),
    click.option(
        "--checkpoints-idle-ttl",
        "checkpoints_idle_ttl_seconds",
        type=_PERIOD,
        help="When older checkpoints of a thread that stays move into segments, or none.",
    ),
    click.option("--archive-ttl", "archive_ttl_seconds", type=_PERIOD, help="How long archives stay, or none."),
    click.option(
        "--segment-ttl",
        "segment_ttl_seconds",
        type=_PERIOD,
        help="How long older checkpoints stay in segments, or none.",
    ),
)
_MORE = (
    click.option(
        "--on-expiry",
        type=click.Choice(("archive", "delete", "none")),
        help="What happens when a time is over.  [default: archive]",
    ),
    click.option("--thin-every", "every", type=COUNT, help="Thinning keeps steps that are a multiple, or none."),
    click.option("--keep-first", type=COUNT, help="Thinning keeps so many of the oldest."),
    click.option("--keep-last", type=COUNT, help="Thinning keeps so many of the newest."),
    click.option(
        "--keep-status",
        "keep_statuses",
        multiple=True,
        type=click.Choice(STATUSES),
        help="Thinning keeps checkpoints with this status; repeatable.",
    ),
    click.option("--hot-every", type=COUNT, help="Of old checkpoints, steps that are a multiple stay hot, or none."),
    click.option("--hot-first", "hot_keep_first", type=COUNT, help="Of old checkpoints, so many of the oldest."),
    click.option("--hot-last", "hot_keep_last", type=COUNT, help="Of old checkpoints, so many of the newest."),
    click.option(
        "--hot-status",
        "hot_keep_statuses",
        multiple=True,
        type=click.Choice(STATUSES),
        help="Of old checkpoints, those with this status; repeatable.",
    ),
    click.option("--archive-class", "archive_storage_class", metavar="CLASS", help="Such as GLACIER_IR, or none."),
)
_hold_option = click.option(
    "--legal-hold/--no-legal-hold", default=None, help="Keep everything, whatever else is said; or lift the hold."
)
_agent_option = click.option("--agent", metavar="NAME", help="Only the threads of this agent.")
_thread_option = click.option("--thread", "thread_id", metavar="ID", help="Only this thread of the subject.")


def _with(options: tuple[Callable[[Command], Command], ...]) -> Callable[[Command], Command]:
    def decorated(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorated


def _whose(agent: str | None, thread_id: str | None) -> list[str]:
    if agent is not None and thread_id is not None:
        raise click.UsageError("A policy is an agent's or a thread's: name one of --agent and --thread.")
    return ["retention"] if thread_id is None else ["threads", thread_id, "retention"]


def _changed(policy: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """A policy with what was named on the command line instead of what it said."""
    changed = {name: value for name, value in policy.items() if value is not None}
    kept = {field: dict(changed.pop(field, None) or {}) for field in ("thinning", "keep_hot")}
    for option, value in options.items():
        if value is None or value == ():
            continue
        target, name = changed, option
        if option in _THINNING:
            target = kept["thinning"]
        elif option in _KEEP_HOT:
            target, name = kept["keep_hot"], option.removeprefix("hot_")
        if value == "none":
            target.pop(name, None)
        else:
            target[name] = list(value) if isinstance(value, tuple) else value
    # A bound of zero says nothing.
    return changed | {field: said for field, said in kept.items() if any(said.values())}


def _period(seconds: int) -> str:
    for unit in ("d", "h", "m"):
        if seconds % UNIT_SECONDS[unit] == 0:
            return f"{seconds // UNIT_SECONDS[unit]:,}{unit}"
    return f"{seconds:,}s"


def _shown(name: str, value: Any) -> str:
    if value is None:
        return ""
    return _period(value) if name.endswith("_seconds") else render.member(name, value)


def _show(remote: Remote, retention: dict[str, Any]) -> None:
    """Print the policy of one level beside what is in effect there."""
    if remote.as_json:
        render.emit_json(retention)
        return
    policy, effective = retention["policy"], retention["effective"] or dict.fromkeys(retention["policy"])
    rows = [[name, _shown(name, policy.get(name)), _shown(name, value)] for name, value in effective.items()]
    render.table(["Retention", "Said here", "In effect"], rows, empty="")
    for damaged in retention["damaged"] if isinstance(retention["damaged"], list) else []:
        whose = damaged["level"] if damaged["agent"] is None else f"agent {render.safe(damaged['agent'])}"
        render.say(f"Damaged, and protecting what it could hold: the policy of {whose}")
    if retention["effective"] is None:
        render.say("Nothing is removed here until it is said again: all of it, with --legal-hold or --no-legal-hold.")
    if retention.get("agents"):
        render.say(f"Agents with a policy of their own: {', '.join(map(render.safe, retention['agents']))}")
    if step := retention.get("next"):
        due = f"due {render.moment(step['at'])}"
        if datetime.fromisoformat(step["at"]) <= datetime.now(UTC):
            due = (
                f"due since {render.moment(step['at'])}: the next round does it; stateroom retention run begins it now"
            )
        render.say(f"Next: {step['action']} ({step['reason']}), {due}")
    ceilings = {name: value for name, value in (retention.get("ceilings") or {}).items() if value is not None}
    if ceilings:
        shown = ", ".join(f"{name} {_shown(name, value)}" for name, value in ceilings.items())
        render.say(f"The operator allows at most: {shown}")


@click.group("retention")
def retention_group() -> None:
    """How long threads are kept: policies of a tenant, an agent or a thread, and what they would do."""


@retention_group.command("get")
@_agent_option
@_thread_option
@as_subject
def retention_get(*, agent: str | None, thread_id: str | None, remote: Remote) -> None:
    """Show what is said and what holds: for the tenant, an agent or a thread."""
    _show(remote, remote.call("GET", _whose(agent, thread_id), query={"agent": agent}))


@retention_group.command("set")
@_agent_option
@_thread_option
@_with(_CAPPED)
@_with(_MORE)
@_hold_option
@as_subject
def retention_set(*, agent: str | None, thread_id: str | None, remote: Remote, **options: Any) -> None:
    """Change what is named of the policy of the tenant, an agent or a thread; `none` takes it back."""
    path = _whose(agent, thread_id)
    if all(value is None or value == () for value in options.values()):
        raise click.UsageError("Name what to change, such as --idle-ttl 90d.")
    query = {"agent": agent}
    with remote.connect() as connection:
        before = connection.call("GET", path, query=query)["policy"]
        before.pop("legal_hold", None)  # it stays unless it is named
        retention = connection.call("PUT", path, query=query, body=_changed(before, options))
    _show(remote, retention)


@retention_group.command("run")
@as_tenant
def retention_run(*, remote: Remote) -> None:
    """Begin the tenant's round as soon as a process is free, instead of when it is due; `preview` says what it will do.

    It goes on when the command has ended; `stateroom jobs` shows how far it is.
    """
    round_ = remote.call("POST", ["retention", "round"])
    if remote.as_json:
        render.emit_json(round_)
    elif round_["state"] == "none":
        render.say("Nobody said how long threads are kept: there is nothing to do. See: stateroom retention set")
    else:
        render.say("The round begins as soon as a process is free.")


@retention_group.command("preview")
@_agent_option
@_with(_CAPPED)
@_with(_MORE)
@as_tenant
def retention_preview(*, agent: str | None, remote: Remote, **options: Any) -> None:
    """Show what would happen now, to how many threads and bytes; with options, as if `set` had been called with them.

    Nothing is changed.
    """
    drafts = any(value is not None and value != () for value in options.values())
    if agent is not None and not drafts:
        raise click.UsageError("--agent says whose policy the options would change: name one.")
    query: dict[str, str | int | None] = {"limit": _PAGE_THREADS}
    totals: dict[str, dict[str, int]] = {}
    threads = held = damaged = 0
    with remote.connect() as connection:
        if drafts:
            policy = connection.call("GET", ["retention"], query={"agent": agent})["policy"]
            policy.pop("legal_hold", None)
            query |= {"agent": agent, "draft": json.dumps(_changed(policy, options))}
        for page in connection.each_page("GET", ["retention", "preview"], query=query):
            threads, held, damaged = threads + page["threads"], held + page["held"], damaged + page["damaged"]
            for counts in page["actions"]:
                total = totals.setdefault(counts.pop("action"), dict.fromkeys(counts, 0))
                for name, number in counts.items():
                    total[name] += number
            if page["next_cursor"] is not None:
                render.say(f"{threads:,} threads looked at")
    if remote.as_json:
        render.emit_json({"threads": threads, "held": held, "damaged": damaged, "actions": totals})
        return
    rows = [
        [
            action,
            f"{total['threads']:,}",
            render.byte_count(total["bytes"]),
            f"{total['checkpoints']:,}" if total["checkpoints"] else "",
            f"{total['pending_writes']:,}" if total["pending_writes"] else "",
        ]
        for action, total in sorted(totals.items())
    ]
    titles = ["Would", "Threads", "Bytes", "Checkpoints", "Pending writes"]
    render.table(titles, rows, empty="Nothing would happen.")
    damaged_kept = f"; {damaged:,} are left alone because a policy is damaged" if damaged else ""
    kept = f"; a legal hold keeps {held:,} more from it" if held else ""
    render.say(f"{threads:,} threads looked at{kept}{damaged_kept}.")


@retention_group.command("ceilings")
@click.argument("tenant_id")
@_with(_CAPPED)
@as_operator
def retention_ceilings(*, tenant_id: str, remote: Remote, **options: Any) -> None:
    """Show or change what a tenant may say at most, as the operator (STATEROOM_OPERATOR_KEY); `none` lifts it."""
    path = ["admin", "tenants", tenant_id, "retention-ceilings"]
    with remote.connect() as connection:
        capped = connection.call("GET", path)
        if any(value is not None for value in options.values()):
            capped = connection.call("PUT", path, body=_changed(capped["ceilings"], options))
    if remote.as_json:
        render.emit_json(capped)
        return
    rows = [[name, _shown(name, value)] for name, value in capped["ceilings"].items() if value is not None]
    render.table(["At most", "Ceiling"], rows, empty="The operator sets no ceilings: the tenant may say what it likes.")


COMMANDS = (retention_group,)
