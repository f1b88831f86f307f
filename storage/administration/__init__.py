"""Tenants and their API keys, the audit log, long operations as rows, and what tenants' rows take."""
