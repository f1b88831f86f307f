"""The units of ``deploy/systemd`` on a machine with systemd, set up by the commands of their README."""

import asyncio
import re
import socket
import subprocess
from pathlib import Path

import httpx
import pytest
from msgspec import structs
from sqlalchemy.engine import make_url

from gateway.admission import limits
from gateway.cli.local.serving import FINISH_SECONDS_MAX
from gateway.settings import CONNECTIONS_MAX, SECRETS, VARIABLES, Settings
from storage.postgres.setup import db_revision_required
from tests.deploy.conftest import DEPLOY
from tests.support.engines import create_database, drop_database
from tests.support.machine import Machine, Podman, wheels
from tests.support.metrics import free_port
from tests.support.production import OWNER_PASSWORD
from tests.support.proxies import Certificate, HAProxy
from tests.support.rotation import Load, under_load

FOLDER = DEPLOY / "systemd"
UNITS = FOLDER / "system"
SERVICES = sorted(path.name for path in UNITS.glob("*.service"))
EXPOSURE_MAX = 2.0
MADE_SECONDS_MAX = 1500  # of an image, the first time


def deployed(test):
    return pytest.mark.deployed(pytest.mark.timeout(MADE_SECONDS_MAX)(test))


class _Unit(dict):
    """The settings of a unit file and its drop-ins, the last of each name."""

    def __init__(self, name: str) -> None:
        super().__init__()
        folders = (f"{name}.d", "stateroom-.service.d") if name.startswith("stateroom-") else (f"{name}.d",)
        for path in [UNITS / name, *(each for folder in folders for each in (UNITS / folder).glob("*.conf"))]:
            text = re.sub(r"\\\n\s*", " ", path.read_text())
            self |= re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE)


# --- what needs no tool -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["stateroom@.service", "stateroom-worker.service"])
def test_time_and_files_are_enough_for_what_a_process_may_take(name):
    unit = _Unit(name)
    drain_seconds = next(each.default for each in structs.fields(Settings) if each.name == "drain_seconds")
    assert int(unit["TimeoutStopSec"]) >= drain_seconds + FINISH_SECONDS_MAX + 5
    assert int(unit["LimitNOFILE"]) >= limits.CONNECTIONS_MAX + CONNECTIONS_MAX + 500
    assert unit["Type"] == "notify"
    assert unit["Restart"] == "on-failure"


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_is_hardened_and_reads_no_secret_from_its_own_file(name):
    unit = _Unit(name)
    assert unit["ProtectHome"] == "tmpfs"
    assert unit["CapabilityBoundingSet"] == ""
    assert not [line for line in (UNITS / name).read_text().splitlines() if "postgresql://" in line]


def test_the_settings_file_names_settings_and_files_that_have_a_reader():
    lines = [line for line in (FOLDER / "stateroom.env").read_text().splitlines() if line and line[0] != "#"]
    given = dict(line.split("=", 1) for line in lines)
    of_files = {f"STATEROOM_{name.upper()}_FILE" for name in SECRETS}
    assert given.keys() <= set(VARIABLES) | of_files | {"STATEROOM_URL"}
    readers = (FOLDER / "tmpfiles.d" / "stateroom.conf").read_text()
    named = [text.removeprefix("file:") for text in given.values() if "/etc/stateroom/secrets/" in text]
    assert named
    for path in named:
        assert re.search(rf"^z {re.escape(path)} +0[0-7]+ ", readers, re.MULTILINE), path


def test_the_readme_tells_of_every_unit():
    text = (FOLDER / "README.md").read_text()
    for path in UNITS.iterdir():
        if path.is_file():
            assert path.name in text or path.stem.replace("@", "@PORT") in text, path.name


# --- what systemd says of the files -----------------------------------------------------------------------------------


@deployed
@pytest.mark.parametrize("name", SERVICES)
def test_a_service_is_exposed_to_hardly_anything(tool, name):
    command = [tool("systemd-analyze"), "security", "--offline=yes", "--no-pager", f"./{name}"]
    said = subprocess.run(command, cwd=UNITS, capture_output=True, text=True, timeout=60, check=False).stdout
    (exposure,) = re.findall(r"Overall exposure level for \S+: ([\d.]+)", said)
    assert float(exposure) <= EXPOSURE_MAX


# --- a machine --------------------------------------------------------------------------------------------------------


