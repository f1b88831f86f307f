"""Entry of the command line `stateroom`: from the first instant of its process to the exit code.

Owns what a person sees when a command cannot go on: a failure, Ctrl-C at any moment, an output that cannot be written.
The commands are imported when they run, so that Ctrl-C ends a process that still imports them without a traceback.
"""

import errno
import gc
import os
import signal
import sys
from typing import NoReturn

# Going over what imports make again and again would take a fifth of a start.
_GC_THRESHOLD = 10_000
# What writing says when the disk is full, a descriptor is closed or a device fails; a reader that left is click's.
_UNWRITABLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF})


def run(arguments: list[str]) -> int:
    """Run one command line and return its exit code; failures are printed, never raised."""
    from gateway.cli import render
    from gateway.cli.commands import commands
    from gateway.cli.failure import ExitCode, Failure

    code: int = ExitCode.OK
    try:
        try:
            commands.main(arguments, prog_name="stateroom")
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else ExitCode.OK
        if sys.stdout is not None:
            sys.stdout.flush()
    except Failure as failure:
        render.failure(failure)
        return failure.exit_code
    except OSError as error:
        if error.errno not in _UNWRITABLE:
            raise
        render.failure(Failure("the output cannot be written", detail=str(error.strerror)))
        return ExitCode.FAILURE
    return code


def _occupy_closed_descriptors() -> None:
    """Keep 0 to 2 from being given to a socket or a file, which would then be written to as if it were the output."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest that is free, hence this one


def main() -> NoReturn:
    """Run the command line of this process."""
    interrupt = signal.getsignal(signal.SIGINT)
    if interrupt is signal.default_int_handler:  # else somebody had it ignored
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # nothing has begun that would have to be tidied up
    gc.set_threshold(_GC_THRESHOLD)
    _occupy_closed_descriptors()
    from gateway.cli import commands  # noqa: F401 - the quarter of a second that this is about
    from gateway.cli.environment import bypass_proxies

    signal.signal(signal.SIGINT, interrupt)
    if sys.stderr is None:  # print would take None for standard output
        sys.stderr = open(os.devnull, "w")  # noqa: PTH123, SIM115 - a device, for the whole process
    bypass_proxies(os.environ)
    code = run(sys.argv[1:])
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:  # said already; what is left in the buffer would be tried, and complained about, once more
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    gc.freeze()  # the interpreter would go over all of it once more before it ends
    sys.exit(code)
