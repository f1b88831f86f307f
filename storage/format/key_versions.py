"""The key version that a row names in a clear column, beside an envelope that says under which it was sealed.

Nothing is decided by the column, but people and their tools read it: one that was edited is damage, and told.
"""

from crypto import OpenError, peek_header
from storage.errors import IntegrityFailure


def check_key_version(named: int, envelope: bytes) -> None:
    """Compare the key version that a row names with the one of its envelope.

    An envelope that was opened is authentic. One that cannot be opened here tells damage all the same: they differ.

    Raises:
        IntegrityFailure: they are not the same, or it is no envelope.
    """
    try:
        version = peek_header(envelope).key_version
    except OpenError:
        raise IntegrityFailure from None
    if named != version:
        raise IntegrityFailure("a row names another key version than its envelope was sealed under")
