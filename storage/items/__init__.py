"""What agents remember across threads: values under paths, each sealed by itself."""
