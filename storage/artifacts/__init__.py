"""Files that agents store beside their state, whole and in parts."""
