"""Which clients are there: who they are, what they use, when they were last heard of.

    settings ──register──▶ known ──heartbeat (touch)──▶ known …
                             ├── NotifyClientTermination (end) ──▶ gone at once
                             └── silence for `expiry_ms` (expire) ─▶ gone

A calculator: time is handed in, nothing here sends, reads a clock or knows protobuf. The
settings themselves are opaque bytes; what the broker decides by is beside them. A
session outlives its Telemetry stream: a client that reconnects within the expiry
loses nothing (protocol.md 1.13).
"""

from collections.abc import Iterator
from enum import IntEnum

import msgspec

from cosmodrome_server.errors import OverloadedError

# A bound of what unknown callers can make us remember, not a target.
SESSIONS_MAX = 100_000


class ClientType(IntEnum):
    """What a client is; the numbers of the wire."""

    UNSPECIFIED = 0
    PRODUCER = 1
    PUSH_CONSUMER = 2
    SIMPLE_CONSUMER = 3
    PULL_CONSUMER = 4
    LITE_PUSH_CONSUMER = 5
    LITE_SIMPLE_CONSUMER = 6


LITE_CONSUMERS = frozenset({ClientType.LITE_PUSH_CONSUMER, ClientType.LITE_SIMPLE_CONSUMER})
CONSUMERS = LITE_CONSUMERS | {
    ClientType.PUSH_CONSUMER,
    ClientType.SIMPLE_CONSUMER,
    ClientType.PULL_CONSUMER,
}


class ClientSession(msgspec.Struct):
    """One client as it described itself.

    Attributes:
        client_id: Its x-mq-client-id.
        client_type: What it is; UNSPECIFIED for one that only receives and never said.
        group: Its consumer group, "" for a producer.
        topics: What it publishes to, or subscribes to.
        request_timeout_ms: How long it waits for an answer; 0 for unknown.
        settings: Its encoded Settings, as sent.
        peer: Where it connected from, `ip:port`.
        seen_ms: When it was last heard of, on the monotonic clock.
    """

    client_id: str
    client_type: ClientType
    group: str = ""
    topics: tuple[str, ...] = ()
    request_timeout_ms: int = 0
    settings: bytes = b""
    peer: str = ""
    seen_ms: int = 0


class ClientSessions:
    """The sessions by client id, the one unheard of for longest first."""

    def __init__(self, expiry_ms: int, *, sessions_max: int = SESSIONS_MAX) -> None:
        self._expiry_ms = expiry_ms
        self._sessions_max = sessions_max
        self._sessions: dict[str, ClientSession] = {}
        self._producers: dict[str, dict[str, None]] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[ClientSession]:
        return iter(list(self._sessions.values()))

    def register(self, session: ClientSession, now_ms: int) -> None:
        """Know a client by these settings from now on; they replace earlier ones.

        Raises:
            OverloadedError: As many clients are known as may be.
        """
        known = self._sessions.get(session.client_id)
        if known is None and len(self._sessions) >= self._sessions_max:
            raise OverloadedError(
                f"{self._sessions_max} clients are connected, the most there may be"
            )
        if known is not None:
            self.end(session.client_id)
        session.seen_ms = now_ms
        self._sessions[session.client_id] = session
        if session.client_type is ClientType.PRODUCER:
            for topic in session.topics:
                self._producers.setdefault(topic, {})[session.client_id] = None

    def get(self, client_id: str) -> ClientSession | None:
        """The session of a client; None if unknown."""
        return self._sessions.get(client_id)

    def touch(self, client_id: str, now_ms: int) -> ClientSession | None:
        """Note a sign of life; None if the client is unknown."""
        session = self._sessions.pop(client_id, None)
        if session is not None:
            session.seen_ms = now_ms
            self._sessions[client_id] = session
        return session

    def end(self, client_id: str) -> ClientSession | None:
        """Forget a client; returns what was known, None if nothing."""
        session = self._sessions.pop(client_id, None)
        if session is not None and session.client_type is ClientType.PRODUCER:
            for topic in session.topics:
                ids = self._producers.get(topic, {})
                ids.pop(client_id, None)
                if not ids:
                    self._producers.pop(topic, None)
        return session

    def expire(self, now_ms: int) -> list[ClientSession]:
        """Forget the clients not heard of for the expiry; returns them, longest silent first."""
        gone: list[ClientSession] = []
        for session in self._sessions.values():
            if now_ms - session.seen_ms < self._expiry_ms:
                break  # kept in the order of their last sign of life
            gone.append(session)
        for session in gone:
            self.end(session.client_id)
        return gone

    def producers_of(self, topic: str) -> list[str]:
        """Client ids of the producers of a topic."""
        return list(self._producers.get(topic, ()))

    def members_of(self, group: str) -> list[ClientSession]:
        """The consumers of a group."""
        return [session for session in self._sessions.values() if session.group == group]

    def users_of(self, topic: str) -> list[ClientSession]:
        """All that publish or subscribe to a topic."""
        return [session for session in self._sessions.values() if topic in session.topics]
