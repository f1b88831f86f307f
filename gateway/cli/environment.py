"""What the command line takes from the environment of its process beside the settings of a server.

Owns how a missing or wrong secret becomes a failure to act on, and that this machine is reached without a proxy.
What a variable says is read by `gateway.settings`.
"""

import os
from collections.abc import MutableMapping

from gateway.cli.failure import ExitCode, Failure

_SHARE = "STATEROOM_CLIENT_SHARE"
LOOPBACK = ("localhost", "127.0.0.1", "::1")


def secret(name: str, *, hint: str) -> str:
    """Return the secret in the variable ``name``, or in the file that ``name`` + ``_FILE`` names.

    Args:
        name: The variable's name, without ``_FILE``.
        hint: A sentence on what to do when there is none.

    Raises:
        Failure: There is none, there are two, or the file cannot be read.
    """
    from gateway.settings import SettingsError, read_secret

    try:
        value = read_secret(os.environ, name)
    except SettingsError as fault:
        raise Failure(str(fault), exit_code=ExitCode.USAGE) from None
    if value is None:
        raise Failure(f"{name} is not set", hint=hint, exit_code=ExitCode.USAGE)
    return value


def share_header() -> dict[str, str]:
    """The header with the client-held share of this process; nothing where it has none.

    Raises:
        Failure: It cannot be read.
    """
    if not (os.environ.get(_SHARE) or os.environ.get(f"{_SHARE}_FILE")):
        return {}
    return {"Stateroom-Client-Share": secret(_SHARE, hint="")}


def bypass_proxies(environ: MutableMapping[str, str]) -> None:
    """Have HTTP clients of this process and of those it starts reach this machine itself, whatever proxy is set."""
    set_already = environ.get("no_proxy") or environ.get("NO_PROXY") or ""
    hosts = [host for host in set_already.split(",") if host.strip()]
    both = ",".join([*hosts, *(host for host in LOOPBACK if host not in hosts)])
    environ["no_proxy"] = environ["NO_PROXY"] = both
