"""State schemas: register and show versions, migrate stored state over HTTP, and write and test steps on this machine.

A plan, a migration and a rollback are jobs of the gateway: they go on when the command is interrupted, and `state
status` tells how far they are. Results go to stdout, progress to stderr. The exit code is 1 if heads cannot be
converted, and if a migration or a rollback changed nothing although there was something to change.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from gateway.cli import render
from gateway.cli.calling import Listing, Remote, as_silent_subject, as_tenant
from gateway.cli.failure import ExitCode, Failure
from gateway.cli.parameters import EVERYTHING, gathered, json_option
from gateway.cli.remote.jobs import Waiting, follow, progress_of, waiting_options

if TYPE_CHECKING:
    from collections.abc import Mapping

    from migrations.state.checking import Finding

_FOLDER = Path("state_schemas")
_COUNTS = ("heads", "current", "changed", "waiting", "recent", "shared", "archived", "moved", "gone", "failed")
_MEANINGS = {
    "waiting": "with pending writes or waiting for somebody: upcast when they are loaded",
    "recent": "in use just now: upcast when they are loaded",
    "shared": "under a client-held share: upcast when they are loaded with it",
    "archived": "archived: upcast when they are loaded",
    "moved": "saved by an agent meanwhile",
    "gone": "deleted meanwhile",
}
_VALUE_CHARACTERS_MAX = 200
_SCHEMAS = Listing(
    {"state_schema": "Schema", "newest_version": "Newest version"}, empty="No state schema is registered."
)
_ADOPTION_COLUMNS = ("Agent", "Namespace", "Version", "Adopted", "Row")

folder_option = click.option(
    "--folder",
    "--state-schemas",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=_FOLDER,
    show_default=True,
    help="Where the steps are.",
)
to_option = click.option(
    "--to",
    "target_version",
    type=click.IntRange(1, 2**31 - 1),
    metavar="N",
    help="The version; the newest when left out.",
)
rate_option = click.option(
    "--threads-per-second", type=click.IntRange(1, 1000), default=None, metavar="N", help="At most; 50 when left out."
)
idle_option = click.option(
    "--idle-seconds",
    type=click.IntRange(0, 86_400),
    default=None,
    metavar="N",
    help="Leave alone what an agent saved less long ago; 60 when left out.",
)
_waiting_options = waiting_options("Start the job and do not follow it.")


@click.group("state")
def state_group() -> None:
    """Versions of agents' state: schemas, steps between their versions, and migrations."""


@state_group.group("schema")
def schema_group() -> None:
    """Register and show state schemas, with a key that has tenant:admin."""


@schema_group.command("register")
@click.argument("schema")
@click.argument("number", type=click.IntRange(1, 2**31 - 1))
@click.argument("file", type=click.File("rb"), required=False)
@click.option("--deployment", metavar="NAME", help="The step is that of a schema which the deployment ships.")
@click.option("--label", help="The version as people call it, such as 2.1.0.")
@as_tenant
def register(*, schema: str, number: int, file: Any, deployment: str | None, label: str | None, remote: Remote) -> None:
    """Register version NUMBER of SCHEMA as FILE defines it (JSON; - reads stdin). Without a FILE it has no rules.

    A version never changes once it is registered; the same again does nothing.
    """
    definition: dict[str, Any] = {}
    if file is not None:
        try:
            definition = json.loads(file.read())
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise Failure("FILE is not JSON", detail=str(error), exit_code=ExitCode.USAGE) from None
        if not isinstance(definition, dict):
            raise Failure("FILE is not a JSON object", exit_code=ExitCode.USAGE)
    more = {"deployment": deployment, "label": label}
    definition |= {name: value for name, value in more.items() if value is not None}
    version = remote.call("PUT", ["state-schemas", schema, "versions", str(number)], body=definition)
    if remote.as_json:
        render.emit_json(version)
    else:
        render.record(_described(version))


@schema_group.command("list")
@as_tenant
def list_schemas(*, remote: Remote) -> None:
    """List the tenant's state schemas."""
    remote.print_pages(["state-schemas"], "state_schemas", EVERYTHING, _SCHEMAS)


