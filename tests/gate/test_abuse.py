"""What hostile and broken clients do to a gate: nothing.

Every attack runs five rounds beside a client that must be served, and leaves neither
memory nor calls behind (`endures`). Sizes are scaled down here; the marker `slow` has the full
ones.
"""

import contextlib
import random
import resource
import socket
import struct
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import hpack
import pytest

from tests.gate.http2 import framed
from tests.gate.world import World, certificate, endures, trusting

UNARY, HOLD, BIDI = "/test.Echo/Unary", "/test.Echo/Hold", "/test.Echo/Bidi"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PING, WINDOW_UPDATE, CONTINUATION = (
    0,
    1,
    2,
    3,
    4,
    6,
    8,
    9,
)
END_STREAM, END_HEADERS = 1, 4
ENHANCE_YOUR_CALM = 11


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """One HTTP/2 frame."""
    return len(payload).to_bytes(3) + bytes([kind, flags]) + struct.pack(">I", stream) + payload


HELLO = PREFACE + frame(SETTINGS, 0, 0) + frame(SETTINGS, 1, 0)


def head(path: str, *more: tuple[str, str]) -> bytes:
    """A header block of a gRPC request."""
    fields = [
        (":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "test"),
        ("content-type", "application/grpc"), ("te", "trailers"), *more,
    ]  # fmt: skip
    encoder = hpack.Encoder()
    encoder.header_table_size = 0  # each block stands alone
    return encoder.encode(fields)


def opened(world: World, *data: bytes) -> socket.socket:
    """A bare connection that has sent this."""
    plain = socket.create_connection(world.address, 10)
    with contextlib.suppress(OSError):
        plain.sendall(b"".join(data))
    return plain


def heard(plain: socket.socket) -> bytes:
    """Everything until the peer closes."""
    found = b""
    with contextlib.suppress(ConnectionError):
        while part := plain.recv(1 << 16):
            found += part
    return found


def test_rapid_reset_is_cut_off(world: World) -> None:
    def attack() -> None:
        pairs = [
            frame(HEADERS, END_HEADERS, 2 * n + 1, HOLD_HEAD)
            + frame(DATA, END_STREAM, 2 * n + 1, framed(b""))
            + frame(RST_STREAM, 0, 2 * n + 1, struct.pack(">I", 8))
            for n in range(20_000)
        ]
        with opened(world, HELLO, *pairs) as plain:
            assert b"\0\0\0\x0b" in heard(plain)[-64:]

    endures(world, attack)
    assert world.statistics()["connections_abusive"] >= 5


HOLD_HEAD = head(HOLD)


# So few that the slowest machine resets more; ten seconds' worth are let through at once.
FEW = {"resets_per_s": 50}


def test_rapid_reset_of_calls_python_has_is_cut_off() -> None:
    def attack() -> None:
        held = world.seen(HOLD)
        with opened(world, HELLO) as plain:
            for batch in range(30):
                numbers = [2 * (100 * batch + n) + 1 for n in range(100)]
                try:
                    plain.sendall(
                        b"".join(
                            frame(HEADERS, END_HEADERS, n, HOLD_HEAD)
                            + frame(DATA, END_STREAM, n, framed(b""))
                            for n in numbers
                        )
                    )
                except ConnectionError:
                    break
                held += 100
                world.wait_for(lambda look: look["statistics"]["calls"] >= 101 or is_over(plain))
                plain.sendall(
                    b"".join(frame(RST_STREAM, 0, n, bytes(3) + b"\x08") for n in numbers)
                )
                world.wait_for(lambda look: look["statistics"]["calls"] == 1)
                if is_over(plain):
                    break
            assert batch >= 4, "five hundred are let through"
            assert b"\0\0\0\x0b" in heard(plain)[-64:]

    with World(limits=FEW) as world:
        endures(world, attack)
        assert world.seen("cancel_0") > 1_000


def test_rapid_reset_of_what_is_not_grpc_is_cut_off() -> None:
    encoder = hpack.Encoder()
    encoder.header_table_size = 0
    get = [(":method", "GET"), (":scheme", "http"), (":path", UNARY), (":authority", "test")]
    block = encoder.encode(get)

    def came(count: int, plain: socket.socket, look: dict[str, Any]) -> bool:
        return look["statistics"]["calls_invalid"] >= count or is_over(plain)

    def attack() -> None:
        with opened(world, HELLO) as plain:
            for batch in range(30):
                numbers = [2 * (100 * batch + n) + 1 for n in range(100)]
                known = world.statistics()["calls_invalid"] + 100
                try:
                    plain.sendall(b"".join(frame(HEADERS, END_HEADERS, n, block) for n in numbers))
                except ConnectionError:
                    break
                world.wait_for(partial(came, known, plain))
                with contextlib.suppress(ConnectionError):
                    plain.sendall(
                        b"".join(frame(RST_STREAM, 0, n, bytes(3) + b"\x08") for n in numbers)
                    )
                if is_over(plain):
                    break
            assert b"\0\0\0\x0b" in heard(plain)[-64:]

    with World(limits=FEW) as world:
        endures(world, attack)


def is_over(plain: socket.socket) -> bool:
    """Whether the peer has closed."""
    plain.setblocking(False)
    try:
        data = plain.recv(1 << 16, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
    finally:
        plain.settimeout(10)
    return not data or b"\0\0\0\x0b" in data[-64:]


def test_a_client_that_cancels_now_and_then_is_not_cut_off(world: World) -> None:
    with world.client() as client:
        for _ in range(500):
            client.reset(client.begin(HOLD, b""))
        assert client.call(UNARY, b"x").messages == [b"x"]
        assert client.goaway is None


def test_a_continuation_flood_is_cut_off(world: World) -> None:
    def attack() -> None:
        flood = frame(CONTINUATION, 0, 1, b"") * 5_000
        with opened(world, HELLO, frame(HEADERS, 0, 1, HOLD_HEAD[:10]), flood) as plain:
            heard(plain)

    endures(world, attack)


def test_headers_without_end_are_cut_off(world: World) -> None:
    def attack() -> None:
        field = b"\0\x05x-abc\x7f\x81\x1f" + bytes(4_096)  # a literal of 4 KiB, not indexed
        flood = b"".join(frame(CONTINUATION, 0, 1, field[:4_000]) for _ in range(2_000))
        with opened(world, HELLO, frame(HEADERS, 0, 1, HOLD_HEAD), flood) as plain:
            heard(plain)

    endures(world, attack)


def test_headers_over_the_limit_are_refused_and_the_connection_lives(world: World) -> None:
    many = [(f"x-{n}", "y") for n in range(10_000)]

    def attack() -> None:
        with world.client() as client:
            answer = client.call(UNARY, b"x", headers=[("x-long", "y" * 15_000)] * 5)
            assert answer.headers.get(":status") == "431" or answer.reset is not None
            assert client.call(UNARY, b"x", headers=[("x-long", "y" * 15_000)] * 2).status == 0
            answer = client.call(UNARY, b"x", headers=many)
            assert (
                answer.headers.get(":status") == "431" or answer.reset is not None or client.closed
            )

    endures(world, attack)


def test_growing_the_header_table_costs_no_more_than_the_table(world: World) -> None:
    def attack() -> None:
        with world.client() as client:
            for number in range(100):
                name = f"x-{number}"
                client.call(
                    UNARY, b"", headers=[(name + "a", "y" * 3_000), (name + "b", "z" * 3_000)]
                )

    endures(world, attack)


def test_slow_loris_is_cut_off_at_each_stage() -> None:
    tls = certificate("server")
    names = ("handshake_ms", "message_ms", "idle_ms", "ping_timeout_ms")
    limits = dict.fromkeys(names, 300)
    files = {"certificate": tls.certificate, "key": tls.key}
    hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
    unfinished = frame(HEADERS, END_HEADERS, 1, head(UNARY)) + frame(DATA, 0, 1, b"\0\0")
    with World(tls="auto", limits=limits, **files) as world:

        def attack() -> None:
            stages = [
                b"",
                b"P",
                PREFACE[:20],
                hello,
                HELLO,
                HELLO + unfinished,
                HELLO + b"\0\0\x10",
            ]
            stuck = [opened(world, stage) for stage in stages for _ in range(20)]
            began = time.monotonic()
            for plain in stuck:
                heard(plain)
                plain.close()
            assert time.monotonic() - began < 10

        endures(world, attack)


def test_windows_that_stay_closed_hold_no_more_than_their_replies() -> None:
    with World(limits={"reply_bytes_per_connection": 1 << 20}) as world:

        def attack() -> None:
            with world.client(window=0, reads=False) as client:
                for _ in range(100):
                    client.begin("/test.Echo/Stream", b"10,20000")
                world.wait_for(lambda look: look["seen"].get("/test.Echo/Stream", 0) % 100 == 0)
                assert world.statistics()["bytes_replies"] < 3 << 20

        endures(world, attack)


def test_windows_that_open_byte_by_byte_are_served(world: World) -> None:
    with world.client(window=1, reads=False) as client:
        stream = client.begin(UNARY, bytes(100))
        for at in range(1, 105):
            client.wait_data(stream, at)
            client.http2.increment_flow_control_window(1, stream)
            client.flush()
        assert client.wait(stream).messages == [bytes(100)]


def test_a_window_that_overflows_ends_the_stream_or_the_connection(world: World) -> None:
    def attack() -> None:
        update = frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 2**31 - 1))
        with opened(world, HELLO, update, update) as plain:
            heard(plain)

    endures(world, attack)


