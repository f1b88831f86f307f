"""A tool that finished is not run again when its process is killed while another tool of the same step still runs."""

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

AGENT = Path(__file__).parents[1] / "support" / "parallel_tools_agent.py"


def test_a_finished_tool_of_a_killed_run_is_not_repeated(running_gateway, tmp_path):
    lines = running_gateway.env_file.read_text().splitlines()
    environ = os.environ | dict(shlex.split(line)[0].split("=", 1) for line in lines)
    effects = tmp_path / "effects"

    command = [sys.executable, str(AGENT), f"user-{uuid4()}", str(effects)]
    killed = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert sorted(effects.read_text().split()) == ["booking", "charged"]

    resumed = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, check=False)
    assert resumed.returncode == 0, resumed.stderr
    assert sorted(resumed.stdout.splitlines()) == ["booked Ritz", "charged 50"]
    assert sorted(effects.read_text().split()) == ["booking", "booking", "charged"]
