"""Statements on items and their paths."""
