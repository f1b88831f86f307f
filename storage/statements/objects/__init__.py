"""Statements on objects in S3 and on artifacts."""
