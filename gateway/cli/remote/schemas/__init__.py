"""Commands for versions of state, steps between them, and save policies."""
