"""A root key in the transit engine of HashiCorp Vault or OpenBao, through hvac in bounded threads.

Owns the setting `vault:https://HOST:PORT/MOUNT/KEY?token_file=...&ca=...&namespace=...` and what the server's
answers mean. No secret stands in the setting: `token_file` holds the token and is read anew for every call, so
that an agent may renew it; `ca` is a file of PEM certificates to trust instead of the system's. No environment
variable is read, no proxy used and no redirect followed (it would carry the token to another host).

The transit key must be made with `derived=true`. A tenant key is bound to it by `context`, the base64 of
`"stateroom/v1/vault-context" 00 || fields(deployment, tenant, purpose, version)`, encoded as in an envelope's
context (docs/formats/envelope.md). `associated_data` is not used: the server's `rewrap` cannot check it. On a key
that is not derived the server would ignore the context without a word, so the key is read once before it first
wraps, and by `health`. The token needs `update` on `MOUNT/encrypt/KEY`, `MOUNT/decrypt/KEY` and `MOUNT/rewrap/KEY`
and `read` on `MOUNT/keys/KEY`; without `create` a key that went away is not silently replaced.

The server answers a changed wrapping, a foreign one and another context alike, so all three are `KeyDenied`.
"""

import base64
import binascii
import re
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit
from uuid import UUID

import requests
from hvac.adapters import JSONAdapter
from hvac.api.secrets_engines import Transit
from hvac.exceptions import VaultError
from requests.adapters import HTTPAdapter
from urllib3.util.retry import Retry

from crypto.context import encode_fields
from crypto.errors import CryptoError, KeyDenied, KeyUnavailable, OpenError, RootKeyInvalid
from crypto.keyring import SecretKey
from crypto.roots.base import WrappedKey, checked_context
from crypto.roots.service import (
    ATTEMPTS_MAX,
    CONNECT_SECONDS_MAX,
    READ_SECONDS_MAX,
    RETRY_AFTER_SECONDS,
    THREADS,
    ServiceThreads,
    check_endpoint,
)
from crypto.suites import KEY_BYTES

PROVIDER: Final = "vault"
FORM: Final = "vault:https://HOST:PORT/MOUNT/KEY?token_file=/PATH&ca=/PATH&namespace=NAME"
OPTIONS: Final = frozenset({"token_file", "ca", "namespace"})

_CONTEXT_PREFIX: Final = b"stateroom/v1/vault-context\0"
_PATH: Final = re.compile(r"/(?P<mount>[\w.-]+(?:/[\w.-]+)*)/(?P<name>[\w.-]+)", re.ASCII)
_NAMESPACE: Final = re.compile(r"[\w.-]+(?:/[\w.-]+)*/?", re.ASCII)
_CIPHERTEXT: Final = re.compile(rb"vault:v([1-9][0-9]{0,9}):[A-Za-z0-9+/]{1,4096}={0,2}")
_TOKEN: Final = re.compile(r"[!-~]{1,4096}")
# Types that authenticate and can derive.
_KEY_TYPES: Final = frozenset({"aes128-gcm96", "aes256-gcm96", "chacha20-poly1305", "xchacha20-poly1305"})
# hvac names exceptions for statuses, and these are the refusals; 412, 429, 5xx and redirects may pass.
_REFUSALS: Final = frozenset({"InvalidRequest", "Unauthorized", "Forbidden", "InvalidPath"})


def _context(context: Mapping[str, str]) -> str:
    named = checked_context(context)
    fields = (UUID(named["deployment"]), UUID(named["tenant"]), named["purpose"], named["version"])
    return base64.b64encode(_CONTEXT_PREFIX + encode_fields(fields)).decode()


