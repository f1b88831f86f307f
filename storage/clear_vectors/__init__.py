"""Vectors in clear, of tenants that accepted what that leaks: the policy, the table, and the jobs of both."""
