"""Processes that hold keys or plaintext: no core files, and nobody else of their user looks into them."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.gateway import GatewayProcess

PR_GET_DUMPABLE = 3
PROGRAM = f"""
import ctypes
from migrations.state.worker.confinement import make_undumpable
libc = ctypes.CDLL(None)
before = libc.prctl({PR_GET_DUMPABLE}, 0, 0, 0, 0)
make_undumpable()
print(before, libc.prctl({PR_GET_DUMPABLE}, 0, 0, 0, 0))
"""

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has prctl and /proc")


def core_limits(pid: int | str) -> list[str]:
    """The soft and the hard limit of a process's core files."""
    lines = Path(f"/proc/{pid}/limits").read_text().splitlines()
    return next(line for line in lines if line.startswith("Max core file size")).split()[4:6]


@linux
def test_an_undumpable_process_says_so_to_the_kernel():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "0"]


@linux
def test_a_gateway_writes_no_core(running_gateway: GatewayProcess):
    assert core_limits(running_gateway.pid) == ["0", "0"]


@linux
def test_a_gateway_that_may_be_traced_writes_them_as_its_parent_does(tmp_path):
    with GatewayProcess(tmp_path / "data", {"STATEROOM_TRACEABLE": "on"}) as gateway:
        assert core_limits(gateway.pid) == core_limits("self")
