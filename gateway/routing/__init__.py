"""Which operation a request names, and how the operation is run."""
