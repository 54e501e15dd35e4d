"""Whose a unix socket is that lies where the broker is to listen."""

import socket
from pathlib import Path

import pytest

from cosmodrome_server.proxy.fronts.unix_socket import is_taken


def test_what_is_no_socket_or_was_left_behind_is_nobodys(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert not is_taken(str(tmp_path / "missing"))
    assert not is_taken(str(tmp_path / "file"))  # the bind says what is wrong with it
    with socket.socket(socket.AF_UNIX) as died:
        died.bind(str(tmp_path / "left"))
    assert not is_taken(str(tmp_path / "left"))


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
def test_a_socket_of_somebody_is_taken_whatever_he_speaks(
    tmp_path: Path, kind: socket.SocketKind
) -> None:
    with socket.socket(socket.AF_UNIX, kind) as theirs:
        theirs.bind(str(tmp_path / "theirs"))
        if kind == socket.SOCK_STREAM:
            theirs.listen()
        assert is_taken(str(tmp_path / "theirs"))
