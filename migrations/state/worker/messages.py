"""What a worker process and the process that started it say to each other.

A message is the length of its head, the head in MessagePack, and the values, whose lengths the head names. It knows
neither how a worker is started (`storage.schemas.workers`) nor what it does (`migrations.state.worker.__main__`).
"""

from typing import BinaryIO, Final

import msgspec

from migrations.state.tasks import Answer, Request

# The worst legal requests are named at the limits of what is registered (`json_schemas`, `declarative`, `patterns`) and
# at `confinement.MEMORY_BYTES_MAX`; an honest state of 32 MiB takes a third of this.
CPU_SECONDS_MAX: Final = 0.2
_LENGTH_BYTES: Final = 4
_encoder = msgspec.msgpack.Encoder()


class Begin(msgspec.Struct, frozen=True):
    """What a worker is told first.

    Attributes:
        path: Where Python looks for the packages in which a deployment ships steps.
        steps_folder: The deployment's own folder of steps.
        traceable: Whether debuggers and profilers may look into it.
    """

    path: list[str]
    steps_folder: str | None = None
    traceable: bool = False


class Ready(msgspec.Struct, frozen=True):
    """A worker has started. ``fault``: it cannot work, because the deployment's steps (``step``) are no chain."""

    step: str = ""
    fault: str | None = None


class Asked(msgspec.Struct, frozen=True):
    """A request, and the lengths of its values."""

    request: Request
    sizes: list[int] = []


class Answered(msgspec.Struct, frozen=True):
    """An answer, and the lengths of its values. ``is_full``: the worker wants to be replaced."""

    answer: Answer
    sizes: list[int] = []
    is_full: bool = False


def framed(message: msgspec.Struct) -> bytes:
    """The head of a message, with its length."""
    head = bytearray(_LENGTH_BYTES)
    _encoder.encode_into(message, head, _LENGTH_BYTES)  # `encode` ends the process when there is no memory
    head[:_LENGTH_BYTES] = (len(head) - _LENGTH_BYTES).to_bytes(_LENGTH_BYTES)
    return bytes(head)


def read_head(incoming: BinaryIO) -> bytes | None:
    """The head of the next message, without its length; None: the other end is gone."""
    length = incoming.read(_LENGTH_BYTES)
    return incoming.read(int.from_bytes(length)) if len(length) == _LENGTH_BYTES else None
