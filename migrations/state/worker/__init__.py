"""The worker process: its program, what it gives up, and the messages that it exchanges."""
