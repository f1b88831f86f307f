import pytest
import zstandard

from crypto.compression import compress_if_smaller, inflate
from crypto.errors import OpenError
from tests.support.little_memory import outcomes


def test_what_is_no_frame_is_damage():
    frame = compress_if_smaller(b"a" * 1000)
    assert frame is not None
    assert inflate(frame, 1000) == b"a" * 1000
    with pytest.raises(OpenError):
        inflate(frame[:-1], 1000)


@pytest.mark.parametrize("stated", [999, 1001])
def test_a_frame_that_states_another_size_than_its_contents_is_damage(stated):
    frame = compress_if_smaller(b"a" * 1000)
    # RFC 8878, 3.1.1.1.4: in two bytes a size is stated less 256.
    lying = frame.replace((1000 - 256).to_bytes(2, "little"), (stated - 256).to_bytes(2, "little"), 1)
    assert zstandard.get_frame_parameters(lying).content_size == stated
    for expected in (stated, 1000):
        with pytest.raises(OpenError):
            inflate(lying, expected)


@pytest.mark.slow
@pytest.mark.parametrize("new", [True, False], ids=["of a new thread", "of one that compressed before"])
def test_without_memory_is_a_memory_error_and_never_damage(new):
    # zstd itself takes some hundred KiB beside its output, and has its own word for not getting them.
    code = f"""
        from crypto import compression
        raw = bytes(range(256)) * 4000
        def act():
            if {new}:
                compression._coders.__dict__.clear()
                compression._coders.__init__()
            frame = compression.compress_if_smaller(raw)
            compression.inflate(frame, len(raw))
    """
    ended, came = outcomes(code, range(0, 6000, 40))
    assert (ended, came) == (0, {"done", "MemoryError"})
