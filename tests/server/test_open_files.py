"""The limit of open files: raised as far as it is needed and may be."""

import contextlib
import os
import resource
import socket
import subprocess
import sys
from pathlib import Path

import grpc
import pytest

from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_proto import service_pb2 as rpc
from cosmodrome_server import open_files
from tests.support.fronts import FRONTS
from tests.support.proxy_world import message

HARD = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
SCRIPT = """
import resource, sys
from cosmodrome_server import open_files
soft, hard, connections = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
told = open_files.raise_limit(connections)
assert told == open_files.limit()
print(told, *resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize(
    ("soft", "hard", "connections", "allowed"),
    [
        (256, 4_096, 500, 500 * open_files.FILES_PER_CONNECTION + open_files.FILES_BESIDE),
        (256, 4_096, 5_000, 4_096),
        (4_096, 4_096, 50_000, 4_096),
        (4_000, 4_096, 10, 4_000),
    ],
)
def test_the_soft_limit_goes_up_to_what_is_needed_or_the_hard_one(
    soft: int, hard: int, connections: int, allowed: int
) -> None:
    words = [sys.executable, "-c", SCRIPT, str(soft), str(hard), str(connections)]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    assert done.stdout.split() == [str(allowed), str(allowed), str(hard)]


def test_a_server_raises_its_limit(tmp_path: Path) -> None:
    if HARD != resource.RLIM_INFINITY and HARD < 4_096:
        pytest.skip("the hard limit leaves nothing to raise")
    command = [sys.executable, "-m", "cosmodrome_server", "serve", "--data", str(tmp_path / "d")]
    flags = ["--port", "0", "--metrics-port", "0", "--set", "limits.connections=900"]
    shell = ["sh", "-c", 'ulimit -Sn 1024; exec "$@"', "sh", *command, *flags]
    with subprocess.Popen(shell, stdout=subprocess.PIPE, text=True, env=os.environ) as server:
        assert server.stdout is not None
        assert server.stdout.readline().startswith("ready")
        limits = Path(f"/proc/{server.pid}/limits").read_text()
        (line,) = (one for one in limits.splitlines() if one.startswith("Max open files"))
        assert line.split()[3] == str(900 * 3 + open_files.FILES_BESIDE)
        server.terminate()
        assert server.wait(30) == 0


@pytest.mark.parametrize("front", FRONTS)
def test_connections_leave_files_for_the_broker_itself(tmp_path: Path, front: str) -> None:
    """For the next segment, and for modules that are loaded when they are used."""
    command = [sys.executable, "-m", "cosmodrome_server", "serve", "--data", str(tmp_path / "d")]
    flags = ["--dev", "--port", "0", "--metrics-port", "0", "--front", front]
    shell = ["sh", "-c", 'ulimit -n 256; exec "$@"', "sh", *command, *flags]
    with (
        subprocess.Popen(shell, stdout=subprocess.PIPE, text=True) as server,
        contextlib.ExitStack() as stack,
    ):
        stack.callback(server.terminate)
        assert server.stdout is not None
        endpoint = server.stdout.readline().split()[5]
        channel = stack.enter_context(grpc.insecure_channel(endpoint))
        grpc.channel_ready_future(channel).result(timeout=10)
        host, port = endpoint.split(":")
        for _ in range(400):
            stack.enter_context(socket.create_connection((host, int(port))))
        send = channel.unary_unary(
            "/apache.rocketmq.v2.MessagingService/SendMessage",
            rpc.SendMessageRequest.SerializeToString,
            rpc.SendMessageResponse.FromString,
        )
        request = rpc.SendMessageRequest(messages=[message(topic="new")])
        answer = send(request, metadata=(("x-mq-client-id", "c"),), timeout=10)
        assert answer.status.code == pb.OK
