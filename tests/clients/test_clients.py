"""Clients that other people's tools generate from the OpenAPI document: linted, compiled, and used (``make clients``).

The tools are installed by the Makefile into ``.cache/clients``, in the versions that `package-lock.json` and
`requirements.txt` pin. Each agent saves, loads, loses a race, uploads a file and follows a job, and says ``held``.
"""

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
TOOLS = ROOT / ".cache" / "clients"
NODE = TOOLS / "node_modules" / ".bin"
PYTHON = TOOLS / "python" / "bin"
DOCUMENT = ROOT / "tests" / "golden" / "openapi.json"

pytestmark = [pytest.mark.clients, pytest.mark.timeout(600)]


def run(*command, cwd, **environ):
    path = f"{PYTHON}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd, env=os.environ | {"PATH": path, **environ}, capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout + done.stderr


@pytest.fixture
def environ(running_gateway):
    lines = running_gateway.env_file.read_text().splitlines()
    return dict(shlex.split(line)[0].split("=", 1) for line in lines)


def typescript(folder, *sources):
    """Compile sources, strictly, beside the tools that they import."""
    for source in sources:
        shutil.copy(source, folder)
    for name in ("package.json", "tsconfig.json"):
        shutil.copy(HERE / name, folder)
    (folder / "node_modules").symlink_to(TOOLS / "node_modules")
    run(NODE / "tsc", "--project", ".", cwd=folder)
    return folder / "out"


def test_the_document_is_as_spectral_and_redocly_want_it():
    run(NODE / "spectral", "lint", DOCUMENT, "--ruleset", HERE / "spectral.yaml", "--fail-severity", "warn", cwd=TOOLS)
    run(NODE / "redocly", "lint", DOCUMENT, "--extends", "recommended", cwd=TOOLS, REDOCLY_TELEMETRY="off")


def test_generated_typescript_saves_loads_and_follows_a_job(environ, tmp_path):
    run(NODE / "openapi-typescript", DOCUMENT, "--output", tmp_path / "api.d.ts", cwd=TOOLS)
    out = typescript(tmp_path, HERE / "agent.ts")
    assert run("node", out / "agent.js", cwd=tmp_path, **environ).endswith("held\n")


def test_generated_go_saves_loads_and_follows_a_job(environ, tmp_path):
    client = tmp_path / "client"
    # Without the property, a member that a newer gateway adds would be an error of a client from before.
    properties = "packageName=stateroom,withGoMod=true,disallowAdditionalPropertiesIfNotPresent=false"
    run(
        *("openapi-generator-cli", "generate", "-g", "go", "-i", DOCUMENT, "-o", client),
        *("--additional-properties", properties, "--git-host", "example.invalid", "--git-user-id", "stateroom"),
        *("--git-repo-id", "client", "--global-property", "apiTests=false,modelTests=false"),
        cwd=TOOLS,
    )
    shutil.rmtree(client / "test", ignore_errors=True)
    (client / "agent").mkdir()
    shutil.copy(HERE / "agent.go", client / "agent" / "main.go")
    go = {"GOFLAGS": "-mod=mod", "GOPROXY": "off", "GOTOOLCHAIN": "local"}  # the standard library is all it needs
    run("go", "vet", ".", "./agent", cwd=client, **go)
    run("go", "build", "-o", tmp_path / "agent", "./agent", cwd=client, **go)
    assert run(tmp_path / "agent", cwd=tmp_path, **environ).endswith("held\n")


def test_generated_python_saves_loads_and_follows_a_job(environ, tmp_path):
    said = run("openapi-python-client", "generate", "--path", DOCUMENT, "--output-path", tmp_path / "client", cwd=TOOLS)
    assert "will not be generated" not in said
    shutil.copy(HERE / "agent.py", tmp_path / "client")
    run(PYTHON / "python", "-m", "compileall", "-q", tmp_path / "client", cwd=TOOLS)
    assert run(PYTHON / "python", "agent.py", cwd=tmp_path / "client", **environ).endswith("held\n")


def test_the_typescript_of_the_quickstart_runs_as_it_stands_there(environ, tmp_path):
    page = (ROOT / "docs" / "quickstart-http.md").read_text()
    (tmp_path / "quickstart.ts").write_text("".join(re.findall(r"```ts\n(.*?)```", page, re.DOTALL)) + "export {};\n")
    out = typescript(tmp_path)
    assert run("node", out / "quickstart.js", cwd=tmp_path, **environ) == "flight, hotel\n"


def test_the_escape_of_the_page_of_values_is_what_the_gateway_reads(environ, tmp_path):
    page = (ROOT / "docs" / "json-values.md").read_text()
    quickstart = re.findall(r"```ts\n(.*?)```", (ROOT / "docs" / "quickstart-http.md").read_text(), re.DOTALL)[0]
    use = """
    const whole = escaped({ $encoded: 1 });
    const odd = [{ $bytes: "hello world" }, { $float: { $ext: [] } }, { $bytes: "x", more: 1 }];
    await call("POST", "/threads/escape/checkpoints", { state: { odd: escaped(odd), whole } });
    const { body } = await call<{ state: unknown }>("GET", "/threads/escape/checkpoints/latest");
    console.log(JSON.stringify(body.state) === JSON.stringify({ odd: escaped(odd), whole }));
    """
    escape = re.findall(r"```ts\n(.*?)```", page, re.DOTALL)[0]
    (tmp_path / "escape.ts").write_text(quickstart + escape + use + "export {};\n")
    out = typescript(tmp_path)
    assert run("node", out / "escape.js", cwd=tmp_path, **environ) == "true\n"


def test_the_action_hash_in_typescript_holds_for_the_vectors(tmp_path):
    vectors = ROOT / "tests" / "vectors"
    out = typescript(tmp_path, vectors / "action_hash.ts")
    assert run("node", out / "action_hash.js", vectors / "action-hash.json", cwd=tmp_path) == "22 hold\n"
