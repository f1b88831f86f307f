"""What a thread's ledger holds: claims, and effects."""
