"""Waiting for events: who waits, what each of them hears, and the stream in which it is told."""
