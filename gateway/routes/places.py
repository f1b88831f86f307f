"""Places in a thread as requests name them: namespaces, and checkpoints."""

from typing import Final

from gateway import wire
from gateway.problems import InvalidRequest
from gateway.wire.problems import Fault
from storage.errors import InvalidState
from storage.scope import is_plain_id

LATEST: Final = "latest"  # so no checkpoint can have this id


def check_checkpoint_id(checkpoint_id: str, where: str) -> str:
    """An id that a checkpoint can have; ``where`` is its pointer."""
    if not is_plain_id(checkpoint_id) or checkpoint_id == LATEST:
        raise InvalidState("a checkpoint id matches [A-Za-z0-9][A-Za-z0-9._:@|+-]{0,254}", where)
    return checkpoint_id


def check_namespace(namespace: str, **where: str) -> str:
    """A namespace: `wire.base.NAMESPACE_BYTES_MAX` bytes; ``where`` is ``pointer=`` or ``parameter=``."""
    if len(namespace.encode()) > wire.base.NAMESPACE_BYTES_MAX:
        detail = f"a namespace has at most {wire.base.NAMESPACE_BYTES_MAX:,} bytes"
        raise InvalidRequest(Fault(detail=detail, **where), limit="NAMESPACE_BYTES_MAX")
    return namespace
