"""Approvals: what people are asked in the transaction that suspends a run, what they decide, and what that allows."""
