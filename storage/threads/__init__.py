"""Threads, which of their checkpoints may go, and legal holds."""
