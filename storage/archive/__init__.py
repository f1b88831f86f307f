"""Threads to the archive and back, and the checks of what comes back."""
