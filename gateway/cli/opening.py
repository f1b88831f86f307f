"""Opens the connection that a command uses, and imports the SDK only then, so that every `--help` answers at once."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.cli.connection import Connection

CONNECT_SECONDS = 2.0


def as_operator(url: str | None) -> "Connection":
    """Connect with the operator's key (STATEROOM_OPERATOR_KEY)."""
    from gateway.cli.connection import Connection

    return Connection.open(url, credential="STATEROOM_OPERATOR_KEY", subject=None)


def as_tenant(url: str | None, subject: str | None = None) -> "Connection":
    """Connect with the tenant's key (STATEROOM_API_KEY), for one of its subjects or for the key's own."""
    from gateway.cli.connection import Connection

    return Connection.open(url, credential="STATEROOM_API_KEY", subject=subject)


def as_either(url: str | None, *, operator: bool) -> "Connection":
    """Connect as the operator or as the tenant, as a command's ``--operator`` says."""
    return as_operator(url) if operator else as_tenant(url)


def patiently(
    url: str | None, subject: str | None, *, attempt_seconds: float, total_seconds: float | None = None
) -> "Connection":
    """Connect as the tenant for what takes long.

    Args:
        url: Where the gateway answers.
        subject: Whom to act for; None: the key's own.
        attempt_seconds: How long a connection may bring nothing.
        total_seconds: How long all attempts may take; None: as long as one.
    """
    from gateway.cli.connection import Connection
    from stateroom import Timeouts

    timeouts = Timeouts(
        connect_seconds=CONNECT_SECONDS,
        attempt_seconds=attempt_seconds,
        total_seconds=attempt_seconds if total_seconds is None else total_seconds,
    )
    return Connection.open(url, credential="STATEROOM_API_KEY", subject=subject, timeouts=timeouts)
