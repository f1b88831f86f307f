"""Requests and answers without I/O: how a call becomes HTTP, which calls there are, what their bodies look like."""
