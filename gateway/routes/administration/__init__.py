"""Operations on tenants, credentials and the audit log, and break-glass."""
