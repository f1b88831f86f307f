"""Statements on the keys of tenants, subjects and the deployment."""
