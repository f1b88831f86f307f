"""Bodies of items: what agents remember under paths."""
