"""How a gate and its connections begin and end, and what it says about itself."""

import contextlib
import os
import select
import socket
import subprocess
import sys
import time
from pathlib import Path

import cosmodrome_gate as gate
import pytest

from tests.gate.http2 import BIG_WINDOW, Http2, framed
from tests.gate.world import World

UNARY, HOLD, HOLD_BIDI = "/test.Echo/Unary", "/test.Echo/Hold", "/test.Echo/HoldBidi"
METHODS = [("/a.B/C", gate.UNARY)]
HERE = [("127.0.0.1", 0)]
LINUX = sys.platform == "linux"


def test_the_extension_is_small() -> None:
    assert gate.__file__ is not None
    files = Path(gate.__file__).parent.rglob("*")
    assert sum(file.stat().st_size for file in files if file.is_file()) < 6 << 20


def test_the_stub_says_what_there_is() -> None:
    assert {name for name in dir(gate.Server) if not name.startswith("_")} == {
        "addresses", "close", "drain", "fileno", "linger", "notes", "reload_certificates", "reply",
        "send", "statistics", "take",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"tls": "maybe"}, "off, auto or required"),
        ({"tls": "auto"}, "no certificate"),
        ({"client_certificate": "sometimes"}, "none, optional or required"),
        ({"threads": 0}, "threads"),
        ({"threads": 65}, "threads"),
        ({"limits": {"message_bites": 1}}, "message_bytes"),
        ({"limits": {"connections": 0}}, "connections"),
        ({"limits": {"message_bytes": 1 << 31}}, "inbound_bytes"),
        ({"limits": {"message_bytes": 385 << 20}}, "inbound_bytes_per_connection"),
        ({"limits": {"stall_ms": 1 << 63}}, "stall_ms is .* more than a year"),
        ({"limits": {"busy_poll_us": 1_000_001}}, "busy_poll_us is .* more than a second"),
        ({"tcp": [("nowhere.invalid", 0)]}, "nowhere.invalid:0"),
    ],
)
def test_settings_that_do_not_fit_are_refused_by_name(
    settings: dict[str, object], says: str
) -> None:
    with pytest.raises((ValueError, OSError), match=says):
        gate.Server(METHODS, **{"tcp": HERE, **settings})  # type: ignore[arg-type] # wrong on purpose


def test_a_method_of_no_known_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="kind 3"):
        gate.Server([("/a.B/C", 3)], tcp=HERE)


def test_a_taken_port_is_an_os_error() -> None:
    first = gate.Server(METHODS, tcp=HERE)
    with pytest.raises(OSError, match=f"127.0.0.1:{first.addresses[0][1]}: .* in use"):
        gate.Server(METHODS, tcp=first.addresses)
    first.close()
    again = gate.Server(METHODS, tcp=first.addresses)
    again.close()


def test_processes_may_share_a_port() -> None:
    first = gate.Server(METHODS, tcp=HERE, reuse_port=True)
    second = gate.Server(METHODS, tcp=first.addresses, reuse_port=True)
    assert first.addresses == second.addresses
    clients = [Http2(first.addresses[0]) for _ in range(64)]
    for client in clients:
        client.begin("/a.B/C", b"x")
    taken = {first: 0, second: 0}
    while sum(taken.values()) < len(clients):
        for server in taken:
            taken[server] += len(server.take())
    assert min(taken.values()) > 0, "the kernel deals connections out to both"
    for client in clients:
        client.close()
    first.close()
    second.close()


def test_a_reply_of_another_shape_is_refused_and_nothing_of_it_sent() -> None:
    server = gate.Server(METHODS, tcp=HERE)
    for wrong in ((1, "text"), (1,), (1, None), (1, [b"x", "y"]), ("x", b"y"), (1, 2, b"z"), 7):
        with pytest.raises((TypeError, ValueError, IndexError)):
            server.reply([(0, b"fine"), wrong])  # type: ignore[list-item] # wrong on purpose
    server.reply([(2**63, b"nobody"), (0, b"nobody"), (1, [], object())])
    server.close()


def test_closing_twice_is_closing() -> None:
    server = gate.Server(METHODS, tcp=HERE)
    server.close()
    server.close()
    server.reply([(1, b"nobody listens")])
    assert server.take() == []


