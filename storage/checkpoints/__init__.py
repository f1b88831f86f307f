"""Saving and loading checkpoints, their pending writes, histories of channels, and compaction."""
