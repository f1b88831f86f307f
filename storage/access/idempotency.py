"""Idempotency keys: the answer to a request, kept so that repeating the request repeats the answer.

The claim and the receipt are part of the transaction that does the work. So a key is either unknown, or its work is
done and its receipt is there; a request that comes while the work is under way waits for it in the database.

A receipt holds ids and numbers, no state: it never takes a client-held share. Whether the thread's share was sent is
for the caller that replays a receipt to ask.
"""

from datetime import datetime
from typing import TypeVar

import msgspec

from crypto import Kind, OpenError, Sealer
from storage.encoding import encode_msgpack
from storage.errors import IdempotencyKeyReused, IntegrityFailure, LostRaceError
from storage.model import Idempotency
from storage.postgres.unit_of_work import Transaction
from storage.statements.threads import checkpoints as sql

T = TypeVar("T")


async def claim(
    transaction: Transaction, sealer: Sealer, idempotency: Idempotency, now: datetime, kind: type[T]
) -> T | None:
    """Take a key, or return the receipt (of type ``kind``) of the request that took it before.

    Raises:
        IdempotencyKeyReused: that was another request.
        LostRaceError: the other request ended while this one waited; run the transaction again.
    """
    key, digest = idempotency.idempotency_key, idempotency.request_digest
    if await transaction.fetch_one(sql.CLAIM_IDEMPOTENCY, idempotency_key=key, request_digest=digest, now=now):
        return None
    before = await replayed(transaction, sealer, idempotency, kind)
    if before is None:
        raise LostRaceError
    return before


async def replayed(transaction: Transaction, sealer: Sealer, idempotency: Idempotency, kind: type[T]) -> T | None:
    """The receipt of the request that took a key before, if there was one; nothing is taken.

    Raises:
        IdempotencyKeyReused: that was another request.
        IntegrityFailure: its receipt is missing, or is not its own.
    """
    row = await transaction.fetch_one(sql.READ_IDEMPOTENCY, idempotency_key=idempotency.idempotency_key)
    if row is None:
        return None
    if row.receipt is None:  # a request that takes a key commits its receipt with it
        raise IntegrityFailure("the receipt of a request was removed outside the gateway")
    if row.request_digest != idempotency.request_digest:
        raise IdempotencyKeyReused
    try:
        receipt = sealer.without_share.open(
            Kind.IDEMPOTENCY, (idempotency.idempotency_key, idempotency.request_digest), row.receipt
        )
        before = msgspec.msgpack.decode(receipt, type=kind)
    except (OpenError, msgspec.DecodeError):
        raise IntegrityFailure from None
    idempotency.replay.happened = True
    return before


async def keep(
    transaction: Transaction, sealer: Sealer, idempotency: Idempotency, now: datetime, receipt: object
) -> bool:
    """Keep the receipt of work that is done, under a key that was not claimed: for work that a repeat may do, too.

    Returns:
        False if the key is taken: the work must be rolled back, and what took it is `replayed`.
    """
    sealed = _sealed(sealer, idempotency, receipt)
    kept = await transaction.fetch_one(
        sql.KEEP_IDEMPOTENCY,
        idempotency_key=idempotency.idempotency_key,
        request_digest=idempotency.request_digest,
        now=now,
        receipt=sealed,
    )
    return kept is not None


def _sealed(sealer: Sealer, idempotency: Idempotency, receipt: object) -> bytes:
    location = (idempotency.idempotency_key, idempotency.request_digest)
    return sealer.without_share.seal(Kind.IDEMPOTENCY, location, encode_msgpack(receipt))


async def settle(transaction: Transaction, sealer: Sealer, idempotency: Idempotency, receipt: object) -> None:
    """Keep the receipt under a key that was claimed in this transaction."""
    sealed = _sealed(sealer, idempotency, receipt)
    await transaction.run(sql.SETTLE_IDEMPOTENCY, idempotency_key=idempotency.idempotency_key, receipt=sealed)