def test_a_unix_socket_is_served_and_removed(tmp_path: Path) -> None:
    path = tmp_path / "gate.sock"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))  # left by one that died
    with World(tcp=[], unix=[str(path)]), Http2(str(path)) as client:
        assert client.call(UNARY, b"x").messages == [b"x"]
    assert not path.exists()


def test_a_unix_socket_somebody_serves_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "gate.sock"
    with World(tcp=[], unix=[str(path)]):
        with pytest.raises(OSError, match="in use"):
            gate.Server(METHODS, unix=[path])
        with Http2(str(path)) as client:
            assert client.call(UNARY, b"x").messages == [b"x"]


# Elsewhere than on Linux a socket whose queue is full refuses, as one that nobody has.
@pytest.mark.parametrize("kind", [socket.SOCK_DGRAM, socket.SOCK_STREAM][: 1 + LINUX])
def test_a_unix_socket_of_somebody_who_does_not_accept_is_left_alone(
    tmp_path: Path, kind: socket.SocketKind
) -> None:
    path = tmp_path / "gate.sock"
    with contextlib.ExitStack() as stack:
        theirs = stack.enter_context(socket.socket(socket.AF_UNIX, kind))
        theirs.bind(str(path))
        if kind == socket.SOCK_STREAM:
            theirs.listen(0)
            with contextlib.suppress(BlockingIOError):
                while True:  # as many as it lets wait: who waited behind them would not come back
                    client = stack.enter_context(socket.socket(socket.AF_UNIX))
                    client.setblocking(False)
                    client.connect(str(path))
        with pytest.raises(OSError, match="in use"):
            gate.Server(METHODS, unix=[path])
        assert path.is_socket()


@pytest.mark.parametrize("name", ["missing/gate.sock", "x" * 200])
def test_a_unix_socket_that_cannot_be_had_is_an_error_that_names_it(
    tmp_path: Path, name: str
) -> None:
    good = tmp_path / "good.sock"
    with pytest.raises(OSError, match=name):
        gate.Server(METHODS, unix=[good, tmp_path / name])
    assert not good.exists(), "what was bound before is not left behind"


def test_hundreds_of_addresses_are_had_or_none() -> None:
    server = gate.Server(METHODS, tcp=HERE * 300)
    assert len(set(server.addresses)) == 300
    with pytest.raises(OSError, match="in use"):
        gate.Server(METHODS, tcp=[*HERE * 300, server.addresses[-1]])
    server.close()
    again = gate.Server(METHODS, tcp=server.addresses)
    again.close()


def test_a_process_may_end_with_everything_open() -> None:
    """Calls held, replies with tokens unread, the gate's threads at work: no crash, no hang."""
    ended = subprocess.run(
        [sys.executable, "-c", ENDS], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "40\n", "")


ENDS = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
import cosmodrome_gate as gate
from tests.gate.http2 import Http2
server = gate.Server([("/t.T/S", gate.SERVER_STREAM)], tcp=[("127.0.0.1", 0)], threads=2)
clients = [Http2(server.addresses[0], window=100, reads=False) for _ in range(4)]
for client in clients:
    for _ in range(10):
        client.begin("/t.T/S", b"")
held = []
while len(held) < 40:
    for _, number, _, _, request in server.take():
        held.append(request)
        if len(held) % 2:
            server.reply([(number, [bytes(5_000)], object())])
print(len(held))
for client in clients:
    client.close()
