"""The ledgers of threads: what counts their rows, and the one form of the actions that they are about."""
