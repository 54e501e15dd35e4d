"""What the front on the gate does beyond what both fronts do (tests/server/proxy/fronts)."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cosmodrome_server.config import load
from cosmodrome_server.proxy.front import Call, GrpcStatus, Kind
from cosmodrome_server.proxy.fronts.gate import GateFront
from cosmodrome_server.proxy.tls import Certificates
from tests.gate.http2 import CANCEL, Http2, framed, resetting
from tests.gate.world import Pair, certificate, trusting
from tests.support.fronts import TableRow


def serve(rows: list[TableRow], client: Callable[[GateFront], None]) -> None:
    """Serve these handlers, plaintext, while a blocking client runs in a thread of its own."""
    config = load(None, environment={}, overrides={"server.port": "0", "tls.mode": "off"})

    async def run() -> None:
        front = GateFront(rows, config, None)
        await front.start()
        try:
            await asyncio.to_thread(client, front)
        finally:
            await front.drain(0)

    asyncio.run(run())


def test_a_stream_its_client_did_not_take_is_given_back() -> None:
    given_back: list[str] = []

    def deliver(call: Call) -> None:
        call.on_cancel(lambda: given_back.append(call.payload.decode()))
        call.reply_stream([bytes(10_000)] * 5)

    def client(front: GateFront) -> None:
        with Http2(front.address) as reader:
            assert len(reader.call("/t.T/D", b"taken").messages) == 5
        with Http2(front.address, window=100, reads=False) as other:
            other.wait_data(other.begin("/t.T/D", b"left"), 100)
        with Http2(front.address) as late:
            stream = late.begin("/t.T/D", b"on its way")
            assert len(late.wait(stream).messages) == 5
            late.raw(resetting(stream, CANCEL))  # as if it had been cancelled before
            late.call("/t.T/D", b"after it")
        end = time.monotonic() + 20
        while len(given_back) < 2 and time.monotonic() < end:
            time.sleep(0.01)

    serve([TableRow("/t.T/D", Kind.SERVER_STREAM, deliver)], client)
    assert sorted(given_back) == ["left", "on its way"]


def test_who_is_cut_off_by_a_drain_is_heard_of_before_it_is_over() -> None:
    gone: list[int] = []
    opened = threading.Semaphore(0)

    def hold(call: Call) -> None:
        number = len(call.headers["x-number"])
        call.on_cancel(lambda: gone.append(number))
        opened.release()

    rows = [TableRow("/t.T/B", Kind.BIDI, hold), TableRow("/t.T/U", Kind.UNARY, hold)]
    with contextlib.ExitStack() as clients:

        def client(front: GateFront) -> None:
            for connection in range(3):
                opener = clients.enter_context(Http2(front.address))
                for path in ("/t.T/B", "/t.T/U"):
                    stream = opener.start(path, headers=[("x-number", "x" * (connection + 1))])
                    opener.send(stream, framed(b""), end=path == "/t.T/U")
            assert all(opened.acquire(timeout=20) for _ in range(6))

        serve(rows, client)
    assert sorted(gone) == [1, 1, 2, 2, 3, 3]


def test_one_handlers_wrong_reply_costs_the_others_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def wrong(call: Call) -> None:
        call.reply("text")  # type: ignore[arg-type] # wrong on purpose

    rows = [
        TableRow("/t.T/Wrong", Kind.UNARY, wrong),
        TableRow("/t.T/Right", Kind.UNARY, lambda call: call.reply(call.payload)),
    ]

    def client(front: GateFront) -> None:
        with Http2(front.address) as http2:
            streams = [http2.begin(f"/t.T/{path}", b"x") for path in ("Right", "Wrong", "Right")]
            answers = [http2.wait(stream) for stream in streams]
        assert [answer.status for answer in answers] == [0, GrpcStatus.INTERNAL, 0]
        assert [answer.messages for answer in answers] == [[b"x"], [], [b"x"]]

    serve(rows, client)
    assert "cannot be sent" in caplog.text


def test_a_certificate_that_changed_is_presented_within_a_second(tmp_path: Path) -> None:
    old, new = certificate("old"), certificate("new")
    files = tmp_path / "server.crt", tmp_path / "server.key"

    def write(pair: Pair) -> None:
        files[0].write_bytes(pair.certificate)
        files[1].write_bytes(pair.key)

    async def run() -> None:
        write(old)
        overrides = {"server.port": "0", "tls.certificate": str(files[0]), "tls.key": str(files[1])}
        config = load(None, environment={}, overrides=overrides)
        certificates = Certificates(config)
        rows = [TableRow("/t.T/E", Kind.UNARY, lambda call: call.reply(b""))]
        front = GateFront(rows, config, certificates)
        await front.start()

        def presents(pair: Pair) -> bool:
            try:
                Http2(front.address, tls=trusting(pair)).close()
            except OSError:
                return False
            return True

        assert await asyncio.to_thread(presents, old)
        write(new)
        assert certificates.refresh()
        for _ in range(50):
            if await asyncio.to_thread(presents, new):
                break
            await asyncio.sleep(0.1)
        assert not await asyncio.to_thread(presents, old)
        await front.drain(0)

    asyncio.run(run())
