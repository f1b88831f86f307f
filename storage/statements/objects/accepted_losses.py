"""Statements on what accepted restores lost."""

from uuid import UUID

from msgspec import Struct

from storage.postgres.statement import Statement


class AcceptedLoss(Struct, frozen=True):
    """A record of losses, and what proves that a gateway wrote it."""

    loss_id: UUID
    lost: bytes
    mac: bytes | None
    mac_format: int | None


# The owner of a record is a tenant, or the operators.
LOSSES = Statement(
    "SELECT loss_id, lost, mac, mac_format FROM stateroom.accepted_losses WHERE tenant_id = :owner ORDER BY loss_id",
    AcceptedLoss,
)

ADD = Statement("""
INSERT INTO stateroom.accepted_losses (tenant_id, loss_id, lost, accepted_at, mac, mac_format)
VALUES (:owner, :loss_id, :lost, :accepted_at, :mac, :mac_format)
""")
