"""Items: what agents remember across threads."""
