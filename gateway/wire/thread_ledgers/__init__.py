"""Bodies of what a thread's ledger holds: claims and effects."""
