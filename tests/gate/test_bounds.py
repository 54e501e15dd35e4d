"""What one client can make a gate hold, and what the others still get of it.

Each attack asks for as much memory or time as the protocol allows, for as few bytes as it can:
header tables that unfold, messages that are empty, uploads that stop, replies nobody reads.

The gate's clock is its own, so a few tests let true time pass: each pause is a small part of the
bound it must not reach, or well above the one it must.
"""

import contextlib
import gzip
import select
import socket
import struct
import time

import hpack
import pytest

from tests.gate.http2 import Http2, framed
from tests.gate.test_abuse import (
    BIDI,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    HELLO,
    HOLD,
    UNARY,
    WINDOW_UPDATE,
    frame,
    head,
    heard,
    opened,
)
from tests.gate.world import World, certificate, endures

FEED, HOLD_BIDI = "/test.Echo/Feed", "/test.Echo/HoldBidi"
MIB = 1 << 20


def unfolding(path: str, count: int, *, body: bytes | None) -> bytes:
    """Requests of some 60 bytes each whose headers come to 58 KiB, by the table of HPACK."""
    encoder = hpack.Encoder()
    fields = [
        (":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "test"),
        ("content-type", "application/grpc"), ("te", "trailers"), *[("x-a", "v" * 3_700)] * 15,
    ]  # fmt: skip
    frames = [HELLO]
    for number in range(1, 2 * count, 2):
        frames.append(frame(HEADERS, END_HEADERS, number, encoder.encode(fields)))
        if body is not None:
            frames.append(frame(DATA, END_STREAM, number, body))
    return b"".join(frames)


@pytest.mark.parametrize(
    ("path", "body"),
    [(UNARY, None), (HOLD, framed(b"")), (HOLD_BIDI, None)],
    ids=["requests that never come", "calls that wait", "streams that stay open"],
)
def test_headers_that_unfold_in_the_table_are_bounded(path: str, body: bytes | None) -> None:
    bombs = unfolding(path, 4_000, body=body)
    assert len(bombs) < 400_000

    with World() as world:

        def attack() -> None:
            before = world.order("look")["peak_kib"]
            with contextlib.ExitStack() as stack:
                plain = [stack.enter_context(opened(world, bombs)) for _ in range(2)]
                with world.client() as other:
                    for _ in range(20):
                        assert other.call(UNARY, bytes(100_000)).status == 0
                assert len(plain) == 2
            assert world.order("look")["peak_kib"] - before < 80 << 10

        endures(world, attack)


def test_empty_messages_that_python_does_not_take_are_bounded(world: World) -> None:
    world.order("pause")
    with world.client() as client, world.client() as other:
        stream = client.start(HOLD_BIDI)
        client.socket.settimeout(0.3)
        sent = 0
        with contextlib.suppress(TimeoutError):
            while sent < 2_000_000:
                client.send(stream, framed(*[b""] * 3_000))
                sent += 3_000
        assert sent < 400_000, "as many as the window of a stream takes"
        assert other.call("/test.Nothing/Here", b"").status == 12
        assert world.statistics()["bytes_inbound"] < 2 * MIB
        world.order("resume")
        world.wait_for(lambda look: look["seen"].get("message", 0) >= sent)


def test_a_stream_of_small_messages_may_fill_its_window(world: World) -> None:
    """Each in a frame of its own, as many clients send them, while Python takes none."""
    world.order("pause")
    with world.client() as client, world.client() as other:
        stream = client.start(HOLD_BIDI)
        while client.http2.local_flow_control_window(stream) < MIB:
            client.receive()
        while client.http2.outbound_flow_control_window < MIB:
            client.receive()
        message = framed(b"small...")
        count = MIB // len(message)
        client.raw(b"".join(frame(DATA, 0, stream, message) for _ in range(count)))
        assert other.call("/test.Nothing/Here", b"").status == 12
        world.order("resume")
        world.wait_for(lambda look: look["seen"].get("message", 0) == count)


def test_a_message_of_a_stream_is_counted_once() -> None:
    limits = {"message_bytes": 900_000, "inbound_bytes": MIB, "unread_bytes_per_stream": 100_000}
    with World(limits=limits) as world:
        world.order("pause")
        with world.client() as client:
            stream = client.start(BIDI)
            client.send(stream, framed(bytes(800_000)))
            world.wait_for(lambda look: look["statistics"]["bytes_inbound"] >= 800_000)
            world.order("resume")
            assert len(client.wait_data(stream, 800_005)) == 800_005
            client.send(stream, b"", end=True)
            assert client.wait(stream).status == 0


def test_headers_of_open_calls_are_counted_apart_from_requests_that_wait(world: World) -> None:
    with world.client() as client:
        long = [("x-long", "v" * 10_000)]
        held = [client.begin(HOLD, b"", headers=long) for _ in range(100)]
        world.wait_for(lambda look: look["held"] == 100)
        statistics = world.statistics()
        assert (statistics["bytes_headers"] > 1_000_000, statistics["bytes_inbound"]) == (True, 0)
        world.order("release")
        assert {client.wait(stream).status for stream in held} == {0}
    world.wait_for(lambda look: look["statistics"]["bytes_headers"] == 0)


def test_streams_that_python_does_not_take_share_what_requests_may_hold() -> None:
    limits = {"inbound_bytes": 8 * MIB, "message_bytes": MIB}
    with World(limits=limits) as world:
        world.order("pause")
        with world.client() as client:
            for _ in range(30):
                client.send(client.start(HOLD_BIDI), framed(bytes(800_000)))
            client.call("/test.Nothing/Here", b"")
            assert world.statistics()["bytes_inbound"] <= 9 * MIB
        world.order("resume")
        world.wait_for(lambda look: look["statistics"]["bytes_inbound"] == 0)


def uploads_that_stop(world: World, count: int, size: int) -> list[Http2]:
    """Connections that fill what may wait with the beginnings of messages, and say no more."""
    clients = [world.client() for _ in range(count)]
    for client in clients:
        for _ in range(120):
            stream = client.start(UNARY)
            client.send(stream, b"\0\x01\x40\0\0" + bytes(size))
        client.call("/test.Nothing/Here", b"")
    return clients


def test_one_connection_that_fills_its_share_leaves_the_others_theirs() -> None:
    limits = {
        "inbound_bytes": 96 * MIB,
        "inbound_bytes_per_connection": 48 * MIB,
        "message_bytes": 20 * MIB,
    }
    with World(limits=limits) as world:

        def attack() -> None:
            (hog,) = uploads_that_stop(world, 1, MIB)
            assert 40 * MIB < world.statistics()["bytes_inbound"] < 56 * MIB
            with hog, world.client() as other:
                for size in (10, 60_000, 4 * MIB):
                    assert other.call(UNARY, bytes(size)).status == 0

        endures(world, attack)


def test_small_requests_pass_when_large_ones_fill_what_may_wait() -> None:
    limits = {"inbound_bytes": 40 * MIB, "message_bytes": 21 * MIB}
    with World(limits=limits) as world:
        hogs = uploads_that_stop(world, 1, 2 * MIB) + uploads_that_stop(world, 1, 50_000)
        world.order("pause")
        with world.client() as other:
            small = [other.begin(HOLD, bytes(10_000)) for _ in range(20)]
            assert other.call(UNARY, bytes(MIB)).status == 8
            world.order("resume")
            world.wait_for(lambda look: look["held"] == 20)
            world.order("release")
            assert {other.wait(stream).status for stream in small} == {0}
        for hog in hogs:
            hog.close()
        world.wait_for(lambda look: look["statistics"]["bytes_inbound"] == 0)


def test_an_upload_that_stops_is_given_up_however_much_came() -> None:
    with World(limits={"message_ms": 400}) as world, world.client() as client:
        stream = client.start(UNARY)
        client.send(stream, b"\0\x01\x40\0\0" + bytes(8 * MIB))
        began = time.monotonic()
        answer = client.wait(stream)
        assert (answer.status, time.monotonic() - began < 5) == (4, True)
        assert world.statistics()["bytes_inbound"] == 0


def test_a_slow_upload_that_goes_on_is_taken() -> None:
    with World(limits={"message_ms": 2_000}) as world, world.client() as client:
        stream = client.start(UNARY)
        data = framed(bytes(300_000))
        began = time.monotonic()
        for at in range(0, len(data), 50_000):
            client.send(stream, data[at : at + 50_000], end=at + 50_000 >= len(data))
            time.sleep(0.4)  # slow, and never still for message_ms
        assert time.monotonic() - began > 2, "longer in all than a message may stand still"
        assert client.wait(stream).messages == [bytes(300_000)]


def test_a_stream_may_be_silent_between_messages_and_not_within_one() -> None:
    with World(limits={"message_ms": 200}) as world, world.client() as client:
        stream = client.start(BIDI)
        for text in (b"hello", b"again", b"at last"):
            client.send(stream, framed(text))
            while framed(text) not in client.answers[stream].data:
                client.receive()
            time.sleep(0.7)  # silent for longer than message_ms
        client.send(stream, framed(b"the beginning of it")[:-4])
        answer = client.wait(stream)
        assert (answer.messages, answer.status) == ([b"hello", b"again", b"at last"], 4)


def test_a_reply_nobody_reads_is_given_up_though_its_connection_lives() -> None:
    with World(limits={"stall_ms": 300}) as world:
        with world.client(window=1_000, reads=False) as client:
            stuck = client.begin("/test.Echo/Deliver", b"10,100000")
            end = time.monotonic() + 10
            while not client.answers[stuck].is_over:
                assert time.monotonic() < end
                assert client.call(UNARY, b"x").messages == [b"x"]
                time.sleep(0.02)
            assert client.answers[stuck].reset is not None
            assert client.call(UNARY, b"x").messages == [b"x"]
            assert world.statistics()["bytes_replies"] == 0
        assert world.seen("returned") == 1


def test_a_reader_that_is_slow_but_reads_gets_all_of_it() -> None:
    with World(limits={"stall_ms": 1_000}) as world, world.client(window=50_000) as client:
        stream = client.begin("/test.Echo/Stream", b"8,100000")
        began = time.monotonic()
        while not client.answers[stream].is_over:
            client.receive()
            if time.monotonic() - began < 1.5:
                time.sleep(0.1)
        assert time.monotonic() - began > 1, "longer in all than a reply may stand still"
        assert len(client.answers[stream].messages) == 8


def test_streams_that_go_on_share_what_a_connection_may_leave_unread() -> None:
    limits = {"send_bytes_per_stream": MIB, "reply_bytes_per_connection": 2 * MIB}
    with World(limits=limits) as world:
        with world.client(window=0, reads=False) as client:
            feeds = [client.begin(FEED, bytes(100_000)) for _ in range(10)]
            assert client.wait(feeds[-1]).status == 8
            assert world.statistics()["bytes_replies"] < 4 * MIB
            world.wait_for(lambda look: look["seen"].get("cancel_2", 0) >= 1)
        world.wait_for(lambda look: look["statistics"]["bytes_replies"] == 0)


def test_connections_share_what_replies_may_be_left_unread() -> None:
    with World(limits={"reply_bytes": MIB}) as world:
        slow = [world.client(window=1_000, reads=False) for _ in range(3)]
        for client in slow[:2]:
            client.wait_data(client.begin("/test.Echo/Stream", b"9,100000"), 500)
        assert slow[2].wait(slow[2].begin("/test.Echo/Stream", b"9,100000")).status == 8
        with world.client() as other:
            assert other.call(UNARY, b"a small one passes").status == 0
        for client in slow:
            client.close()
        world.wait_for(lambda look: look["statistics"]["bytes_replies"] == 0)
        with world.client() as other:
            assert len(other.call("/test.Echo/Stream", b"9,100000").messages) == 9


def test_made_the_gate_reset_is_cut_off_like_rapid_reset(world: World) -> None:
    """CVE-2025-8671: frames that make the server reset a call that is under way."""

    def attack() -> None:
        much = struct.pack(">I", 2**31 - 1)  # a window that overflows is an error of its stream
        pairs = [
            frame(HEADERS, END_HEADERS, number, head(HOLD))
            + frame(DATA, END_STREAM, number, framed(b""))
            + frame(WINDOW_UPDATE, 0, number, much)
            for number in range(1, 10_001, 2)
        ]
        with opened(world, HELLO, *pairs) as plain:
            assert b"\0\0\0\x0b" in heard(plain)[-128:]

    endures(world, attack)


def test_trailers_of_a_client_are_read_past(world: World) -> None:
    with world.client() as client:
        for path in (UNARY, BIDI):
            stream = client.start(path)
            client.send(stream, framed(b"x"))
            client.http2.send_headers(stream, [("x-sum", "1")], end_stream=True)
            client.flush()
            answer = client.wait(stream)
            assert (answer.messages, answer.status) == ([b"x"], 0)


def test_the_last_stream_a_connection_can_have_is_served(world: World) -> None:
    last = 2**31 - 1
    request = frame(HEADERS, END_HEADERS, last, head(UNARY)) + frame(
        DATA, END_STREAM, last, framed(b"the last one")
    )
    with opened(world, HELLO, request) as plain:
        found = b""
        while b"the last one" not in found:
            found += plain.recv(1 << 16) or pytest.fail("closed without an answer")
        plain.sendall(frame(HEADERS, END_HEADERS | END_STREAM, 1, head(UNARY)))
        heard(plain)  # an id may not go back: the connection is over
    with world.client() as other:
        assert other.call(UNARY, b"x").messages == [b"x"]


def test_a_status_text_is_cut_before_it_breaks_a_client(world: World) -> None:
    with world.client() as client:
        answer = client.call("/" + "ü" * 20_000, b"")
        assert (answer.status, len(answer.text) < 8_000) == (12, True)
        answer = client.call("/test.Echo/Fail", "é".encode() * 30_000)
        assert (answer.status, answer.text[:6], len(answer.text) < 8_000) == (5, "%C3%A9", True)
        assert answer.text.endswith("...")
        assert client.call(UNARY, b"x").messages == [b"x"]


def test_gzip_bombs_leave_the_others_their_turn() -> None:
    bomb = framed(gzip.compress(bytes(16 * MIB)), flag=1)
    with World() as world:
        before = world.order("look")["rss_kib"]
        for _ in range(12):
            with world.client() as bomber, world.client() as other:
                for _ in range(60):
                    stream = bomber.start(HOLD, headers=[("grpc-encoding", "gzip")])
                    bomber.send(stream, bomb, end=True)
                began = time.monotonic()
                assert other.call(UNARY, b"x").messages == [b"x"]
                assert time.monotonic() - began < 2
            # What is not unfolded yet when its client goes never is.
            world.wait_for(lambda look: look["statistics"]["bytes_inbound"] == 0, wait_s=3)
        # Buffers that grow leave gaps; one bomb kept of each round would come to twice this.
        assert world.order("look")["rss_kib"] - before < 96 << 10
        assert world.statistics()["calls"] == 0


def test_a_deadline_runs_while_the_request_comes(world: World) -> None:
    with world.client() as client:
        stream = client.start("/test.Echo/Facts", headers=[("grpc-timeout", "5S")])
        time.sleep(0.5)  # of its own deadline
        client.send(stream, framed(b""), end=True)
        left = int(client.wait(stream).messages[0].split(b'"deadline_ms": ')[1].split(b",")[0])
        assert 2_000 < left <= 4_600


def test_a_connection_told_to_go_for_idleness_finishes_what_it_began() -> None:
    limits = {"idle_ms": 200, "ping_timeout_ms": 300}
    with World(limits=limits) as world, world.client() as client:
        assert client.call(UNARY, b"x").messages == [b"x"]
        while client.goaway is None and not select.select([client.socket], [], [], 0)[0]:
            time.sleep(0.01)
        held = client.begin(HOLD, b"")  # on its way while the gate says goodbye
        client.receive()
        world.wait_for(lambda look: look["held"] == 1)
        client.socket.settimeout(0.1)
        end = time.monotonic() + 1.2
        while time.monotonic() < end:
            with contextlib.suppress(TimeoutError):
                client.receive()
        client.socket.settimeout(10)
        world.order("release")
        assert client.wait(held).messages == [b"released"]
        client.wait_closed()


def test_a_drain_does_not_wait_for_those_who_never_said_anything() -> None:
    pair = certificate("server")
    with World(tls="auto", certificate=pair.certificate, key=pair.key) as world:
        silent = [opened(world, start) for start in (b"", b"PRI", b"\x16\x03\x01\x02\x00\x01")]
        world.wait_for(lambda look: look["statistics"]["connections"] == 3)
        began = time.monotonic()
        world.order("drain", grace_ms=60_000)
        world.wait_for(lambda look: look["seen"].get("drained") == 1)
        assert time.monotonic() - began < 5
        for plain in silent:
            plain.close()


def test_a_drain_may_be_made_shorter(world: World) -> None:
    with world.client() as client:
        client.begin(HOLD_BIDI, b"")
        world.wait_for(lambda look: look["statistics"]["calls"] == 1)
        world.order("drain", grace_ms=60_000)
        while client.goaway is None:
            client.receive()
        world.order("drain", grace_ms=100)
        client.wait_closed()
    world.wait_for(lambda look: look["seen"].get("drained") == 1)


def test_ipv6_is_served_and_an_ipv4_peer_keeps_its_name() -> None:
    with contextlib.suppress(OSError), socket.create_server(("::1", 0), family=socket.AF_INET6):
        with World(tcp=[["::", 0]]) as world:
            port = world.addresses[0][1]
            with Http2(("127.0.0.1", port)) as client:
                assert b'"peer": "127.0.0.1:' in client.call("/test.Echo/Facts", b"").data
        return
    pytest.skip("no IPv6 here")
