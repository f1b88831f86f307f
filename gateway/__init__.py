"""The HTTP gateway: authentication, limits, wire formats, problems, routes, logs and metrics."""
