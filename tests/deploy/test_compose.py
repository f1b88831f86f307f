"""The service of ``deploy/compose`` whole: begun by its own files, used through TLS, and hurt while it is used."""

import asyncio
import json
import os
import re
import signal
import ssl
import subprocess
import sys
from contextlib import asynccontextmanager
from uuid import uuid4

import httpx
import httpx2
import pytest
import yaml

import stateroom
from tests.support import containers
from tests.support.containers import ROOT, environ, run, uv
from tests.support.metrics import free_port

deployed = pytest.mark.deployed
pytestmark = pytest.mark.timeout(1800)  # the first of a machine builds the images
FOLDER = ROOT / "deploy" / "compose"
READY_SECONDS_MAX = 400
ONE_SHOT = {"roles", "migrate", "init", "cli"}


def read(name):
    return yaml.safe_load((FOLDER / name).read_text())


SERVICES = read("compose.yaml")["services"]


def test_what_is_tested_differs_in_images_only():
    assert read("compose.images.yaml").keys() == {"services"}
    replaced = read("compose.images.yaml")["services"]
    assert replaced.keys() == SERVICES.keys()
    assert all(service.keys() == {"image"} for service in replaced.values())


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_is_hardened_and_bounded(name):
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "cap_add" not in service
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["restart"] == {"cli": "no"}.get(name, "on-failure" if name in ONE_SHOT else "unless-stopped")
    assert {"mem_limit", "pids_limit"} <= service.keys()
    assert "depends_on" not in service  # entry scripts wait
    assert ":" in service["image"]
    assert "privileged" not in service


def test_only_the_proxy_has_a_port_and_a_way_out():
    networks = read("compose.yaml")["networks"]
    assert {name for name, network in networks.items() if not (network or {}).get("internal")} == {"edge"}
    assert {name for name, service in SERVICES.items() if "edge" in service["networks"]} == {"proxy"}
    assert {name for name, service in SERVICES.items() if "ports" in service} == {"proxy"}
    assert [each.rpartition(":")[2] for each in SERVICES["proxy"]["ports"]] == ["8443"]


def test_what_is_mounted_is_there_and_only_to_be_read():
    volumes = read("compose.yaml")["volumes"]
    for name, service in SERVICES.items():
        for mount in service.get("volumes", ()):
            source, target, *mode = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", mount).split(":")
            if source in volumes or source == "./secrets/operator":
                continue
            assert mode == ["ro"], (name, target)
            assert (FOLDER / source).exists(), (name, source)


def test_secrets_are_files_that_the_script_makes_and_that_only_their_users_see():
    made = set(re.findall(r"make ([a-z][\w.-]*)", (FOLDER / "secrets.sh").read_text()))
    made |= {"postgres-password", "gw-app-password", "gw-migrate-password"}  # in its loop
    declared = read("compose.yaml")["secrets"]
    assert declared.keys() <= made
    for name, secret in declared.items():
        assert secret == {"file": f"${{STATEROOM_SECRETS:-./secrets}}/{name}"}

    def readers(secret):
        named = {
            name: {s if isinstance(s, str) else s["source"] for s in service.get("secrets", ())}
            for name, service in SERVICES.items()
        }
        return {name for name, secrets in named.items() if secret in secrets}

    product = {"init", "gateway-1", "gateway-2", "worker", "cli"}
    assert readers("root.key") == readers("api-key-pepper") == readers("database-url") == product
    assert readers("database-owner-url") == {"migrate"}
    assert readers("postgres-password") == {"postgres", "roles"}


def test_what_other_folders_name_are_services():
    scraped = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text())["scrape_configs"]
    hosts = {target.split(":")[0] for job in scraped for each in job["static_configs"] for target in each["targets"]}
    proxied = set(re.findall(r"\$\{STATEROOM_GATEWAY_\d-([\w-]+):", (ROOT / "deploy/proxy/haproxy.cfg").read_text()))
    assert hosts == {"gateway-1", "gateway-2", "worker", "proxy"}
    assert proxied == {"gateway-1", "gateway-2"}
    assert hosts | proxied <= SERVICES.keys()


