"""A gateway as the command line sees it: the SDK's client, with problems turned into failures to act on.

Owns which credential a command uses and what is said about each problem. Credentials come from the
environment (``STATEROOM_API_KEY``, ``STATEROOM_OPERATOR_KEY``, or a file named by the same name with
``_FILE``), never from the command line, where other users of the host could read them.
"""

import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self
from urllib.parse import quote, urlsplit
from urllib.request import getproxies, proxy_bypass

import stateroom
from gateway.cli.environment import secret
from gateway.cli.failure import ExitCode, Failure
from stateroom import errors

Query = Mapping[str, str | int | None]
KEY_HINT = "An embedded gateway writes its keys: stateroom serve --embedded --write-env FILE; then: . FILE"
PAGE_ROWS_MAX = 1000  # the API's own limit of a page
PAGE_ROWS_STEP = 200  # of an open-ended listing: the first rows should come soon
CONNECT_SECONDS = 2.0  # somebody waits

_NOBODY_THERE = "Does a gateway run at STATEROOM_URL? stateroom serve --embedded starts one here."
_HINTS = {
    "unauthenticated": "Is {credential} the whole key, of this gateway, neither expired nor revoked?",
    "permission-denied": "This command needs another permission than the key in {credential} has.",
    "subject-required": "Name the subject with --subject or STATEROOM_SUBJECT.",
    "subject-mismatch": "The key is bound to a subject; leave out --subject and STATEROOM_SUBJECT.",
    "thread-not-found": "Threads belong to a subject: is --subject the right one? See: stateroom thread list",
    "checkpoint-not-found": "See: stateroom checkpoint list THREAD_ID (and --namespace).",
    "item-not-found": "Items belong to a subject: is --subject the right one? See: stateroom item paths",
    "item-moved": "Read it again with stateroom item get, and put what you want there now.",
    "item-exists": "Leave out --if-absent to replace it.",
    "artifact-not-found": "Artifacts belong to a subject: is --subject the right one? See: stateroom artifact list",
    "artifact-referenced": "A checkpoint names it: prune or delete what does, then delete the artifact.",
    "upload-not-found": "It was completed, given up, or has expired: upload without --resume.",
    "last-admin-key": "Make another one first, or end this one all the same with --force.",
    "quota-exceeded": "Prune, delete or archive threads, delete artifacts, or ask the operator for a larger quota.",
    "approval-not-found": "See: stateroom approvals list",
    "approval-not-yours": "Somebody else approves: with another key, which is older than the question.",
    "action-changed": "Look again at what is asked: stateroom approvals show ID",
    "approval-decided": "See: stateroom approvals show ID",
    "events-off": "A tenant:admin switches events on: stateroom events on",
    "events-expired": "List what there is now, then: stateroom events --follow",
    "events-rewound": "List what there is now, then: stateroom events --follow",
    "thread-exists": "Choose another id, or delete that thread first.",
    "draining": "The gateway is shutting down; another one should answer soon.",
    "internal": "This is a defect of the gateway: its log tells more under the request id.",
    "rollback-detected": "An older copy of the database, or another thread under this name, is being served.",
    "integrity-failure": "Stored state was changed outside the gateway or lost. See: stateroom verify tenant",
}


def failure_from(error: errors.StateroomError, credential: str) -> Failure:
    """Return what to tell a person about ``error``."""
    faults = [
        f"{fault.pointer or fault.parameter or fault.header or 'request'}: {fault.detail}" for fault in error.errors
    ]
    facts = {"code": error.code}
    if error.status:
        facts["status"] = str(error.status)
    if error.request_id:
        facts["request id"] = error.request_id
    if error.limit:
        facts["limit"] = error.limit
    if error.head_id:
        facts["head"] = error.head_id
    if error.revision:
        facts["revision"] = str(error.revision)
    hint = _HINTS.get(error.code, "The same command may succeed in a moment." if error.retryable else "")
    if isinstance(error, errors.GatewayUnavailable) and not error.status:
        hint = _NOBODY_THERE
    return Failure(
        error.code.replace("-", " ").capitalize(),
        detail="\n".join([error.detail, *faults]).strip(),
        hint=hint.format(credential=credential),
        facts=facts,
        exit_code=_exit_code(error),
    )


def _exit_code(error: errors.StateroomError) -> ExitCode:
    match error:
        case errors.SubjectRequired() | errors.NotConfigured():
            return ExitCode.USAGE
        case errors.NotFound():
            return ExitCode.NOT_FOUND
        case errors.Unauthenticated() | errors.PermissionDenied():
            return ExitCode.DENIED
        case errors.GatewayUnavailable() | errors.Busy() | errors.KeyUnavailable():
            return ExitCode.UNAVAILABLE
        case errors.Conflict() | errors.PreconditionRequired():
            return ExitCode.CONFLICT
        case _:
            return ExitCode.FAILURE


def _address(url: str | None) -> tuple[str, str, int]:
    """The scheme, host and port of the gateway's URL.

    Raises:
        Failure: There is none, or it is no URL.
    """
    hint = "Name the gateway with --url or STATEROOM_URL, such as http://127.0.0.1:8080"
    if not url:
        raise Failure("STATEROOM_URL is not set", hint=hint, exit_code=ExitCode.USAGE)
    try:
        parts = urlsplit(url)
        port = parts.port or {"http": 80, "https": 443}[parts.scheme]
    except (ValueError, KeyError):  # no scheme of ours, a port that is none, brackets that do not end
        parts = None
    if parts is None or not parts.hostname:
        raise Failure("STATEROOM_URL is not an http or https URL", hint=hint, exit_code=ExitCode.USAGE)
    return parts.scheme, parts.hostname, port


