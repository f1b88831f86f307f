"""Opens the connection that a command uses, and imports the SDK only then, so that every `--help` answers at once."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.cli.connection import Connection


def as_operator(url: str | None) -> "Connection":
    """Connect with the operator's key (STATEROOM_OPERATOR_KEY)."""
    from gateway.cli.connection import Connection

    return Connection.open(url, credential="STATEROOM_OPERATOR_KEY", subject=None)


def as_tenant(url: str | None, subject: str | None = None) -> "Connection":
    """Connect with the tenant's key (STATEROOM_API_KEY), for one of its subjects or for the key's own."""
    from gateway.cli.connection import Connection

    return Connection.open(url, credential="STATEROOM_API_KEY", subject=subject)
