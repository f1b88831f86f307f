"""Threads: the objects of programs, and under them, without I/O, positions, states and once-calls as plain values."""
