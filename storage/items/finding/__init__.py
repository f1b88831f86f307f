"""Finding items: the last changed first, or the nearest to a vector."""
