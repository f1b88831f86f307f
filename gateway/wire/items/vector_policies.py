"""Bodies of vector policies."""

from datetime import datetime
from typing import Literal

from gateway.wire.base import Request, Response


class VectorPolicyChange(Request, omit_defaults=True):
    """Where the vectors of the tenant's items are kept from now on.

    ``clear``: in clear in the database, too. Texts can be got back from embeddings, so that this needs
    ``accept_leakage`` to say what leaks: the ``content`` of items.
    """

    vectors: Literal["sealed", "clear"]
    accept_leakage: Literal["content"] | None = None


class VectorPolicy(Response):
    """Where the vectors of the tenant's items are kept.

    ``complete`` false: a job is at it, and searches use what is sealed. ``damaged``: it was written or edited outside
    the gateway and says nothing, until a PUT supersedes it. ``updated_at`` null: nothing was ever said, and they are
    sealed.
    """

    vectors: Literal["sealed", "clear"]
    accepted_leakage: Literal["content"] | None
    complete: bool
    damaged: bool
    updated_at: datetime | None
