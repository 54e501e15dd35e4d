"""The front seam's rules, over a real network: both fronts pass the same suite."""

import asyncio
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from cosmodrome_server.proxy.front import Front
from tests.support.fronts import FRONTS, Handlers, serving, until


def dial(front: Front) -> Any:
    """A plaintext channel of bytes; the stubs ask for serializers that grpc does not need."""
    options = [("grpc.max_receive_message_length", -1)]
    return grpc.aio.insecure_channel("{}:{}".format(*front.address), options=options)


def listens(front: Front) -> bool:
    """Whether a connection would be accepted."""
    with socket.socket() as probe:
        return probe.connect_ex(front.address) == 0


Scenario = Callable[[Any, Front, Handlers], Awaitable[None]]


@pytest.fixture(params=FRONTS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def run(kind: str, tmp_path: Path) -> Callable[..., None]:
    """Run a scenario against a front, with a plaintext channel."""

    def runner(scenario: Scenario, **overrides: str) -> None:
        async def main() -> None:
            async with (
                serving(kind, tmp_path, **overrides) as (front, handlers),
                dial(front) as channel,
            ):
                await scenario(channel, front, handlers)

        asyncio.run(main())

    return runner


def test_a_unix_socket_is_served_beside_the_port(kind: str, tmp_path: Path) -> None:
    """To gRPC's core: it says the path for the name of the server, percent-encoded."""
    path = tmp_path / "broker.sock"

    async def main() -> None:
        settings = {"server__unix_socket": str(path), "tls__mode": "off"}
        channel: Any = grpc.aio.insecure_channel(f"unix:{path}")
        async with (
            serving(kind, tmp_path, **settings) as (front, _),
            channel as unix,
            dial(front) as tcp,
        ):
            for _ in range(2):
                told: Any = await unix.unary_unary("/test.T/Describe")(b"")
                assert told.split() == [b"unix", b"none", b"False"]
                assert await tcp.unary_unary("/test.T/Echo")(b"too") == b"too"
            with pytest.raises(OSError, match=r"broker\.sock: .*server\.unix_socket"):
                async with serving(kind, tmp_path, **settings):
                    pass
            assert await unix.unary_unary("/test.T/Echo")(b"still") == b"still"
        assert not path.exists()

    asyncio.run(main())


def test_a_unary_call_is_answered(run: Callable[..., None]) -> None:
    async def scenario(channel: Any, front: Front, handlers: Handlers) -> None:
        echo = channel.unary_unary("/test.T/Echo")
        assert await echo(b"hello") == b"hello"
        assert await echo(b"") == b""
        large = b"x" * (5 << 20)
        assert await echo(large) == large

    run(scenario)


def test_a_client_that_was_given_several_addresses_is_served(run: Callable[..., None]) -> None:
    """gRPC's core makes all of them the authority: official clients in Python and C++ do so."""

    async def scenario(channel: Any, front: Front, handlers: Handlers) -> None:
        del channel
        port = front.address[1]
        where = f"ipv4:127.0.0.1:{port},127.0.0.2:{port}"
        several: Any = grpc.aio.insecure_channel(where)  # see dial
        async with several:
            echo = several.unary_unary("/test.T/Echo")
            for number in range(100):
                # Headers that crowd the authority out of the connection's table: it is sent anew.
                more = tuple((f"x-{number}-{place}", "v" * 100) for place in range(20))
                assert await echo(b"%d" % number, metadata=more) == b"%d" % number

    run(scenario)


def test_a_handler_sees_headers_peer_and_deadline(run: Callable[..., None]) -> None:
    async def scenario(channel: Any, front: Front, handlers: Handlers) -> None:
        describe = channel.unary_unary("/test.T/Describe")
        told = await describe(b"", metadata=(("x-name", "a"), ("x-name", "b")))
        assert told.decode().split(" ")[:4] == ["b", "127.0.0.1", "none", "False"]
        deadline = int((await describe(b"", timeout=9)).decode().split(" ")[2])
        assert 8_000 < deadline <= 9_100  # the encoding rounds up

    run(scenario)


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_tls_is_served(kind: str, tmp_path: Path, mode: str) -> None:
    async def main() -> None:
        async with serving(kind, tmp_path, tls__mode=mode) as (front, _):
            where = f"localhost:{front.address[1]}"
            root = (tmp_path / "tls" / "development.crt").read_bytes()
            credentials = grpc.ssl_channel_credentials(root)
            channel: Any = grpc.aio.secure_channel(where, credentials)
            async with channel:
                told = await channel.unary_unary("/test.T/Describe")(b"")
                assert told.decode().split(" ")[1] == "127.0.0.1"
                assert told.decode().split(" ")[3] == "True"

    asyncio.run(main())


def test_tls_below_1_2_is_refused(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(kind, tmp_path, tls__mode="required") as (front, _):
            old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
            with pytest.warns(DeprecationWarning, match="TLSv1_1"):
                old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await asyncio.open_connection(*front.address, ssl=old)

    asyncio.run(main())


@pytest.mark.parametrize("mode", ["auto", "off"])
def test_plaintext_is_served(run: Callable[..., None], mode: str) -> None:
    async def scenario(channel: Any, front: Front, handlers: Handlers) -> None:
        assert await channel.unary_unary("/test.T/Echo")(b"x") == b"x"

    run(scenario, tls__mode=mode)


def test_where_tls_is_required_plaintext_is_not_served(run: Callable[..., None]) -> None:
    async def scenario(channel: Any, front: Front, handlers: Handlers) -> None:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await channel.unary_unary("/test.T/Echo")(b"x", timeout=5)
        assert refused.value.code() in (
            grpc.StatusCode.UNAVAILABLE,
            grpc.StatusCode.DEADLINE_EXCEEDED,
        )

    run(scenario, tls__mode="required")


def test_a_reply_may_come_later_and_from_any_thread(run: Callable[..., None]) -> None:
    async def scenario(channel: Any, front: Front, handlers: Handlers) -> None:
        hold = channel.unary_unary("/test.T/Hold")
        calls = [hold(str(n).encode()) for n in range(20)]
        await until(lambda: len(handlers.held) == 20)
        replies: list[tuple[object, bytes]] = [(one, one.payload * 2) for one in handlers.held]
        writer = threading.Thread(target=front.reply_many, args=(replies,))
        writer.start()
        assert await asyncio.gather(*calls) == [str(n).encode() * 2 for n in range(20)]
        writer.join()

    run(scenario)


def test_a_status_ends_a_call_without_a_message(run: Callable[..., None]) -> None:
    async def scenario(channel: Any, front: Front, handlers: Handlers) -> None:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await channel.unary_unary("/test.T/Refuse")(b"")
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        assert refused.value.details() == "not now"

    run(scenario)


def test_a_bug_is_internal_and_told_to_nobody(run: Callable[..., None]) -> None:
    async def scenario(channel: Any, front: Front, handlers: Handlers) -> None:
        with pytest.raises(grpc.aio.AioRpcError) as broken:
            await channel.unary_unary("/test.T/Broken")(b"")
        assert broken.value.code() is grpc.StatusCode.INTERNAL
        assert "secret" not in (broken.value.details() or "")
        assert await channel.unary_unary("/test.T/Echo")(b"on") == b"on"

    run(scenario)


def test_a_stream_is_all_its_messages_in_order(run: Callable[..., None]) -> None:
    async def scenario(channel: Any, front: Front, handlers: Handlers) -> None:
        count = channel.unary_stream("/test.T/Count")
        for length in (0, 1, 100):
            got = [message async for message in count(str(length).encode())]
            assert got == [str(n).encode() for n in range(length)]

    run(scenario)


@pytest.mark.parametrize("method", ["Hold", "Wait"])
def test_a_client_that_goes_away_is_noticed(run: Callable[..., None], method: str) -> None:
    async def scenario(channel: Any, front: Front, handlers: Handlers) -> None:
        if method == "Hold":
            call = channel.unary_unary("/test.T/Hold")(b"")
        else:
            call = channel.unary_stream("/test.T/Wait")(b"")
        await until(lambda: len(handlers.held) == 1)
        call.cancel()
        await until(lambda: handlers.seen == ["cancelled"])
        handlers.held[0].reply(b"too late, and dropped")

    run(scenario)


def test_a_stream_both_ways(run: Callable[..., None]) -> None:
    async def scenario(channel: Any, front: Front, handlers: Handlers) -> None:
        chat = channel.stream_stream("/test.T/Chat")()
        assert await chat.read() == b"welcome"
        for word in (b"one", b"two"):
            await chat.write(word)
            assert await chat.read() == word.upper()
        await chat.done_writing()
        assert await chat.read() == b"bye"
        assert await chat.read() is grpc.aio.EOF  # type: ignore[attr-defined] # the stubs lack it
        assert await chat.code() is grpc.StatusCode.OK

    run(scenario)


def test_a_stream_may_end_with_a_status(run: Callable[..., None]) -> None:
    async def scenario(channel: Any, front: Front, handlers: Handlers) -> None:
        chat = channel.stream_stream("/test.T/Chat")()
        assert await chat.read() == b"welcome"
        await chat.write(b"fail")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await chat.read()
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert refused.value.details() == "so be it"

    run(scenario)


def test_the_end_of_a_stream_whose_client_vanished_is_noticed(run: Callable[..., None]) -> None:
    async def scenario(channel: Any, front: Front, handlers: Handlers) -> None:
        chat = channel.stream_stream("/test.T/Chat")()
        assert await chat.read() == b"welcome"
        chat.cancel()
        await until(lambda: handlers.seen == ["cancelled"])

    run(scenario)


def test_a_method_without_route_goes_to_its_service_or_is_unimplemented(
    run: Callable[..., None],
) -> None:
    async def scenario(channel: Any, front: Front, handlers: Handlers) -> None:
        assert await channel.unary_unary("/test.T/Nothing")(b"") == b"unknown"
        with pytest.raises(grpc.aio.AioRpcError) as unknown:
            await channel.unary_unary("/other.Service/Echo")(b"")
        assert unknown.value.code() is grpc.StatusCode.UNIMPLEMENTED

    run(scenario)


def test_a_request_above_the_limit_is_refused_and_the_server_goes_on(
    run: Callable[..., None],
) -> None:
    async def scenario(channel: Any, front: Front, handlers: Handlers) -> None:
        echo = channel.unary_unary("/test.T/Echo")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await echo(b"x" * ((1 << 20) + 1))
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await echo(b"x") == b"x"

    run(scenario, limits__request_mib="1")


def test_after_a_drain_nobody_listens(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(kind, tmp_path) as (front, _):
            where = front.address
            async with dial(front) as channel:
                assert await channel.unary_unary("/test.T/Echo")(b"x") == b"x"
            await front.drain(0)
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection(*where)

    asyncio.run(main())


def test_a_drain_lets_a_call_under_way_finish(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(kind, tmp_path) as (front, handlers), dial(front) as channel:
            call = channel.unary_unary("/test.T/Hold")(b"")
            await until(lambda: len(handlers.held) == 1)
            drain = asyncio.get_running_loop().create_task(front.drain(5))
            await until(lambda: not listens(front))
            front.reply_many([(handlers.held[0], b"made it")])
            assert await call == b"made it"
            await drain

    asyncio.run(main())


def test_a_taken_address_is_an_os_error(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(kind, tmp_path) as (front, _):
            taken = str(front.address[1])
            with pytest.raises(OSError, match=taken):
                async with serving(kind, tmp_path, server__port=taken):
                    pass

    asyncio.run(main())


def test_a_client_may_ping_often_without_calls(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(kind, tmp_path) as (front, _):
            reader, writer = await asyncio.open_connection(*front.address)
            writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, b""))
            for _ in range(20):
                writer.write(frame(6, b"12345678"))
            await writer.drain()
            answered = 0
            while answered < 20:
                head = await asyncio.wait_for(reader.readexactly(9), 5)
                await reader.readexactly(int.from_bytes(head[:3]))
                assert head[3] != 7, "GOAWAY"
                answered += head[3] == 6 and head[4] == 1
            writer.close()

    asyncio.run(main())


def frame(kind: int, payload: bytes) -> bytes:
    """An HTTP/2 frame of stream 0 without flags: 4 is SETTINGS, 6 is PING."""
    return len(payload).to_bytes(3) + bytes((kind, 0)) + bytes(4) + payload
