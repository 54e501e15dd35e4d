"""What a message costs from the encoded request to the encoded reply, on the real store.

    python -m benchmarks.micro.cycle [--data DIR] [--messages N] [--repeats N] [--json FILE]

Everything but the front: decode, validate, plan, record, commit, encode, reply. Calls arrive
`CALLS_PER_TURN` a turn of the loop, as from 64 streams, and the next turn begins when all of
them are answered, so every step waits for its own fsyncs.

    send, batch of 32        send, one            receive, just written (recent.py)
    receive, backlog (read from the page cache)   receive, one      ack, batch of 32
    ack, one (as official clients acknowledge)
    cycle: send + receive + ack of batches of 32  append: frames of 256, the log alone
    storage alone: the same cycle by the broker's verbs, without protobuf

`per_second` is wall time and only as good as the quiet of the machine; `cpu_us` counts all
threads of the process, the log's writer included. Medians of the repeats.
"""

import argparse
import asyncio
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median

from benchmarks.machine import described
from benchmarks.micro.log_throughput import Figures, Loaded, append
from benchmarks.requests import send_request
from cosmodrome_proto import service_pb2 as rpc
from cosmodrome_proto.sent_pb2 import SentMessages
from cosmodrome_server.app import broker_settings, tune_interpreter
from cosmodrome_server.broker.local_broker import LocalBroker
from cosmodrome_server.clock import SystemClock
from cosmodrome_server.config import load
from cosmodrome_server.model.group import Group
from cosmodrome_server.model.message import NewMessage
from cosmodrome_server.model.queries import ANY_QUEUE, ReceiveQuery
from cosmodrome_server.model.topic import Topic
from cosmodrome_server.proxy import convert, service
from cosmodrome_server.proxy.context import Context
from cosmodrome_server.proxy.front import GrpcStatus
from cosmodrome_server.proxy.health import Health
from cosmodrome_server.proxy.names import Names
from cosmodrome_server.proxy.outgoing import StreamReplies
from cosmodrome_server.proxy.security.directory import Directory
from cosmodrome_server.proxy.security.guard import Guard
from cosmodrome_server.proxy.sessions import Sessions
from cosmodrome_server.proxy.validate import MessageRules
from cosmodrome_server.store.opening import open_log
from cosmodrome_server.store.platform import LogOptions

BATCH = 32
CALLS_PER_TURN = 64
TOPIC, GROUP = "orders", "billing"
_HEADERS: Mapping[str, str] = {"x-mq-client-id": "bench", "x-mq-client-version": "5.1.2"}


class _Turn:
    """The calls of one turn, answered when none is left open."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.left = 0
        self.done = self.loop.create_future()

    def begin(self, calls: int) -> None:
        self.left = calls
        self.done = self.loop.create_future()

    def answered(self, calls: int) -> None:
        self.left -= calls
        if not self.left:
            self.done.set_result(None)

    def reply_many(self, replies: list[tuple[object, bytes]]) -> None:
        """The front's part: on the writer thread."""
        for call, message in replies:
            assert isinstance(call, _Call)
            call.messages = [message]
        self.loop.call_soon_threadsafe(self.answered, len(replies))


class _Call:
    """A `front.Call` that keeps its answer."""

    __slots__ = ("deadline_ms", "headers", "is_tls", "messages", "payload", "peer", "peer_subject",
                 "turn")  # fmt: skip

    def __init__(self, turn: _Turn, payload: bytes) -> None:
        self.turn = turn
        self.payload = payload
        self.headers = _HEADERS
        self.peer = "127.0.0.1:4711"
        self.deadline_ms: int | None = 30_000
        self.is_tls = False
        self.peer_subject = ""
        self.messages: Sequence[bytes] = ()

    def reply(self, message: bytes) -> None:
        self.reply_stream([message])

    def reply_stream(self, messages: Sequence[bytes]) -> None:
        self.messages = messages
        self.turn.answered(1)

    def send(self, message: bytes) -> bool:
        raise AssertionError(f"no stream is open for {len(message)} bytes")

    def finish(self, status: GrpcStatus = GrpcStatus.OK, message: str = "") -> None:
        raise AssertionError(f"ended with {status}: {message}")

    def on_cancel(self, callback: Callable[[], None] | None) -> None:
        """Nobody goes away here."""

    def on_message(self, callback: Callable[[bytes | None], None]) -> None:
        """No call here is a stream."""


