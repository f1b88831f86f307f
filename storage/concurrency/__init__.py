"""Fair turns by name, what a tenant may hold in memory, rounds of a process, and work beside the event loop."""
