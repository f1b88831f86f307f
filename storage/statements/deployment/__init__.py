"""Statements on what operators and administrators see: tenants, credentials, jobs, processes, the audit log."""