class Server:
    """A broker on the real store with a proxy over it."""

    def __init__(self, data: Path, kind: type[LocalBroker] = LocalBroker) -> None:
        config, clock = load(None, environment={}, overrides={}), SystemClock()
        log = open_log(data, LogOptions(), clock)
        self.failures: list[Exception] = []
        broker = kind(log, clock, broker_settings(config), self.failures.append)
        self.broker = broker
        self.turn = _Turn()
        context = Context(
            config=config,
            clock=clock,
            broker=broker,
            sessions=Sessions(broker, clock, config),
            sink=self.turn,
            streams=StreamReplies(asyncio.get_running_loop()),
            endpoint=("127.0.0.1", 8081),
            access=Guard(Directory(broker, config.security), config.security, clock),
        )
        health = Health([service.MESSAGING_SERVICE])
        table = service.routes(context, health, has_reflection=False)
        self._handlers = {route.path: route.handler for route in table}
        broker.create_topic(Topic(TOPIC, queues=8))
        broker.create_group(Group(GROUP))

    async def call(self, name: str, payloads: Sequence[bytes]) -> list[Sequence[bytes]]:
        """Make all calls, some a turn; their answers."""
        handle = self._handlers[f"/{service.MESSAGING_SERVICE}/{name}"]
        answers: list[Sequence[bytes]] = []
        for start in range(0, len(payloads), CALLS_PER_TURN):
            calls = [_Call(self.turn, one) for one in payloads[start : start + CALLS_PER_TURN]]
            self.turn.begin(len(calls))
            for call in calls:
                handle(call)
            await self.turn.done
            answers += [call.messages for call in calls]
        assert not self.failures, self.failures
        return answers


def receive_request(batch: int) -> bytes:
    request = rpc.ReceiveMessageRequest(batch_size=batch, auto_renew=False)
    request.group.name = GROUP
    request.message_queue.topic.name = TOPIC
    request.filter_expression.expression = "*"
    request.invisible_duration.seconds = 600
    request.long_polling_timeout.seconds = 5
    return request.SerializeToString()


def ack_requests(answers: Sequence[Sequence[bytes]]) -> list[bytes]:
    """One AckMessage per receive; checks that every message came with its handle."""
    requests = []
    for messages in answers:
        request = rpc.AckMessageRequest()
        request.group.name, request.topic.name = GROUP, TOPIC
        for encoded in messages:
            answer = rpc.ReceiveMessageResponse.FromString(encoded)
            if answer.HasField("message"):
                system = answer.message.system_properties
                entry = request.entries.add()
                entry.message_id, entry.receipt_handle = system.message_id, system.receipt_handle
        requests.append(request.SerializeToString())
    return requests


def _check_sent(answers: Sequence[Sequence[bytes]], messages: int) -> None:
    entries = [rpc.SendMessageResponse.FromString(one) for (one,) in answers]
    assert sum(len(answer.entries) for answer in entries) == messages, "not all were stored"


def _check_acked(answers: Sequence[Sequence[bytes]], messages: int) -> None:
    entries = [e for (one,) in answers for e in rpc.AckMessageResponse.FromString(one).entries]
    assert len(entries) == messages, f"{len(entries)} acks of {messages}"
    assert all(entry.status.code == 20000 for entry in entries), "an ack was refused"


class Steps:
    """Times each step of the cycle on one server."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.figures: dict[str, Figures] = {}

    async def step(
        self, step: str, name: str, payloads: Sequence[bytes], messages: int
    ) -> list[Sequence[bytes]]:
        """Make the calls, note what a message cost."""
        wall, cpu = time.perf_counter(), time.process_time()
        answers = await self._server.call(name, payloads)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        self.figures[step] = {
            "per_second": messages / wall, "cpu_us": cpu / messages * 1e6
        }  # fmt: skip
        return answers

    async def run(self, messages: int) -> dict[str, Figures]:
        """Every step once."""
        batch = send_request(TOPIC, BATCH)
        turn = BATCH * CALLS_PER_TURN
        rounds = max(1, messages // turn)
        await self._cycle(batch, rounds)
        count = rounds * turn
        sends, pops = [batch] * (count // BATCH), [receive_request(BATCH)] * (count // BATCH)
        await self._server.call("SendMessage", sends)
        found = await self.step("receive, backlog", "ReceiveMessage", pops, count)
        _check_acked(await self._server.call("AckMessage", ack_requests(found)), count)
        singles = min(count, 2_048)  # what recent.py keeps of 1 KiB each
        sent = await self.step("send, one", "SendMessage", [send_request(TOPIC, 1)] * singles,
                               singles)  # fmt: skip
        _check_sent(sent, singles)
        found = await self.step("receive, one", "ReceiveMessage", [receive_request(1)] * singles,
                                singles)  # fmt: skip
        acked = await self.step("ack, one", "AckMessage", ack_requests(found), singles)
        _check_acked(acked, singles)
        return self.figures

    async def _cycle(self, batch: bytes, rounds: int) -> None:
        """Send, receive and acknowledge a turn's worth, over and over."""
        names = ("send, batch of 32", "receive, just written", "ack, batch of 32")
        spent = dict.fromkeys(names, (0.0, 0.0))
        turn = BATCH * CALLS_PER_TURN

        async def timed(step: str, name: str, payloads: Sequence[bytes]) -> list[Sequence[bytes]]:
            answers = await self.step(step, name, payloads, 1)
            figures = self.figures[step]
            wall, cpu = spent[step]
            spent[step] = (wall + 1 / figures["per_second"], cpu + figures["cpu_us"])
            return answers

        pops = [receive_request(BATCH)] * CALLS_PER_TURN
        for _ in range(rounds):
            _check_sent(await timed(names[0], "SendMessage", [batch] * CALLS_PER_TURN), turn)
            acks = ack_requests(await timed(names[1], "ReceiveMessage", pops))
            _check_acked(await timed(names[2], "AckMessage", acks), turn)
        count = rounds * turn
        for step, (wall, cpu) in spent.items():
            self.figures[step] = {"per_second": count / wall, "cpu_us": cpu / count}
        wall, cpu = (sum(column) for column in zip(*spent.values(), strict=True))
        self.figures["cycle"] = {"per_second": count / wall, "cpu_us": cpu / count}


