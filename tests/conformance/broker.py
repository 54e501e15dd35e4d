"""The server under test: ours, started by the real command, or any other by its endpoint.

    COSMODROME_TEST_ENDPOINT   HOST:PORT of a running server; without it one is started
    COSMODROME_TEST_ADMIN      a program `topic NAME TYPE QUEUES` and `raw updateSubGroup …` that
                               creates topics and groups there; without it the Control service
    COSMODROME_TEST_FRONT      gate or grpcio; without it the server's own choice

Scenarios see `Broker` alone, so they run on ours, on both of its fronts, and on Apache RocketMQ.
"""

import asyncio
import contextlib
import os
import re
import signal
import socket
import sys
import tempfile
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

import grpc

from cosmodrome_proto import control_pb2, methods

READY_SECONDS = 60.0
STOP_SECONDS = 60.0
LOG_TAIL_BYTES = 6_000
COMMAND = Path(sys.executable).parent / "cosmodrome"


class ServerFailed(Exception):
    """The server did not start or did not do what an operator asked of it."""


class Broker(Protocol):
    """A running server."""

    endpoint: str
    is_ours: bool
    is_strict: bool

    async def create_topic(self, name: str, kind: str, queues: int) -> None:
        """Make a topic; `kind` is normal, fifo, delay, transaction, priority, lite or mixed."""

    async def create_group(
        self,
        name: str,
        *,
        is_fifo: bool = False,
        max_attempts: int = 0,
        lite_topic_of: str = "",
    ) -> None:
        """Make a group; `max_attempts` deliveries in all, 0 for the server's default."""


