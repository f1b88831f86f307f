"""Claims: who may go on with a thread, for how long, and what becomes of threads whose worker died."""
