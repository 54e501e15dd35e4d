"""The clients that are there: their settings, their newest Telemetry stream, what they are asked.

    SETTINGS ──▶ registered, kept over restarts ──▶ answered with merged settings
    group or topic changed ──▶ merged settings pushed at once
    stream closed and 30 s of silence ──▶ what is renewed for it is released
    NotifyClientTermination, 120 s of silence ──▶ forgotten
    first settings of a Node.js client ──▶ answered, and again after 1, 5 and 21 s
    VerifyMessage, PrintThreadStackTrace ──▶ relayed with a nonce, answered within 5 s

`core.client_session` knows who is there; here are the streams, and what is written to them.
A client id may have several streams, one per endpoint it dialled: the newest is used.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec

from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_proto import service_pb2 as rpc
from cosmodrome_server.broker.interface import Broker
from cosmodrome_server.clock import Clock
from cosmodrome_server.config import Config
from cosmodrome_server.core.client_session import (
    CONSUMERS,
    ClientSession,
    ClientSessions,
    ClientType,
)
from cosmodrome_server.errors import (
    BrokerError,
    ClientTimeout,
    ConsumerGroupNotFound,
    NotFound,
    OverloadedError,
    StoreFull,
)
from cosmodrome_server.model.group import Group
from cosmodrome_server.proxy import settings as settings_of
from cosmodrome_server.proxy import status
from cosmodrome_server.proxy.convert import duration_ms
from cosmodrome_server.proxy.front import Call

KEPT_PREFIX = "client/"
# A client without a stream that missed three heartbeats holds no messages any longer.
LOST_MS = 30_000
RELAY_TIMEOUT_MS = 5_000
RELAYS_MAX = 1_000
# The official Node.js client listens for its first settings only when it has the routes of all its
# topics, one after the other: with several topics the answer comes too soon, and it would wait
# for ever, as it does with the reference.
DEAF_AT_FIRST = frozenset({pb.NODE_JS})
REPEAT_FIRST_MS = 1_000
_REPEAT_FACTOR = 4
_REPEAT_LAST_MS = 16_000
# Settings take some 30 µs each.
_PUSHED_PER_TURN = 256

_log = logging.getLogger(__name__)

# A client's answer to what it was asked, or why there is none.
OnAnswer = Callable[[rpc.TelemetryCommand | BrokerError], None]


class _Relay(msgspec.Struct):
    client_id: str
    deadline_ms: int
    on_answer: OnAnswer


class Sessions:
    """Who is there and how to reach them. All on the loop's thread."""

    def __init__(self, broker: Broker, clock: Clock, config: Config) -> None:
        self._broker = broker
        self._clock = clock
        self._config = config
        self._known = ClientSessions(config.delivery.registration_s * 1000)
        self._streams: dict[str, Call] = {}
        # All of them: also of clients that opened a newer one, or never said who they are.
        self._open: set[Call] = set()
        self._is_closed = False
        # Since when clients have no stream; until what is renewed for them is released.
        self._closed: dict[str, int] = {}
        self._relays: dict[str, _Relay] = {}
        # Whose settings are said again: when, and how long after the last time.
        self._repeats: dict[str, tuple[int, int]] = {}
        self._turn = 0

    @property
    def known(self) -> ClientSessions:
        """Who is there."""
        return self._known

    @property
    def streams(self) -> int:
        """How many clients have a Telemetry stream open."""
        return len(self._streams)

    @property
    def has_streams(self) -> bool:
        """Whether any is open."""
        return bool(self._open)

    def restore(self) -> None:
        """Know again the clients of before the restart, so that none need re-sync first."""
        now_ms = self._clock.monotonic_ms()
        for key, value in self._broker.kept(KEPT_PREFIX).items():
            session = session_of(key.removeprefix(KEPT_PREFIX), pb.Settings.FromString(value))
            self._known.register(session, now_ms)
            self._closed[session.client_id] = now_ms

    def register(self, client_id: str, sent: pb.Settings, call: Call) -> pb.Settings:
        """Take a client's settings in and return what it is to work with.

        Raises:
            ConsumerGroupNotFound: Its group does not exist, nor is created on first use.
            OverloadedError: Too many clients.
        """
        group = self._group_of(sent)
        session = session_of(client_id, sent, call.peer)
        before = self._known.get(client_id)
        self._known.register(session, self._clock.monotonic_ms())
        if before is None or before.settings != session.settings:
            self._broker.keep(KEPT_PREFIX + client_id, session.settings)
        if self._streams.get(client_id) is not call and sent.user_agent.language in DEAF_AT_FIRST:
            due_ms = self._clock.monotonic_ms() + REPEAT_FIRST_MS
            self._repeats[client_id] = due_ms, REPEAT_FIRST_MS
        self._streams[client_id] = call
        self._closed.pop(client_id, None)
        return settings_of.merged(sent, group, self._config)

    def _group_of(self, sent: pb.Settings) -> Group | None:
        return (
            self._broker.group(sent.subscription.group.name)
            if sent.HasField("subscription")
            else None
        )

    def touch(self, client_id: str) -> ClientSession | None:
        """Note a heartbeat; None if the client is unknown."""
        return self._known.touch(client_id, self._clock.monotonic_ms())

    def note_receiver(self, client_id: str, group: str) -> None:
        """A client receives with auto-renew: it lives, also when it never sent settings."""
        now_ms = self._clock.monotonic_ms()
        if self._known.touch(client_id, now_ms) is None:
            bare = ClientSession(client_id, ClientType.UNSPECIFIED, group=group)
            self._known.register(bare, now_ms)

    def note_renewed(self, client_id: str, group: str) -> None:
        """A client is given messages that are renewed for it: its silence must be heard of.

        It may have said good-bye since it asked for them.
        """
        if self._known.get(client_id) is None:
            with suppress(OverloadedError):  # it has them already
                self.note_receiver(client_id, group)

    def end(self, client_id: str) -> ClientSession | None:
        """Forget a client at once and release what is renewed for it."""
        session = self._known.end(client_id)
        if session is not None:
            self._forget(session)
        return session

    def _forget(self, session: ClientSession) -> None:
        self._streams.pop(session.client_id, None)
        self._closed.pop(session.client_id, None)
        # First: on a full disk nothing can be written, and its leases are renewed no more.
        if session.client_type is not ClientType.PRODUCER:
            self._broker.client_gone(session.client_id)
        if session.settings:
            self._broker.keep(KEPT_PREFIX + session.client_id, None)

    def unsubscribe(self, session: ClientSession, topic: str) -> None:
        """Take a topic out of a consumer's settings, as if it had never named it."""
        sent = pb.Settings.FromString(session.settings)
        kept = [one for one in sent.subscription.subscriptions if one.topic.name != topic]
        del sent.subscription.subscriptions[:]
        sent.subscription.subscriptions.extend(kept)
        changed = session_of(session.client_id, sent, session.peer)
        self._known.register(changed, self._clock.monotonic_ms())
        self._broker.keep(KEPT_PREFIX + session.client_id, changed.settings)

    def stream_opened(self, call: Call) -> None:
        """A stream began; whose it is, it says by its settings."""
        if self._is_closed:
            call.finish()
        else:
            self._open.add(call)

    def stream_closed(self, client_id: str, call: Call) -> None:
        """A stream ended; the client stays known until it expires."""
        self._open.discard(call)
        if self._streams.get(client_id) is call:
            del self._streams[client_id]
            self._closed[client_id] = self._clock.monotonic_ms()

    def tick(self) -> None:
        """Expire clients and unanswered questions, repeat settings; called every second."""
        now_ms = self._clock.monotonic_ms()
        self._repeat(now_ms)
        for session in self._known.expire(now_ms):
            _log.info("client expired client_id=%s group=%s", session.client_id, session.group)
            try:
                self._forget(session)
            except StoreFull:
                # What is kept of it cannot go now: once more when it was silent for as long again.
                self._known.register(session, now_ms)
        for client_id in self._lost(now_ms):
            del self._closed[client_id]
            self._broker.client_gone(client_id)
        late = [nonce for nonce, relay in self._relays.items() if relay.deadline_ms <= now_ms]
        for nonce in late:
            relay = self._relays.pop(nonce)
            relay.on_answer(
                ClientTimeout(f"client {relay.client_id} did not answer in {RELAY_TIMEOUT_MS} ms")
            )

    def _repeat(self, now_ms: int) -> None:
        due = [client_id for client_id, (due_ms, _) in self._repeats.items() if due_ms <= now_ms]
        for client_id in due:
            _, waited_ms = self._repeats.pop(client_id)
            session = self._known.get(client_id)
            if session is None or client_id not in self._streams:
                continue
            self._push(session)
            wait_ms = waited_ms * _REPEAT_FACTOR
            if wait_ms <= _REPEAT_LAST_MS:
                self._repeats[client_id] = now_ms + wait_ms, wait_ms

    def _lost(self, now_ms: int) -> list[str]:
        """Clients without a stream and not heard of since."""
        lost = []
        for client_id, closed_ms in self._closed.items():
            session = self._known.get(client_id)
            seen_ms = closed_ms if session is None else max(closed_ms, session.seen_ms)
            if now_ms - seen_ms >= LOST_MS:
                lost.append(client_id)
        return lost

    # What is written to clients.

    def send(self, client_id: str, command: rpc.TelemetryCommand) -> bool:
        """Write to the newest stream of a client; False where there is none."""
        stream = self._streams.get(client_id)
        return stream is not None and stream.send(command.SerializeToString())

    def ask(
        self,
        client_id: str,
        make_command: Callable[[str], rpc.TelemetryCommand],
        on_answer: OnAnswer,
    ) -> None:
        """Ask a client over Telemetry; `on_answer` is called once.

        Args:
            client_id: Whom.
            make_command: Makes the command around a nonce.
            on_answer: Takes the client's command with that nonce, or a `ClientTimeout`.

        Raises:
            NotFound: The client has no stream open.
            OverloadedError: Too many questions are open.
        """
        if len(self._relays) >= RELAYS_MAX:
            raise OverloadedError(f"{RELAYS_MAX} questions to clients are open")
        nonce = os.urandom(16).hex()
        if not self.send(client_id, make_command(nonce)):
            raise NotFound(f"client {client_id} has no telemetry stream open")
        deadline_ms = self._clock.monotonic_ms() + RELAY_TIMEOUT_MS
        self._relays[nonce] = _Relay(client_id, deadline_ms, on_answer)

    def answered(self, client_id: str, nonce: str, command: rpc.TelemetryCommand) -> None:
        """Take a client's answer; one that nobody waits for is dropped."""
        relay = self._relays.get(nonce)
        if relay is not None and relay.client_id == client_id:
            del self._relays[nonce]
            relay.on_answer(command)

    def ask_producer(self, topic: str, command: rpc.TelemetryCommand) -> bool:
        """Write to one producer of a topic, a different one each time; False if none is there."""
        ids = [one for one in self._known.producers_of(topic) if one in self._streams]
        self._turn += 1
        for step in range(len(ids)):
            if self.send(ids[(self._turn + step) % len(ids)], command):
                return True
        return False

    def push_group(self, name: str) -> None:
        """Send the members of a changed group their settings."""
        self._push_each([session.client_id for session in self._known.members_of(name)])

    def push_topic(self, name: str) -> None:
        """Send those who use a changed topic their settings, which makes them look again."""
        self._push_each([session.client_id for session in self._known.users_of(name)])

    def _push_each(self, client_ids: Sequence[str]) -> None:
        for client_id in client_ids[:_PUSHED_PER_TURN]:
            session = self._known.get(client_id)
            if session is not None:
                self._push(session)
        later = client_ids[_PUSHED_PER_TURN:]
        if later:
            asyncio.get_running_loop().call_soon(self._push_each, later)

    def _push(self, session: ClientSession) -> None:
        if session.client_id not in self._streams or not session.settings:
            return
        sent = pb.Settings.FromString(session.settings)
        try:
            current = settings_of.merged(sent, self._group_of(sent), self._config)
        except ConsumerGroupNotFound:
            return  # just deleted; its members learn by their next receive
        self.send(
            session.client_id, rpc.TelemetryCommand(status=status.OK_STATUS, settings=current)
        )

    def reconnect_all(self) -> None:
        """Ask every client to open its stream anew: this server is about to stop."""
        for stream in list(self._open):
            ask = rpc.ReconnectEndpointsCommand(nonce=os.urandom(16).hex())
            command = rpc.TelemetryCommand(reconnect_endpoints_command=ask)
            stream.send(command.SerializeToString())

    def close(self) -> None:
        """End every stream, and those that are opened from now on."""
        self._is_closed = True
        for stream in list(self._open):
            stream.finish()
        self._open.clear()
        self._streams.clear()


def session_of(client_id: str, sent: pb.Settings, peer: str = "") -> ClientSession:
    """The session that settings describe."""
    publishes = sent.HasField("publishing")
    topics = (
        tuple(topic.name for topic in sent.publishing.topics)
        if publishes
        else tuple(entry.topic.name for entry in sent.subscription.subscriptions)
    )
    return ClientSession(
        client_id=client_id,
        client_type=client_type_of(sent),
        group="" if publishes else sent.subscription.group.name,
        topics=topics,
        request_timeout_ms=duration_ms(sent.request_timeout),
        settings=sent.SerializeToString(),
        peer=peer,
    )


def client_type_of(sent: pb.Settings) -> ClientType:
    """What the client is. Publishing settings make a producer, whatever type they say."""
    if sent.HasField("publishing"):
        return ClientType.PRODUCER
    try:
        named = ClientType(sent.client_type)
    except ValueError:
        return ClientType.UNSPECIFIED
    return named if named in CONSUMERS else ClientType.UNSPECIFIED
