"""What approvals, effects and claims of a thread have in common: the lock, the fence and the seal that counts them."""