async def cycle(data: Path, messages: int) -> dict[str, Figures]:
    """One repeat, on a store of its own."""
    server = Server(data)
    await asyncio.sleep(0)
    try:
        return await Steps(server).run(messages)
    finally:
        await server.broker.close()


async def storage_alone(data: Path, messages: int) -> Figures:
    """The cycle by the broker's verbs; two hands, so that one plans while the other waits."""
    server = Server(data)
    await asyncio.sleep(0)
    hands = [_Hand(server.broker), _Hand(server.broker)]
    rounds = max(1, messages // (BATCH * CALLS_PER_TURN) // len(hands))
    try:
        await asyncio.gather(*(hand.work(1) for hand in hands))
        wall, cpu = time.perf_counter(), time.process_time()
        await asyncio.gather(*(hand.work(rounds) for hand in hands))
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        assert not server.failures, server.failures
        count = rounds * BATCH * CALLS_PER_TURN * len(hands)
        return {"per_second": count / wall, "cpu_us": cpu / count * 1e6}
    finally:
        await server.broker.close()


class _Hand:
    """Sends, receives and acknowledges without protobuf; acknowledges what it got, whoever sent."""

    _QUERY = ReceiveQuery(GROUP, TOPIC, ANY_QUEUE, "bench", BATCH, 600_000)

    def __init__(self, broker: LocalBroker) -> None:
        self._broker = broker
        self._turn = _Turn()
        self._batch = [broker_message()] * BATCH

    async def work(self, rounds: int) -> None:
        """So many turns of calls, each step durable before the next."""
        broker = self._broker
        for _ in range(rounds):
            for _ in range(CALLS_PER_TURN):
                broker.send(TOPIC, self._batch)
            await self._durable()
            found = [broker.receive(self._QUERY) for _ in range(CALLS_PER_TURN)]
            await self._durable()
            for deliveries in found:
                handles = [delivery.receipt_handle for delivery in deliveries]
                refused = broker.ack_many(GROUP, TOPIC, handles)
                assert refused == [None] * BATCH, "an ack was refused, or a receive was short"
            await self._durable()

    async def _durable(self) -> None:
        self._turn.begin(CALLS_PER_TURN)
        for _ in range(CALLS_PER_TURN):
            self._broker.reply_when_durable(self._turn, _Call(self._turn, b""), b"")
        await self._turn.done
        self._broker.catch_up()


def broker_message() -> NewMessage:
    """What the proxy makes of a message of the send request."""
    config = load(None, environment={}, overrides={})
    request = SentMessages.FromString(send_request(TOPIC, 1))
    rules, names = MessageRules.of(config), Names(config.limits)
    (message,) = convert.new_messages(request.messages, rules, names, 0, "127.0.0.1:4711")
    return message


def append_alone(data: Path, messages: int) -> Figures:
    """Frames of 256 messages of 1 KiB, made durable: the log without a broker."""
    loaded = Loaded(data, LogOptions(retention_ms=0))
    try:
        return append(loaded, messages, 256)
    finally:
        loaded.log.close()


def measure(parent: Path | None, messages: int) -> dict[str, Figures]:
    """Every figure once."""
    data = Path(tempfile.mkdtemp(prefix="cycle-bench-", dir=parent))
    try:
        found = asyncio.run(cycle(data / "cycle", messages))
        found["storage alone, cycle"] = asyncio.run(storage_alone(data / "alone", messages))
        found["append, frames of 256"] = append_alone(data / "append", messages)
        return found
    finally:
        shutil.rmtree(data)


def medians(runs: Sequence[dict[str, Figures]]) -> dict[str, Figures]:
    """The median of each figure."""
    return {
        step: {key: round(median(run[step][key] for run in runs), 2) for key in runs[0][step]}
        for step in runs[0]
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--data", type=Path, help="a directory on the disk to measure")
    parser.add_argument("--messages", type=int, default=20_000, help="of each step and repeat")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    tune_interpreter()
    found = medians([measure(arguments.data, arguments.messages) for _ in range(arguments.repeats)])
    for step, figures in found.items():
        print(f"{step:24} {figures['per_second']:11,.0f}/s {figures['cpu_us']:7.2f} µs CPU")
    if arguments.json:
        report = {"machine": described(), "repeats": arguments.repeats, "figures": found}
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
