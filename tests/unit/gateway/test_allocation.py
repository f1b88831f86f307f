"""Large buffers go back to the system, also after the allocator would have adapted to them."""

import platform
import subprocess
import sys

import pytest

# `hblkhd` of mallinfo2(3): the bytes in mappings of their own, which go when they are freed.
_MAPPED = """
import ctypes
from gateway.allocation import give_large_buffers_back
class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks a b c".split()]
mallinfo = ctypes.CDLL(None).mallinfo2
mallinfo.restype = Info
{before}
bytearray(16 << 20)
before = mallinfo().hblkhd
part = bytearray(8 << 20)
print(mallinfo().hblkhd - before >= 8 << 20)
"""


def mapped(before: str) -> str:
    program = _MAPPED.format(before=before)
    return subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.strip()


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the setting is glibc's")
def test_a_large_buffer_is_a_mapping_of_its_own_also_after_another_was_freed() -> None:
    assert mapped("assert give_large_buffers_back()") == "True"
    assert mapped("") == "False"  # what glibc does by itself
