"""An HTTP/2 client that does what it is told, right or wrong, over a blocking socket."""

import contextlib
import socket
import ssl
import struct
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import h2.settings

WAIT_S = 20.0
BIG_WINDOW = 2**31 - 1
NO_ERROR, CANCEL = 0, 8


def framed(*messages: bytes, flag: int = 0) -> bytes:
    """Messages with gRPC's five bytes before each."""
    return b"".join(struct.pack(">BI", flag, len(m)) + m for m in messages)


def resetting(stream: int, code: int) -> bytes:
    """RST_STREAM, for a stream the library takes for over."""
    return struct.pack(">BHBBII", 0, 4, 3, 0, stream, code)


def unframed(data: bytes) -> list[bytes]:
    """The messages of a response body."""
    found = []
    while data:
        flag, length = struct.unpack(">BI", data[:5])
        assert flag == 0
        found.append(data[5 : 5 + length])
        data = data[5 + length :]
    return found


@dataclass
class Answer:
    """What a stream brought so far."""

    headers: dict[str, str] = field(default_factory=dict)
    trailers: dict[str, str] = field(default_factory=dict)
    data: bytearray = field(default_factory=bytearray)
    reset: int | None = None
    ended: bool = False

    @property
    def is_over(self) -> bool:
        return self.ended or self.reset is not None

    @property
    def status(self) -> int:
        """The gRPC status, from the trailers or a head that is all there is."""
        return int({**self.headers, **self.trailers}.get("grpc-status", "-1"))

    @property
    def text(self) -> str:
        return {**self.headers, **self.trailers}.get("grpc-message", "")

    @property
    def messages(self) -> list[bytes]:
        return unframed(bytes(self.data))