@schema_group.command("show")
@click.argument("schema")
@click.argument("number", type=click.IntRange(min=1), required=False)
@as_tenant
def show(*, schema: str, number: int | None, remote: Remote) -> None:
    """Show the versions of SCHEMA, or the whole definition of one."""
    versions = remote.call("GET", ["state-schemas", schema])["versions"]
    if number is not None:
        versions = [each for each in versions if each["state_version"] == number]
        if not versions:
            raise Failure(f"version {number} of {schema!r} is not registered", exit_code=ExitCode.NOT_FOUND)
    if remote.as_json:
        for each in versions:
            render.emit_json(each)
    elif number is not None:
        render.document(versions[0])
    else:
        columns = ("Version", "Label", "Step", "Way back", "JSON Schema", "Ephemeral", "Registered", "Row")
        render.table(columns, [_row(each) for each in versions], empty="")


def _step_of(version: "Mapping[str, Any]") -> str:
    if version["deployment"] is not None:
        return f"deployment:{version['deployment']}"
    return "-" if version["up"] is None else f"{len(version['up'])} operations"


def _row(version: "Mapping[str, Any]") -> list[str]:
    back = "as the deployment has it" if version["deployment"] is not None else version["down"] is not None
    return [
        render.cell(version["state_version"]),
        render.cell(version["label"]),
        render.safe(_step_of(version)),
        render.cell(back),
        render.cell(version["json_schema"] is not None),
        render.cell(version["ephemeral"]),
        render.moment(version["created_at"]),
        "damaged" if version.get("damaged") else "ok",  # a gateway of another release may not say it
    ]


def _described(version: "Mapping[str, Any]") -> dict[str, str]:
    names = ("version", "label", "step", "way back", "JSON Schema", "ephemeral", "registered", "row")
    return {"schema": render.cell(version["state_schema"])} | dict(zip(names, _row(version), strict=True))


def _run_job(verb: str, schema: str, body: dict[str, Any], waiting: Waiting, remote: Remote) -> None:
    sent = {name: value for name, value in body.items() if value is not None}
    with remote.connect() as connection:
        job_id = connection.call("POST", ["state-schemas", schema, verb], body=sent)["job_id"]
        render.say(f"Job {job_id}")
        if waiting.detach:
            if remote.as_json:
                render.emit_json({"job_id": job_id})
            return
        report = follow(remote, connection, job_id, timeout_seconds=waiting.timeout_seconds)["migration"]
        status = connection.call("GET", ["state-schemas", schema, "status"])
    if remote.as_json:
        render.emit_json(report)
    else:
        _print_report(report)
    if verb != "rollback":
        _tell_unversioned(schema, status)
    if report["failed"]:
        raise Failure(
            f"{report['failed']:,} heads cannot be converted",
            detail="\n".join(_failure_line(each) for each in report["failures"]),
            hint="What is stored is untouched. Register a version whose step can, or read them as they were saved.",
        )
    if verb != "plan" and not report["changed"]:
        _nothing_changed(verb, schema, report)


def _nothing_changed(verb: str, schema: str, report: "Mapping[str, Any]") -> None:
    """Say why a job changed nothing; it did what it was told only where all heads were there already."""
    if verb == "migrate" and report["heads"] and report["current"] == report["heads"]:
        render.say(f"All {report['heads']:,} heads were at the version already.")
        return
    if verb == "rollback" and report["current"] == report["heads"]:
        raise Failure(
            "nothing was rolled back: no head is one that a migration saved and nobody has saved on since",
            hint=f"See: stateroom state status {schema}",
        )
    if not report["heads"]:
        raise Failure(
            f"nothing was migrated: no state is saved under {schema!r}", hint=f"See: stateroom state status {schema}"
        )
    left = ", ".join(f"{report[name]:,} {name}" for name in _MEANINGS if report[name])
    recent = (
        "For heads that were saved just now: --idle-seconds 0; where somebody claims the thread, begin again later"
        if report["recent"]
        else ""
    )
    raise Failure(f"nothing was {'migrated' if verb == 'migrate' else 'rolled back'}: {left}", hint=recent)


def _print_report(report: "Mapping[str, Any]") -> None:
    render.record({name: f"{report[name]:,}" for name in _COUNTS})
    for name, meaning in _MEANINGS.items():
        if report[name]:
            render.say(f"{report[name]:,} {name}: {meaning}.")
    for sample in report["samples"]:
        place = f"{sample['subject_id']} {sample['thread_id']}"
        if sample["namespace"]:
            place += f" {sample['namespace']}"
        render.line(f"\n{place} (from version {sample['from_version']})".lstrip("\n"))
        for change in sample["changes"]:
            render.line(f"  {change['pointer'] or '/'}: {change['before'] or '-'} -> {change['after'] or '-'}")


