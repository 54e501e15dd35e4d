"""Ports that are known before anybody listens on them."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def held_port() -> Iterator[int]:
    """A free port that stays free for a server of the loopback, however often it goes and comes.

    A socket that is bound and does not listen lets the server listen there. Without it any
    outgoing connection of this machine may take the port.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield int(holder.getsockname()[1])