class Stack:
    """The services of ``compose.yaml``, as one project of podman-compose."""

    def __init__(self, podman, folder):
        self.podman, self.project, self.port = podman, f"stateroom-test-{uuid4().hex[:8]}", free_port()
        self.secrets = folder / "secrets"
        self.url = f"https://localhost:{self.port}"
        self.api_key = ""
        run([FOLDER / "secrets.sh", self.secrets])
        self.tls = ssl.create_default_context(cafile=str(self.secrets / "tls-ca.pem"))
        self.environ = {
            **podman.environ, "STATEROOM_SECRETS": str(self.secrets), "STATEROOM_PORT": str(self.port),
            "STATEROOM_PUBLIC_URL": self.url,
        }  # fmt: skip

    def compose(self, *arguments, **more):
        program = [uv(), "run", "--quiet", "--frozen", "--isolated", "--only-group", "deploy", "podman-compose"]
        files = ["-p", self.project, "-f", FOLDER / "compose.yaml", "-f", FOLDER / "compose.images.yaml"]
        return run([*program, *files, *arguments], **self.environ, **more)

    def container(self, service):
        return f"{self.project}_{service}_1"

    def state(self, service):
        (found,) = json.loads(self.podman("inspect", "--format", "[{{json .State}}]", self.container(service)))
        return found

    def healthy(self, service):
        command = [self.podman.program, "healthcheck", "run", self.container(service)]
        return not subprocess.run(
            command, check=False, capture_output=True, env=environ(**self.podman.environ)
        ).returncode

    def log(self):
        names = self.podman("ps", "--all", "--filter", f"name={self.project}", "--format", "{{.Names}}").split()
        return "\n".join(f"--- {name}\n{self._said(name)}" for name in names)

    def _said(self, name):
        command = [self.podman.program, "logs", "--tail", "15", name]
        done = subprocess.run(command, check=False, capture_output=True, text=True, env=environ(**self.podman.environ))
        return done.stdout + done.stderr

    async def ready(self):
        async with httpx.AsyncClient(verify=self.tls) as client:
            try:
                async with asyncio.timeout(READY_SECONDS_MAX):
                    while True:
                        try:
                            if (await client.get(f"{self.url}/readyz")).status_code == 200:
                                return
                        except httpx.TransportError:
                            pass
                        await asyncio.sleep(0.5)  # other processes; there is nothing to await
            except TimeoutError:
                pytest.fail(self.log(), pytrace=False)

    def sql(self, statement):
        """Run a statement as the superuser, where PostgreSQL is."""
        script = (
            f'PGPASSWORD=$(< /run/secrets/postgres-password) psql -h 127.0.0.1 -U postgres -Atc "{statement}" stateroom'
        )
        return self.podman("exec", self.container("postgres"), "bash", "-c", script)

    def client(self, subject="user-1"):
        transport = httpx2.AsyncHTTPTransport(verify=self.tls)
        return stateroom.AsyncClient(self.url, self.api_key, subject=subject, transport=transport)


@pytest.fixture(scope="module")
async def stack(podman, tool, gateway_image, tmp_path_factory):
    tool("openssl")
    folder = tmp_path_factory.mktemp("compose")
    containers.engines_image(podman, folder)
    made = Stack(podman, folder)
    try:
        made.compose("up", "--detach")
        await made.ready()
        made.api_key = key_for_agents(made)
        yield made
    finally:
        made.compose("down", "--timeout", "5", "--volumes")


def key_for_agents(stack):
    """The key that README's last two commands lead to."""

    def cli(*command, **more):
        said = stack.compose("--profile", "cli", "run", "--rm", "-T", "cli", *command, **more)
        return dict(line.split(maxsplit=1) for line in said.splitlines())["api_key"]

    permissions = [part for name in ("state:read", "state:write", "subject:act_as") for part in ("--permission", name)]
    administering = cli("tenant", "create", "acme")
    return cli("api-key", "create", "--name", "agents", *permissions, STATEROOM_API_KEY=administering)


@deployed
async def test_the_readmes_agent_remembers_through_tls(stack, tmp_path):
    readme = (ROOT / "README.md").read_text()
    (agent,) = re.findall(r"```python\n(# chat\.py\n.*?)```", readme, re.DOTALL)
    (tmp_path / "chat.py").write_text(agent)
    variables = {"STATEROOM_URL": stack.url, "STATEROOM_API_KEY": stack.api_key, "PATH": os.environ["PATH"]}

    async def answer(**more):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "chat.py", cwd=tmp_path, env=variables | more, stdout=-1, stderr=-1
        )
        said, errors = await process.communicate()
        return said.decode() if process.returncode == 0 else errors.decode()

    trusting = {"SSL_CERT_FILE": str(stack.secrets / "tls-ca.pem")}
    assert await answer(**trusting) == "You have said 1 things so far.\n"
    assert await answer(**trusting) == "You have said 3 things so far.\n"
    assert "SSLCertVerificationError" in await answer()  # nobody vouches for that certificate


