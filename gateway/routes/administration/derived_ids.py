"""Administration that can be repeated: with an Idempotency-Key, a request that comes again makes the same ids.

Owns how such ids are derived. There is no receipt beside what was made: the row with the id is the receipt, and it is
stored in the transaction that does the work, so that of two at once the second finds the first's. Storage compares it
with what is asked for again, and refuses another request under the same key.

It does not promise the same answer: a secret is shown once and kept nowhere, so that a repeat names what was made, and
cannot show its secret again. A key is good for one route of one tenant, or of the operators, as long as the row exists.
"""

import hashlib
import hmac
from uuid import UUID

from gateway.authentication import api_keys
from storage.encoding import encode_json

_PURPOSE = "stateroom/v1/repeated-id"
_VERSION_MASK, _VERSION_8 = 0xF << 76, 8 << 76  # RFC 9562, 5.8: what an application makes by its own rule
_VARIANT_MASK, _VARIANT = 0x3 << 62, 0x2 << 62


class DerivedIds:
    """The ids that one Idempotency-Key makes.

    Args:
        pepper: The secret without which no one can tell which key made an id, or make one that another request wants.
        tenant_id: The tenant that is administered; None: the operators administer the deployment.
        route: The path of the operation.
        idempotency_key: The key as the client sent it.
    """

    def __init__(self, pepper: bytes, tenant_id: UUID | None, route: str, idempotency_key: str) -> None:
        named = [_PURPOSE, None if tenant_id is None else str(tenant_id), route, idempotency_key]
        self._digest = hmac.digest(pepper, encode_json(named), hashlib.sha256)

    def uuid(self) -> UUID:
        """The id of a tenant or a job, as a UUID of version 8."""
        number = int.from_bytes(self._digest[:16])
        number = number & ~_VERSION_MASK & ~_VARIANT_MASK | _VERSION_8 | _VARIANT
        return UUID(int=number)

    def key_id(self) -> str:
        """The id of an API key."""
        return api_keys.key_id_of(self._digest[16:])
