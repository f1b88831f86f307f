"""A volatile root key: the in-memory twin, for tests.

It passes the same contract suite as the others. Whatever it wraps is lost with the process, so no
configuration can name it.
"""

from crypto.keyring import SecretKey
from crypto.roots.local import LocalRootKey


class MemoryRootKey(LocalRootKey):
    """A random root key that lives as long as this object."""

    def __init__(self) -> None:
        """Start with one random version."""
        super().__init__("memory", {1: SecretKey.generate()}, 1)

    def rotate(self) -> None:
        """Add a new random version, and wrap with it from now on."""
        self._active_root_key_version += 1
        self._root_keys[self._active_root_key_version] = SecretKey.generate()