@asynccontextmanager
async def programs(stack, name, count=4):
    """Programs that save and load in the block, each in a thread of its own; a call that fails ends the test.

    Yields:
        How many saves of each thread were acknowledged.
    """
    acknowledged, over = {f"{name}-{number}": 0 for number in range(count)}, asyncio.Event()

    async def work(thread_id):
        async with stack.client() as client:
            thread = client.thread(thread_id, agent="load")
            while not over.is_set():
                await thread.save({"n": acknowledged[thread_id] + 1})
                acknowledged[thread_id] += 1
                head = await thread.load()
                assert head is not None
                assert head.state == {"n": acknowledged[thread_id]}

    async with asyncio.TaskGroup() as running:
        for thread_id in acknowledged:
            running.create_task(work(thread_id))
        await more_saves(acknowledged, 2)
        try:
            yield acknowledged
        finally:
            over.set()


async def more_saves(acknowledged, count):
    """Return when every program has saved so many times more."""
    wanted = {thread_id: saves + count for thread_id, saves in acknowledged.items()}
    async with asyncio.timeout(240):
        while any(acknowledged[thread_id] < saves for thread_id, saves in wanted.items()):  # noqa: ASYNC110 - each is the event
            await asyncio.sleep(0.05)


async def assert_all_are_there(stack, acknowledged):
    async with stack.client() as client:
        for thread_id, saves in acknowledged.items():
            thread = client.thread(thread_id, agent="load")
            states = [old.step async for old in thread.history()]
            assert len(states) == saves, (thread_id, states)
            head = await thread.load()
            assert head is not None
            assert head.state == {"n": saves}


@deployed
async def test_gateways_that_are_killed_cost_nobody_anything(stack):
    """One after the other, each once the one before lives again: the proxy may not yet know that it does."""
    async with programs(stack, "killed") as acknowledged:
        for service in ("gateway-2", "gateway-1", "gateway-2"):
            os.kill(stack.state(service)["Pid"], signal.SIGKILL)
            await more_saves(acknowledged, 5)
            async with asyncio.timeout(READY_SECONDS_MAX):
                while not await asyncio.to_thread(stack.healthy, service):  # noqa: ASYNC110 - another process
                    await asyncio.sleep(0.5)
            await more_saves(acknowledged, 5)
    await assert_all_are_there(stack, acknowledged)


@deployed
async def test_sessions_of_the_database_that_are_cut_cost_nobody_anything(stack):
    cut = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename = 'gw_app'"
    ended = 0
    async with programs(stack, "cut") as acknowledged:
        for _ in range(5):
            ended += int(await asyncio.to_thread(stack.sql, cut))
            await more_saves(acknowledged, 2)
    assert ended >= 5
    await assert_all_are_there(stack, acknowledged)


@deployed
async def test_prometheus_scrapes_every_process_and_has_the_rules(stack):
    def ask(query):
        prometheus = stack.container("prometheus")
        return stack.podman("exec", prometheus, "promtool", "query", "instant", "http://localhost:9090", query)

    async with asyncio.timeout(READY_SECONDS_MAX):
        while (await asyncio.to_thread(ask, "up == 1")).count("=> 1") < 4:  # noqa: ASYNC110 - it scrapes every 15 s
            await asyncio.sleep(2)
    assert "StateroomProxyDown" not in ask("ALERTS{alertstate='firing'}")
    rules = stack.podman(
        "exec", stack.container("prometheus"), "promtool", "check", "rules", "/etc/prometheus/rules/alerts.yml"
    )
    assert "SUCCESS" in rules


@deployed
def test_an_upgrade_is_looked_at_and_finished_by_the_readmes_commands(stack):
    current = stack.compose("run", "--rm", "-T", "migrate", "db", "current", "--json")
    assert json.loads(current)["upgrade_due"] is False
    finished = stack.compose("--profile", "cli", "run", "--rm", "-T", "cli", "db", "finish-upgrade", "--json")
    assert finished == ""  # the deployment began with everything on


@deployed
async def test_the_service_is_as_it_was_after_down_and_up(stack):
    async with stack.client("user-7") as client:
        await client.thread("kept", agent="load").save({"n": 1})
    before = {file.name: file.read_bytes() for file in stack.secrets.iterdir() if file.is_file()}
    stack.compose("down", "--timeout", "30")
    assert stack.podman("ps", "--all", "--quiet", "--filter", f"name={stack.project}") == ""
    run([FOLDER / "secrets.sh", stack.secrets])
    assert {file.name: file.read_bytes() for file in stack.secrets.iterdir() if file.is_file()} == before
    stack.compose("up", "--detach")
    await stack.ready()
    async with stack.client("user-7") as client:
        head = await client.thread("kept", agent="load").load()
    assert head is not None
    assert head.state == {"n": 1}
