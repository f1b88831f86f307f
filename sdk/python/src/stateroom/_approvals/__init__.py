"""Approvals: what people are asked before an agent goes on, and what they decided."""