def _failure_line(failure: "Mapping[str, Any]") -> str:
    return f"{failure['heads']:,} at {failure['step']} {failure['pointer'] or '/'}: {failure['detail']}"


@dataclass(frozen=True, slots=True)
class _Migration:
    """Where heads are brought to, and how gently; None: as the gateway does it by itself."""

    target_version: int | None
    threads_per_second: int | None
    idle_seconds: int | None


_migration_options = gathered("how", _Migration, to_option, rate_option, idle_option)


@state_group.command("plan")
@click.argument("schema")
@_migration_options
@_waiting_options
@as_tenant
def plan(*, schema: str, how: _Migration, waiting: Waiting, remote: Remote) -> None:
    """Try on all stored state of SCHEMA what a migration would do, and change nothing.

    Shows how many heads would change, which cannot and why, and samples: places and types, never values.
    """
    _run_job("plan", schema, asdict(how), waiting, remote)


@state_group.command("migrate")
@click.argument("schema")
@_migration_options
@_waiting_options
@as_tenant
def migrate(*, schema: str, how: _Migration, waiting: Waiting, remote: Remote) -> None:
    """Bring the heads of SCHEMA to a version, each by a new checkpoint; a head that an agent saves meanwhile is left.

    Not needed for agents to go on: what is loaded is upcast anyway. Run it again to go on after an interruption.
    """
    _run_job("migrate", schema, asdict(how), waiting, remote)


@state_group.command("rollback")
@click.argument("schema")
@rate_option
@_waiting_options
@as_tenant
def rollback(*, schema: str, threads_per_second: int | None, waiting: Waiting, remote: Remote) -> None:
    """Undo a migration where no agent has saved since: a new checkpoint with what the migrated one was made of."""
    _run_job("rollback", schema, {"threads_per_second": threads_per_second}, waiting, remote)


@dataclass(frozen=True, slots=True)
class _Unversioned:
    """The state that was saved without a version."""

    agent: str | None
    no_agent: bool
    namespace: str


@state_group.command("adopt")
@click.argument("schema")
@click.argument("number", type=click.IntRange(1, 2**31 - 1))
@click.option("--agent", help="The agent whose state it is.")
@click.option("--no-agent", is_flag=True, help="The state of programs that name no agent.")
@click.option("--namespace", default="", help="One namespace, or the beginning of some and a star; the root's alone.")
@click.option("--supersede", is_flag=True, help="Correct what was said before, as long as nothing was saved on top.")
@as_tenant
@gathered("what", _Unversioned)
def adopt(*, schema: str, number: int, what: _Unversioned, supersede: bool, remote: Remote) -> None:
    """Say that what an agent saved without a version until now is at version NUMBER of SCHEMA.

    It is read and migrated at versions from then on, and the agent's saves name one or are refused: deploy the release
    that does first. It is said once.
    """
    if (what.agent is None) != what.no_agent:
        raise Failure("name the agent, or say --no-agent", exit_code=ExitCode.USAGE)
    body = {"agent": what.agent, "state_version": number, "namespace": what.namespace, "supersede": supersede}
    adoption = remote.call("POST", ["state-schemas", schema, "adoptions"], body=body)
    if remote.as_json:
        render.emit_json(adoption)
    else:
        render.record(dict(zip(_ADOPTION_COLUMNS, _adoption_row(adoption), strict=True)))


@state_group.command("adoptions")
@click.argument("schema")
@as_tenant
def adoptions(*, schema: str, remote: Remote) -> None:
    """Show which unversioned state was adopted under SCHEMA."""
    adopted = remote.call("GET", ["state-schemas", schema, "adoptions"])["adoptions"]
    if remote.as_json:
        for each in adopted:
            render.emit_json(each)
        return
    render.table(_ADOPTION_COLUMNS, [_adoption_row(each) for each in adopted], empty="Nothing was adopted.")


def _adoption_row(adoption: "Mapping[str, Any]") -> list[str]:
    namespace = adoption["namespace"] or "(root)"
    return [
        render.cell("(none)" if adoption["agent"] is None else adoption["agent"]),
        render.cell(namespace),
        render.cell(adoption["state_version"]),
        render.moment(adoption["adopted_at"]),
        "damaged" if adoption["damaged"] else "ok",
    ]


