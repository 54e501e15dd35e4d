"""What is of the front on grpcio alone: it says at start what it cannot do."""

import asyncio
import gc
import logging
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from cosmodrome_server.config import Config, ConfigError, load
from cosmodrome_server.proxy.front import Front
from cosmodrome_server.proxy.fronts.grpcio import GrpcioFront
from cosmodrome_server.proxy.tls import Certificates
from tests.support.fronts import Handlers, serving, until


def settings(data: Path, **tls: str) -> Config:
    given = {"server.data": str(data), "server.port": "0"}
    given |= {f"tls.{key}": value for key, value in tls.items()}
    return load(None, environment={}, overrides=given)


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_optional_client_certificates_are_refused_with_a_way_out(tmp_path: Path, mode: str) -> None:
    Certificates(settings(tmp_path))  # makes the development certificate, its own authority
    authority = str(tmp_path / "tls" / "development.crt")
    config = settings(tmp_path, mode=mode, client_certificate="optional", client_ca=authority)
    with pytest.raises(ConfigError, match=r"tls\.client_certificate is optional.*server\.front"):
        GrpcioFront([], config, Certificates(config))


def test_without_tls_the_setting_means_nothing(tmp_path: Path) -> None:
    GrpcioFront([], settings(tmp_path, mode="off", client_certificate="optional"), None)


def dial(front: Front) -> Any:
    """A channel of its own connection."""
    options = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
    return grpc.aio.insecure_channel("{}:{}".format(*front.address), options=options)


@pytest.mark.parametrize("method", ["Hold", "Wait", "Chat"])
def test_after_a_drain_each_call_that_still_waits_has_heard_that_it_is_gone(
    tmp_path: Path, method: str
) -> None:
    async def main() -> None:
        async with serving("grpcio", tmp_path) as (front, handlers), dial(front) as channel:
            if method == "Chat":
                calls = [channel.stream_stream("/test.T/Chat")() for _ in range(3)]
                for call in calls:
                    assert await call.read() == b"welcome"
            else:
                begin = channel.unary_unary if method == "Hold" else channel.unary_stream
                calls = [begin(f"/test.T/{method}")(b"") for _ in range(3)]
                await until(lambda: len(handlers.held) == 3)
            await front.drain(0)
            assert handlers.seen == ["cancelled"] * 3
            for call in calls:
                assert await call.code() is not grpc.StatusCode.OK

    asyncio.run(main())


async def _leave_in_a_stream(front: Front, handlers: Handlers) -> None:
    async with dial(front) as channel:
        call = channel.unary_stream("/test.T/Wait")(b"")
        await until(lambda: bool(handlers.held))
        handlers.held.pop().reply_stream([bytes(1 << 20)] * 30)
        await call.read()
        call.cancel()


async def _leave_in_a_stream_both_ways(front: Front) -> None:
    async with dial(front) as channel:
        chat = channel.stream_stream("/test.T/Chat")()
        await chat.read()
        for _ in range(10):
            await chat.write(bytes(300_000))
        chat.cancel()


async def _leave_in_a_reply(front: Front, handlers: Handlers) -> None:
    async with dial(front) as channel:
        call = channel.unary_unary("/test.T/Hold")(b"")
        await until(lambda: bool(handlers.held))
        handlers.held.pop().reply(bytes(20 << 20))
        await asyncio.sleep(0)
        call.cancel()


def test_clients_that_go_in_the_middle_of_an_answer_leave_no_traceback(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with serving("grpcio", tmp_path) as (front, handlers):
            for _ in range(5):
                await _leave_in_a_stream(front, handlers)
                await _leave_in_a_stream_both_ways(front)
                await _leave_in_a_reply(front, handlers)

    gc.collect()  # what other tests left
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
    assert caplog.text == ""


def test_what_grpc_logs_of_a_client_that_left_is_no_news_and_the_rest_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Which of the two grpc logs is a race within it, so they are told to its logger here."""
    of_grpc = logging.getLogger("grpc._cython.cygrpc")

    async def main() -> None:
        async with serving("grpcio", tmp_path):
            of_grpc.error("left", exc_info=asyncio.CancelledError())
            of_grpc.error("left", exc_info=grpc.aio.InternalError("left"))
            of_grpc.error("broke", exc_info=ValueError("broke"))
            of_grpc.error("a line")

    asyncio.run(main())
    assert [record.getMessage() for record in caplog.records] == ["broke", "a line"]
