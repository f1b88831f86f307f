"""Bringing stored states to another version of their schema, as jobs that can be rolled back."""
