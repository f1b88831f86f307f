"""Bodies of tenants, API keys and the audit log."""
