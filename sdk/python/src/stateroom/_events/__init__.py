"""Events: what happened in a tenant, told to who listens."""
