"""One port for two: the first byte decides, and nobody may hold a connection for nothing."""

import asyncio
from collections.abc import Awaitable, Callable

from cosmodrome_server.config import Limits
from cosmodrome_server.proxy.fronts.splitter import Splitter
from tests.support.fronts import until

Scenario = Callable[[Splitter, int], Awaitable[None]]


async def inner(name: bytes) -> tuple[asyncio.Server, int]:
    """A server that says its name, then echoes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(name)
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    return server, server.sockets[0].getsockname()[1]


def run(scenario: Scenario, limits: Limits | None = None) -> None:
    async def main() -> None:
        plain, plain_port = await inner(b"plain")
        tls, tls_port = await inner(b"tls__")
        splitter = Splitter(
            plain_port=plain_port, tls_port=tls_port, limits=limits or Limits(handshake_s=1)
        )
        port = await splitter.start("127.0.0.1", 0)
        await scenario(splitter, port)
        splitter.close()
        plain.close()
        tls.close()
        await until(lambda: len(asyncio.all_tasks()) == 1)

    asyncio.run(main())


def test_a_tls_handshake_goes_one_way_and_the_rest_the_other() -> None:
    async def scenario(splitter: Splitter, port: int) -> None:
        for first, name in ((b"\x16\x03\x01", b"tls__"), (b"PRI * HTTP/2.0", b"plain")):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(first)
            assert await reader.readexactly(len(name) + len(first)) == name + first
            writer.close()

    run(scenario)


def test_much_passes_through_unharmed_against_a_slow_reader() -> None:
    async def scenario(splitter: Splitter, port: int) -> None:
        sent = bytes(range(256)) * 8192
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"P" + sent)
        expected = b"plainP" + sent
        assert await reader.readexactly(len(expected)) == expected
        writer.close()

    run(scenario)


def test_who_is_behind_an_inner_connection_is_known_while_it_lasts() -> None:
    async def scenario(splitter: Splitter, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"x")
        await reader.readexactly(6)
        outer = "{}:{}".format(*writer.get_extra_info("sockname"))
        assert outer in splitter._peers.values()
        assert splitter.peer_of("10.0.0.1:1") == "10.0.0.1:1"
        writer.close()
        await writer.wait_closed()
        await until(lambda: not splitter._peers)

    run(scenario)


def test_more_connections_than_may_be_are_closed() -> None:
    async def scenario(splitter: Splitter, port: int) -> None:
        first_reader, first = await asyncio.open_connection("127.0.0.1", port)
        first.write(b"x")
        await first_reader.readexactly(6)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await reader.read() == b""
        first.write(b"y")
        assert await first_reader.readexactly(1) == b"y"
        writer.close()
        first.close()

    run(scenario, Limits(connections=1))


def test_a_client_that_closes_closes_the_inner_connection() -> None:
    async def scenario(splitter: Splitter, port: int) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.close()
        await writer.wait_closed()
        await until(lambda: not splitter._open)

    run(scenario)
