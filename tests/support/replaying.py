"""Reading a log back as the core does."""

from collections.abc import Iterator

from cosmodrome_server.model.log import Log, RecordKind, Replayed, ReplayedRun

Item = tuple[RecordKind, bytes]


def replayed(log: Log) -> Iterator[Item]:
    """Kind and payload of each record; visible messages are indexed."""
    for record in log.replay():
        if isinstance(record, ReplayedRun):
            log.index_run(*record[:4])
            yield from [(RecordKind.MESSAGE, b"")] * len(record.entries)
        else:
            index(log, record)
            yield record.kind, record.payload


def index(log: Log, record: Replayed) -> None:
    """Index a record, if it is a message."""
    message = record.message
    if message is not None:
        entry = (record.position, message.tag_hash, message.store_timestamp_ms)
        log.index(message.topic_id, message.queue_id, message.queue_offset, entry)
