"""Objects in the object store: what was promised of them, sealed streams, and sealing them again."""
