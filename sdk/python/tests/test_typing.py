import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
def test_a_program_that_uses_the_clients_passes_a_strict_type_checker():
    program = Path(__file__).with_name("typed_program.py")
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-m", "mypy", "--strict", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
