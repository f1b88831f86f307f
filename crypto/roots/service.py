"""What root keys behind a network service share: bounded threads, and how their settings are read.

Both client libraries block, so a call runs in a thread of its root key's own small pool: a service that hangs
occupies those threads and nothing else. Best effort only: the libraries hold a key's bytes in immutable
objects that cannot be wiped. Which failure means what is each provider's business.
"""

import asyncio
import re
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar
from urllib.parse import parse_qsl, urlsplit

from crypto.errors import RootKeyInvalid

CONNECT_SECONDS_MAX: Final = 1.0
READ_SECONDS_MAX: Final = 2.0
ATTEMPTS_MAX: Final = 2
# A key cache starts no more loads than this at a time, so that more threads would stand idle.
THREADS: Final = 20
RETRY_AFTER_SECONDS: Final = 1.0

_LOOPBACK: Final = re.compile(r"127\.\d+\.\d+\.\d+|::1|localhost")

T = TypeVar("T")


class ServiceThreads:
    """A pool of threads for the blocking calls of one root key."""

    def __init__(self, name: str) -> None:
        """Start with no thread; they are made when calls come."""
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix=name)

    async def run(self, work: Callable[[], T]) -> T:
        """Run blocking work; a caller who is cancelled leaves it to end by its own time limits."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def aclose(self) -> None:
        """Wait for the calls under way and end the threads."""
        await asyncio.to_thread(self._threads.shutdown)


def parse_options(query: str, known: Collection[str], form: str) -> dict[str, str]:
    """Read the part of a root key's setting behind the `?`; values are percent-encoded.

    ``known`` are the names there are; ``form`` is how the whole setting looks, for the error.

    Raises:
        RootKeyInvalid: Not of the form name=value, an unknown name, one given twice, or an empty value. Names
            and values are not repeated: someone may have put a secret there.
    """
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError:
        raise RootKeyInvalid(f"the root key setting's options are not name=value: {form}") from None
    options = dict(pairs)
    if not options.keys() <= set(known):
        raise RootKeyInvalid(
            f"the root key setting has an option besides {', '.join(sorted(known))}: {form}",
        )
    if len(options) != len(pairs):
        raise RootKeyInvalid(f"the root key setting has an option twice: {form}")
    for name, value in options.items():
        if not value:
            raise RootKeyInvalid(f"the root key setting's option {name} is empty: {form}")
    return options


def check_endpoint(url: str, form: str) -> None:
    """Refuse an address that would send keys in the clear, or that carries a credential.

    Raises:
        RootKeyInvalid: Not https (http is for this machine's own addresses), no host, a user or password, a
            query or a fragment.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise RootKeyInvalid(f"the root key service's address cannot be parsed: {form}") from None
    if parts.username is not None or parts.password is not None:
        raise RootKeyInvalid(f"the root key service's address must not hold a credential: {form}")
    if not host or port == 0 or parts.query or parts.fragment:
        raise RootKeyInvalid(f"the root key service's address is not https://HOST[:PORT]: {form}")
    if parts.scheme != "https" and not (parts.scheme == "http" and _LOOPBACK.fullmatch(host)):
        raise RootKeyInvalid(
            "the root key service's address must be https: keys travel through it (http only to loopback)",
        )
