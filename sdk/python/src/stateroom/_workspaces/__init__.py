"""Snapshots of folders: what is in one, where its content is, and how it comes back."""
