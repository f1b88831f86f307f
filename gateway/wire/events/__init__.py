"""Bodies of events: what agents remember under paths."""