def readme(title: str) -> list[str]:
    """The commands of a section of the README, block by block."""
    text = (FOLDER / "README.md").read_text()
    section = re.split(r"^## ", text.split(f"\n## {title}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]
    return re.findall(r"^```sh\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)


def free_pair() -> int:
    """A port that is free and has a free one 1000 further."""
    while True:
        port = free_port()
        if port < 60_000:
            with socket.socket() as other:
                try:
                    other.bind(("127.0.0.1", port + 1000))
                except OSError:
                    continue
            return port


class Site:
    """A machine on which the README's commands were run, before a database and a bucket."""

    def __init__(self, machine: Machine, ports: tuple[int, int], deployment) -> None:
        self.machine = machine
        self.ports = ports
        self.deployment = deployment

    def at_our_ports(self, script: str) -> str:
        for shipped, ours in zip((8080, 8081), self.ports, strict=True):
            script = script.replace(str(shipped), str(ours))
        return script

    def show(self, unit: str, name: str) -> str:
        return self.machine.run(f"systemctl show --property={name} --value {unit}").strip()

    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.deployment.api_key}", "Stateroom-Subject": "user-1"}


@pytest.fixture(scope="module")
def machine(tool, tmp_path_factory):
    folder = tmp_path_factory.mktemp("machine")
    podman = Podman(tool, folder)
    built = folder / "wheels"
    image = podman.machine_image(wheels(built))
    with Machine(podman, image, {"/root/systemd": FOLDER, "/root/wheels": built}) as running:
        running.run("/opt/stateroom/bin/pip install --quiet --no-deps --no-index /root/wheels/*.whl")
        yield running


@pytest.fixture(scope="module")
async def site(machine, deployment, durable_postgres, s3_server):
    install, secrets = readme("Install")
    machine.run(f"cd /root/systemd\n{install}")
    ports = (free_pair(), free_pair())
    environ = deployment.with_buckets(s3_server.url()).environ
    owner_url = make_url(environ["STATEROOM_DATABASE_URL"]).set(username="gw_migrate", password=OWNER_PASSWORD)
    given = {
        "database-url": environ["STATEROOM_DATABASE_URL"],
        "database-owner-url": owner_url.render_as_string(False),
        "s3-url": environ["STATEROOM_S3_URL"],
    }
    for name, text in given.items():  # what an operator types
        secrets = re.sub(rf"^cat > {name} .*$", f"cat > {name} <<'END'\n{text}\nEND", secrets, flags=re.MULTILINE)
    machine.run(secrets)
    # This deployment's were made before.
    root_key = await asyncio.to_thread(Path(environ["STATEROOM_ROOT_KEY"].removeprefix("file:")).read_text)
    machine.run("cat > /etc/stateroom/secrets/root.key", root_key)
    machine.run("cat > /etc/stateroom/secrets/api-key-pepper", environ["STATEROOM_API_KEY_PEPPER"])
    settings = {
        "DEPLOYMENT_ID": environ["STATEROOM_DEPLOYMENT_ID"],
        "PUBLIC_URL": f"http://127.0.0.1:{ports[0]}",
        "METRICS_LISTEN": f"127.0.0.1:{free_port()}",
        "URL": f"http://127.0.0.1:{ports[0]}",
    }
    edits = " ".join(f"-e 's|^STATEROOM_{name}=.*|STATEROOM_{name}={text}|'" for name, text in settings.items())
    machine.run(f"sed -i {edits} /etc/stateroom/stateroom.env")
    found = Site(machine, ports, deployment)
    (start,) = readme("Start")
    start = found.at_our_ports(start)
    found.said = machine.run(start.replace("stateroom init --json", "stateroom init --another --json"))
    yield found
    if machine.run("systemctl is-active stateroom.target", check=False).strip() == "active":
        machine.run("systemctl stop stateroom.target")


@deployed
def test_systemd_finds_no_fault_with_any_unit(site):
    names = " ".join(path.name.replace("@.", "@8080.") for path in UNITS.iterdir() if path.is_file())
    assert site.machine.run(f"systemd-analyze verify {names} 2>&1", check=False) == ""


@deployed
def test_the_commands_of_the_readme_start_everything(site):
    for unit in (*(f"stateroom@{port}" for port in site.ports), "stateroom-worker", "stateroom.target"):
        assert site.show(unit, "ActiveState") == "active"
    for port in site.ports:
        assert site.show(f"stateroom@{port}", "StatusText") == f"ready on 127.0.0.1:{port}"
        assert httpx.get(f"http://127.0.0.1:{port}/readyz").status_code == 200
        assert httpx.get(f"http://127.0.0.1:{port + 1000}/readyz").status_code == 200
    assert site.show("stateroom-worker", "StatusText") == "working"
    assert site.show("stateroom-migrate", "Result") == "success"
    assert "FAILED" not in site.said
    timers = site.machine.run("systemctl list-timers --no-legend 'stateroom*'")
    assert {"stateroom-verify.timer", "stateroom-fsck.timer"} <= set(timers.split())


@deployed
def test_a_process_is_nobody_in_particular_and_has_files_enough(site):
    pid = site.show(f"stateroom@{site.ports[0]}", "MainPID")
    status = site.machine.run(f"cat /proc/{pid}/status")
    user = site.machine.run("id -u stateroom").strip()
    assert re.search(rf"^Uid:\t{user}\t{user}\t{user}\t{user}$", status, re.MULTILINE)
    assert re.search(r"^CapEff:\t0+$", status, re.MULTILINE)
    assert re.search(r"^NoNewPrivs:\t1$", status, re.MULTILINE)
    assert re.search(r"^Seccomp:\t2$", status, re.MULTILINE)
    assert re.search(r"^Max open files +4096 +4096 ", site.machine.run(f"cat /proc/{pid}/limits"), re.MULTILINE)


@deployed
def test_what_tenants_register_runs_in_worker_processes_there(site):
    with httpx.Client(base_url=f"http://127.0.0.1:{site.ports[0]}", headers=site.headers()) as client:
        schema = {"json_schema": {"type": "object", "required": ["goal"]}}
        assert client.put("/v1/state-schemas/travel/versions/1", json=schema).status_code == 201
        checkpoints = "/v1/threads/checked/checkpoints"
        versioned = {"state_schema": "travel", "state_version": 1}
        assert client.post(checkpoints, json={"state": {"goal": "home"}, **versioned}).status_code == 201
        refused = client.post(checkpoints, json={"state": {"plan": []}, **versioned})
        assert refused.status_code == 422, refused.text
    pid = site.show(f"stateroom@{site.ports[0]}", "MainPID")
    children = site.machine.run(f"cat /proc/{pid}/task/*/children").split()
    commands = [site.machine.run(f"tr '\\0' ' ' < /proc/{child}/cmdline") for child in children]
    assert any("migrations.state.worker" in command for command in commands)


@deployed
def test_a_gateway_may_not_read_what_is_for_other_units(site):
    as_gateway = "setpriv --reuid=stateroom --regid=stateroom --clear-groups"
    for name, readable in (
        ("database-url", True),
        ("root.key", True),
        ("database-owner-url", False),
        ("operator-key", False),
    ):
        said = site.machine.run(
            f"{as_gateway} cat /etc/stateroom/secrets/{name} > /dev/null 2>&1 && echo read", check=False
        )
        assert (said.strip() == "read") is readable, name
    environ = site.machine.run(f"cat /proc/{site.show('stateroom-worker', 'MainPID')}/environ")
    assert "postgresql://" not in environ
    assert "operator" not in environ


@deployed
async def test_the_schema_is_brought_to_an_empty_database_as_its_owner(site, durable_postgres):
    database = await create_database(durable_postgres, owner="gw_migrate")
    try:
        url = make_url(database.superuser_url).set(
            drivername="postgresql", username="gw_migrate", password=OWNER_PASSWORD
        )
        keep = "cp /etc/stateroom/secrets/database-owner-url /root/kept"
        site.machine.run(f"{keep}; cat > /etc/stateroom/secrets/database-owner-url", url.render_as_string(False))
        try:
            await asyncio.to_thread(site.machine.run, "systemctl start stateroom-migrate")
        finally:
            site.machine.run("cat /root/kept > /etc/stateroom/secrets/database-owner-url")
        said = site.machine.run("journalctl --unit=stateroom-migrate --output=cat --lines=20")
        assert f"The database is at db_revision {db_revision_required()}." in said
        assert site.show("stateroom-migrate", "Result") == "success"
    finally:
        await drop_database(durable_postgres, database.name)


@deployed
async def test_a_restart_in_turn_loses_no_request_of_clients_that_repeat_nothing(site, tool, tmp_path):
    (restart,) = readme("Restart and upgrade")
    certificate = Certificate(tmp_path)
    servers = [(port, port + 1000) for port in site.ports]
    before = [site.show(f"stateroom@{port}", "MainPID") for port in site.ports]

    def connect():
        return httpx.AsyncClient(base_url=proxy.url, headers=site.headers(), verify=certificate.context(), timeout=60)

    async with (
        HAProxy(tool("haproxy"), tmp_path, certificate, servers) as proxy,
        under_load(connect, "units") as load,
    ):
        await asyncio.to_thread(site.machine.run, site.at_our_ports(restart))
        enough = len(load.answers) + 100
        while len(load.answers) < enough:  # noqa: ASYNC110 - each answer is the event
            await asyncio.sleep(0.05)
    assert load.failed == []
    assert len(load.answers) > 200
    after = [site.show(f"stateroom@{port}", "MainPID") for port in site.ports]
    assert not set(before) & set(after)


@deployed
@pytest.mark.parametrize("unit", ["gateway", "worker"])
async def test_a_process_that_hangs_is_killed_and_started_again(site, unit):
    name = f"stateroom@{site.ports[1]}" if unit == "gateway" else "stateroom-worker"
    drop_in = f"/etc/systemd/system/{name}.service.d/test.conf"
    soon = "[Service]\nWatchdogSec=3\nRestartSec=1\n"
    site.machine.run(f"mkdir -p {Path(drop_in).parent}; cat > {drop_in}; systemctl daemon-reload", soon)
    site.machine.run(f"systemctl restart {name}")
    pid = site.show(name, "MainPID")
    restarts = int(site.show(name, "NRestarts"))
    site.machine.run(f"kill -STOP {pid}")
    async with asyncio.timeout(60):
        while int(site.show(name, "NRestarts")) == restarts or site.show(name, "ActiveState") != "active":  # noqa: ASYNC110
            await asyncio.sleep(0.2)
    assert site.show(name, "MainPID") != pid
    said = site.machine.run(f"journalctl --unit={name} --output=cat --lines=200")
    assert "Watchdog timeout" in said
    assert "Fatal Python error: Aborted" in said
    if unit == "gateway":
        async with httpx.AsyncClient() as client:
            assert (await client.get(f"http://127.0.0.1:{site.ports[1]}/readyz")).status_code == 200
    site.machine.run(f"rm {drop_in}; systemctl daemon-reload; systemctl restart {name}")


@deployed
@pytest.mark.parametrize("name", ["stateroom-verify", "stateroom-fsck"])
async def test_what_a_timer_starts_ends_well(site, name):
    await asyncio.to_thread(site.machine.run, f"systemctl start {name}.service")
    assert site.show(name, "Result") == "success", site.machine.run(f"journalctl --unit={name} --output=cat")
    assert site.show(name, "ExecMainStatus") == "0"


@deployed
async def test_settings_that_cannot_be_used_are_not_tried_again(site):
    port = free_pair()
    drop_in = f"/etc/systemd/system/stateroom@{port}.service.d/test.conf"
    wrong = "[Service]\nEnvironment=STATEROOM_LOG_LEVEL=loud\nRestartSec=1\n"
    site.machine.run(f"mkdir -p {Path(drop_in).parent}; cat > {drop_in}; systemctl daemon-reload", wrong)
    site.machine.run(f"systemctl start stateroom@{port}", check=False)
    name = f"stateroom@{port}"
    assert (site.show(name, "ActiveState"), site.show(name, "ExecMainStatus")) == ("failed", "2")
    assert site.show(name, "NRestarts") == "0"
    said = site.machine.run(f"journalctl --unit={name} --output=cat")
    assert "STATEROOM_LOG_LEVEL must be one of" in said
    site.machine.run(f"rm {drop_in}; systemctl daemon-reload; systemctl reset-failed {name}")


@deployed
async def test_a_stop_drains_and_is_a_success(site):
    leaving, staying = (f"stateroom@{port}" for port in site.ports)
    load = Load()
    over = asyncio.Event()
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{site.ports[0]}", headers=site.headers()) as client:
        using = asyncio.create_task(load.save_and_load(client, "until-the-end", over))
        stopping = asyncio.create_task(asyncio.to_thread(site.machine.run, "systemctl stop stateroom.target"))
        while (await client.get("/readyz")).status_code == 200:
            pass
        assert site.show(leaving, "ActiveState") == "deactivating"
        assert site.show(leaving, "StatusText") == "draining for 10 s"
        drained = len(load.answers)
        while len(load.answers) < drained + 20:  # noqa: ASYNC110 - each answer is the event
            await asyncio.sleep(0.01)
        over.set()
        await using
        await stopping
    assert load.failed == []
    for unit in (leaving, staying, "stateroom-worker"):
        async with asyncio.timeout(60):
            while site.show(unit, "ActiveState") == "deactivating":  # noqa: ASYNC110 - in another machine
                await asyncio.sleep(0.2)
        assert (site.show(unit, "ActiveState"), site.show(unit, "Result")) == ("inactive", "success")
        assert site.show(unit, "ExecMainStatus") == "0"
