"""Bodies of requests and answers: JSON and MessagePack read and written under limits."""