def test_half_closed_streams_are_over_when_their_client_is(world: World) -> None:
    def attack() -> None:
        begun = [frame(HEADERS, END_HEADERS, 2 * n + 1, head(BIDI)) for n in range(500)]
        ended = [frame(DATA, END_STREAM, 2 * n + 1) for n in range(0, 500, 2)]
        with opened(world, HELLO, *begun, *ended):
            world.wait_for(lambda look: look["statistics"]["calls"] == 251)

    endures(world, attack)


def test_bytes_that_are_no_tls_and_no_http2_are_dropped() -> None:
    tls = certificate("server")
    dice = random.Random(5)
    with World(tls="auto", certificate=tls.certificate, key=tls.key) as world:

        def attack() -> None:
            for _ in range(100):
                noise = dice.randbytes(dice.randrange(1, 2_000))
                for start in (b"", b"\x16", b"\x16\x03\x01", PREFACE, HELLO):
                    with opened(world, start, noise) as plain:
                        with contextlib.suppress(OSError):
                            plain.shutdown(socket.SHUT_WR)
                        heard(plain)

        endures(world, attack)


def test_bytes_that_are_no_http2_inside_tls_are_dropped() -> None:
    """Rightly encrypted nonsense; and a session that somebody breaks after its handshake."""
    tls = certificate("server")
    dice, context = random.Random(6), trusting()
    with World(tls="auto", certificate=tls.certificate, key=tls.key) as world:

        def attack() -> None:
            for _ in range(5):
                noise = dice.randbytes(dice.randrange(1, 2_000))
                for start in (b"", b"\x16\x03\x01", PREFACE, HELLO):
                    with context.wrap_socket(opened(world)) as secure, contextlib.suppress(OSError):
                        secure.sendall(start + noise)
                        secure.unwrap()
                    with context.wrap_socket(opened(world)) as secure, contextlib.suppress(OSError):
                        secure.sendall(start)
                        with socket.socket(fileno=secure.detach()) as plain:
                            plain.sendall(noise)
                            plain.shutdown(socket.SHUT_WR)
                            heard(plain)

        endures(world, attack)


