"""What Spark runs as its Python: asks the zygote for a process, and stands in for it.

A script of its own, copied beside the zygote's socket with the interpreter's name on top. It
runs without site-packages (10 ms), so it imports nothing of ours. What it hands over:

    u32 length · JSON {arguments, environment, folder}      with descriptors 0, 1, 2
    answer: u32 process id, then u8 exit code; closed without an answer: no zygote

Anything else than `-m pyspark…` is plain Python's business, as is everything when no zygote
answers: then this process becomes that Python.
"""

# pathlib would take as long to import as everything else here together.
# ruff: noqa: PTH100, PTH109, PTH118, PTH120

import json
import os
import signal
import socket
import sys
from types import FrameType

SOCKET = "zygote.sock"


def main() -> None:
    """Run what the command line says, one way or the other."""
    arguments = sys.argv[1:]
    if arguments[:1] == ["-m"] and "".join(arguments[1:2]).startswith("pyspark."):
        stand_in(arguments[1:])
    os.execv(sys.executable, [sys.executable, *arguments])


def stand_in(arguments: list[str]) -> None:
    """Ask for a forked process and live as long as it does; return if there is none."""
    here = os.path.dirname(os.path.abspath(sys.argv[0]))
    zygote = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        zygote.connect(os.path.join(here, SOCKET))
        said = {"arguments": arguments, "environment": dict(os.environ), "folder": os.getcwd()}
        request = json.dumps(said).encode()
        socket.send_fds(zygote, [len(request).to_bytes(4, "big")], [0, 1, 2])
        zygote.sendall(request)
        answer = zygote.recv(4, socket.MSG_WAITALL)
    except OSError:
        return
    if len(answer) < 4:
        return
    child = int.from_bytes(answer, "big")

    def pass_on(number: int, _frame: FrameType | None) -> None:
        os.kill(child, number)

    signal.signal(signal.SIGTERM, pass_on)
    # Our copies would keep pipes open that the child has closed.
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    code = zygote.recv(1)
    os._exit(code[0] if code else 1)


if __name__ == "__main__":
    main()
