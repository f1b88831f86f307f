"""What items are sealed as, and the seals that say which others must be there."""
