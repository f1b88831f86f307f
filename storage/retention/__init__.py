"""How long threads are kept: a pure plan, policies, and rounds that act on them."""
