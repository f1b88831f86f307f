"""The settings of a server's process, and their only reader: what the environment holds, and what is wrong with it.

Twenty variables, all prefixed ``STATEROOM_``; a secret may also come from a file named by ``<NAME>_FILE``, and so
may a client's credentials, which `read_secret` reads by the same rule. No secret has a default, none is shown by
``repr`` or by a fault. Everything else that could be configured is a named constant with a reason, or a row in the
database. This module does not connect to anything.
"""

import base64
import binascii
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import msgspec
import msgspec.structs

from gateway.sizes import parse_size
from storage.keys.key_seals import FIRST_PEPPER_VERSION, Pepper, Peppers

PREFIX = "STATEROOM_"
CONNECTIONS_MAX = 20  # of a process, where nothing is said
REQUESTS_IN_FLIGHT_MAX = 256  # of a process, where nothing is said
BLOB_QUOTA_BYTES = 100 * 2**30  # of a new tenant, where nothing is said
ROW_QUOTA_BYTES = 20 * 2**30  # likewise: rows are dearer than objects
PEPPER_BYTES_MIN = 32  # the strength of HMAC-SHA256
SECRETS = frozenset(
    {
        "database_url",
        "database_owner_url",
        "s3_url",
        "archive_url",
        "root_key",
        "api_key_pepper",
        "api_key_peppers_accepted",
    }
)  # URLs carry passwords
_PEPPERS_MAX = 32_767
_HEX = re.compile(r"(?:[0-9A-Fa-f]{2})+\Z")
_LOG_LEVELS = ("debug", "info", "warning", "error")


class SettingsError(Exception):
    """A setting is missing or wrong; the message names the variable and says how to fix it."""


class Address(msgspec.Struct, frozen=True):
    """Where to listen."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a serving process is told from outside: all but ``STATEROOM_DATABASE_OWNER_URL`` (`owner_url`).

    Attributes:
        database_url: PostgreSQL as the serving role (neither superuser nor owner).
        root_key: The key that wraps tenant keys: ``file:...``, ``aws-kms:...`` or ``vault:...``.
        api_key_pepper: At least 32 bytes, mixed into every stored API key.
        api_key_pepper_version: The pepper's number.
        api_key_peppers_accepted: Other peppers, by which keys are checked too.
        deployment_id: Part of every seal's context; must equal the database's.
        database_connections_max: Connections of this process.
        s3_url: Bucket of blobs. None: values stay in PostgreSQL.
        archive_url: Bucket of archived threads. None: nothing is archived.
        listen: The address of the API.
        metrics_listen: The address that Prometheus scrapes; never the API's. None: there is none.
        public_url: How clients reach the API, without a trailing slash; where nothing is said, at `listen`.
        requests_in_flight_max: Requests at once; more are answered 503 ``overloaded``.
        drain_seconds: How long to keep serving after a stop was asked for.
        backup_retention_days: No blob is deleted sooner than this after it was unreferenced.
        default_blob_quota: Bytes that a new tenant may keep in the object store. None: as many as it likes.
        default_row_quota: Bytes that a new tenant's rows may take in PostgreSQL. None: likewise.
        log_level: ``debug``, ``info``, ``warning`` or ``error``.
        traceable: Whether debuggers and profilers may look into this process and its workers, and cores be written.
    """

    database_url: str
    root_key: str
    api_key_pepper: bytes
    deployment_id: UUID
    api_key_pepper_version: int = FIRST_PEPPER_VERSION
    api_key_peppers_accepted: tuple[Pepper, ...] = ()
    database_connections_max: int = CONNECTIONS_MAX
    s3_url: str | None = None
    archive_url: str | None = None
    listen: Address = Address("127.0.0.1", 8080)
    metrics_listen: Address | None = Address("127.0.0.1", 9090)
    public_url: str = ""
    requests_in_flight_max: int = REQUESTS_IN_FLIGHT_MAX
    drain_seconds: float = 10.0
    backup_retention_days: int = 30
    default_blob_quota: int | None = BLOB_QUOTA_BYTES
    default_row_quota: int | None = ROW_QUOTA_BYTES
    log_level: str = "info"
    traceable: bool = False

    def __post_init__(self) -> None:
        if len(self.api_key_pepper) < PEPPER_BYTES_MIN:
            raise SettingsError(
                f"{PREFIX}API_KEY_PEPPER has fewer than {PEPPER_BYTES_MIN} bytes; make one with `openssl rand -hex 32`"
            )
        if not self.public_url:
            msgspec.structs.force_setattr(self, "public_url", f"http://{self.listen}")
        if self.api_key_pepper_version in {each.version for each in self.api_key_peppers_accepted}:
            raise SettingsError(
                f"{PREFIX}API_KEY_PEPPERS_ACCEPTED names version {self.api_key_pepper_version}, which is the active"
                f" pepper's; give each pepper a number of its own"
            )

    def listening_on(self, address: Address) -> "Settings":
        """The same at another address, which is the public one, too, unless another was set."""
        derived = self.public_url == f"http://{self.listen}"
        return msgspec.structs.replace(self, listen=address, public_url="" if derived else self.public_url)

    @property
    def peppers(self) -> Peppers:
        """What API keys are checked with, and which of them makes new ones."""
        return Peppers(Pepper(self.api_key_pepper_version, self.api_key_pepper), self.api_key_peppers_accepted)

    def __repr__(self) -> str:
        shown = ", ".join(
            f"{name}={'<secret>' if name in SECRETS and value is not None else repr(value)}"
            for name in self.__struct_fields__
            for value in [getattr(self, name)]
        )
        return f"Settings({shown})"

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> "Settings":
        """Read ``environ`` (usually `os.environ`).

        Raises:
            SettingsError: a variable is missing or wrong.
        """
        values, faults = parse(environ)
        if faults:
            raise SettingsError("\n".join(faults))
        values.pop(_OWNER_URL, None)
        return cls(**values)


