"""Durability and meaning of agent state, for an already authorised `Scope`.

Owns the tables, the sealed formats and every transaction. It does not authenticate anybody, speaks no HTTP, and
promises nothing before ``COMMIT`` returned.
"""