@pytest.mark.parametrize("seed", range(4))
def test_frames_of_every_shape_crash_nothing(world: World, seed: int) -> None:
    dice = random.Random(seed)
    blocks = [head(UNARY), head(BIDI), head(HOLD, ("grpc-timeout", "1S")), b"", b"\xff" * 9]

    def any_frame() -> bytes:
        kind = dice.choice([*range(10), dice.randrange(256)])
        stream = dice.choice([0, 1, 1, 3, 5, 2, 2**31 - 1])
        payload = dice.choice(
            [
                dice.randbytes(dice.randrange(64)),
                framed(b"x"),
                dice.choice(blocks),
                bytes(4),
                bytes(8),
            ]
        )
        return frame(kind, dice.randrange(256), stream, payload)

    def attack() -> None:
        for _ in range(250):
            frames = [frame(HEADERS, END_HEADERS, 1, head(dice.choice([UNARY, BIDI, HOLD])))]
            frames += [any_frame() for _ in range(dice.randrange(1, 12))]
            with opened(world, HELLO, *frames) as plain:
                with contextlib.suppress(OSError):
                    plain.shutdown(socket.SHUT_WR)
                heard(plain)

    endures(world, attack)


@pytest.mark.parametrize("kind", [PING, SETTINGS, PRIORITY, DATA, WINDOW_UPDATE])
def test_a_flood_of_small_frames_does_not_starve_others(world: World, kind: int) -> None:
    stream = frame(HEADERS, END_HEADERS, 1, head(BIDI))
    payloads = {PING: bytes(8), PRIORITY: bytes(4) + b"\1", WINDOW_UPDATE: struct.pack(">I", 1)}
    on = 0 if kind in (PING, SETTINGS) else 1
    flood = frame(kind, 0, on, payloads.get(kind, b"")) * 1_000

    def attack() -> None:
        with opened(world, HELLO, stream) as plain, contextlib.suppress(OSError):
            plain.settimeout(0.05)
            for _ in range(100):
                plain.sendall(flood)

    endures(world, attack)


