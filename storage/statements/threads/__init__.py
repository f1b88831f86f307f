"""Statements on threads: their checkpoints, pending writes and chunks, what they take, and what removes them."""