def _read_token(path: Path) -> str:
    """Read the token that a file holds, without the white space around it.

    Raises:
        RootKeyInvalid: The file cannot be read or holds no token.
    """
    try:
        token = path.read_text("ascii").strip()
    except OSError as error:
        raise RootKeyInvalid(f"cannot read the token file {path}: {error.strerror}") from None
    except ValueError:
        raise RootKeyInvalid(f"the token file {path} holds no token") from None
    if not _TOKEN.fullmatch(token):
        raise RootKeyInvalid(f"the token file {path} holds no token")
    return token


class VaultRootKey:
    """A derived key of a transit engine. Every wait ends within a few seconds."""

    provider = PROVIDER

    def __init__(
        self, address: str, mount: str, name: str, token_file: Path, ca: Path | None, namespace: str | None
    ) -> None:
        """Take what `open` checked; use `open`."""
        self._mount = mount
        self._name = name
        self._token_file = token_file
        self._root_key_id = "/".join((address, *([namespace] if namespace else []), mount, name))
        self._derived = False
        self._threads = ServiceThreads("vault")
        self._session = requests.Session()
        # Otherwise proxies, certificates and .netrc would come from the environment.
        self._session.trust_env = False
        retry = Retry(
            total=ATTEMPTS_MAX - 1, allowed_methods=None, redirect=False, status=0, respect_retry_after_header=False
        )
        self._session.mount(f"{address}/", HTTPAdapter(pool_maxsize=THREADS, max_retries=retry))
        self._adapter = JSONAdapter(
            base_uri=address,
            verify=True if ca is None else str(ca),
            timeout=(CONNECT_SECONDS_MAX, READ_SECONDS_MAX),
            allow_redirects=False,
            session=self._session,
            namespace=namespace,
        )
        self._transit = Transit(adapter=self._adapter)

    @classmethod
    def open(cls, location: str, options: Mapping[str, str]) -> "VaultRootKey":
        """Open the key a setting names; reads the files, asks the server nothing yet.

        Args:
            location: `https://HOST:PORT/MOUNT/KEY`.
            options: `token_file`, and `ca` and `namespace` where they are needed.

        Raises:
            RootKeyInvalid: The address or a file cannot be used.
        """
        check_endpoint(location, FORM)
        parts = urlsplit(location)
        path = _PATH.fullmatch(unquote(parts.path))
        if path is None or ".." in path[0].split("/"):
            raise RootKeyInvalid(f"the address does not end in the transit engine's mount and a key's name: {FORM}")
        if "token_file" not in options:
            raise RootKeyInvalid(f"name the file that holds the token with token_file: {FORM}")
        token_file = Path(options["token_file"])
        if not token_file.is_absolute():
            raise RootKeyInvalid(f"token_file must be an absolute path: {FORM}")
        _read_token(token_file)
        ca = Path(options["ca"]) if "ca" in options else None
        if ca is not None:
            try:
                ssl.create_default_context(cafile=ca)
            except (OSError, ValueError):
                raise RootKeyInvalid(f"cannot read PEM certificates from {ca}, which ca names") from None
        namespace = options.get("namespace")
        if namespace is not None and not _NAMESPACE.fullmatch(namespace):
            raise RootKeyInvalid(f"the namespace is no name: {FORM}")
        address = f"{parts.scheme}://{parts.netloc.lower()}"
        return cls(address, path["mount"], path["name"], token_file, ca, namespace and namespace.rstrip("/"))

    def __repr__(self) -> str:
        return f"VaultRootKey({self._root_key_id!r})"

    def recognises(self, wrapped: WrappedKey) -> bool:
        """See `RootKey.recognises`."""
        return wrapped.provider == PROVIDER and wrapped.root_key_id == self._root_key_id

    async def wrap(self, key: SecretKey, context: Mapping[str, str]) -> WrappedKey:
        """Wrap a key with `encrypt`; see `RootKey.wrap`.

        Raises:
            RootKeyInvalid: The transit key is not derived, or of a type that does not authenticate.
        """
        bound = _context(context)
        if not self._derived:
            await self.health()
        answer = await self._ask(
            lambda: self._transit.encrypt_data(
                self._name,
                plaintext=base64.b64encode(key.borrow()).decode(),
                context=bound,
                mount_point=self._mount,
            )
        )
        return self._wrapped(answer)

    async def unwrap(self, wrapped: WrappedKey, context: Mapping[str, str]) -> SecretKey:
        """Unwrap a key with `decrypt`; see `RootKey.unwrap`."""
        bound = _context(context)
        ciphertext = self._ciphertext(wrapped)
        answer = await self._ask(
            lambda: self._transit.decrypt_data(
                self._name, ciphertext=ciphertext, context=bound, mount_point=self._mount
            )
        )
        try:
            material = base64.b64decode(answer.get("plaintext", ""), validate=True)
        except (binascii.Error, ValueError, TypeError):
            material = b""
        if len(material) != KEY_BYTES:
            raise OpenError("format")
        return SecretKey(material)

    async def rewrap(self, wrapped: WrappedKey, context: Mapping[str, str]) -> WrappedKey:
        """Wrap the same key under the newest version with `rewrap`: it never leaves the server."""
        bound = _context(context)
        ciphertext = self._ciphertext(wrapped)
        answer = await self._ask(
            lambda: self._transit.rewrap_data(self._name, ciphertext=ciphertext, context=bound, mount_point=self._mount)
        )
        return self._wrapped(answer)

    async def health(self) -> None:
        """Check that the server answers, is unsealed, and that the key is one that binds a context.

        Raises:
            KeyUnavailable: The server cannot be reached, is sealed or a standby, or the token file is gone.
            KeyDenied: The token may not read the key, or there is none.
            RootKeyInvalid: The key is not derived, or of a type that does not authenticate.
        """
        answer = await self._ask(lambda: self._transit.read_key(self._name, mount_point=self._mount))
        if answer.get("derived") is not True or answer.get("type") not in _KEY_TYPES:
            raise RootKeyInvalid(
                f"the transit key {self._name} must be an AES-GCM or ChaCha20-Poly1305 key made with derived=true: "
                "otherwise nothing ties a wrapped key to its tenant",
            )
        self._derived = True

    async def aclose(self) -> None:
        """Wait for the calls under way and close the connections."""
        await self._threads.aclose()
        self._session.close()

    def _ciphertext(self, wrapped: WrappedKey) -> str:
        if wrapped.provider != PROVIDER:
            raise KeyDenied("this key was wrapped by another root key provider")
        found = _CIPHERTEXT.fullmatch(wrapped.ciphertext)
        if found is None:
            raise OpenError("format")
        if found[1].decode() != wrapped.root_key_version:
            raise OpenError("authentication")
        return wrapped.ciphertext.decode()

    def _wrapped(self, answer: Mapping[str, Any]) -> WrappedKey:
        ciphertext = str(answer.get("ciphertext")).encode()
        found = _CIPHERTEXT.fullmatch(ciphertext)
        if found is None:
            raise KeyUnavailable(RETRY_AFTER_SECONDS)
        return WrappedKey(PROVIDER, self._root_key_id, found[1].decode(), ciphertext)

    async def _ask(self, work: Callable[[], Any]) -> dict[str, Any]:
        return await self._threads.run(lambda: self._call(work))

    def _call(self, work: Callable[[], Any]) -> dict[str, Any]:
        failure: CryptoError = KeyUnavailable(RETRY_AFTER_SECONDS)
        try:
            self._adapter.token = _read_token(self._token_file)
            answer = work()
        except VaultError as error:
            name = type(error).__name__
            if name in _REFUSALS:
                failure = KeyDenied(f"the transit engine refused: {name}")
        except (requests.RequestException, RootKeyInvalid):
            pass  # no connection, no answer in time, no JSON; or the token file is just being replaced
        else:
            # A standby that does not forward redirects; what answers something else is no such server.
            if isinstance(answer, dict) and isinstance(data := answer.get("data"), dict):
                return data
        # Outside the handlers, so that the library's error, which may hold the request, is not its context.
        raise failure