def parse(environ: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    """What can be used of ``environ``, by the names of `Settings`' attributes, and what is missing or wrong in it."""
    values: dict[str, Any] = {}
    faults = []
    for name, parser in _PARSERS.items():
        try:
            if (text := _text(environ, name)) is not None:
                values[name] = parser(name, text)
            elif hint := _REQUIRED.get(name):
                also = f" or {_variable(name)}_FILE" if name in SECRETS else ""
                faults.append(f"{_variable(name)}{also} is not set; {hint}")
        except SettingsError as fault:
            faults.append(str(fault))
    return values, faults


def owner_url(environ: Mapping[str, str]) -> str | None:
    """The URL of the role that migrates, which needs no other setting; None where there is none.

    Raises:
        SettingsError: it is wrong.
    """
    return _url_alone(environ, _OWNER_URL)


def serving_url(environ: Mapping[str, str]) -> str | None:
    """The URL of the role that serves, for what needs no other setting; None where there is none.

    Raises:
        SettingsError: it is wrong.
    """
    return _url_alone(environ, "database_url")


def _url_alone(environ: Mapping[str, str], name: str) -> str | None:
    text = _text(environ, name)
    return None if text is None else _database_url(name, text)


def read_secret(environ: Mapping[str, str], variable: str) -> str | None:
    """The secret in a variable, or in the file that ``<variable>_FILE`` names; None where neither is set.

    Raises:
        SettingsError: both are set, or the file cannot be read or holds nothing.
    """
    text = environ.get(variable, "").strip() or None
    path = environ.get(f"{variable}_FILE")
    if not path:
        return text
    if text is not None:
        raise SettingsError(f"{variable} and {variable}_FILE are both set; remove one")
    try:
        text = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as reason:
        raise SettingsError(
            f"{variable}_FILE names a file that cannot be read ({type(reason).__name__}); check path and mode"
        ) from None
    if not text:
        raise SettingsError(f"{variable}_FILE names an empty file; write the secret into it")
    return text


_OWNER_URL = "database_owner_url"
_REQUIRED = {
    "database_url": "set it to postgresql://user:password@host/database of the serving role",
    "root_key": "set it to file:<path>, aws-kms:<key arn> or vault:<url and key name>",
    "api_key_pepper": "make one with `openssl rand -hex 32` and keep it: without it no API key verifies",
    "deployment_id": "set it to the UUID that `stateroom init` printed",
}


def _variable(name: str) -> str:
    return PREFIX + name.upper()


def _wrong(name: str, how: str) -> SettingsError:
    return SettingsError(f"{_variable(name)} {how}")  # never the value: it may be a secret


def _text(environ: Mapping[str, str], name: str) -> str | None:
    variable = _variable(name)
    return read_secret(environ, variable) if name in SECRETS else environ.get(variable) or None


def _plain(_name: str, text: str) -> str:
    return text


def _database_url(name: str, text: str) -> str:
    from sqlalchemy.engine import make_url  # noqa: PLC0415  a client's credentials are read without it
    from sqlalchemy.exc import ArgumentError  # noqa: PLC0415

    from storage.postgres.engine import PARAMETERS  # noqa: PLC0415

    try:
        url = make_url(text)
        backend = url.get_backend_name()
    except (ArgumentError, ValueError):  # a port that is no number; its message quotes what may be the password
        backend = ""
    if backend != "postgresql":
        raise _wrong(name, "is not a database URL; set it to postgresql://user:password@host:port/database")
    if not url.query.keys() <= PARAMETERS:  # unnamed: it may be a password that was not percent-encoded
        raise _wrong(name, f"has a parameter after its ? that is none of {', '.join(sorted(PARAMETERS))}")
    return text


def _pepper(name: str, text: str) -> bytes:
    if _HEX.match(text):
        pepper = bytes.fromhex(text)
    else:
        try:
            pepper = base64.b64decode(text.translate({45: "+", 95: "/"}) + "=" * (-len(text) % 4), validate=True)
        except binascii.Error:
            raise _wrong(name, "is neither hex nor base64; make one with `openssl rand -hex 32`") from None
    if len(pepper) < PEPPER_BYTES_MIN:
        raise _wrong(name, f"has fewer than {PEPPER_BYTES_MIN} bytes; make one with `openssl rand -hex 32`")
    return pepper


def _peppers(name: str, text: str) -> tuple[Pepper, ...]:
    peppers = {}
    for each in text.split():
        number, colon, pepper = each.partition(":")
        if not colon or not number.isascii() or not number.isdigit() or not 1 <= int(number) <= _PEPPERS_MAX:
            raise _wrong(name, "must be peppers with their numbers: 1:<hex> 2:<hex>")
        if int(number) in peppers:
            raise _wrong(name, f"names version {int(number)} twice")
        peppers[int(number)] = Pepper(int(number), _pepper(name, pepper))
    return tuple(peppers.values())


def _uuid(name: str, text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise _wrong(name, "is not a UUID; set it to the one that `stateroom init` printed") from None


def _integer(low: int, high: int) -> Any:
    def parse(name: str, text: str) -> int:
        if not (text.isascii() and text.isdigit() and low <= int(text) <= high):
            raise _wrong(name, f"must be a whole number from {low:,} to {high:,}")
        return int(text)

    return parse


def _seconds(name: str, text: str) -> float:
    if not re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,3})?", text):
        raise _wrong(name, "must be a number of seconds from 0 to 9999")
    return float(text)