class Http2:
    """One connection. Not thread-safe."""

    def __init__(
        self,
        address: tuple[str, int] | str,
        *,
        tls: ssl.SSLContext | None = None,
        window: int = 1 << 20,
        reads: bool = True,
    ) -> None:
        """Connect; `reads=False` gives back no window for what arrives."""
        family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
        self.socket: socket.socket = socket.socket(family)
        self.socket.settimeout(WAIT_S)
        try:
            self.socket.connect(address)
            if family == socket.AF_INET:
                self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if tls is not None:
                self.socket = tls.wrap_socket(self.socket, server_hostname="localhost")
        except OSError:
            self.socket.close()
            raise
        self.reads = reads
        self.goaway: int | None = None
        self.closed = False
        self.answers: dict[int, Answer] = {}
        self.pings = self.pongs = 0  # heard; each ping is answered when it is read
        self.unread = bytearray()
        # No checks of our own: what goes out may be wrong on purpose.
        config = h2.config.H2Configuration(
            client_side=True,
            header_encoding="utf-8",
            validate_outbound_headers=False,
            normalize_outbound_headers=False,
            validate_inbound_headers=False,
        )
        self.http2 = h2.connection.H2Connection(config)
        self.http2.local_settings = h2.settings.Settings(
            client=True, initial_values={h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: window}
        )
        self.http2.initiate_connection()
        if reads:
            self.http2.increment_flow_control_window(1 << 30)
        self.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def flush(self) -> None:
        self.socket.sendall(self.http2.data_to_send())

    def raw(self, data: bytes) -> None:
        """Send bytes past all bookkeeping; a peer that is gone already takes none."""
        with contextlib.suppress(OSError):
            self.socket.sendall(data)

    def start(
        self,
        path: str,
        *,
        headers: Iterable[tuple[str, str]] = (),
        end: bool = False,
        method: str = "POST",
        content_type: str | None = "application/grpc",
    ) -> int:
        """Open a stream."""
        stream = self.http2.get_next_available_stream_id()
        head = [(":method", method), (":scheme", "http"), (":path", path), (":authority", "test")]
        if content_type is not None:
            head.append(("content-type", content_type))
        self.http2.send_headers(stream, [*head, ("te", "trailers"), *headers], end_stream=end)
        self.answers[stream] = Answer()
        self.flush()
        return stream

    def send(self, stream: int, data: bytes, *, end: bool = False, chunk: int = 1 << 14) -> None:
        """Send request bytes in frames of up to `chunk`, while anybody cares."""
        chunk = min(chunk, self.http2.max_outbound_frame_size)
        at = 0
        answer = self.answers[stream]
        while not answer.is_over and not self.closed and (at < len(data) or (end and not data)):
            room = min(self.http2.local_flow_control_window(stream), chunk)
            if room <= 0:
                self.receive()
                continue
            part = data[at : at + room]
            at += len(part)
            self.http2.send_data(stream, part, end_stream=end and at >= len(data))
            self.flush()
            if not data:
                return

    def begin(self, path: str, *messages: bytes, **options: object) -> int:
        """A whole request; its answer comes with `wait`."""
        stream = self.start(path, **options)  # type: ignore[arg-type] # passed through
        self.send(stream, framed(*messages), end=True)
        return stream

    def call(self, path: str, *messages: bytes, **options: object) -> Answer:
        """A whole request and its answer."""
        return self.wait(self.begin(path, *messages, **options))

    def reset(self, stream: int, code: int = 8) -> None:
        self.http2.reset_stream(stream, code)
        self.flush()

    def wait(self, stream: int, *, wait_s: float = WAIT_S) -> Answer:
        """The answer of a stream when it is over, or the connection is."""
        end = time.monotonic() + wait_s
        answer = self.answers[stream]
        while not answer.is_over and not self.closed:
            assert time.monotonic() < end, f"no answer on stream {stream}: {answer}"
            self.receive()
        return answer

    def wait_data(self, stream: int, size: int) -> bytes:
        """The first bytes of an answer."""
        while len(self.answers[stream].data) < size and not self.closed:
            self.receive()
        return bytes(self.answers[stream].data[:size])

    def wait_closed(self) -> None:
        """Read until the peer closes."""
        while not self.closed:
            self.receive()

    def receive(self) -> None:
        """Take what arrives next."""
        try:
            data = self.socket.recv(1 << 16)
        except (ConnectionError, ssl.SSLError):
            data = b""
        if not data:
            self.closed = True
            return
        self.unread += data
        while (frame := self.next_frame()) is not None:
            try:
                events = self.http2.receive_data(frame)
            except h2.exceptions.ProtocolError:
                self.closed = True
                return
            for event in events:
                self.take(event)
            # At once: the library throws away what waits when a GOAWAY comes.
            with contextlib.suppress(OSError):
                self.flush()

    def next_frame(self) -> bytes | None:
        """One frame at a time: what follows a GOAWAY is to be read, too."""
        if len(self.unread) < 9:
            return None
        end = 9 + int.from_bytes(self.unread[:3])
        if len(self.unread) < end:
            return None
        frame = bytes(self.unread[:end])
        del self.unread[:end]
        return frame

    def take(self, event: h2.events.Event) -> None:
        self.take_of_connection(event)
        stream = getattr(event, "stream_id", None)
        answer = self.answers.get(stream) if isinstance(stream, int) else None
        if answer is None:
            return
        if isinstance(event, h2.events.ResponseReceived):
            answer.headers = {str(k): str(v) for k, v in event.headers or ()}
        elif isinstance(event, h2.events.TrailersReceived):
            answer.trailers = {str(k): str(v) for k, v in event.headers or ()}
        elif isinstance(event, h2.events.DataReceived):
            answer.data += event.data or b""
            if self.reads and event.flow_controlled_length:
                self.http2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, h2.events.StreamReset):
            answer.reset = int(event.error_code or 0)
        elif isinstance(event, h2.events.StreamEnded):
            answer.ended = True

    def take_of_connection(self, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.ConnectionTerminated):
            self.goaway = int(event.error_code or 0)
            # The library takes it for the end; streams under way go on all the same.
            self.http2.state_machine.state = h2.connection.ConnectionState.CLIENT_OPEN
        elif isinstance(event, h2.events.PingReceived):
            self.pings += 1
        elif isinstance(event, h2.events.PingAckReceived):
            self.pongs += 1
