"""What the gate makes of gRPC calls, good and bad."""

import gzip
import json
import os
import socket
import struct
import time
from pathlib import Path
from typing import Any

import pytest

from tests.gate.http2 import CANCEL, NO_ERROR, framed, resetting
from tests.gate.world import World

UNARY, STREAM, BIDI = "/test.Echo/Unary", "/test.Echo/Stream", "/test.Echo/Bidi"
OK, DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, UNIMPLEMENTED, INTERNAL = 0, 4, 8, 12, 13
GZIP = [("grpc-encoding", "gzip")]


def test_a_unary_call_gets_its_reply_and_ok(world: World) -> None:
    with world.client() as client:
        answer = client.call(UNARY, b"hello")
    assert answer.messages == [b"hello"]
    assert answer.headers[":status"] == "200"
    assert answer.headers["content-type"] == "application/grpc"
    assert answer.status == OK


@pytest.mark.parametrize("size", [0, 1, 255, 256, 16_384, 65_536, 1 << 20, 4 << 20])
def test_messages_of_every_size_come_back_whole(world: World, size: int) -> None:
    message = bytes(range(256)) * (size // 256) + bytes(size % 256)
    with world.client() as client:
        assert client.call(UNARY, message).messages == [message]


@pytest.mark.parametrize("chunk", [1, 2, 3, 5, 7, 100])
def test_a_request_may_be_cut_into_frames_anywhere(world: World, chunk: int) -> None:
    with world.client() as client:
        stream = client.start(UNARY)
        client.send(stream, framed(b"fragmented"), end=True, chunk=chunk)
        assert client.wait(stream).messages == [b"fragmented"]


def test_many_messages_may_share_a_frame(world: World) -> None:
    sent = [b"%d" % n for n in range(100)]
    with world.client() as client:
        assert client.call(BIDI, *sent).messages == sent


def test_many_calls_share_a_connection(world: World) -> None:
    with world.client() as client:
        streams = [client.begin(UNARY, b"%d" % n) for n in range(500)]
        assert [client.wait(s).messages for s in streams] == [[b"%d" % n] for n in range(500)]


def test_a_stream_of_replies_arrives_in_order(world: World) -> None:
    with world.client() as client:
        answer = client.call(STREAM, b"34,300")
    assert [m[:6] for m in answer.messages] == [b"%06d" % n for n in range(34)]
    assert answer.status == OK


def test_a_stream_of_no_replies_is_ok(world: World) -> None:
    with world.client() as client:
        answer = client.call(STREAM, b"0,6")
    assert (answer.messages, answer.status) == ([], OK)


def test_a_bidirectional_stream_answers_each_message_before_the_next(world: World) -> None:
    with world.client() as client:
        stream = client.start(BIDI)
        for n in range(3):
            client.send(stream, framed(b"%d" % n))
            assert client.wait_data(stream, 6 * (n + 1))[-1:] == b"%d" % n
        client.send(stream, b"", end=True)
        assert client.wait(stream).status == OK


def test_the_head_of_a_bidirectional_stream_comes_before_any_message(world: World) -> None:
    with world.client() as client:
        stream = client.start(BIDI)
        while not client.answers[stream].headers:
            client.receive()
        assert client.answers[stream].headers[":status"] == "200"


def test_a_status_and_its_text_reach_the_client(world: World) -> None:
    with world.client() as client:
        answer = client.call("/test.Echo/Fail", "100 % für dich\n".encode())
    assert answer.status == 5
    assert answer.text == "100 %25 f%C3%BCr dich%0A"


def test_headers_and_facts_reach_the_handler(world: World) -> None:
    headers = [
        ("x-mq-client-id", "a@1"),
        ("x-twice", "1"),
        ("x-twice", "2"),
        ("grpc-timeout", "5S"),
    ]
    with world.client() as client:
        facts = json.loads(client.call("/test.Echo/Facts", b"", headers=headers).messages[0])
        port = client.socket.getsockname()[1]
    assert facts["headers"] == {"x-mq-client-id": "a@1", "x-twice": "2"}
    assert facts["peer"] == f"127.0.0.1:{port}"
    # What is left of it: it counts from the call's beginning.
    assert 0 < facts["deadline_ms"] <= 5000
    assert not facts["is_tls"]


def test_a_header_may_be_as_long_as_the_limit_that_was_set_allows() -> None:
    headers = [("x-first", "1"), ("x-long", "y" * 100_000), ("x-last", "2")]
    with World(limits={"header_bytes": 200_000}) as world, world.client() as client:
        stream = client.start("/test.Echo/Facts")
        client.reset(stream)
        facts = json.loads(client.call("/test.Echo/Facts", b"", headers=headers).messages[0])
    assert facts["headers"] == dict(headers)


def test_an_unknown_method_is_unimplemented(world: World) -> None:
    with world.client() as client:
        answer = client.call("/test.Echo/Nothing", b"")
        assert answer.status == UNIMPLEMENTED
        assert "/test.Echo/Nothing" in answer.text
        assert client.call("/test.Wild/Anything", b"").messages == [b"wild"]


def test_what_is_not_grpc_is_told_so_in_http(world: World) -> None:
    with world.client() as client:
        for kind in ("application/json", "application/grpc-web", None):
            answer = client.call(UNARY, b"x", content_type=kind)
            assert answer.headers[":status"] == "415"
            assert b"gRPC" in answer.data
        assert client.wait(client.start(UNARY, method="GET", end=True)).headers[":status"] == "405"
        assert client.call(UNARY, b"x", content_type="application/grpc+proto").status == OK


def test_http1_gets_a_short_answer_and_is_closed(world: World) -> None:
    with socket.create_connection(world.address, 5) as plain:
        plain.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        heard = b""
        while part := plain.recv(4096):
            heard += part
    assert heard.startswith(b"HTTP/1.1 400 ")
    assert b"gRPC" in heard


def test_a_gzipped_request_is_read(world: World) -> None:
    message = b"squeeze me " * 10_000
    with world.client() as client:
        for data in (framed(gzip.compress(message), flag=1), framed(message)):
            stream = client.start(UNARY, headers=GZIP)
            client.send(stream, data, end=True)
            assert client.wait(stream).messages == [message]


def test_a_gzip_bomb_is_refused_before_it_has_unfolded() -> None:
    bomb = framed(gzip.compress(bytes(64 << 20)), flag=1)
    with World(limits={"message_bytes": 1 << 20}) as world, world.client() as client:
        before = world.order("look")["peak_kib"]
        stream = client.start(UNARY, headers=GZIP)
        client.send(stream, bomb, end=True)
        assert client.wait(stream).status == RESOURCE_EXHAUSTED
        assert world.order("look")["peak_kib"] - before < 8 << 10


@pytest.mark.parametrize(
    ("headers", "data", "status", "text"),
    [
        ([], framed(b"x", flag=1), INTERNAL, "grpc-encoding"),
        ([], framed(b"x", flag=2), INTERNAL, "flag 2"),
        (GZIP, framed(b"no gzip", flag=1), INTERNAL, "gzip"),
        (GZIP, framed(2 * gzip.compress(b"one"), flag=1), INTERNAL, "one valid"),
        ([("grpc-encoding", "snappy")], framed(b"x"), UNIMPLEMENTED, "grpc-encoding"),
        ([], framed(b"truncated")[:-1], INTERNAL, "ended inside"),
        ([], b"\0\0", INTERNAL, "ended inside"),
        ([], b"", UNIMPLEMENTED, "exactly one"),
        ([], framed(b"one", b"two"), UNIMPLEMENTED, "exactly one"),
        ([], b"\0\xff\xff\xff\xff", RESOURCE_EXHAUSTED, "message_bytes"),
    ],
)
def test_a_request_that_cannot_be_read_gets_a_status_that_says_why(
    world: World, headers: list[tuple[str, str]], data: bytes, status: int, text: str
) -> None:
    with world.client() as client:
        stream = client.start(UNARY, headers=headers)
        client.send(stream, data, end=True)
        answer = client.wait(stream)
        assert (answer.status, text in answer.text) == (status, True), answer
        assert client.call(UNARY, b"next").messages == [b"next"]


@pytest.mark.parametrize("data", [framed(b"x", flag=3), b"\0\xff\xff\xff\xff"])
def test_a_bidirectional_stream_that_cannot_be_read_ends_with_a_status(
    world: World, data: bytes
) -> None:
    with world.client() as client:
        stream = client.start(BIDI)
        client.send(stream, framed(b"good"))
        client.wait_data(stream, 9)
        client.send(stream, data)
        answer = client.wait(stream)
        assert answer.status in (INTERNAL, RESOURCE_EXHAUSTED)
        assert world.seen("cancel_2") == 1


def test_the_size_limit_holds_to_the_byte() -> None:
    with World(limits={"message_bytes": 1000}) as world, world.client() as client:
        assert client.call(UNARY, bytes(1000)).status == OK
        refused = client.call(UNARY, bytes(1001))
        assert refused.status == RESOURCE_EXHAUSTED
        assert "1001" in refused.text
        assert "1000" in refused.text


def test_the_gate_answers_at_the_deadline_when_python_does_not(world: World) -> None:
    with world.client() as client:
        began = time.monotonic()
        answer = client.call("/test.Echo/Hold", b"", headers=[("grpc-timeout", "200m")])
        took = time.monotonic() - began
        assert answer.status == DEADLINE_EXCEEDED
        assert 0.2 < took < 2
        assert (world.seen("cancel_1"), world.order("look")["held"]) == (1, 0)
        assert world.statistics()["calls_expired"] == 1


def test_a_stream_ends_at_its_deadline(world: World) -> None:
    with world.client() as client:
        stream = client.start("/test.Echo/HoldBidi", headers=[("grpc-timeout", "100m")])
        assert client.wait(stream).status == DEADLINE_EXCEEDED


@pytest.mark.parametrize("timeout", ["99999999H", "99999999M", "99999999u", "nonsense", ""])
def test_any_deadline_may_be_said(world: World, timeout: str) -> None:
    with world.client() as client:
        for path in (UNARY, STREAM, BIDI):
            stream = client.start(path, headers=[("grpc-timeout", timeout)])
            client.send(stream, framed(b"1,6")[:3])  # the rest comes by itself
            client.send(stream, framed(b"1,6")[3:], end=True)
            assert client.wait(stream).status == OK


def test_a_request_that_never_comes_is_given_up_at_its_deadline(world: World) -> None:
    with world.client() as client:
        stream = client.start(UNARY, headers=[("grpc-timeout", "100m")])
        client.send(stream, b"\0\0")
        assert client.wait(stream).status == DEADLINE_EXCEEDED


def took(look: dict[str, Any]) -> int:
    """Calls that Python has taken; those the gate still holds are not of them."""
    seen: dict[str, int] = look["seen"]
    return seen.get("/test.Echo/Hold", 0) + seen.get("open", 0)


@pytest.mark.parametrize("path", ["/test.Echo/Hold", "/test.Echo/HoldBidi"])
def test_python_hears_of_a_call_the_client_gave_up(world: World, path: str) -> None:
    with world.client() as client:
        stream = client.begin(path, b"")
        world.wait_for(lambda look: took(look) == 1)
        client.reset(stream)
        world.wait_for(lambda look: look["seen"].get("cancel_0") == 1)
        assert world.statistics()["calls"] == 0


@pytest.mark.parametrize("path", ["/test.Echo/Hold", "/test.Echo/HoldBidi"])
def test_python_hears_of_calls_whose_connection_is_gone(world: World, path: str) -> None:
    with world.client() as client:
        for _ in range(10):
            client.begin(path, b"")
        world.wait_for(lambda look: took(look) == 10)
    world.wait_for(lambda look: look["seen"].get("cancel_0") == 10)
    assert world.statistics()["calls"] == 0


def test_calls_given_up_before_python_took_them_are_never_seen(world: World) -> None:
    world.order("pause")
    with world.client() as client:
        streams = [client.begin("/test.Echo/Hold", b"") for _ in range(20)]
        world.wait_for(lambda look: look["statistics"]["calls"] == 20)
        for stream in streams:
            client.reset(stream)
        world.wait_for(lambda look: look["statistics"]["calls_cancelled"] == 20)
        world.order("resume")
        assert client.call(UNARY, b"after").messages == [b"after"]
        assert world.seen("/test.Echo/Hold") == 0
        assert world.seen("cancel_0") == 0


def test_a_late_reply_to_a_call_that_is_over_reaches_nobody(world: World) -> None:
    with world.client() as client:
        stream = client.begin("/test.Echo/Hold", b"")
        world.wait_for(lambda look: look["held"] == 1)
        world.order("pause")
        client.reset(stream)
        world.wait_for(lambda look: look["statistics"]["calls"] == 0)
        other = client.begin("/test.Echo/Hold", b"")  # takes the place of the first
        world.wait_for(lambda look: look["statistics"]["calls"] == 1)
        world.order("release")
        world.order("resume")
        world.wait_for(lambda look: look["held"] == 1)
        assert client.call(UNARY, b"x").messages == [b"x"]  # what came before it was read
        assert not client.answers[other].is_over
        world.order("release")
        assert client.wait(other).messages == [b"released"]


def test_a_reply_the_client_did_not_wait_for_comes_back(world: World) -> None:
    with world.client(window=1000, reads=False) as client:
        stream = client.begin("/test.Echo/Deliver", b"34,300")
        client.wait_data(stream, 500)
        assert world.seen("returned") == 0
        client.reset(stream)
        world.wait_for(lambda look: look["seen"].get("returned") == 1)


def test_a_large_reply_comes_back_when_the_connection_goes(world: World) -> None:
    with world.client(window=1000, reads=False) as client:
        stream = client.begin("/test.Echo/Deliver", b"4,1000000")
        client.wait_data(stream, 500)
    world.wait_for(lambda look: look["seen"].get("returned") == 1)
    assert world.statistics()["bytes_replies"] == 0


@pytest.mark.parametrize(("code", "returned"), [(CANCEL, 1), (NO_ERROR, 0)])
def test_a_reply_that_had_left_when_its_client_gave_up_comes_back(
    world: World, code: int, returned: int
) -> None:
    with world.client() as client:
        stream = client.begin("/test.Echo/Deliver", b"1,300")
        assert client.wait(stream).status == OK
        for _ in range(2):
            client.raw(resetting(stream, code))
        assert client.call(UNARY, b"x").messages == [b"x"]  # what came before it was read
        assert world.seen("returned") == returned


def test_replies_that_left_are_kept_for_a_while_each_under_its_own_connection(world: World) -> None:
    with world.client() as client, world.client() as other:
        for _ in range(1_025):
            assert len(client.call("/test.Echo/Deliver", b"1,6").messages) == 1
        first, second = sorted(client.answers)[:2]
        for _ in range(2):  # a stream that is not there yet cannot be reset
            assert other.call(UNARY, b"x").messages == [b"x"]
        other.raw(resetting(second, CANCEL))
        assert other.call(UNARY, b"x").messages == [b"x"]
        client.raw(resetting(first, CANCEL))
        assert client.call(UNARY, b"x").messages == [b"x"]
        assert world.seen("returned") == 0
        client.raw(resetting(second, CANCEL))
        assert client.call(UNARY, b"x").messages == [b"x"]
        assert world.seen("returned") == 1


def test_a_reply_that_arrives_does_not_come_back(world: World) -> None:
    with world.client() as client:
        assert len(client.call("/test.Echo/Deliver", b"34,30000").messages) == 34
        assert client.call(UNARY, b"x").messages == [b"x"]
        assert world.seen("returned") == 0


def test_a_client_refused_thousands_of_times_keeps_its_connection(world: World) -> None:
    with world.client() as client:
        for _ in range(3_000):
            stream = client.start("/test.Echo/Nothing")  # answered before its request has come
            assert client.wait(stream).status == UNIMPLEMENTED
        assert client.goaway is None
        assert client.call(UNARY, b"x").messages == [b"x"]


def test_a_client_refused_while_it_sends_keeps_its_connection() -> None:
    """What was on its way when its call was refused is passed over, of however many at a time."""
    part = framed(bytes(20_000))[:4_000]
    with World(limits={"message_bytes": 1_000}) as world, world.client() as client:
        for _ in range(8):
            streams = [client.start(UNARY) for _ in range(100)]
            for stream in streams:
                client.send(stream, part)
            assert {client.wait(stream).status for stream in streams} == {RESOURCE_EXHAUSTED}
            late = [struct.pack(">BHBBI", 0, len(part), 0, 0, stream) + part for stream in streams]
            client.raw(b"".join(late * 4))
        assert client.call(UNARY, b"x").messages == [b"x"]
        assert client.goaway is None


@pytest.mark.parametrize(("budget_us", "polls"), [(1_000_000, True), (0, False)])
def test_the_gate_stays_awake_for_a_lone_caller_where_it_may(budget_us: int, polls: bool) -> None:
    with World(limits={"busy_poll_us": budget_us}) as world, world.client() as client:
        for number in range(50):
            assert client.call(UNARY, b"%d" % number).messages == [b"%d" % number]
        assert (world.statistics()["busy_polls"] > 0) is (polls and not _is_single_processor())


def test_pythons_loop_stays_awake_for_a_lone_caller_where_two_threads_may() -> None:
    with World(limits={"busy_poll_us": 1_000_000}) as world, world.client() as client:
        until_s = time.monotonic() + 60
        # Where others want the processors it is tried again once a second.
        while world.seen("lingered") == 0 and time.monotonic() < until_s and _is_roomy():
            for number in range(50):
                assert client.call(UNARY, b"%d" % number).messages == [b"%d" % number]
        assert (world.seen("lingered") > 0) is _is_roomy()


def _is_single_processor() -> bool:
    return _processors() < 2


def _is_roomy() -> bool:
    return _processors() > 2 or (_processors() == 2 == len(os.sched_getaffinity(0)))


def _processors() -> int:
    """As the gate counts: by affinity, and by the share a container has."""
    share = Path("/sys/fs/cgroup/cpu.max")
    quota, period = share.read_text().split() if share.exists() else ("max", "1")
    allowed = len(os.sched_getaffinity(0))
    return allowed if quota == "max" else min(allowed, max(1, int(quota) // int(period)))
