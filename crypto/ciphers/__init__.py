"""The two constructions that seal bytes under a key; which of them a header names is `crypto.suites`."""
