"""Unix sockets others may have: grpc takes the place of any, so somebody has to look before."""

import socket
from pathlib import Path


def is_taken(path: str) -> bool:
    """Whether somebody has a socket there: only one that nobody has any more refuses."""
    if not Path(path).is_socket():
        return False
    with socket.socket(socket.AF_UNIX) as visitor:
        visitor.settimeout(0)
        try:
            visitor.connect(path)
        except ConnectionRefusedError:
            return False
        except OSError:
            return True
        return True
