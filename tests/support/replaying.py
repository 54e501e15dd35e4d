"""Reading a log back as the core does."""

from collections.abc import Iterator

from cosmodrome_server.model.log import (
    DELIVERY_HEAD,
    Log,
    RecordKind,
    Replayed,
    ReplayedDeliveries,
    ReplayedRun,
)

Item = tuple[RecordKind, bytes]


def replayed(log: Log) -> Iterator[Item]:
    """Kind and payload of each record but snapshots' rows; visible messages are indexed."""
    for record in log.replay():
        if isinstance(record, ReplayedRun):
            log.index_run(*record[:4])
            yield from [(RecordKind.MESSAGE, b"")] * len(record.entries)
        elif isinstance(record, ReplayedDeliveries):
            yield from deliveries(record)
        elif isinstance(record, Replayed):
            index(log, record)
            yield record.kind, record.payload


def deliveries(run: ReplayedDeliveries) -> Iterator[Item]:
    """Kind and payload of each record of a run."""
    tails = iter(run.tails)
    for head in run.heads:
        kind = RecordKind(head[1])
        tail = next(tails) if kind is RecordKind.POP else b""
        # Behind length and kind.
        yield kind, DELIVERY_HEAD.pack(*head)[5:] + tail


def index(log: Log, record: Replayed) -> None:
    """Index a record, if it is a message."""
    message = record.message
    if message is not None:
        entry = (record.position, message.tag_hash, message.store_timestamp_ms)
        log.index(message.topic_id, message.queue_id, message.queue_offset, entry)
