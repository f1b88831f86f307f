"""Statements on the ledgers of threads: approvals, effects, claims, and what counts them."""