class OwnServer:
    """`cosmodrome serve` in a process of its own, with a data directory that it keeps."""

    is_ours = True
    command: tuple[str, ...] = (str(COMMAND),)

    def __init__(self, data: Path, *flags: str) -> None:
        self.endpoint = ""
        self.data = data
        self.is_strict = "--strict" in flags
        self._flags = flags
        self._log = data.parent / f"{data.name}.log"
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start, or start again on the same port, and wait for the ready line."""
        port = self.endpoint.rpartition(":")[2] or str(self._held_port())
        front = os.environ.get("COSMODROME_TEST_FRONT")
        chosen = ("--front", front) if front and "--front" not in self._flags else ()
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self.command,
                "serve",
                *("--data", str(self.data), "--host", "127.0.0.1", "--port", port),
                *("--metrics-port", "0", *chosen, *self._flags),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
            )
        try:
            async with asyncio.timeout(READY_SECONDS):
                self.endpoint = await self._endpoint_of_ready_line()
        except TimeoutError:
            await self.kill()
            raise ServerFailed(f"not ready in {READY_SECONDS} s: {self.last_words()}") from None

    def _held_port(self) -> int:
        """A free port that stays ours.

        A socket that is bound and does not listen lets the server listen there. Without it any
        outgoing connection of this machine may take the port while the server is down.
        """
        holder = socket.socket()
        weakref.finalize(self, holder.close)
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        port: int = holder.getsockname()[1]
        return port

    async def _endpoint_of_ready_line(self) -> str:
        assert self._process is not None
        assert self._process.stdout is not None
        while line := (await self._process.stdout.readline()).decode():
            found = re.search(r"\b(\d+\.\d+\.\d+\.\d+:\d+)", line)
            if line.startswith("ready") and found:
                return found.group(1)
        raise ServerFailed(f"ended before it was ready: {self.last_words()}")

    @property
    def pid(self) -> int:
        """Of the process."""
        assert self._process is not None
        return self._process.pid

    async def stop(self) -> int:
        """SIGTERM, and wait until it drained; returns the exit code."""
        return await self._end(signal.SIGTERM)

    async def kill(self) -> int:
        """SIGKILL: the crash."""
        return await self._end(signal.SIGKILL)

    async def _end(self, number: signal.Signals) -> int:
        process = self._process
        assert process is not None
        if process.returncode is None:
            process.send_signal(number)
        assert process.stdout is not None
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await process.stdout.read()
                return await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
            raise ServerFailed(f"did not end in {STOP_SECONDS} s: {self.last_words()}") from None

    def log(self) -> str:
        """All that the server wrote."""
        return self._log.read_text(errors="replace")

    def last_words(self) -> str:
        return self._log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")

    async def create_topic(self, name: str, kind: str, queues: int) -> None:
        await control_create_topic(self.endpoint, name, kind, queues)

    async def create_group(
        self,
        name: str,
        *,
        is_fifo: bool = False,
        max_attempts: int = 0,
        lite_topic_of: str = "",
    ) -> None:
        group = control_pb2.Group(
            name=name, fifo=is_fifo, max_attempts=max_attempts, lite_bind_topic=lite_topic_of
        )
        request = control_pb2.CreateGroupRequest(group=group)
        await asyncio.to_thread(_control, self.endpoint, "CreateGroup", request)


class GivenServer:
    """A server that somebody else started: of ours by its Control service, or by `admin`."""

    is_strict = False

    def __init__(self, endpoint: str, admin: str | None) -> None:
        self.endpoint = endpoint
        self.is_ours = admin is None
        self._admin = admin
        self._one_at_a_time = asyncio.Semaphore(2)  # each call is a JVM

    async def create_topic(self, name: str, kind: str, queues: int) -> None:
        if self._admin is None:
            await control_create_topic(self.endpoint, name, kind, queues)
        else:
            await self._run("topic", name, kind.upper(), str(queues or 1))

    async def create_group(
        self,
        name: str,
        *,
        is_fifo: bool = False,
        max_attempts: int = 0,
        lite_topic_of: str = "",
    ) -> None:
        if self._admin is None:
            ours = OwnServer(Path())
            ours.endpoint = self.endpoint
            await ours.create_group(
                name, is_fifo=is_fifo, max_attempts=max_attempts, lite_topic_of=lite_topic_of
            )
            return
        arguments = ["updateSubGroup", "-c", "DefaultCluster", "-g", name]
        if is_fifo:
            arguments += ["-o", "true"]
        if max_attempts:
            arguments += ["-r", str(max_attempts - 1)]
        if lite_topic_of:
            arguments += ["--attributes", f"+lite.bind.topic={lite_topic_of}"]
        await self._run("raw", *arguments)

    async def _run(self, *arguments: str) -> None:
        assert self._admin is not None
        async with self._one_at_a_time:
            process = await asyncio.create_subprocess_exec(
                self._admin,
                *arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
            said, _ = await process.communicate()
        if process.returncode or b"success" not in said:
            raise ServerFailed(f"{' '.join(arguments)}: {said.decode(errors='replace')}")


async def control_create_topic(endpoint: str, name: str, kind: str, queues: int) -> None:
    topic = control_pb2.Topic(name=name, type=kind.upper(), queues=queues)
    request = control_pb2.CreateTopicRequest(topic=topic)
    await asyncio.to_thread(_control, endpoint, "CreateTopic", request)


def _control(endpoint: str, name: str, request: object) -> None:
    """One call of the Control service, as `cosmodrome topic create` and its like make it."""
    method = next(m for m in methods("cosmodrome.v1.Control") if m.name == name)
    with grpc.insecure_channel(endpoint) as channel:
        call = channel.unary_unary(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )
        try:
            response = call(request, timeout=10, metadata=(("x-mq-client-id", "conformance"),))
        except grpc.RpcError as error:
            raise ServerFailed(f"{name}: {error.code().name}: {error.details()}") from None
    if response.HasField("status") and response.status.code != 20_000:
        raise ServerFailed(f"{name}: {response.status.code} {response.status.message}")


@asynccontextmanager
async def server(*flags: str) -> AsyncIterator[OwnServer]:
    """A server of our own with a fresh data directory; killed and forgotten at the end."""
    with tempfile.TemporaryDirectory(prefix="conformance-server-") as folder:
        ours = OwnServer(Path(folder) / "data", *flags)
        try:
            await ours.start()
            yield ours
        finally:
            with contextlib.suppress(ServerFailed, AssertionError):
                await ours.kill()


@asynccontextmanager
async def under_test(*, is_strict: bool = False) -> AsyncIterator[Broker]:
    """The server that the environment names, or one of our own, which may be a strict one."""
    endpoint = os.environ.get("COSMODROME_TEST_ENDPOINT")
    if is_strict:
        async with server("--strict") as ours:
            yield ours
    elif endpoint:
        yield GivenServer(endpoint, os.environ.get("COSMODROME_TEST_ADMIN"))
    else:
        async with server("--dev") as ours:
            yield ours
