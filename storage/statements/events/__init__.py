"""Statements on events: their queue, what is numbered of it, and whether a tenant has them."""
