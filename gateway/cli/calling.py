"""How a command calls a gateway over HTTP, and prints what it gets.

Records are named values for people, listings are tables; with ``--json`` both are exactly what the API gave, one
document a line. The SDK is imported when a connection is opened, so that every `--help` answers at once.
"""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import rich_click as click

from gateway.cli import render
from gateway.cli.parameters import Page, gathered, json_option, subject_option, url_option

if TYPE_CHECKING:
    from gateway.cli.connection import Connection, Query


_APPROVER_KEY = "STATEROOM_APPROVER_KEY"
_FILE_ATTEMPT_SECONDS = 120.0  # without any progress on the connection
_FILE_TOTAL_SECONDS = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Remote:
    """The gateway that a command calls.

    Attributes:
        url: The gateway's URL.
        subject: The subject to act for; None: the key's own.
        operator: Whether it is called with the operator's key (STATEROOM_OPERATOR_KEY), not the tenant's
            (STATEROOM_API_KEY).
        as_json: Whether results are printed as JSON.
        approver: Whether it is called with the approver's key (STATEROOM_APPROVER_KEY), where there is one.
    """

    url: str | None
    subject: str | None = None
    operator: bool = False
    as_json: bool = False
    approver: bool = False

    @property
    def _credential(self) -> str:
        if self.operator:
            return "STATEROOM_OPERATOR_KEY"
        given = any(os.environ.get(name) for name in (_APPROVER_KEY, f"{_APPROVER_KEY}_FILE"))
        return _APPROVER_KEY if self.approver and given else "STATEROOM_API_KEY"

    def connect(self, *, attempt_seconds: float = 10.0, total_seconds: float | None = None) -> "Connection":
        """Open a connection.

        Args:
            attempt_seconds: How long it may bring nothing.
            total_seconds: How long all attempts at a call may take; None: as long as one.

        Raises:
            Failure: the URL or the credential is missing or unusable, or no server listens there.
        """
        from gateway.cli.connection import Connection

        seconds = (attempt_seconds, attempt_seconds if total_seconds is None else total_seconds)
        return Connection.open(self.url, credential=self._credential, subject=self.subject, seconds=seconds)

    def connect_for_files(self) -> "Connection":
        """Open a connection over which large files go, on slow lines, too.

        Raises:
            Failure: As `connect`.
        """
        return self.connect(attempt_seconds=_FILE_ATTEMPT_SECONDS, total_seconds=_FILE_TOTAL_SECONDS)

    def path(self, *segments: str) -> list[str]:
        """The path of what the tenant and the deployment each have: the tenant's own, or the deployment's."""
        return ["admin", *segments] if self.operator else [*segments]

    def call(self, method: str, path: list[str], *, query: "Query | None" = None, body: Any = None) -> Any:
        """Make one call; see `Connection.call`."""
        with self.connect() as connection:
            return connection.call(method, path, query=query, body=body)

    def print_record(self, item: dict[str, Any]) -> None:
        """Print one resource."""
        if self.as_json:
            render.emit_json(item)
        else:
            render.record({name: render.member(name, value) for name, value in item.items()})

    def print_pages(
        self, path: list[str], member: str, page: Page, listing: "Listing", *, query: "Query | None" = None
    ) -> None:
        """Print the items of the API's list at ``path``, which are the pages' ``member``."""
        with self.connect() as connection:
            self.print_list(connection.pages(path, member, query=query, rows_wanted=page.rows_wanted), page, listing)

    def print_list(self, items: Iterable[Any], page: Page, listing: "Listing") -> None:
        """Print as many items as the page has, and say whether there are more."""
        rows, more = [], False
        for count, item in enumerate(items):
            if more := count == page.rows_wanted:
                break
            if self.as_json:
                render.emit_json(item)
            else:
                shown = listing.row(item)
                rows.append([render.member(name, shown.get(name)) for name in listing.columns])
        if not self.as_json:
            render.table(list(listing.columns.values()), rows, empty=listing.empty)
            if more:
                render.say("There is more: --limit N or --all.")


@dataclass(frozen=True, slots=True)
class Listing:
    """A table of items.

    Attributes:
        columns: The titles of the members that are shown.
        empty: The remark on an empty one.
        row: Makes the members that are shown of an item.
    """

    columns: dict[str, str]
    empty: str
    row: Callable[[Any], dict[str, Any]] = dict


def as_either(operator_help: str, *options: Callable[..., Any]) -> Callable[..., Any]:
    """Call as the tenant, or with ``--operator`` as the operator; the options are ``--url`` and more."""
    operator = click.option("--operator", is_flag=True, help=operator_help)
    return gathered("remote", Remote, operator, url_option, *options)


as_operator = gathered("remote", Remote, url_option, json_option, operator=True)
as_tenant = gathered("remote", Remote, url_option, json_option)
# Whom it acts for is what is said here alone: who decides for a tenant names no subject, whatever the environment says.
_approver_subject = click.option("--subject", metavar="ID", help="Only this subject's; the key must act for it.")
as_approver = gathered("remote", Remote, _approver_subject, url_option, json_option, approver=True)
as_subject = gathered("remote", Remote, subject_option, url_option, json_option)
# What prints nothing has no --json.
as_silent_operator = gathered("remote", Remote, url_option, operator=True)
as_silent_tenant = gathered("remote", Remote, url_option)
as_silent_subject = gathered("remote", Remote, subject_option, url_option)

yes_option = click.option("--yes", "assume_yes", is_flag=True, help="Do not ask.")


def confirm(question: str, assume_yes: bool) -> None:
    """Go on only when a person says yes, or said so beforehand."""
    if not assume_yes:
        click.confirm(question, abort=True, err=True)
