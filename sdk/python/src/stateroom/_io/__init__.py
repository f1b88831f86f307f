"""Everything of the clients that waits or that the operating system sees: connections, files, threads, processes."""