def _quota(name: str, text: str) -> int | None:
    if text == "none":
        return None
    try:
        size = parse_size(text)
    except ValueError:
        size = 0
    if not size:
        raise _wrong(name, "must be a number of bytes such as 20GiB, or none: new tenants keep as much as they like")
    return size


def _address(name: str, text: str) -> Address | None:
    if name == "metrics_listen" and text == "off":
        return None
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or port is None or parts.path or parts.username:
        raise _wrong(name, "must be <host>:<port>, for example 127.0.0.1:8080 or [::1]:8080")
    return Address(host, port)


def _public_url(name: str, text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment or parts.username:
        raise _wrong(name, "must be an http or https URL such as https://stateroom.example.com")
    return text.rstrip("/")


def _log_level(name: str, text: str) -> str:
    if text.lower() not in _LOG_LEVELS:
        raise _wrong(name, f"must be one of {', '.join(_LOG_LEVELS)}")
    return text.lower()


def _switch(name: str, text: str) -> bool:
    if text not in {"on", "off"}:
        raise _wrong(name, "must be on or off")
    return text == "on"


_PARSERS: dict[str, Any] = {
    "database_url": _database_url,
    "database_owner_url": _database_url,
    "database_connections_max": _integer(1, 1000),
    "s3_url": _plain,
    "archive_url": _plain,
    "root_key": _plain,
    "api_key_pepper": _pepper,
    "api_key_pepper_version": _integer(1, _PEPPERS_MAX),
    "api_key_peppers_accepted": _peppers,
    "deployment_id": _uuid,
    "listen": _address,
    "metrics_listen": _address,
    "public_url": _public_url,
    "requests_in_flight_max": _integer(1, 100_000),
    "drain_seconds": _seconds,
    "backup_retention_days": _integer(0, 3650),
    "default_blob_quota": _quota,
    "default_row_quota": _quota,
    "log_level": _log_level,
    "traceable": _switch,
}
VARIABLES = tuple(_variable(name) for name in _PARSERS)
