"""How the C library gives memory back.

Owns two settings of glibc's allocator, whatever the environment says, and nothing where another library is used. Parts
of artifacts are buffers of 8 MiB that come and go in several threads. As glibc adapts by itself (mallopt(3),
M_MMAP_THRESHOLD), it soon keeps such buffers in its heaps, one for each thread, where what lies between holds them:
downloading 4 GiB left the process 150 MiB larger, of which it ever used less than 50 at once. It promises no bound;
`storage.ledger.streams` does.
"""

import ctypes

# From glibc's malloc.h.
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
# From here on a buffer is a mapping of its own, and goes when it is freed; setting it ends the adapting.
_OWN_MAPPING_BYTES_MIN = 1 << 20
# Under the interpreter's lock, threads seldom allocate at once.
_ARENAS_MAX = 2


def give_large_buffers_back() -> bool:
    """Let large buffers go back to the system when they are freed; call it before threads are started.

    Returns:
        Whether it was done: another C library than glibc is left as it is.
    """
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return False
    return bool(
        library.mallopt(_M_MMAP_THRESHOLD, _OWN_MAPPING_BYTES_MIN) and library.mallopt(_M_ARENA_MAX, _ARENAS_MAX)
    )
