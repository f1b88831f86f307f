"""Code run in a process of its own that is given less and less memory."""

import subprocess
import sys
import textwrap
from collections.abc import Sequence

_SWEEP = """
import gc, resource

def room(kilobytes):
    with open("/proc/self/statm") as file:
        held_bytes = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held_bytes + (kilobytes << 10), resource.RLIM_INFINITY))

outcomes = set()
for kilobytes in {rooms}:
    room(kilobytes)
    try:
        act()
        outcomes.add("done")
    except Exception as error:
        outcomes.add(type(error).__name__)
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    gc.collect()
print(*sorted(outcomes))
"""


def outcomes(code: str, rooms_kilobytes: Sequence[int]) -> tuple[int, set[str]]:
    """What became of ``act``, which ``code`` defines, with so much more memory each: its errors, or ``done``.

    Returns:
        How the process ended (negative: by that signal), and what came of it.
    """
    program = textwrap.dedent(code) + _SWEEP.format(rooms=list(rooms_kilobytes))
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    return ended.returncode, set(ended.stdout.split())
