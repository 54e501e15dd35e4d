"""What send, receive and ack cost in the core and its shell, without a disk or a wire.

The log of this bench only keeps what the core reads back, so the figures are plan, record,
encode, stage and apply: the budgets of the design are <= 6 µs for a single send, <= 3 µs a
further message, <= 3 µs a message received in a batch of 32, <= 3 µs an ack.

    python -m benchmarks.micro.core_budget [--messages N] [--profile]
"""

import argparse
import asyncio
import cProfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from cosmodrome_server.broker.local_broker import LocalBroker
from cosmodrome_server.broker.settings import BrokerSettings
from cosmodrome_server.clock import SystemClock
from cosmodrome_server.model.group import Group
from cosmodrome_server.model.log import MessageRecord, RecordKind, Replayed
from cosmodrome_server.model.message import MessageType, NewMessage
from cosmodrome_server.model.queries import ANY_QUEUE, ReceiveQuery
from cosmodrome_server.model.topic import Topic


class _NullLog:
    """Keeps message objects; stages nothing. Implements what the broker calls."""

    def __init__(self) -> None:
        self._queues: dict[tuple[int, int], list[MessageRecord]] = {}
        self._last: MessageRecord | None = None
        self.staged = 0
        self.state_bytes = 0
        self.open_lsn = 1
        self.durable_lsn = 0

    def rows(self) -> list[tuple[bytes, bytes]]:
        return []

    def replay(self) -> Iterator[Replayed]:
        return iter(())

    def stage_message(self, record: MessageRecord) -> int:
        self._last = record
        self.staged += 1
        return self.staged

    def stage_messages(self, records: Sequence[MessageRecord]) -> list[int]:
        return [self.stage_message(record) for record in records]

    def stage(self, _: RecordKind, payload: bytes) -> int:
        self.staged += 1
        self.state_bytes += len(payload)
        return self.staged

    def index_run(self, *entries: object) -> None:
        """Nothing is kept."""

    def index(self, *entry: object) -> None:
        """Not read back."""

    def keep(self, record: MessageRecord) -> None:
        self._queues.setdefault((record.topic_id, record.queue_id), []).append(record)

    def read(self, topic_id: int, queue_id: int, offset: int) -> MessageRecord:
        return self._queues[topic_id, queue_id][offset]

    def read_many(
        self, topic_id: int, queue_id: int, start: int, end: int
    ) -> Sequence[MessageRecord]:
        return self._queues[topic_id, queue_id][start:end]

    def position(self, *place: int) -> int:
        return place[2]

    def min_offset(self, *_: int) -> int:
        return 0

    def max_offset(self, topic_id: int, queue_id: int) -> int:
        return len(self._queues.get((topic_id, queue_id), ()))

    def timestamp(self, topic_id: int, queue_id: int, offset: int) -> int:
        return self._queues[topic_id, queue_id][offset].store_timestamp_ms

    @property
    def has_staged(self) -> bool:
        return self.staged > 0

    def commit(self, on_durable: Callable[[], None]) -> bool:
        self.staged = 0
        on_durable()
        return True

    def set_on_idle(self, callback: object) -> None:
        pass

    def set_on_failed(self, callback: object) -> None:
        pass

    def set_snapshot(self, callback: object) -> None:
        pass

    def checkpoint(self, rows: Iterable[object], lsn: int) -> None:  # noqa: ARG002  # a `Log`
        for _ in rows:
            pass

    def close(self) -> None:
        pass


def message(number: int) -> NewMessage:
    name = f"{number:032x}"
    system = b"\x1a\x20" + name.encode()
    return NewMessage(name, MessageType.NORMAL, "", "", 0, 0, "", -1, system, b"", b"x" * 1024)


async def measure(count: int) -> dict[str, float]:
    """Microseconds a message of each verb."""
    log = _NullLog()
    broker = LocalBroker(log, SystemClock(), BrokerSettings(), print)  # type: ignore[arg-type]  # a part of a log
    broker.create_topic(Topic("orders", queues=8))
    broker.create_group(Group("billing"))
    await asyncio.sleep(0)
    figures: dict[str, float] = {}

    async def visible() -> None:
        for _ in range(4):
            await asyncio.sleep(0)

    singles = [[message(number)] for number in range(count)]
    batches = [[message(number) for number in range(start, start + 32)]
               for start in range(0, count, 32)]  # fmt: skip
    for name, sends in (("send, single", singles), ("send, batch of 32", batches)):
        original = log.stage_message

        def keeping(
            record: MessageRecord, original: Callable[[MessageRecord], int] = original
        ) -> int:
            log.keep(record)
            return original(record)

        log.stage_message = keeping  # type: ignore[method-assign]  # counted in the figure
        started = time.process_time()
        for messages in sends:
            broker.send("orders", messages)
        figures[name] = (time.process_time() - started) / count * 1e6
        log.stage_message = original  # type: ignore[method-assign]  # put back
        await visible()
    query = ReceiveQuery("billing", "orders", ANY_QUEUE, "client", 32, 60_000, auto_renew=True)
    handles: list[str] = []
    started = time.process_time()
    while deliveries := broker.receive(query):
        handles += [delivery.receipt_handle for delivery in deliveries]
    figures["receive, batch of 32"] = (time.process_time() - started) / len(handles) * 1e6
    started = time.process_time()
    for handle in handles:
        broker.ack("billing", "orders", handle)
    figures["ack"] = (time.process_time() - started) / len(handles) * 1e6
    await visible()
    broker.abandon()
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=64_000)
    parser.add_argument("--profile", action="store_true")
    arguments = parser.parse_args()
    profile = cProfile.Profile()
    if arguments.profile:
        profile.enable()
    figures = asyncio.run(measure(arguments.messages))
    if arguments.profile:
        profile.disable()
        profile.print_stats("tottime")
    for name, microseconds in figures.items():
        print(f"{name:24} {microseconds:6.2f} µs a message")


if __name__ == "__main__":
    main()
