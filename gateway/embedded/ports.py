"""Ports of the loopback interface that are free. A process that binds one later may find it taken."""

import contextlib
import socket

HOST = "127.0.0.1"


def free_ports(count: int) -> list[int]:
    """Choose as many different ports, all of them free now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for sock in sockets:
            sock.bind((HOST, 0))
        return [int(sock.getsockname()[1]) for sock in sockets]


def is_free(port: int) -> bool:
    """Whether an engine could listen on a port now."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the engines do: ignore TIME_WAIT
        try:
            sock.bind((HOST, port))
        except OSError:
            return False
    return True
