"""The examples and the front page, run as a user runs them: a gateway, and nothing but its env file."""

import json
import os
import re
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from uuid import uuid4

import asyncpg
import httpx2
import psutil
import pytest

from examples.plaintext_search import LARGE_BYTES, Control, Found, inflate, zstd
from examples.screenshot_agent import screenshot
from gateway.embedded.postgres import EmbeddedPostgres

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


@pytest.fixture
def folder():
    # Not pytest's own folder: its parents are closed to the unprivileged user PostgreSQL runs as.
    path = Path(tempfile.mkdtemp(prefix="stateroom-examples-"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def environ(running_gateway):
    lines = running_gateway.env_file.read_text().splitlines()
    return os.environ | dict(shlex.split(line)[0].split("=", 1) for line in lines)


# On some platforms there is no wheel of it.
MODEL_IS_INSTALLED = find_spec("wordllama") is not None


def run(*command, environ=None, cwd=ROOT):
    command = [str(part) for part in command]
    return subprocess.run(command, env=environ, cwd=cwd, capture_output=True, text=True, timeout=180, check=False)


def processes_of(folder):
    started = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
    return [each for each in started if any(str(folder) in argument for argument in each)]


def front_page(language, beginning):
    blocks = re.findall(rf"```{language}\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    return next(block for block in blocks if beginning in block)


def test_the_demo_holds_all_its_claims_and_leaves_nothing_behind(folder):
    # A proxy that leads nowhere, and is not for this machine.
    environ = {name: value for name, value in os.environ.items() if name.lower() != "no_proxy"}
    environ |= dict.fromkeys(("http_proxy", "HTTP_PROXY", "https_proxy", "all_proxy"), "http://127.0.0.1:1")
    done = run(sys.executable, EXAMPLES / "demo.py", environ=environ | {"TMPDIR": str(folder)})
    assert done.returncode == 0, done.stderr
    chapters = [line.split()[0] for line in done.stdout.splitlines() if line.startswith("  ") and line[2] != " "]
    first = ["gateway", "agent", "SIGKILL", "resume", "fork"]
    assert chapters == [*first, "approval", "SIGKILL", "memory", "isolation", "search"]
    assert ("-> She does not eat meat or fish (0." in done.stdout) == MODEL_IS_INSTALLED
    assert ("nor are 12 facts, nor their vectors" in done.stdout) == MODEL_IS_INSTALLED
    assert "All of it held" in done.stdout
    assert list(folder.iterdir()) == []
    assert processes_of(folder) == []


def test_the_demo_fails_and_says_why_when_its_gateway_does_not_start(folder):
    environ = os.environ | {"TMPDIR": str(folder), "STATEROOM_REQUESTS_IN_FLIGHT_MAX": "none"}
    done = run(sys.executable, EXAMPLES / "demo.py", environ=environ)
    assert done.returncode == 1
    assert "DID NOT HOLD: the gateway starts" in done.stderr
    assert "STATEROOM_REQUESTS_IN_FLIGHT_MAX must be a whole number" in done.stderr  # from the log, which is gone
    assert list(folder.iterdir()) == []
    assert processes_of(folder) == []


@pytest.mark.skipif(not MODEL_IS_INSTALLED, reason="there is no wheel of the model here")
def test_the_memory_agent_finds_facts_by_what_they_mean_in_another_process(environ):
    agent = [sys.executable, EXAMPLES / "memory_agent.py", "--subject", f"user-{uuid4()}"]
    assert run(*agent, "remember", environ=environ).returncode == 0
    done = run(*agent, "recall", "What could make her sick?", "Is she fond of paintings?", environ=environ)
    recalled = [json.loads(line) for line in done.stdout.splitlines()]
    assert [each["hits"][0]["key"] for each in recalled] == ["allergy", "museum"], done.stderr
    assert all(1 > first["score"] > second["score"] for first, second in (each["hits"] for each in recalled))


@pytest.mark.parametrize("missing", ["numpy", "safetensors", "tokenizers", "wordllama"])
def test_the_demo_leaves_memory_out_where_the_model_cannot_be_had_and_says_so(folder, missing):
    (folder / f"{missing}.py").write_text(f"raise ModuleNotFoundError(name={missing!r})")
    code = "import demo; from types import SimpleNamespace; print(demo.memory(SimpleNamespace(environ={})))"
    done = run(sys.executable, "-c", code, environ=os.environ | {"PYTHONPATH": str(folder)}, cwd=EXAMPLES)
    assert done.returncode == 0, done.stderr
    said, facts = done.stdout.splitlines()
    assert said.startswith("  memory    left out: ")
    assert missing in said
    assert facts == "{}"


def test_the_plain_agent_goes_on_where_it_stopped_and_repeats_nothing(environ):
    agent = [sys.executable, EXAMPLES / "plain_agent.py", "trip-8"]
    runs = [run(*agent, "--stop-after", 1, environ=environ) for _ in range(2)]
    runs += [run(*agent, environ=environ) for _ in range(2)]
    assert [each.returncode for each in runs] == [0, 0, 0, 0], [each.stderr for each in runs]
    acted = [[line for line in each.stdout.splitlines() if line.startswith("doing")] for each in runs]
    assert acted == [["doing flight"], ["doing hotel"], ["doing dinner"], []]


def test_the_travel_agent_books_a_trip(environ, folder):
    effects = folder / "effects"
    agent = [sys.executable, EXAMPLES / "travel_agent.py", "--effects", effects]
    done = run(*agent, "start", "trip-9", "Three days in Lisbon, please.", environ=environ)
    assert done.returncode == 0, done.stderr
    assert "Flight 0042 to Lisbon" in done.stdout
    assert len(effects.read_text().splitlines()) == 4


def test_the_screenshot_agent_looks_once_and_shows_what_it_saw(environ):
    agent = [sys.executable, EXAMPLES / "screenshot_agent.py", "watch-1"]
    first, second = (run(*agent, environ=environ) for _ in range(2))
    assert [each.returncode for each in (first, second)] == [0, 0], first.stderr + second.stderr
    assert [line for line in second.stdout.splitlines() if line.startswith("looked")] == []
    assert "news.example.png version 1: news.example: stripes, 320 by 200" in second.stdout
    url = second.stdout.split()[-1]
    shown = httpx2.get(url)
    assert (shown.status_code, shown.headers["content-type"]) == (200, "image/png")
    assert shown.headers["content-disposition"].startswith("inline")
    assert shown.content == screenshot("mail.example")


def test_the_compacting_agent_keeps_its_context_short_and_its_history_whole(environ):
    done = run(sys.executable, EXAMPLES / "compacting_agent.py", environ=environ)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "20 turns, 4 compactions, 7 messages in the state",
        "first: 34 messages ago, we began.",
        "the longest list in the history: 14",
    ]


def test_the_curl_session_answers_as_its_comments_say(environ):
    done = run(EXAMPLES / "curl_agent.sh", environ=environ)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "-> 412" in done.stdout


def test_the_front_page_graph_remembers_between_processes(environ, folder):
    (folder / "chat.py").write_text(front_page("python", "# chat.py"))
    said = [run(sys.executable, "chat.py", environ=environ, cwd=folder) for _ in range(2)]
    assert [each.stderr for each in said] == ["", ""]
    assert [each.stdout for each in said] == [f"You have said {count} things so far.\n" for count in (1, 3)]


def test_the_front_page_curl_session_saves_loads_and_loses_a_race(environ, running_gateway, folder):
    (folder / ".stateroom").mkdir()
    shutil.copy(running_gateway.env_file, folder / ".stateroom" / "env")
    done = run("sh", "-ec", front_page("sh", "trip()"), cwd=folder)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines() == ["HTTP 201", "HTTP 200", "HTTP 412"]
    assert '"state":{"plan":["flight","hotel"],"done":[]}' in done.stdout


def test_the_curl_quickstart_answers_as_its_comments_say(environ):
    page = (ROOT / "docs" / "quickstart-http.md").read_text().split("## curl")[1]
    script = re.search(r"```sh\n(.*?)```", page, re.DOTALL)[1]
    done = run("bash", "-euc", script, environ=environ)
    assert done.returncode == 0, done.stderr
    assert done.stderr.split() == re.findall(r"  # (\d{3})\b", script)
    assert '"head_id":' in done.stdout


def test_the_search_finds_text_in_clear_and_in_a_frame_that_begins_anywhere():
    secret = Control(100)
    found = Found()
    found.look("clear", b".." + secret.text.encode() + b"..", [secret.text, "other"])
    found.look("frame", b"\x28\xb5" + bytes(7) + secret.frame + b"tail", [secret.text, "other"])
    assert found.hits == {secret.text: {"clear", "frame, compressed"}}
    assert found.frames == 1


def test_the_search_finds_bytes_that_are_no_text():
    vector = struct.pack("<4f", 0.1, -0.2, 0.3, 0.4)
    found = Found()
    found.look("clear", b".." + vector + b"..", [vector, vector[::-1]])
    found.look("frame", zstd.compress(vector * 100), [vector, vector[::-1]])
    assert found.leaked([vector, vector[::-1]]) == {vector: {"clear", "frame, compressed"}}


@pytest.fixture
async def stopped(folder):
    """The folder of an embedded gateway that was stopped, as far as the search goes."""
    with EmbeddedPostgres(folder / "data", fsync=False) as postgres:
        connection = await asyncpg.connect(postgres.superuser_url().replace("+asyncpg", ""))
        await connection.execute("CREATE DATABASE stateroom")
        await connection.close()
    (folder / "gateway.log").touch()
    return folder


def blind(_data, _at):
    return b""


def test_a_control_of_the_search_cannot_be_seen_without_decompressing():
    control = Control(LARGE_BYTES)
    assert len(control.frame) > 4096  # in three pieces beside its row
    assert inflate(control.frame, 0) == control.text.encode()
    found = Found(blind)
    found.look("frame", control.frame, [control.text, control.text[:16]])
    assert found.hits == {}


def test_the_search_finds_its_controls_everywhere_by_decompressing_and_only_so(stopped):
    # In a process of its own, so that the loop of the tests is not in the way.
    code = "from pathlib import Path; from examples import plaintext_search as it; from sys import argv"
    code += "; print(sorted(it.search(Path(argv[1]), [], *[lambda *_: b''] * int(argv[2])).controls.items()))"
    whole, broken = (run(sys.executable, "-c", code, stopped / "data", count) for count in (0, 1))
    assert [each.returncode for each in (whole, broken)] == [0, 0], whole.stderr + broken.stderr
    places = sorted([
        "a list in a row", "a row", "a value that is kept beside its row, in pieces", "the bucket of archives",
        "the bucket of blobs", "the database's files",
    ])  # fmt: skip
    assert whole.stdout.strip() == str([(place, True) for place in places])
    assert broken.stdout.strip() == str([(place, False) for place in places])


def test_the_demo_does_not_hold_when_its_search_opens_no_frame(stopped):
    code = "import demo; from pathlib import Path; from sys import argv"
    code += "; demo.nothing_readable(demo.Gateway(Path(argv[1])), ['a text'], lambda *_: b'')"
    done = run(sys.executable, "-c", code, stopped, cwd=EXAMPLES)
    assert done.returncode == 1
    assert "NotHeldError: the search finds a compressed, unsealed value in" in done.stderr


def test_the_search_opens_as_much_of_a_cut_frame_as_there_is():
    text = b"".join(b"line %d\n" % number for number in range(100_000))
    frame = zstd.compress(text)
    opened = inflate(frame[: len(frame) // 2], 0)
    assert opened
    assert text.startswith(opened)


def test_the_search_survives_a_magic_number_without_a_frame():
    found = Found()
    found.look("noise", b"\x28\xb5\x2f\xfd" * 3 + b"\xff" * 50, ["secret"])
    assert found.hits == {}
