"""Transfer keys, and where an imported thread came from.

Expands only: the previous release does not look at either. ``origin`` is a MAC under the subject's keys of the thread
that was imported and of what was in it, so that an import that is run again knows what is there; null: not imported.
"""

from alembic import op

revision = "a14"
down_revision = "a13"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Allow the purpose and add the column."""
    op.execute("ALTER TABLE stateroom.deployment_keys DROP CONSTRAINT deployment_keys_purpose_check")
    op.execute(
        "ALTER TABLE stateroom.deployment_keys ADD CONSTRAINT deployment_keys_purpose_check"
        " CHECK (purpose IN ('audit', 'transfer'))"
    )
    op.execute("ALTER TABLE stateroom.threads ADD origin bytea CHECK (length(origin) = 32)")


def downgrade() -> None:
    """Drop what upgrade added. Exports for this deployment that were not imported yet cannot be opened any more."""
    op.execute("ALTER TABLE stateroom.threads DROP origin")
    op.execute("DELETE FROM stateroom.deployment_keys WHERE purpose = 'transfer'")
    op.execute("ALTER TABLE stateroom.deployment_keys DROP CONSTRAINT deployment_keys_purpose_check")
    op.execute(
        "ALTER TABLE stateroom.deployment_keys ADD CONSTRAINT deployment_keys_purpose_check"
        " CHECK (purpose IN ('audit'))"
    )