def _knock(scheme: str, host: str, port: int) -> None:
    """See whether anybody listens there: the SDK would wait and try again, a person wants to know now.

    Raises:
        Failure: Nobody does. Through a proxy nothing can be said, and nothing is.
    """
    if scheme in getproxies() and not proxy_bypass(host):
        return
    try:
        socket.create_connection((host, port), timeout=CONNECT_SECONDS).close()
    except (OSError, UnicodeError) as error:  # a host name that cannot be one
        raise Failure(
            "Gateway unavailable",
            detail=f"{host}:{port}: {getattr(error, 'strerror', None) or type(error).__name__}",
            hint=_NOBODY_THERE,
            exit_code=ExitCode.UNAVAILABLE,
        ) from None


class Connection:
    """Calls of one gateway with one credential.

    Args:
        client: The SDK's client.
        credential: Name of the variable the credential came from, for hints.
    """

    def __init__(self, client: stateroom.Client, credential: str) -> None:
        self._client = client
        self._credential = credential

    @classmethod
    def open(
        cls,
        url: str | None,
        *,
        credential: str,
        subject: str | None,
        seconds: tuple[float, float],
    ) -> Self:
        """Return a connection to a gateway that can be reached; nothing is sent yet.

        Args:
            url: The gateway's URL.
            credential: Name of the variable that holds the API key.
            subject: The subject to act for, or None for the key's own.
            seconds: How long an attempt at a call may bring nothing, and how long all of them may take.

        Raises:
            Failure: The URL or the credential is missing or unusable, or no server listens there.
        """
        address = _address(url)
        api_key = secret(credential, hint=KEY_HINT)
        timeouts = stateroom.Timeouts(
            connect_seconds=CONNECT_SECONDS, attempt_seconds=seconds[0], total_seconds=seconds[1]
        )
        try:
            client = stateroom.Client(url or "", api_key, subject=subject, timeouts=timeouts)
        except errors.StateroomError as error:
            raise failure_from(error, credential) from None
        _knock(*address)
        return cls(client, credential)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    @contextmanager
    def sdk(self) -> Iterator[stateroom.Client]:
        """The SDK's client, for what it does better than single calls; its problems become failures.

        Raises:
            Failure: The gateway refused or did not answer.
        """
        try:
            yield self._client
        except errors.StateroomError as error:
            raise failure_from(error, self._credential) from None

    def call(
        self,
        method: str,
        path: Sequence[str],
        *,
        query: Query | None = None,
        body: Any = None,
        head_id: str | None = None,
    ) -> Any:
        """Call the API and return the plain value of its answer, None when it has none.

        Args:
            method: HTTP method.
            path: Segments below ``/v1``, ids as they are.
            query: Parameters; None is left out.
            body: The body to send.
            head_id: Only if this is still the head.

        Raises:
            Failure: The gateway refused or did not answer.
        """
        try:
            target = "/" + "/".join(quote(stateroom.encode_id(part), safe="~._:@+-") for part in path)
            # JSON, so that what is printed with --json is what the API documents.
            headers = {"Accept": "application/json"}
            if head_id is not None:
                headers["If-Match"] = f'"{stateroom.encode_id(head_id)}"'
            answer = self._client.request(method, target, params=query, body=body, headers=headers)
            return answer.decode() if answer.body else None
        except errors.StateroomError as error:
            raise failure_from(error, self._credential) from None

    def events(self, **wanted: Any) -> Iterator[stateroom.Event]:
        """Yield events as they happen; ``wanted`` is as for the client's ``events``.

        Raises:
            Failure: As for `call`; while it follows, it goes on by itself once a gateway has answered.
        """
        try:
            yield from self._client.events(**wanted)
        except errors.StateroomError as error:
            raise failure_from(error, self._credential) from None

    def each_page(
        self, method: str, path: Sequence[str], *, query: Query | None = None, body: dict[str, Any] | None = None
    ) -> Iterator[dict[str, Any]]:
        """Yield pages as long as the caller takes them; the cursor of the next goes where the first's other values are.

        Args:
            method: As for `call`.
            path: As for `call`.
            query: As for `call`.
            body: As for `call`; without one, the cursor is a parameter.

        Raises:
            Failure: As for `call`.
        """
        cursor: str | None = None
        while True:
            if body is None:
                page = self.call(method, path, query={**(query or {}), "cursor": cursor})
            else:
                page = self.call(method, path, query=query, body={**body, "cursor": cursor})
            yield page
            cursor = page["next_cursor"]
            if cursor is None:
                return

    def pages(
        self, path: Sequence[str], member: str, *, query: Query | None = None, rows_wanted: int | None = None
    ) -> Iterator[dict[str, Any]]:
        """Yield the items of a listing, page after page, as long as the caller takes them.

        Args:
            path: As for `call`.
            member: The page's member that holds the items.
            query: As for `call`.
            rows_wanted: How many will be taken at most; None for all.

        Raises:
            Failure: As for `call`.
        """
        # One more than is shown tells whether there are more.
        limit = PAGE_ROWS_STEP if rows_wanted is None else min(rows_wanted + 1, PAGE_ROWS_MAX)
        for page in self.each_page("GET", path, query={**(query or {}), "limit": limit}):
            yield from page[member]
