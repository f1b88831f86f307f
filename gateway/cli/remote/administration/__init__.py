"""Commands for tenants, credentials, the audit log and break-glass."""
