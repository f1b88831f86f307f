"""Bodies of events: what happened, as pages and as streams, and whether a tenant has any."""
