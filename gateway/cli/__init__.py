"""The command line `stateroom`."""