"""


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_of_the_process_leaves_the_gate_to_its_parent() -> None:
    server = gate.Server(METHODS, tcp=HERE, threads=2)
    with Http2(server.addresses[0]) as client:
        if (child := os.fork()) == 0:
            try:
                server.close()
            except BaseException:
                os._exit(1)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        stream = client.begin("/a.B/C", b"x")
        while not (events := server.take()):
            pass
        server.reply([(events[0][1], b"y")])
        assert client.wait(stream).messages == [b"y"]
    server.close()


def test_many_threads_and_addresses_serve_as_one() -> None:
    with World(threads=3, tcp=[["127.0.0.1", 0], ["127.0.0.1", 0]]) as world:
        clients = [Http2(address) for address in world.addresses * 6]
        for number, client in enumerate(clients):
            assert client.call(UNARY, b"%d" % number).messages == [b"%d" % number]
        held = [client.begin(HOLD, b"") for client in clients]
        world.wait_for(lambda look: look["held"] == len(clients))
        world.order("release")
        for client, stream in zip(clients, held, strict=True):
            assert client.wait(stream).messages == [b"released"]
            client.close()


def test_a_drain_lets_calls_finish_and_takes_no_more(world: World) -> None:
    with world.client() as client:
        held = client.begin(HOLD, b"")
        world.wait_for(lambda look: look["held"] == 1)
        world.order("drain", grace_ms=60_000)
        while client.goaway is None:
            client.receive()
        assert client.goaway == 0
        world.wait_for(lambda _: refuses_connections(world))  # both happen at once, in no order
        assert world.seen("drained") == 0
        world.order("release")
        assert client.wait(held).messages == [b"released"]
        client.wait_closed()
    world.wait_for(lambda look: look["seen"].get("drained") == 1)


def refuses_connections(world: World) -> bool:
    try:
        world.client().close()
    except ConnectionError:
        return True
    return False


def test_a_drain_lets_a_reply_under_way_reach_a_slow_reader_whole(world: World) -> None:
    with world.client(window=50_000) as client:
        stream = client.begin("/test.Echo/Deliver", b"20,100000")
        client.wait_data(stream, 100_000)
        world.order("drain", grace_ms=60_000)
        while client.goaway is None:
            client.receive()
        answer = client.wait(stream)
        assert (len(answer.messages), answer.status) == (20, 0)
        client.wait_closed()
    world.wait_for(lambda look: look["seen"].get("drained") == 1)
    assert world.seen("returned") == 0


def test_a_drain_cuts_off_what_does_not_finish(world: World) -> None:
    with world.client() as client:
        client.begin(HOLD_BIDI, b"")
        world.wait_for(lambda look: look["statistics"]["calls"] == 1)
        began = time.monotonic()
        world.order("drain", grace_ms=300)
        client.wait_closed()
        assert 0.2 < time.monotonic() - began < 5
    world.wait_for(lambda look: look["seen"].get("drained") == 1)
    assert world.statistics()["calls"] == 0


def test_a_drain_is_over_when_every_call_it_cut_off_was_told_of() -> None:
    with World(threads=2) as world, contextlib.ExitStack() as clients:
        for _ in range(4):
            client = clients.enter_context(world.client())
            for path in (HOLD, HOLD_BIDI):
                client.begin(path, b"")
            client.begin("/test.Echo/Feed", b"x" * 100_000)
        world.wait_for(lambda look: look["seen"].get("open") == 4 and look["held"] == 8)
        world.order("drain", grace_ms=0)
        world.wait_for(lambda look: look["seen"].get("drained") == 1)
        assert world.seen("cancelled_before_drained") == 12


def test_a_drain_without_connections_is_over_at_once(world: World) -> None:
    world.order("drain", grace_ms=60_000)
    world.wait_for(lambda look: look["seen"].get("drained") == 1)


def test_one_connection_too_many_is_closed_at_once() -> None:
    with World(limits={"connections": 3}) as world:
        clients = [world.client() for _ in range(3)]
        for client in clients:
            assert client.call(UNARY, b"x").messages == [b"x"]
        with socket.create_connection(world.address, 5) as extra:
            assert extra.recv(1) == b""
        assert world.statistics()["connections_refused"] == 1
        clients.pop().close()
        world.wait_for(lambda look: look["statistics"]["connections"] == 2)
        with world.client() as client:
            assert client.call(UNARY, b"x").messages == [b"x"]
        for client in clients:
            client.close()


def test_an_idle_connection_is_told_to_go_and_a_busy_one_stays() -> None:
    with World(limits={"idle_ms": 200}) as world, world.client() as idle, world.client() as busy:
        stream = busy.start("/test.Echo/Bidi")
        assert idle.call(UNARY, b"x").messages == [b"x"]
        idle.wait_closed()
        assert idle.goaway == 0
        busy.send(stream, framed(b"still"), end=True)
        assert busy.wait(stream).messages == [b"still"]


def test_a_connection_is_not_idle_while_it_makes_calls_however_short() -> None:
    with World(limits={"idle_ms": 1_000}) as world, world.client() as client:
        began = last = time.monotonic()
        longest_s = 0.0
        while client.goaway is None and last < began + 2.5:
            assert client.call(UNARY, b"x").messages == [b"x"]
            if select.select([client.socket], [], [], 0.02)[0]:
                client.receive()
            now = time.monotonic()
            longest_s, last = max(longest_s, now - last), now
        assert client.goaway is None or longest_s > 0.9, "it was told to go between two calls"


def test_a_silent_peer_is_pinged_again_and_again_and_one_that_answers_is_kept() -> None:
    limits = {"ping_ms": 50, "ping_timeout_ms": 3_000}
    with World(limits=limits) as world, world.client() as alive, world.client() as dead:
        for client in (alive, dead):
            client.start(HOLD_BIDI)
            while client.pings < 2:  # the second comes only if the answer to the first was taken
                client.receive()
        began = time.monotonic()
        while time.monotonic() < began + 20 and world.statistics()["connections_dead"] == 0:
            alive.receive()
        assert not alive.closed, "it answered each of its pings"
        assert world.statistics()["connections_dead"] == 1
        dead.wait_closed()
        world.wait_for(lambda look: look["seen"].get("cancel_0") == 1)
        answered = alive.pings
        while alive.pings < answered + 2:
            alive.receive()
        assert alive.call(UNARY, b"x").messages == [b"x"]


def test_a_peer_that_was_never_heard_again_is_dead_however_often_it_answered_before() -> None:
    limits = {"ping_ms": 50, "ping_timeout_ms": 300}
    with World(limits=limits) as world, world.client() as client:
        client.start(HOLD_BIDI)
        world.wait_for(lambda look: look["statistics"]["connections_dead"] == 1)
        world.wait_for(lambda look: look["seen"].get("cancel_0") == 1)
        client.wait_closed()
        assert client.pings == 1


def test_a_peer_that_is_heard_is_not_pinged() -> None:
    with World(limits={"ping_ms": 1_000}) as world, world.client() as client:
        began = heard = time.monotonic()
        longest = 0.0
        while heard < began + 1.8:
            assert client.call(UNARY, b"x").messages == [b"x"]
            longest = max(longest, time.monotonic() - heard)
            heard = time.monotonic()
        assert client.pings == 0 or longest > 0.5


def test_a_client_may_ping_as_often_as_it_likes(world: World) -> None:
    with world.client() as client:
        for _ in range(200):
            client.http2.ping(b"12345678")
            client.flush()
            client.receive()
        while client.pongs < 200:
            client.receive()
        assert client.goaway is None
        assert client.call(UNARY, b"x").messages == [b"x"]


def test_a_peer_that_takes_nothing_of_its_replies_is_cut_off() -> None:
    with World(limits={"stall_ms": 200}) as world:
        with world.client(window=0) as stuck:
            stuck.begin(UNARY, b"never read")
            stuck.wait_closed()
        assert world.statistics()["connections_dead"] == 1
        world.wait_for(lambda look: look["statistics"]["bytes_replies"] == 0)


def test_a_connection_that_stops_reading_is_cut_off_though_its_windows_are_open() -> None:
    with World(limits={"stall_ms": 300}) as world, world.client() as other:
        with world.client(window=BIG_WINDOW) as stuck:
            for _ in range(2):  # more than the kernel's buffers take
                stuck.begin("/test.Echo/Deliver", b"20,1000000")
            world.wait_for(lambda look: look["statistics"]["connections_dead"] == 1)
            assert other.call(UNARY, b"x").messages == [b"x"]
        world.wait_for(lambda look: look["seen"].get("returned") == 2)
        # The connection is over when all is told about it, so a moment later.
        left = {"connections": 1, "bytes_replies": 0, "calls": 0}
        world.wait_for(lambda look: left.items() <= look["statistics"].items())


def test_a_connection_with_nothing_to_take_does_not_stall() -> None:
    with World(limits={"stall_ms": 40}) as world, world.client() as client:
        stream = client.start("/test.Echo/Bidi")
        assert client.call(UNARY, b"x").messages == [b"x"]
        time.sleep(0.5)  # many times what a stall may last: nothing waits, so it is none
        client.send(stream, framed(b"still"), end=True)
        assert client.wait(stream).messages == [b"still"]


def test_more_streams_than_allowed_are_refused() -> None:
    with World(limits={"streams_per_connection": 5}) as world, world.client() as client:
        while client.http2.remote_settings.max_concurrent_streams != 5:
            client.receive()
        client.http2.remote_settings[3] = 100  # forget what it said
        client.http2.remote_settings.acknowledge()
        streams = [client.begin(HOLD, b"") for _ in range(6)]
        assert client.wait(streams[5]).reset == 7  # REFUSED_STREAM
        world.wait_for(lambda look: look["held"] == 5)
        world.order("release")
        assert [client.wait(s).messages for s in streams[:5]] == [[b"released"]] * 5


def test_more_calls_than_allowed_are_answered_resource_exhausted() -> None:
    with World(limits={"calls": 3}) as world, world.client() as client:
        streams = [client.begin(HOLD, b"") for _ in range(3)]
        assert client.call(UNARY, b"x").status == 8
        assert client.call("/test.Echo/Bidi", b"x").status == 8
        world.wait_for(lambda look: look["held"] == 3)
        world.order("release")
        assert [client.wait(s).messages for s in streams] == [[b"released"]] * 3
        assert client.call(UNARY, b"x").messages == [b"x"]


def test_a_python_that_does_not_take_bounds_what_waits_for_it() -> None:
    limits = {"message_bytes": 1 << 20, "inbound_bytes": 4 << 20}
    with World(limits=limits) as world, world.client() as client:
        world.order("pause")
        streams = [client.begin(UNARY, bytes(1 << 20)) for _ in range(8)]
        assert client.wait(streams[-1]).status == 8
        assert world.statistics()["bytes_inbound"] <= 4 << 20
        world.order("resume")
        statuses = [client.wait(stream).status for stream in streams]
        assert statuses[:3] == [0, 0, 0]
        assert set(statuses[3:]) == {0, 8} or set(statuses[3:]) == {8}
        assert world.statistics()["bytes_inbound"] == 0


def test_a_stream_python_does_not_read_is_not_read_either() -> None:
    limits = {"unread_bytes_per_stream": 100_000}
    with World(limits=limits) as world, world.client() as client:
        world.order("pause")
        stream = client.start(HOLD_BIDI)
        client.socket.settimeout(0.3)
        sent = 0
        with contextlib.suppress(TimeoutError):
            while sent < 64 << 20:
                client.send(stream, framed(bytes(50_000)))
                sent += 50_005
        assert sent < 4 << 20
        assert world.statistics()["bytes_inbound"] < 300_000
        client.socket.settimeout(10)
        assert client.call("/test.Nothing/Here", b"").status == 12  # the connection is well
        world.order("resume")
        world.wait_for(lambda look: look["seen"].get("message", 0) >= sent // 50_005)


def test_a_stream_its_client_does_not_read_takes_only_so_much() -> None:
    limits = {"send_bytes_per_stream": 300_000}
    with World(limits=limits) as world, world.client(window=65_535, reads=False) as client:
        stream = client.begin("/test.Echo/Feed", bytes(10_000))
        client.wait_data(stream, 60_000)
        look = world.order("look")
        assert 29 <= look["fed"] <= 45
        assert look["statistics"]["bytes_replies"] < 400_000
        client.reset(stream)
        world.wait_for(lambda look: look["statistics"]["bytes_replies"] == 0)


def test_replies_nobody_reads_are_bounded_and_small_ones_still_pass() -> None:
    limits = {"reply_bytes_per_connection": 1 << 20}
    with World(limits=limits) as world:
        with world.client(window=1000, reads=False) as client:
            slow = [client.begin("/test.Echo/Stream", b"10,100000") for _ in range(4)]
            assert client.wait(slow[3]).status == 8
            assert world.statistics()["bytes_replies"] < 4 << 20
            assert client.call(UNARY, b"heartbeat").messages == [b"heartbeat"]
        world.wait_for(lambda look: look["statistics"]["bytes_replies"] == 0)
