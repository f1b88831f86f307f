"""Threads without I/O: the position of a thread object, states and results as plain values, once-calls."""
