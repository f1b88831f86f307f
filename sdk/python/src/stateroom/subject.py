"""Who a request is made for.

This module owns the subject of the running task: a context variable, so that it follows ``async`` tasks and,
through copied contexts, worker threads. It does not check that a subject exists or that the credential may
act for it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar

from stateroom.errors import SubjectRequired

Subject = str | Callable[[], str | None] | None
"""A subject's id, a callable that returns it at request time, or ``None``: the credential's own."""

SHARED = "~shared"
"""The tenant's own subject, for state that belongs to no single user."""

_acting_for: ContextVar[str | None] = ContextVar("stateroom_subject", default=None)


def current_subject() -> str | None:
    """The subject of the innermost ``acting_for``, or ``None``; give this function as ``subject=``."""
    return _acting_for.get()


@contextmanager
def acting_for(subject: str) -> Iterator[None]:
    """Make every request inside the block act for ``subject``.

    Args:
        subject: The user's id inside the tenant.

    Raises:
        SubjectRequired: ``subject`` is empty.
    """
    if not subject:
        raise SubjectRequired("acting_for() needs a subject that is not empty")
    token = _acting_for.set(subject)
    try:
        yield
    finally:
        # A generator may be read on, and ended, in another context than the one it began in: nothing was set there.
        with suppress(ValueError):
            _acting_for.reset(token)


def resolve_subject(subject: Subject) -> str | None:
    """The subject of a request that is about to be sent.

    Args:
        subject: What the client was given.

    Returns:
        A subject's id, or ``None`` when the credential itself is bound to one.

    Raises:
        SubjectRequired: A callable returned nothing, or the subject is empty.
    """
    if subject is None:
        return None
    named = subject() if callable(subject) else subject
    if not named:
        raise SubjectRequired("no subject: use `with acting_for(...)`, or give the client a subject")
    return named
