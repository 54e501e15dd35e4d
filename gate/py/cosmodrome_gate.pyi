"""The native front of Cosmodrome: gRPC calls come out in batches, replies go in in batches.

    server = Server([("/echo.Echo/Say", UNARY)], tcp=[("127.0.0.1", 0)])
    loop.add_reader(server.fileno(), turn)

    def turn():
        server.reply([(id, message) for kind, id, method, message, request in server.take() if kind == CALL])

Everything but `Server(…)`, `reload_certificates` and `close` returns at once and may be called from
any thread. Replies to calls that are over are dropped.
"""

from collections.abc import Iterator, Mapping
from os import PathLike
from typing import Any, Final, Literal, TypeAlias, final

__version__: Final[str]

# Kinds of methods.
UNARY: Final = 0
SERVER_STREAM: Final = 1
BIDI: Final = 2

# Kinds of events.
CALL: Final = 0
"""A unary or server-streaming call and its request. Detail: the place of the method in the list."""
OPEN: Final = 1
"""A bidirectional stream began. Detail: the place of the method in the list."""
MESSAGE: Final = 2
"""A message of a bidirectional stream."""
HALF_CLOSE: Final = 3
"""The client of a bidirectional stream will send no more."""
CANCEL: Final = 4
"""A call ended without us. Detail: 0 the client or its connection, 1 its deadline, 2 a limit."""
DRAINED: Final = 5
"""After `drain`: the last connection is closed, and its calls were told of."""

Event: TypeAlias = tuple[int, int, int, bytes, Any]
"""kind, id of the call, detail, message, and: the `Request` with CALL and OPEN, the token of a reply
the client did not get with CANCEL, else None."""

Reply: TypeAlias = (
    tuple[int, bytes] | tuple[int, list[bytes]] | tuple[int, list[bytes], object] | tuple[int, int, str]
)
"""(id, message) or (id, messages): these and gRPC OK. (id, status, text): the end, with a status.

With a third part, (id, messages, token), the token comes back with a CANCEL event when the client did
not get them all: it was gone, went before they were written to its connection, or gave the call up
before it had read the end of them.
"""

def self_signed(common_name: str, names: list[str], *, days: int) -> tuple[bytes, bytes]:
    """A new certificate for these host names and addresses that signs itself, and its key: PEM texts.

    Raises:
        ValueError: A name cannot stand in a certificate.
        OverflowError: More days than 65,535.
    """

def check_certificate(
    certificate: bytes,
    key: bytes,
    client_ca: bytes = b"",
    client_certificate: Literal["none", "optional", "required"] = "none",
) -> None:
    """Check that a `Server` could present these; PEM texts.

    Raises:
        ValueError: It could not; why.
    """

@final
class Request(Mapping[str, str]):
    """What a call brought: a read-only mapping of its headers, and these facts.

    Names are lower case; of a repeated name the last value counts.
    """

    @property
    def id(self) -> int: ...
    @property
    def deadline_ms(self) -> int | None:
        """What was left of the deadline when the call arrived; None for no deadline."""
    @property
    def peer(self) -> str:
        """`ip:port`, or `unix:`."""
    @property
    def is_tls(self) -> bool: ...
    @property
    def peer_certificate(self) -> bytes:
        """The client's certificate, DER; b"" for none."""
    @property
    def is_over(self) -> bool:
        """Whether the call was answered, cancelled, or ran out of time."""
    def __getitem__(self, name: str, /) -> str: ...
    def __iter__(self) -> Iterator[str]: ...
    def __len__(self) -> int: ...

@final
class Server:
    """Listens, and serves in native threads, from its making until `close`."""

    def __new__(
        cls,
        methods: list[tuple[str, int]],
        *,
        tcp: list[tuple[str, int]] = ...,
        unix: list[str | PathLike[str]] = ...,
        reuse_port: bool = False,
        threads: int = 1,
        tls: Literal["off", "auto", "required"] = "off",
        certificate: bytes = b"",
        key: bytes = b"",
        client_ca: bytes = b"",
        client_certificate: Literal["none", "optional", "required"] = "none",
        limits: dict[str, int] | None = None,
    ) -> Server:
        """Bind and start.

        Args:
            methods: Path and kind of each. `/service/*` takes what a service does not list.
            tcp: Hosts, with all their addresses, and ports; port 0 takes a free one.
            unix: Paths of unix sockets, never TLS. A stale one is replaced.
            reuse_port: Share the ports with other processes.
            threads: Native threads; a connection belongs to one of them.
            tls: auto = the first byte of a connection decides.
            certificate: PEM, with its chain; needed unless `tls` is off.
            key: PEM.
            client_ca: PEM; who signs client certificates.
            client_certificate: Whether clients show one.
            limits: Bounds by name, see gate/core/src/config.rs for all and their defaults.

        Raises:
            ValueError: A setting that does not fit; says which.
            OSError: An address cannot be had.
        """
    @property
    def addresses(self) -> list[tuple[str, int]]:
        """What `tcp` came to, with real ports."""
    def fileno(self) -> int:
        """A descriptor that is readable while events wait. Take it out of the loop before `close`."""
    def take(self, max_events: int = 1024) -> list[Event]:
        """The events that wait, oldest first."""
    def linger(self, limit_us: int) -> int:
        """Wait for events without sleeping and without the GIL, while a lone caller is served.

        For an event loop that is about to sleep: it returns when there is something to take, after
        `limit_us` or `busy_poll_us`, or when the caller is not alone any more or too slow.

        Returns:
            Microseconds it waited; 0 at once when no lone caller is served.
        """

    def reply(self, replies: list[Reply], /) -> None:
        """Answer calls. Never waits.

        Raises:
            TypeError: Not a list of such tuples; none of them was sent then.
        """
    def send(self, request: Request, message: bytes, /) -> bool:
        """Send one message of a stream that goes on.

        Returns:
            False, and nothing was sent, when the call is over or its client reads too slowly.
        """
    def statistics(self) -> dict[str, int]:
        """The counters at this moment, see gate/core/src/statistics.rs."""
    def notes(self) -> list[str]:
        """Lines for the log since the last time."""
    def reload_certificates(
        self,
        certificate: bytes,
        key: bytes,
        client_ca: bytes = b"",
        client_certificate: Literal["none", "optional", "required"] = "none",
    ) -> None:
        """Use these for new connections; those open go on.

        Raises:
            ValueError: They do not fit, or TLS is off; the old ones stay.
        """
    def drain(self, grace_ms: int) -> None:
        """Take no more connections, tell clients to go, let calls finish, then close them.

        Said again it may be made shorter, not longer.
        """
    def close(self) -> None:
        """Stop at once and wait for the native threads.

        What `take` gives then: a CANCEL for each call that was open and each reply with a token
        that was not written.
        """
