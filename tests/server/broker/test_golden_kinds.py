"""A data directory with every kind of record and of row a release writes, byte for byte.

Read: the state is the one its writer had, whatever of the derived files is there. Written:
every frame, record, row and index is encoded by this release to the bytes that are there.
A kind that the next release adds fails here until a directory holds it:

    python -m tests.server.broker.test_golden_kinds tests/server/broker/golden_kinds/VERSION
"""

import asyncio
import json
import shutil
import sys
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cosmodrome_server.broker.settings import BrokerSettings
from cosmodrome_server.core import records, timer, transaction
from cosmodrome_server.core.catalogue import Catalogue
from cosmodrome_server.core.shard import Shard
from cosmodrome_server.model.group import ConsumeFrom, CustomizedBackoff, ExponentialBackoff, Group
from cosmodrome_server.model.log import MessageState, RecordKind, Replayed
from cosmodrome_server.model.message import Delivery, MessageType, StoredMessage
from cosmodrome_server.model.queries import ANY_QUEUE, ReceiveQuery
from cosmodrome_server.model.topic import Topic, TopicType
from cosmodrome_server.store import frame, record, sealed_index, segment
from cosmodrome_server.store.checkpoint import FILE_NAME
from cosmodrome_server.store.files import OsFiles
from cosmodrome_server.store.made_index import entries_of
from cosmodrome_server.store.opening import SHARD_NAME
from cosmodrome_server.store.scanner import Found, scan
from cosmodrome_server.store.segment import OFFSET_BITS
from tests.server.broker.test_golden import (
    HOUR_MS,
    Stored,
    _delayed,
    _fill_segments,
    _lite,
    _read_room,
)
from tests.support.broker_world import Clocks, new_message
from tests.support.memory_log import MemoryLog

GOLDEN = Path(__file__).parent / "golden_kinds"
# The writer's clock when it stopped, and the hash of its state.
STATE = "state.json"
RULES = transaction.TransactionRules(expire_ms=2 * HOUR_MS)
ROWS = {b"M", b"N", b"T", b"G", b"K", b"P", b"X", b"Y", b"DF", b"DH", b"DU"}

_DECODERS: dict[RecordKind, Callable[[bytes], Any]] = {
    RecordKind.POP: records.Pop.decode,
    RecordKind.ACK: records.Ack.decode,
    RecordKind.ACK_MANY: records.AckMany.decode,
    RecordKind.CHANGE_INVISIBLE: records.ChangeInvisible.decode,
    RecordKind.RENEW: records.Renew.decode,
    RecordKind.DEAD_LETTER: records.DeadLetter.decode,
    RecordKind.COMMIT_OFFSET: records.SetOffset.decode,
    RecordKind.RESET_OFFSET: records.SetOffset.decode,
    RecordKind.END_TRANSACTION: transaction.EndTransaction.decode,
    RecordKind.TIMER_FIRE: timer.Fire.decode,
    RecordKind.RECALL: timer.Recall.decode,
}
_TOUCHES = {RecordKind.TRANSACTION_CHECK, RecordKind.EXPIRE}


class Producer:
    """Somebody who can be asked about half messages, and knows nothing."""

    def check_transaction(self, message: StoredMessage, transaction_id: str) -> bool:
        return True

    def topic_changed(self, name: str) -> None:
        pass

    def group_changed(self, name: str) -> None:
        pass

    def lite_unsubscribed(self, client_id: str, group: str, lite_topic: str) -> None:
        pass


# Writing


def _create(stored: Stored) -> None:
    broker = stored.broker
    for name, topic_type in (
        ("plain", TopicType.NORMAL),
        ("steps", TopicType.FIFO),
        ("later", TopicType.DELAY),
        ("deals", TopicType.TRANSACTION),
        ("chat", TopicType.LITE),
        ("alarms", TopicType.PRIORITY),
        ("passing", TopicType.NORMAL),
    ):
        broker.create_topic(Topic(name, topic_type, queues=1, attributes={"team": "a"}))
    first = ConsumeFrom.FIRST
    backoff = CustomizedBackoff((1_000,))
    broker.create_group(Group("billing", max_attempts=9, backoff=backoff, consume_from=first))
    broker.create_group(Group("once", max_attempts=1, consume_from=first))
    broker.create_group(Group("ledger", is_fifo=True, max_attempts=3, consume_from=first))
    broker.create_group(Group("room", lite_bind_topic="chat", consume_from=first))
    broker.create_group(Group("passing", backoff=ExponentialBackoff(1_000, 9_000, 2.0)))
    broker.create_group(Group("renewed", backoff=backoff, consume_from=first))
    broker.keep("note", b"\x00kept")
    broker.keep("passing", b"x")
    broker.keep("passing", None)


def _receive(stored: Stored, topic: str, group: str, count: int, **options: Any) -> list[Delivery]:
    query = ReceiveQuery(group, topic, ANY_QUEUE, "c", count, 24 * HOUR_MS, **options)
    return stored.broker.receive(query)


def _receive_renewed(stored: Stored) -> list[Delivery]:
    query = ReceiveQuery("renewed", "plain", ANY_QUEUE, "c", 2, 60_000, auto_renew=True)
    return stored.broker.receive(query)


