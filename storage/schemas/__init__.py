"""Versions of agents' state, what is checked against them, adoptions, tags and save policies."""
