"""What agents remember across threads: values under paths."""
