"""Statements on what accepted restores lost."""

LOSSES = "SELECT loss_id, lost, mac, mac_format FROM stateroom.accepted_losses WHERE tenant_id = $1 ORDER BY loss_id"

ADD = """
INSERT INTO stateroom.accepted_losses (tenant_id, loss_id, lost, accepted_at, mac, mac_format)
VALUES ($1, $2, $3, $4, $5, $6)
"""
