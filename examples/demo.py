"""The story of Stateroom in a minute: crash, resume, fork, approval, memory, isolation, nothing readable on disk.

Runs a gateway with its own PostgreSQL and S3 in a temporary folder, and `travel_agent.py`, `paying_agent.py` and
`memory_agent.py` in processes of their own. What is remembered is found by an embedding model that needs no network;
where that is not installed, the demo says so and leaves memory out.
Exits with 0 only if every claim it prints was checked and held; with 1 and the claim that did not otherwise. It
needs no network, and stops every process that it started.
"""

import base64
import contextlib
import json
import os
import secrets
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx2
import plaintext_search
from offline_embedding import OfflineEmbedding

from gateway.cli.environment import bypass_proxies
from storage.format.items.vectors import quantized

HERE = Path(__file__).parent
AGENT = HERE / "travel_agent.py"
PAYING_AGENT = HERE / "paying_agent.py"
MEMORY_AGENT = HERE / "memory_agent.py"
STATEROOM = Path(sys.executable).with_name("stateroom")
SUBJECT, STRANGER, THREAD = "user-42", "user-43", "trip-7"
INVOICE, AMOUNT = "invoice-9", 1200
SERVICE = ["state:read", "state:write", "subject:act_as"]  # what a service needs that acts for users
WAIT_SECONDS_MAX = 60.0
POLL_SECONDS = 0.05
LOG_LINES_MAX = 30
# No question shares a word with its answer but "she", "her" and the like.
QUESTIONS = {
    "What may a vegetarian dinner be?": "diet",
    "Which exhibition would she enjoy?": "museum",
    "Who looks after the pet?": "dog",
    "How much money can we spend?": "budget",
}
VECTORS_TABLE = "stateroom.item_vectors"
DIMENSIONS_SOUGHT = 64  # of a vector: what is stored in pieces is found by a part of it


class NotHeldError(Exception):
    """A claim of the demo turned out to be false."""


def hold(claim: str, truth: bool) -> None:
    """Go on only if the claim is true."""
    if not truth:
        raise NotHeldError(claim)


def tell(chapter: str, text: str) -> None:
    """Print a line of the story."""
    print(f"  {chapter:<9} {text}", flush=True)


