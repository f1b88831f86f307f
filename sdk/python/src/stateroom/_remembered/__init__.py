"""What a client remembers of what it sent and received, so that it need not travel again."""
