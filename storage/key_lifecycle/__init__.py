"""Rotating keys, sealing again under new ones, and destroying them."""
