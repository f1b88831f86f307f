"""Events: what happened to a tenant's threads, jobs and keys, told to whoever listens."""
