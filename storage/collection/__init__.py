"""Removing what nothing refers to, and proving that no pointer dangles and no object is forgotten."""
