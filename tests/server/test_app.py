"""The whole server on a real log, over the network: start, serve, stop, start again."""

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_proto import service_pb2 as rpc
from cosmodrome_server import app as application
from cosmodrome_server.clock import SystemClock
from cosmodrome_server.config import Config, ConfigError, load
from cosmodrome_server.errors import StateUnreadable
from cosmodrome_server.model.log import RecordKind
from cosmodrome_server.store import opening
from cosmodrome_server.store.platform import LogOptions
from tests.support.fronts import FRONTS
from tests.support.proxy_world import (
    METHODS,
    ack_request,
    consumer_settings,
    handle_of,
    message,
    receive_request,
    resource,
)

HEADERS = (("x-mq-client-id", "client"), ("x-mq-client-version", "5.1.2"))


@pytest.fixture(params=FRONTS)
def front(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def settings(data: Path, front: str, **overrides: str) -> Config:
    chosen = {
        "server.data": str(data),
        "server.port": "0",
        "server.metrics_port": "0",
        "server.front": front,
        "server.dev": "true",
        "store.segment_mib": "1",
        "store.reserve_mib": "0",
    }
    chosen |= {key.replace("__", "."): value for key, value in overrides.items()}
    return load(None, environment={}, overrides=chosen)


@asynccontextmanager
async def running(config: Config) -> AsyncIterator[tuple[application.App, Any]]:
    """A server and a plaintext channel to it; stopped in order at the end."""
    clock = SystemClock()
    app = await application.start(config, application.open_log(config, clock), clock)
    try:
        async with grpc.aio.insecure_channel("{}:{}".format(*app.front.address)) as channel:
            yield app, channel
    finally:
        await app.stop()


async def ask(channel: Any, name: str, request: Any) -> Any:
    method = METHODS[name]
    stub = channel.unary_unary(
        method.path, type(request).SerializeToString, method.response.FromString
    )
    return await stub(request, timeout=10, metadata=HEADERS)


async def receive(channel: Any) -> list[pb.Message]:
    method = METHODS["ReceiveMessage"]
    stub = channel.unary_stream(
        method.path, rpc.ReceiveMessageRequest.SerializeToString, method.response.FromString
    )
    call = stub(receive_request(), timeout=10, metadata=HEADERS)
    return [one.message async for one in call if one.HasField("message")]


def talk(channel: Any) -> Any:
    method = METHODS["Telemetry"]
    return channel.stream_stream(
        method.path, rpc.TelemetryCommand.SerializeToString, rpc.TelemetryCommand.FromString
    )(metadata=HEADERS)


def test_what_was_acknowledged_is_there_after_a_restart(front: str, tmp_path: Path) -> None:
    config = settings(tmp_path, front)

    async def main() -> None:
        async with running(config) as (_, channel):
            messages = [message(b"a"), message(b"b", message_id="id2")]
            sent = await ask(channel, "SendMessage", rpc.SendMessageRequest(messages=messages))
            assert [entry.status.code for entry in sent.entries] == [pb.OK, pb.OK]
            first, _ = await receive(channel)
            acked = await ask(channel, "AckMessage", ack_request(handle_of(first)))
            assert acked.status.code == pb.OK
            telemetry = talk(channel)
            await telemetry.write(rpc.TelemetryCommand(settings=consumer_settings()))
            assert (await telemetry.read()).settings.subscription.receive_batch_size == 32
        async with running(config) as (_, channel):
            beat = rpc.HeartbeatRequest(group=resource("billing"))
            assert (await ask(channel, "Heartbeat", beat)).status.code == pb.OK
            more = rpc.SendMessageRequest(messages=[message(b"c", message_id="id3")])
            assert (await ask(channel, "SendMessage", more)).status.code == pb.OK
            assert [one.body for one in await receive(channel)] == [b"c"], "b is in flight still"

    asyncio.run(main())


def test_a_stop_asks_clients_to_connect_anew_and_answers_who_waits(
    front: str, tmp_path: Path
) -> None:
    async def main() -> None:
        async with running(settings(tmp_path, front)) as (app, channel):
            telemetry = talk(channel)
            await telemetry.write(rpc.TelemetryCommand(settings=consumer_settings()))
            await telemetry.read()
            assert app.health.is_serving
            stopping = asyncio.get_running_loop().create_task(app.stop())
            assert (await telemetry.read()).reconnect_endpoints_command.nonce
            assert await telemetry.code() is grpc.StatusCode.OK
            assert not app.health.is_serving
            await stopping

    asyncio.run(main())


def test_a_second_server_on_one_directory_is_refused(front: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with running(settings(tmp_path, front)):
            assert await application.serve(settings(tmp_path, front)) == 2

    asyncio.run(main())


def test_a_signal_stops_it_and_it_says_when_it_is_ready(front: str, tmp_path: Path) -> None:
    said: list[str] = []

    def announce(line: str) -> None:
        said.append(line)
        if line.startswith("ready"):
            os.kill(os.getpid(), signal.SIGTERM)

    async def main() -> int:
        return await application.serve(settings(tmp_path, front), announce=announce)

    assert asyncio.run(main()) == 0
    assert any(line.startswith("ready") for line in said)
    assert said[-1] == "stopped"


@pytest.mark.parametrize(
    ("advertised", "expected"),
    [("mq.example:9999", ("mq.example", 9999)), ("[2001:db8::1]:1", ("2001:db8::1", 1))],
)
def test_clients_that_name_no_endpoint_get_the_advertised_one(
    tmp_path: Path, advertised: str, expected: tuple[str, int]
) -> None:
    async def main() -> None:
        config = settings(tmp_path, "grpcio", server__advertised=advertised)
        async with running(config) as (_, channel):
            request = rpc.QueryRouteRequest(topic=resource("orders"))
            route = await ask(channel, "QueryRoute", request)
            (address,) = route.message_queues[0].broker.endpoints.addresses
            assert (address.host, address.port) == expected

    asyncio.run(main())


@pytest.mark.parametrize("advertised", ["mq.example", "mq.example:http", ":80"])
def test_an_advertised_endpoint_that_is_none_is_said(tmp_path: Path, advertised: str) -> None:
    async def main() -> None:
        with pytest.raises(ConfigError, match="HOST:PORT"):
            async with running(settings(tmp_path, "grpcio", server__advertised=advertised)):
                pass

    asyncio.run(main())


def test_state_of_another_version_is_refused_with_who_wrote_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        config = settings(tmp_path, "grpcio")
        async with running(config):
            pass
        log = opening.open_log(tmp_path, LogOptions(), SystemClock())
        assert list(log.rows())
        assert not list(log.replay())
        log.set_snapshot(list)
        log.stage(RecordKind.ACK, b"as a development day wrote it")
        log.close()
        (tmp_path / "VERSION").write_text("cosmodrome 0.0.9 format 1\n")

        with pytest.raises(StateUnreadable, match=r"written by cosmodrome 0\.0\.9.*server\.data"):
            async with running(config):
                pass

    asyncio.run(scenario())


async def test_a_port_for_metrics_that_is_taken_is_named(front: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with pytest.raises(ConfigError, match=rf"127\.0\.0\.1:{port} .*server\.metrics_port"):
            async with running(settings(tmp_path, front, server__metrics_port=port)):
                pass
