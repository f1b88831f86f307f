"""Bodies of what is in the ledger of a thread."""
