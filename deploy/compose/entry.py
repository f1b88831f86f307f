"""Entry of the containers that hold the gateway: each waits for what it needs, then becomes its command.

Python, because the image need not have a shell. A container that is stopped while it waits ends at once.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

STATEROOM = "/opt/stateroom/bin/stateroom"
OPERATOR_KEY = Path("/operator/operator-key")
CONFLICT = 6  # exit code of `init` where there is an operator key already


def wait(*options: str) -> None:
    """Wait for the database; where it does not come, the container ends, and `restart:` begins it again."""
    code = subprocess.call([STATEROOM, "db", "wait", "--timeout", "120", *options])
    if code:
        sys.exit(code)


def init() -> int:
    """Make the first operator key and keep it where the service `cli` finds it."""
    if OPERATOR_KEY.exists():
        return 0
    unfinished = OPERATOR_KEY.with_suffix(".new")
    unfinished.unlink(missing_ok=True)
    with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        made = subprocess.run([STATEROOM, "init", "--name", "first"], check=False, stdout=subprocess.PIPE, text=True)
        if made.returncode == 0:
            file.write(dict(line.split(maxsplit=1) for line in made.stdout.splitlines())["api_key"] + "\n")
    if made.returncode == 0:
        unfinished.rename(OPERATOR_KEY)
        return 0
    unfinished.unlink()
    return 0 if made.returncode == CONFLICT else made.returncode  # made before, and its file taken to a safer place


def wait_for_service() -> None:
    """Wait for the gateway of `cli` and for the first operator key; an operator who names another key needs no file."""
    if os.environ.get("STATEROOM_OPERATOR_KEY"):
        os.environ.pop("STATEROOM_OPERATOR_KEY_FILE", None)
    until = time.monotonic() + 120
    while time.monotonic() < until:
        try:
            gateway = urlsplit(os.environ["STATEROOM_URL"])
            socket.create_connection((gateway.hostname, gateway.port), timeout=5).close()
        except OSError:
            print("waiting for a gateway", file=sys.stderr)
        else:
            if "STATEROOM_OPERATOR_KEY_FILE" not in os.environ or OPERATOR_KEY.exists():
                return
            print("waiting for the first operator key, which init makes", file=sys.stderr)
        time.sleep(2)


def main(command: list[str]) -> None:
    """Wait as the command needs it, then run it."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(128 + signal.SIGTERM))  # process 1 has no default for it
    if command[:1] == ["db"]:
        wait()
    elif command[:1] in (["serve"], ["worker"], ["init"]):
        wait("--revision")
    elif "STATEROOM_URL" in os.environ:
        wait_for_service()
    if command == ["init"]:
        sys.exit(init())
    os.execv(STATEROOM, [STATEROOM, *command])


main(sys.argv[1:])