@pytest.mark.parametrize("path", [UNARY, "/test.Echo/Stream", BIDI])
def test_clients_killed_in_the_middle_leave_nothing(world: World, path: str) -> None:
    def attack() -> None:
        for _ in range(30):
            client = world.client(window=1000, reads=False)
            for _ in range(5):
                stream = client.start(path)
                client.send(
                    stream, framed(b"34,20000" if path.endswith("Stream") else bytes(5_000))
                )
            client.begin(path, b"34,20000")
            # A reset, not an end: SO_LINGER 0.
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()

    endures(world, attack)


def connections_held(world: World, count: int) -> Callable[[], None]:
    """Open this many, have them all served at once, close them."""

    def attack() -> None:
        opened_all = [opened(world, HELLO) for _ in range(count)]
        world.wait_for(lambda look: look["statistics"]["connections"] == count + 1, wait_s=60)
        for plain in opened_all:
            plain.close()

    return attack


def test_idle_connections_cost_little(world: World) -> None:
    before = world.order("look")["rss_kib"]
    held = connections_held(world, 900)
    endures(world, held, rounds=6)
    assert (world.order("look")["peak_kib"] - before) / 900 < 100


@pytest.mark.slow
def test_ten_thousand_idle_connections_are_held(world: World) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 10_500:
        pytest.skip(f"{hard} open files at most here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (10_500, hard))
    try:
        endures(world, connections_held(world, 10_000), rounds=8)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def churn(world: World, count: int) -> None:
    """Connections opened, used once, and closed."""
    for _ in range(count):
        with opened(world, HELLO) as plain:
            plain.shutdown(socket.SHUT_WR)


def test_connections_that_come_and_go_leave_nothing(world: World) -> None:
    began = time.monotonic()
    endures(world, lambda: churn(world, 500))
    assert time.monotonic() - began < 30


@pytest.mark.slow
def test_a_thousand_connections_a_second_leave_nothing(world: World) -> None:
    endures(world, lambda: churn(world, 10_000))


def test_stalled_tls_handshakes_cost_little() -> None:
    tls = certificate("server")
    hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
    with World(tls="auto", certificate=tls.certificate, key=tls.key) as world:
        before = world.order("look")["rss_kib"]

        def attack() -> None:
            stalled = [opened(world, hello) for _ in range(900)]
            with world.client(tls=trusting()) as client:
                assert client.call(UNARY, b"x").messages == [b"x"]
            assert world.order("look")["rss_kib"] - before < 45 << 10
            for plain in stalled:
                plain.close()

        endures(world, attack)


def test_messages_of_four_mebibytes_leave_nothing(world: World) -> None:
    def attack() -> None:
        with world.client() as client:
            streams = [client.begin(UNARY, bytes(4 << 20)) for _ in range(4)]
            assert [len(client.wait(s).messages[0]) for s in streams] == [4 << 20] * 4

    endures(world, attack)


@pytest.mark.slow
def test_messages_of_128_mebibytes_leave_nothing(world: World) -> None:
    def attack() -> None:
        with world.client() as client:
            stream = client.begin(UNARY, bytes(128 << 20))
            assert len(client.wait(stream, wait_s=120).data) == (128 << 20) + 5

    endures(world, attack)


def test_replies_returned_and_tokens_dropped_leave_nothing(world: World) -> None:
    def attack() -> None:
        with world.client(window=1 << 20) as client:
            for _ in range(200):
                client.call("/test.Echo/Deliver", b"34,300")
        with world.client(window=10, reads=False) as client:
            for _ in range(100):
                client.begin("/test.Echo/Deliver", b"34,300")

    endures(world, attack)
