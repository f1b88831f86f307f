"""Root keys: the outermost keys, which never enter the database.

`create_root_key` turns the operator's setting into a `RootKey`; each provider is a module of this package.
"""

from crypto.errors import RootKeyInvalid
from crypto.roots.base import RootKey, WrappedKey
from crypto.roots.file import FileRootKey
from crypto.roots.memory import MemoryRootKey

__all__ = ["FileRootKey", "MemoryRootKey", "RootKey", "WrappedKey", "create_root_key"]


def create_root_key(spec: str) -> RootKey:
    """Open the root key a setting names.

    Args:
        spec: `file:/absolute/path/to/root.key`.

    Raises:
        RootKeyInvalid: No such provider in this build, or the provider refuses its configuration.
    """
    provider, separator, location = spec.partition(":")
    if provider == "file" and separator:
        path = location.removeprefix("//")
        if not path.startswith("/"):
            raise RootKeyInvalid("a root key file needs an absolute path: file:/path/to/root.key")
        return FileRootKey.open(path)
    # The setting itself is not repeated: someone may have put a key there.
    raise RootKeyInvalid(
        "the root key setting names no supported provider; supported: file:/path/to/root.key"
    )
