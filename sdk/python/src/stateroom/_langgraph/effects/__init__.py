"""Effects of graphs: where their calls stand in the ledger of a thread."""
