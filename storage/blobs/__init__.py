"""Opaque objects outside the database: the protocol, its S3 implementation and its in-memory twin."""