class Gateway:
    """A gateway as `stateroom serve --embedded` runs it."""

    def __init__(self, folder: Path) -> None:
        self.data_dir = folder / "data"
        self.log = folder / "gateway.log"
        self._env_file = folder / "env"
        self.environ: dict[str, str] = {}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it is ready."""
        self._env_file.unlink(missing_ok=True)
        command: list[str | Path] = [STATEROOM, "serve", "--embedded", "--port", "0"]
        command += ["--data-dir", self.data_dir, "--write-env", self._env_file]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        wait_for("the gateway to be ready", lambda: self._env_file.exists() or self._has_ended())
        hold("the gateway starts", not self._has_ended())
        lines = self._env_file.read_text(encoding="utf-8").splitlines()
        self.environ = dict(shlex.split(line)[0].split("=", 1) for line in lines)

    def _has_ended(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    def kill(self) -> int:
        """Kill it, as a crash of its machine would; returns its process id."""
        assert self._process is not None  # noqa: S101 - for the type checker
        self._process.kill()  # its engines notice, and stop by themselves
        hold("the gateway died of SIGKILL", self._process.wait() == -signal.SIGKILL)
        return self._process.pid

    def stop(self) -> int | None:
        """Stop it with everything it started; returns its exit code."""
        if self._process is None:
            return None
        if self._process.poll() is None:
            self._process.terminate()
        try:
            return self._process.wait(WAIT_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()  # its engines notice, and stop by themselves
            return self._process.wait()

    def call(self, method: str, path: str, *, key: str = "", subject: str = SUBJECT, body: Any = None) -> Any:
        """Send a request, as any HTTP client could; returns the response."""
        headers = {"Authorization": f"Bearer {key or self.environ['STATEROOM_API_KEY']}"}
        if subject:
            headers["Stateroom-Subject"] = subject
        return httpx2.request(
            method, f"{self.environ['STATEROOM_URL']}/v1{path}", headers=headers, json=body, timeout=30
        )

    def load(self, checkpoint_id: str = "latest", **who: str) -> dict[str, Any]:
        """Load a checkpoint of the trip."""
        answer = self.call("GET", f"/threads/{THREAD}/checkpoints/{checkpoint_id}", **who)
        hold(f"the owner can load checkpoint {checkpoint_id}", answer.status_code == 200)
        loaded: dict[str, Any] = answer.json()
        return loaded


def wait_for(what: str, done: Any) -> None:
    """Wait until ``done()`` is true."""
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not done():
        hold(f"waited {WAIT_SECONDS_MAX:.0f} s for {what}", time.monotonic() < deadline)
        time.sleep(POLL_SECONDS)


class Agent:
    """The travel agent, each command in a process of its own."""

    def __init__(self, gateway: Gateway, folder: Path) -> None:
        self._gateway = gateway
        self._effects = folder / "effects.log"

    def effects(self) -> list[str]:
        """What the tools did so far, in order."""
        return self._effects.read_text(encoding="utf-8").splitlines() if self._effects.exists() else []

    def _command(self, *arguments: str | Path) -> list[str | Path]:
        return [sys.executable, AGENT, "--subject", SUBJECT, "--effects", self._effects, *arguments]

    def run(self, *arguments: str) -> dict[str, dict[str, Any]]:
        """Run a command to its end; returns its events by name."""
        environ = os.environ | self._gateway.environ
        done = subprocess.run(
            self._command(*arguments), env=environ, stdout=subprocess.PIPE, timeout=WAIT_SECONDS_MAX, check=False
        )
        hold(f"the agent's command {arguments[0]} succeeds", done.returncode == 0)
        events = [json.loads(line) for line in done.stdout.splitlines()]
        return {each["event"]: each for each in events}

    @contextlib.contextmanager
    def paused(self, before: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
        """Run a command up to a tool, where it stands still; whatever happens, it is gone afterwards."""
        environ = os.environ | self._gateway.environ
        read_end, write_end = os.pipe()
        options = ("--pause-before", before, "--pause-fd", str(write_end))
        process = subprocess.Popen(
            self._command(*options, *arguments), env=environ, pass_fds=[write_end], stdout=subprocess.DEVNULL
        )
        os.close(write_end)
        try:
            with open(read_end, "rb") as pipe:  # noqa: PTH123 - a descriptor, not a path
                hold("the agent gets to its tool", pipe.readline().strip().decode() == before)
            yield process
        finally:
            process.kill()
            process.wait()


def crash(gateway: Gateway, agent: Agent, request: str) -> dict[str, Any]:
    """Kill the agent between two tools of one step; returns the checkpoint it leaves behind."""
    with agent.paused("book_flight", "start", THREAD, request) as process:
        wait_for("the finished tool's write", lambda: any(kept_results(gateway.load())))
        process.send_signal(signal.SIGKILL)
        hold("the agent died of SIGKILL", process.wait() == -signal.SIGKILL)
        tell("SIGKILL", f"process {process.pid} died while it was booking the flight; the hotel was booked")
    left = gateway.load()
    hold("find_flights and book_hotel acted, each once", sorted(agent.effects()) == effects_of("Lisbon")[1:3])
    hold("the checkpoint keeps the hotel's result and no other", kept_results(left) == ["messages"])
    return left


def kept_results(checkpoint: dict[str, Any]) -> list[str]:
    """The channels that finished tasks of an unfinished step have written to."""
    return [each["channel"] for each in checkpoint["pending_writes"] if each["channel"] == "messages"]


def effects_of(city: str) -> list[str]:
    """What a whole trip does, sorted."""
    return [f"{name} {city}" for name in ("book_flight", "book_hotel", "find_flights", "send_itinerary")]


def resume(agent: Agent, left: dict[str, Any]) -> dict[str, Any]:
    """Continue in a new process; returns where it ended."""
    before = len(agent.effects())
    events = agent.run("resume", THREAD)
    resumed, finished = events["resumed"], events["finished"]
    hold(
        "the new process stands where the old one stood",
        (resumed["checkpoint_id"], resumed["step"]) == (left["checkpoint_id"], left["step"]),
    )
    hold(
        "it ran what was left, and only that",
        agent.effects()[before:] == ["book_flight Lisbon", "send_itinerary Lisbon"],
    )
    hold("every tool acted exactly once", sorted(agent.effects()) == effects_of("Lisbon"))
    tell(
        "resume", f"a new process went on at step {left['step']}, checkpoint {left['checkpoint_id'][:13]}, and only ran"
    )
    tell("", f"{', '.join(each.split()[0] for each in agent.effects()[before:])}: every tool acted exactly once")
    return finished


def fork(gateway: Gateway, agent: Agent, finished: dict[str, Any], request: str) -> dict[str, Any]:
    """Try another future from an old checkpoint; returns where that one ended."""
    page = gateway.call("GET", f"/threads/{THREAD}/checkpoints?step=0").json()
    (origin,) = page["checkpoints"]
    original = gateway.load(finished["checkpoint_id"])
    events = agent.run("fork", THREAD, origin["checkpoint_id"], request)
    forked = events["finished"]
    hold("the fork has its own outcome", "Porto" in forked["last"] and "Lisbon" not in forked["last"])
    hold(
        "the fork descends from the old checkpoint",
        gateway.load(events["forked"]["checkpoint_id"])["parent_id"] == origin["checkpoint_id"],
    )
    hold("the original future is unchanged", gateway.load(finished["checkpoint_id"]) == original)
    hold(
        "no tool of the original future acted again",
        sorted(agent.effects()) == sorted(effects_of("Lisbon") + effects_of("Porto")),
    )
    tell(
        "fork",
        f"from step 0 the same thread went to Porto, up to step {forked['step']}; Lisbon is still there, unchanged",
    )
    return forked


class PayingAgent:
    """The agent that pays, each run in a process of its own."""

    def __init__(self, gateway: Gateway, folder: Path, payee: str) -> None:
        self._gateway = gateway
        self._payments = folder / "payments.log"
        self._payee = payee

    def payments(self) -> list[str]:
        """What was paid so far."""
        return self._payments.read_text(encoding="utf-8").splitlines() if self._payments.exists() else []

    @contextlib.contextmanager
    def running(self) -> Iterator[subprocess.Popen[bytes]]:
        """Run it; whatever happens, it is gone afterwards."""
        command = [sys.executable, PAYING_AGENT, "--subject", SUBJECT, "--payments", self._payments]
        command += [INVOICE, str(AMOUNT), self._payee]
        process = subprocess.Popen(command, env=os.environ | self._gateway.environ, stdout=subprocess.PIPE)
        try:
            yield process
        finally:
            process.kill()
            process.communicate()

    def run_twice_at_once(self) -> None:
        """Run two of it to their ends."""
        with self.running() as one, self.running() as two:
            for process in (one, two):
                said, _ = process.communicate(timeout=WAIT_SECONDS_MAX)
                hold("the agent ends", process.returncode == 0)
                last = json.loads(said.splitlines()[-1])
                hold("the agent knows of one payment at most", len(last["done"]) <= 1)


def approval(gateway: Gateway, folder: Path, payee: str) -> None:
    """Let a person approve a payment, with crashes of the agent and of the gateway before and after the answer."""
    agent = PayingAgent(gateway, folder, payee)
    with agent.running() as process:
        assert process.stdout is not None  # noqa: S101 - for the type checker
        asked = json.loads(process.stdout.readline() or b"{}")
        hold("the agent asks and waits", asked.get("event") == "waiting")
        process.kill()
        died = gateway.kill()
    tell("approval", "another agent is to pay an invoice, and has to ask a person first")
    tell("SIGKILL", f"its process {process.pid} died while it waited, and the gateway, process {died}, too")
    gateway.start()
    person = {"key": gateway.environ["STATEROOM_APPROVER_KEY"], "subject": ""}
    path = f"/approvals/{asked['approval_id']}"
    content = gateway.call("GET", f"{path}/content", **person).json()
    (action,) = content["actions"]
    hold("a person is shown what would be done", action["args"] == {"amount": AMOUNT, "to": payee})
    state = gateway.call("GET", f"/threads/{INVOICE}/checkpoints/latest", key=person["key"])
    hold("who decides opens no state", state.status_code == 403)
    said = {"action_hash": content["action_hash"], "verdicts": [{"verdict": "approve"}]}
    hold("a person decides", gateway.call("POST", f"{path}/decisions", **person, body=said).status_code == 200)
    hold("nothing was paid so far", agent.payments() == [])
    gateway.kill()
    tell("", f"a person saw: pay {AMOUNT} EUR to Bob, and approved just that; the gateway died right after the answer")
    gateway.start()
    payment = f"{AMOUNT} EUR to {payee}"
    agent.run_twice_at_once()
    hold("what was approved was paid once", agent.payments() == [payment])
    agent.run_twice_at_once()
    hold("nothing is paid again", agent.payments() == [payment])
    hold("the approval is used up", gateway.call("GET", path).json()["status"] == "consumed")
    tell("", "four new processes of the agent went on, two at a time: it was paid once, and the approval is used up")


def memory(gateway: Gateway) -> dict[str, str]:
    """Remember facts, and find them by what they mean in another process; returns them, or none without the model."""
    (told,) = remembering(gateway, "remember")
    if told["event"] == "not-installed":
        tell("memory", f"left out: {told['missing']}")
        return {}
    facts: dict[str, str] = told["facts"]
    tell("memory", f"an agent remembered {len(facts)} facts; another process asked for them by what they mean:")
    recalled = remembering(gateway, "recall", *QUESTIONS)
    hold("every question is answered", [each["question"] for each in recalled] == [*QUESTIONS])
    for each in recalled:
        question, (best, second) = each["question"], each["hits"]
        hold(f"{question} finds: {facts[QUESTIONS[question]]}", best["key"] == QUESTIONS[question])
        tell("", f"{question:<34}-> {best['text']} ({best['score']:.2f}, the next {second['score']:.2f})")
    listed = gateway.call("POST", "/items:search", subject=STRANGER, body={}).json()
    hold("another user of the tenant remembers nothing of it", listed["items"] == [])
    return facts


def remembering(gateway: Gateway, *arguments: str) -> list[dict[str, Any]]:
    """Run a command of the agent that remembers; returns its events."""
    done = subprocess.run(
        [sys.executable, MEMORY_AGENT, "--subject", SUBJECT, *arguments],
        env=os.environ | gateway.environ,
        stdout=subprocess.PIPE,
        timeout=WAIT_SECONDS_MAX,
        check=False,
    )
    hold(f"the agent can {arguments[0]}", done.returncode == 0)
    return [json.loads(line) for line in done.stdout.splitlines()]


def forms_of_vectors(texts: Sequence[str]) -> list[bytes]:
    """How vectors of texts would stand in a row that is not sealed: a part of each, as any usual numbers."""
    forms = []
    for vector in OfflineEmbedding().embed_documents([*texts]):
        part, stored = vector[:DIMENSIONS_SOUGHT], quantized(vector)
        forms += [struct.pack(f"{order}{len(part)}{kind}", *part) for order in "<>" for kind in "fe"]
        forms += [stored.codes[:DIMENSIONS_SOUGHT], stored.direction[: 2 * DIMENSIONS_SOUGHT]]
    return list(dict.fromkeys(forms))


def isolation(gateway: Gateway) -> None:
    """Look at the trip as somebody else."""
    created = gateway.call(
        "POST", "/admin/tenants", key=gateway.environ["STATEROOM_OPERATOR_KEY"], body={"name": "rival"}
    )
    hold("an operator can create a tenant", created.status_code == 201)
    # A founding key administers, and opens no state; it makes the key that may.
    made = gateway.call(
        "POST", "/api-keys", key=created.json()["api_key"], body={"kind": "service", "permissions": SERVICE}
    )
    rival = made.json()["api_key"]
    head_id = gateway.load()["checkpoint_id"]
    for who, key, subject in (("another tenant", rival, SUBJECT), ("another user of the tenant", "", STRANGER)):
        for path in (f"/{THREAD}", f"/{THREAD}/checkpoints/latest", f"/{THREAD}/checkpoints/{head_id}"):
            status = gateway.call("GET", f"/threads{path}", key=key, subject=subject).status_code
            hold(f"{who} gets 404 for {path}", status == 404)
        listed = gateway.call("GET", "/threads", key=key, subject=subject).json()
        hold(f"{who} lists nothing", listed["threads"] == [])
    operator = gateway.call("GET", f"/threads/{THREAD}", key=gateway.environ["STATEROOM_OPERATOR_KEY"])
    hold("an operator cannot open state", operator.status_code == 403)
    tell("isolation", "another tenant gets 404, another user of the same tenant gets 404, the operator 403")


def stored_bytes(value: Any) -> bytes:
    """All bytes of a loaded state, MessagePack extensions (LangChain's messages) included."""
    if isinstance(value, dict):
        if "$ext" in value:
            return base64.b64decode(value["$ext"][1])
        return b"\n".join(stored_bytes(each) for each in value.values())
    if isinstance(value, list):
        return b"\n".join(stored_bytes(each) for each in value)
    return str(value).encode()


def nothing_readable(
    gateway: Gateway,
    conversation: list[str],
    inflate: plaintext_search.Inflate = plaintext_search.inflate,
    *,
    facts: Sequence[str] = (),
) -> None:
    """Search what the gateway left on disk, after it stopped, for what was said and remembered.

    Args:
        gateway: The one that was stopped.
        conversation: What must be readable nowhere.
        inflate: How the search opens a zstd frame; it has to find what was stored compressed but unsealed.
        facts: What was remembered, each with a vector: neither may be there.
    """
    vectors = forms_of_vectors(facts) if facts else []
    found = plaintext_search.search(gateway.data_dir, [*conversation, *facts, *vectors], inflate)
    for place, truth in found.controls.items():
        hold(f"the search finds a compressed, unsealed value in {place}", truth)
    found.look("the gateway's log", gateway.log.read_bytes(), [*conversation, *facts])
    leaked = found.leaked([*conversation, *facts])
    hold(f"what was said and remembered is readable nowhere (found {leaked})", not leaked)
    tell(
        "search",
        f"{len(conversation)} texts of the conversation are in none of {found.files} files, {found.rows} rows and",
    )
    tell("", f"{found.objects} S3 objects, nor in {found.frames} zstd frames among them; all {len(found.controls)}")
    tell("", "controls, stored compressed but unsealed, were found")
    if facts:
        places = found.leaked(vectors).values()
        hold(f"no vector is readable anywhere (found in {[*places]})", not places)
        hold("each fact has a row of vectors", found.rows_of[VECTORS_TABLE] == len(facts))
        tell(
            "",
            f"nor are {len(facts)} facts, nor their vectors, as floats of any size or as bytes: their rows are sealed",
        )


def story(folder: Path, stack: contextlib.ExitStack) -> None:
    """Tell it from the beginning to the end."""
    gateway = Gateway(folder)
    stack.callback(gateway.stop)
    began = time.monotonic()
    gateway.start()
    seconds = time.monotonic() - began
    tell(
        "gateway", f"ready after {seconds:.1f} s at {gateway.environ['STATEROOM_URL']}, with its own PostgreSQL and S3"
    )
    agent = Agent(gateway, folder)
    passport = f"passport {secrets.token_hex(8)}"
    request = f"Three days in Lisbon for me, {passport}, please."
    tell("agent", "a LangGraph agent was asked for a trip to Lisbon: it has to find flights, then book a hotel and")
    tell("", "a flight in one step, then send the itinerary")
    left = crash(gateway, agent, request)
    finished = resume(agent, left)
    fork(gateway, agent, finished, request.replace("Lisbon", "Porto"))
    payee = f"Bob, account {secrets.token_hex(8)}"
    approval(gateway, folder, payee)
    facts = memory(gateway)
    isolation(gateway)
    conversation = [passport, request, finished["last"], "seat by the window", "A quiet room above the river"]
    stored = stored_bytes(gateway.load(finished["checkpoint_id"])["state"])
    hold("the gateway gives the whole conversation back", all(text.encode() in stored for text in conversation))
    hold("the gateway stops cleanly", gateway.stop() == 0)
    nothing_readable(gateway, [*conversation, payee], facts=[*facts.values()])


def interrupted(number: int, _: object) -> None:
    """Let cleaning up happen on SIGTERM, too."""
    sys.exit(128 + number)


def show_log(folder: Path) -> None:
    """Print the end of the gateway's log."""
    with contextlib.suppress(OSError):
        lines = (folder / "gateway.log").read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_LINES_MAX:]
        print("\nThe end of the gateway's log:", *(f"  {line}" for line in lines), sep="\n", file=sys.stderr)


def main() -> int:
    """Tell the story; returns the exit code."""
    bypass_proxies(os.environ)
    signal.signal(signal.SIGTERM, interrupted)
    folder = Path(tempfile.mkdtemp(prefix="stateroom-demo-"))
    began = time.monotonic()
    try:
        with contextlib.ExitStack() as stack:
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            try:
                story(folder, stack)
            except Exception:
                show_log(folder)  # it goes with the folder
                raise
    except NotHeldError as broken:
        print(f"\nDID NOT HOLD: {broken}", file=sys.stderr)
        return 1
    print(f"\nAll of it held, in {time.monotonic() - began:.0f} s.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