async def _deliver(stored: Stored) -> None:
    broker = stored.broker
    await stored.send("plain", *[new_message(b"%02d" % number) for number in range(40)])
    held = _receive(stored, "plain", "billing", 20)
    handles = [delivery.receipt_handle for delivery in held]
    assert broker.ack_many("billing", "plain", handles[3:9]) == [None] * 6
    broker.ack("billing", "plain", handles[12])
    broker.change_invisible_duration("billing", "plain", handles[13], 90_000, suspend=True)
    broker.change_invisible_duration("billing", "plain", handles[14], 0, suspend=False)
    broker.forward_to_dead_letter_queue("billing", "plain", handles[15])
    assert len(_receive_renewed(stored)) == 2
    stored.receive("plain", "once", 1)
    steps = [new_message(name, group=chr(name[0])) for name in (b"A1", b"A2", b"B1", b"C1")]
    await stored.send("steps", *steps)
    _receive(stored, "steps", "ledger", 1, attempt_id="first")
    await stored.later(1)
    _receive(stored, "steps", "ledger", 1, attempt_id="second")
    _receive(stored, "steps", "ledger", 1, attempt_id="first")
    # A renewal, an expiry, a dead letter.
    await stored.later(52_000)
    await stored.later(9_000)


async def _promise(stored: Stored) -> None:
    broker = stored.broker
    hours = (1, 3, 30, 31)
    handles = await stored.send("later", *(_delayed(str(h), h * HOUR_MS) for h in hours))
    await stored.later(60_001)
    broker.recall("later", handles[3])
    for deal in ("old", "committed", "rolled back"):
        await stored.send("deals", new_message(deal.encode(), message_type=MessageType.TRANSACTION))
    broker.end_transaction("deals", "committed", commit=True, from_check=False)
    broker.end_transaction("deals", "rolled back", commit=False, from_check=False)
    # Asked about, one fires, one expires.
    for _ in range(5):
        await stored.later(HOUR_MS // 2)
    await stored.send("deals", new_message(b"open", message_type=MessageType.TRANSACTION))
    await stored.later(7_000)
    for deal in ("new", "newer"):
        await stored.send("deals", new_message(deal.encode(), message_type=MessageType.TRANSACTION))
        broker.end_transaction("deals", deal, commit=deal == "new", from_check=True)


async def _written(data: Path) -> None:
    clocks = Clocks()
    stored = Stored(data, clocks, BrokerSettings(transactions=RULES))
    broker = stored.broker
    broker.listen(Producer())
    _create(stored)
    await _deliver(stored)
    await _promise(stored)
    _read_room(stored)
    await stored.send("chat", _lite(b"hello"), _lite(b"again"))
    stored.receive("chat", "room", 1)
    await stored.send("alarms", new_message(b"a", message_type=MessageType.PRIORITY, priority=0))
    broker.commit_offset("billing", "alarms", 0, 1)
    broker.reset_offset("once", "plain", 0, 7)
    await stored.send("passing", new_message(b"a"))
    stored.receive("passing", "passing", 1)
    await _fill_segments(stored)
    broker.delete_topic("passing")
    broker.delete_group("passing")
    await _fill_segments(stored, "filler 2")
    await broker.drain()
    state = {"wall_ms": clocks.wall_ms, "hash": broker.state_hash()}
    await broker.close()
    (data / STATE).write_text(json.dumps(state) + "\n")
    for empty in (
        data / "LOCK",
        *(data / SHARD_NAME).glob("spare-*"),
        data / SHARD_NAME / "reserve",
    ):
        empty.unlink()


# Reading


versions = pytest.mark.parametrize(
    "version", sorted(GOLDEN.iterdir()), ids=lambda path: str(path.name)
)


def frames_of(version: Path) -> Iterator[tuple[segment.SegmentHeader, Found, list[Replayed]]]:
    files, directory = OsFiles(), version / SHARD_NAME
    for named in segment.named(files.names(directory)):
        file = files.open(segment.path_of(directory, named))
        header = segment.decode_header(file.read(0, segment.HEADER_BYTES))
        for found in scan(file, header):
            if isinstance(found, Found):
                first = header.number << OFFSET_BITS | found.start + frame.HEADER_BYTES
                time = found.header.timestamp_ms
                yield header, found, list(record.decode_records(found.payload, first, time))
        file.close()


def family(key: bytes) -> bytes:
    return key[:2] if key[:1] == b"D" else key[:1]


@versions
def test_every_kind_of_record_and_of_row_is_there(version: Path) -> None:
    kinds: set[RecordKind] = set()
    states: set[MessageState] = set()
    rows: set[bytes] = set()
    for _, _, found in frames_of(version):
        for each in found:
            kinds.add(each.kind)
            if each.message is not None:
                states.add(each.message.state)
            if each.kind is RecordKind.SNAPSHOT_ROW:
                rows.add(family(record.decode_row(each.payload)[0]))
    assert set(RecordKind) - kinds == set()
    assert set(MessageState) - states == set()
    assert rows == ROWS


def written(found: list[Replayed], catalogue: Catalogue) -> Iterator[bytes]:
    """The records of a frame as this release writes them."""
    if found[0].kind is RecordKind.QUEUE_ENDS:
        ends = record.decode_queue_ends(found[0].payload)
        end = next(at for at, each in enumerate(found) if each.kind is RecordKind.SNAPSHOT_END)
        rows = [record.decode_row(each.payload) for each in found[1:end]]
        by_queue = [(array("Q", ends), array("Q", ends.values()))]
        snapshot, count = record.encode_snapshot(record.encode_queue_ends(by_queue), rows)
        assert count == end + 1
        yield snapshot
        found = found[end + 1 :]
    for each in found:
        yield encoded(each, catalogue)
        list(catalogue.dirty_rows())


def encoded(each: Replayed, catalogue: Catalogue) -> bytes:
    if each.message is not None:
        return b"".join(record.encode_message(each.message))
    payload = _payload(each, catalogue)
    return record.encode_state(each.kind, payload) + payload


def _payload(each: Replayed, catalogue: Catalogue) -> bytes:
    kind, payload = each.kind, each.payload
    if kind in _DECODERS:
        return bytes(_DECODERS[kind](payload).encode())
    if kind in _TOUCHES:
        return transaction.TransactionTouch.decode(kind, payload).encode()
    return _catalogue_payload(kind, payload, catalogue)


def _catalogue_payload(kind: RecordKind, payload: bytes, catalogue: Catalogue) -> bytes:
    """As it is planned on the catalogue that all records before it made."""
    at_ms = records.record_at_ms(payload)
    before = Catalogue()
    for key, value in catalogue.rows():
        before.restore(key, value)
    number = catalogue.apply(kind, payload)
    if kind is RecordKind.TOPIC:
        return before.plan_topic(catalogue.topics_by_id[number].topic, at_ms).payload
    if kind is RecordKind.GROUP:
        return before.plan_group(catalogue.groups_by_id[number].group, at_ms).payload
    if kind is RecordKind.TOPIC_DELETED:
        return before.plan_topic_deletion(before.topics_by_id[number].topic.name, at_ms).payload
    if kind is RecordKind.GROUP_DELETED:
        return before.plan_group_deletion(before.groups_by_id[number].group.name, at_ms).payload
    (name,) = (row[1:].decode() for row, _ in catalogue.dirty_rows() if row[:1] == b"K")
    return before.plan_keep(name, catalogue.kept.get(name), at_ms).payload


@versions
def test_every_frame_and_record_is_written_as_it_was(version: Path) -> None:
    catalogue = Catalogue()
    seen = 0
    for header, found, each_of in frames_of(version):
        payload = b"".join(written(each_of, catalogue))
        assert payload == found.payload
        file = segment.path_of(version / SHARD_NAME, header).read_bytes()
        assert file[: segment.HEADER_BYTES] == segment.encode_header(header)
        again = frame.encode_header(header.seed, found.header, [payload])
        assert again == file[found.start : found.start + frame.HEADER_BYTES]
        seen += len(each_of)
    assert seen > 100


@versions
def test_the_rows_of_every_snapshot_are_written_as_they_were(version: Path) -> None:
    snapshots = 0
    for _, _, found in frames_of(version):
        rows = [
            record.decode_row(each.payload)
            for each in found
            if each.kind is RecordKind.SNAPSHOT_ROW
        ]
        shard = Shard(MemoryLog())
        shard.restore(rows)
        if rows:
            snapshots += 1
            assert dict(shard.rows()) == dict(rows)
    assert snapshots >= 2


@versions
def test_the_index_of_every_segment_is_written_as_it_was(version: Path, tmp_path: Path) -> None:
    files, directory = OsFiles(), version / SHARD_NAME
    sealed = segment.named(files.names(directory))[:-1]
    for header in sealed:
        of = sealed_index.read_header(files, directory, header)
        runs = sorted(entries_of(files, directory, header).items())
        sealed_index.write(files, tmp_path, header, runs, (of.last_ms, of.oldest_position))
        path = sealed_index.path_of(directory, header.number)
        assert (tmp_path / path.name).read_bytes() == path.read_bytes()
    assert len(sealed) >= 2


@versions
@pytest.mark.parametrize("lost", [(), (FILE_NAME,), ("*.idx",), (FILE_NAME, "*.idx")], ids="+".join)
def test_the_state_is_its_writers_whatever_of_the_derived_files_is_there(
    version: Path, lost: tuple[str, ...], tmp_path: Path
) -> None:
    data = tmp_path / "data"
    shutil.copytree(version, data)
    state = json.loads((data / STATE).read_text())
    for pattern in lost:
        for path in (data / SHARD_NAME).glob(pattern):
            path.unlink()

    async def opened() -> str:
        clocks = Clocks()
        clocks.wall_ms = state["wall_ms"]
        stored = Stored(data, clocks, BrokerSettings(transactions=RULES))
        found = stored.broker.state_hash()
        await stored.broker.close()
        return found

    assert asyncio.run(opened()) == state["hash"]


if __name__ == "__main__":
    asyncio.run(_written(Path(sys.argv[1])))
