"""Claims of threads and the ledger of effects: who goes on with a thread, and what its tools did."""
