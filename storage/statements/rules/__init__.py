"""Statements on what a tenant registers: policies, schemas, adoptions."""
