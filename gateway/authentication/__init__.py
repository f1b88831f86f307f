"""Callers: their API keys, what they may do and reach, and how much strangers may cost."""
