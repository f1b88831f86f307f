"""What an agent needs to go on: its own state, what it believed, and what happened while it was away."""
