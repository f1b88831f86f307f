"""Commands on what a thread's ledger holds, over HTTP."""