def _tell_unversioned(schema: str, status: "Mapping[str, Any]") -> None:
    """Say which threads no version says anything of, and what to do."""
    for each in status["unversioned"]:
        agent = "no agent" if each["agent"] is None else f"agent {render.cell(each['agent'])}"
        render.say(f"{each['threads']:,} threads of {agent} were saved without a version, and nobody adopted them.")
    if status["unversioned"]:
        render.say(f"If they are state of {schema}: stateroom state adopt {schema} VERSION --agent NAME")


@state_group.command("status")
@click.argument("schema")
@as_tenant
def show_status(*, schema: str, remote: Remote) -> None:
    """Show at which versions the heads of SCHEMA are, and how far its jobs are."""
    status = remote.call("GET", ["state-schemas", schema, "status"])
    if remote.as_json:
        render.emit_json(status)
        return
    rows = [[render.cell(each["state_version"]), f"{each['heads']:,}"] for each in status["heads"]]
    render.table(["Version", "Heads"], rows, empty=f"Nothing is saved under {schema!r}.")
    for job in status["jobs"]:
        to = f" to version {job['target']['state_version']}"
        error = f": {job['error']}" if job["error"] else ""
        when = render.moment(job["updated_at"])
        render.line(f"{job['kind']}{to}: {job['state']}, {progress_of(job)} ({when}, {job['job_id']}){error}")
    _tell_unversioned(schema, status)


@state_group.command("new-version")
@click.argument("schema")
@folder_option
@click.option("--declared", is_flag=True, help="A step to register over the API, instead of one in Python.")
@click.option("--from-thread", "threads", multiple=True, metavar="THREAD_ID", help="Record the state of this thread.")
@as_silent_subject
def new_version(*, schema: str, folder: Path, declared: bool, threads: tuple[str, ...], remote: Remote) -> None:
    """Make the next step of SCHEMA, to be written, with recorded states to test it on.

    Without --from-thread it begins with what the step before makes of its own recorded states.
    """
    from gateway.cli.remote.schemas import steps

    recorded = []
    if threads:
        with remote.connect() as connection:
            for thread_id in threads:
                latest = ["threads", thread_id, "checkpoints", "latest"]
                recorded.append(steps.case_of_checkpoint(connection.call("GET", latest, query={"view": "state"})))
    for path in steps.scaffold(folder, schema, declared=declared, recorded=recorded):
        render.line(str(path))
    if threads:
        render.say("The file holds what the threads hold: replace what is personal before you keep it.")
    render.say("Write the step; then: stateroom state test --accept, look at what it recorded, and keep both.")


@state_group.command("test")
@click.argument("schema", required=False)
@folder_option
@click.option(
    "--accept", is_flag=True, help="Record what the steps make now; look at the difference before you keep it."
)
@json_option
def test(*, schema: str | None, folder: Path, accept: bool, as_json: bool) -> None:
    """Run the steps in the folder against their recorded states, and check what a step promises.

    It makes what was recorded, and its way back leads back; it changes nothing that it is given, makes the same twice,
    and reaches for no file, network, process, clock or randomness; pending writes become what the state becomes.
    """
    from gateway.cli.remote.schemas import steps
    from migrations.state.checking import check_chain

    schemas = steps.read_folder(folder, schema)
    count = cases = 0
    findings: list[tuple[str, Finding]] = []
    for each in schemas:
        if accept:
            for path in each.accept():
                render.say(f"recorded {path}")
        recorded = each.cases()
        count += len(each.chain.steps)
        cases += sum(map(len, recorded.values()))
        findings += [(each.name, finding) for finding in check_chain(each.chain, recorded) + each.misfits(recorded)]
    for name, finding in findings:
        if as_json:
            render.emit_json({"schema": name, "step": finding.step, "case": finding.case, "why": finding.why})
        else:
            _print_finding(name, finding)
    render.say(f"{count} steps of {len(schemas)} schemas, {cases} recorded states: {len(findings)} findings.")
    if findings:
        raise Failure(
            "steps do not keep what they promise",
            hint="If what a step makes now is right: stateroom state test --accept",
        )


def _print_finding(schema: str, finding: "Finding") -> None:
    from gateway.cli.remote.schemas.steps import trees
    from gateway.cli.state_diff import differences

    render.line(f"{schema} {finding.step}: {finding.case}: {finding.why}")
    if finding.expected is not None and finding.actual is not None:
        for change in differences(trees(finding.expected), trees(finding.actual)):
            render.change(change, value_characters_max=_VALUE_CHARACTERS_MAX)


COMMANDS = (state_group,)
