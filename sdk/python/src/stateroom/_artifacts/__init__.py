"""Artifacts below the clients: their calls, transfers, local files, and files as a program sees them."""
