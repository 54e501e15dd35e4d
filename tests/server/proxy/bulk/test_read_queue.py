"""ReadQueue, QuerySegments and ReleaseSegments of a running server with a log in files."""

import asyncio
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cosmodrome_proto import bulk_pb2 as bulk
from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_proto import service_pb2 as rpc
from cosmodrome_server.config import Config, load
from tests.server.test_app import ask, running
from tests.support.proxy_world import METHODS, ProxyWorld, message, run

COUNT = 5


def settings(data: Path, **overrides: str) -> Config:
    chosen = {
        "server.data": str(data),
        "server.port": "0",
        "server.metrics_port": "0",
        "server.dev": "true",
        "topics.queues": "1",
        "store.segment_mib": "1",
        "store.reserve_mib": "0",
    }
    return load(None, environment={}, overrides=chosen | overrides)


def read_request(**changes: Any) -> bulk.ReadQueueRequest:
    chosen = {"topic": "orders", "start": 0, "end": COUNT, "columns": ["body", "queue_offset"]}
    return bulk.ReadQueueRequest(**{**chosen, **changes})


async def send_some(channel: Any, count: int = COUNT, size: int = 1) -> None:
    for number in range(count):
        one = message(b"%d" % number * size, topic="orders", message_id=f"m{number}")
        sent = await ask(channel, "SendMessage", rpc.SendMessageRequest(messages=[one]))
        assert sent.status.code == pb.OK


def rows(answer: bulk.ReadQueueResponse) -> list[dict[str, Any]]:
    schema = pa.schema([("body", pa.binary()), ("queue_offset", pa.int64())])
    batch = pa.ipc.read_record_batch(pa.py_buffer(answer.ipc), schema)
    found: list[dict[str, Any]] = batch.to_pylist()
    return found


def test_a_range_is_one_batch_of_the_columns_asked_for(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(settings(tmp_path)) as (_, channel):
            await send_some(channel)
            answer = await ask(channel, "ReadQueue", read_request())
            assert (answer.status.code, answer.resume) == (pb.OK, COUNT)
            assert [row["body"] for row in rows(answer)] == [b"0", b"1", b"2", b"3", b"4"]
            assert [row["queue_offset"] for row in rows(answer)] == list(range(COUNT))
            part = await ask(channel, "ReadQueue", read_request(start=2, end=4))
            assert ([row["body"] for row in rows(part)], part.resume) == ([b"2", b"3"], 4)
            small = await ask(channel, "ReadQueue", read_request(batch_bytes=1))
            assert 0 < small.resume < COUNT, "and the caller goes on from there"
            none = await ask(channel, "ReadQueue", read_request(start=COUNT, end=COUNT + 9))
            assert (none.status.code, none.ipc, none.resume) == (pb.OK, b"", COUNT)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"topic": ""}, pb.ILLEGAL_TOPIC, "the topic is blank"),
        ({"topic": "a b"}, pb.ILLEGAL_TOPIC, "other characters"),
        ({"topic": "nowhere"}, pb.TOPIC_NOT_FOUND, "there is no topic nowhere"),
        ({"topic": "rmq_sys_nothing"}, pb.ILLEGAL_TOPIC, "a system topic"),
        ({"topic": "%DLQ%nobody"}, pb.TOPIC_NOT_FOUND, "%DLQ%nobody"),
        ({"queue_id": 1}, pb.BAD_REQUEST, "1"),
        ({"queue_id": -1}, pb.BAD_REQUEST, "-1"),
        ({"start": COUNT + 1, "end": COUNT + 2}, pb.ILLEGAL_OFFSET, "outside [0, 5)"),
        ({"start": -1}, pb.ILLEGAL_OFFSET, "offset -1 is outside"),
        ({"columns": []}, pb.BAD_REQUEST, "no column is asked for"),
        ({"columns": ["bodi"]}, pb.BAD_REQUEST, "unknown column 'bodi'"),
        (
            {"filter": pb.FilterExpression(type=pb.SQL, expression="a = ")},
            *(pb.ILLEGAL_FILTER_EXPRESSION, ""),
        ),
    ],
)
def test_a_read_that_cannot_be_is_refused(
    changes: dict[str, Any], code: int, words: str, tmp_path: Path
) -> None:
    async def main() -> None:
        async with running(settings(tmp_path)) as (_, channel):
            await send_some(channel)
            answer = await ask(channel, "ReadQueue", read_request(**changes))
            assert answer.status.code == code, answer.status
            assert words in answer.status.message

    asyncio.run(main())


def test_sealed_segments_are_named_and_pinned(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(settings(tmp_path)) as (app, channel):
            await send_some(channel, count=8, size=400_000)
            ask_for = bulk.QuerySegmentsRequest(topic="orders", end=8, pin_seconds=60)
            answer = await ask(channel, "QuerySegments", ask_for)
            assert answer.status.code == pb.OK
            assert answer.segments[0].start == 0
            assert 0 < answer.sealed_end <= 8
            # When a segment ends depends on when the next one's file was ready: the large messages
            # may fill one just so, or one that waits for the next. A small one is then in the next.
            sealed_end, count = answer.sealed_end, 8
            while sealed_end == count and count < 11:
                await send_some(channel, count=1)
                count += 1
                end = bulk.QuerySegmentsRequest(topic="orders", end=count)
                sealed_end = (await ask(channel, "QuerySegments", end)).sealed_end
            assert 0 < sealed_end < count, "the last is not sealed"
            assert answer.directory == str(tmp_path / "shard-0000")
            assert app.context.bulk is not None
            ranges = app.context.bulk.ranges
            unpinned = 1 << 63
            assert ranges.pinned_position(app.context.clock.now_ms()) < unpinned
            number = answer.pin.partition(".")[0]
            guessed = f"{number}.{'0' * 32}"
            # Not who counts to its number: neither by this request nor by the other.
            for name, request in (
                ("ReleaseSegments", bulk.ReleaseSegmentsRequest(pin=guessed)),
                ("QuerySegments", bulk.QuerySegmentsRequest(topic="orders", pin=guessed)),
            ):
                assert (await ask(channel, name, request)).status.code == pb.OK
            assert ranges.pinned_position(app.context.clock.now_ms()) < unpinned
            for _ in range(2):
                release = bulk.ReleaseSegmentsRequest(pin=answer.pin)
                released = await ask(channel, "ReleaseSegments", release)
                assert released.status.code == pb.OK
            assert ranges.pinned_position(app.context.clock.now_ms()) == unpinned
            for name, request in (
                ("ReleaseSegments", bulk.ReleaseSegmentsRequest(pin="x")),
                ("ReleaseSegments", bulk.ReleaseSegmentsRequest(pin=number)),
                ("ReleaseSegments", bulk.ReleaseSegmentsRequest(pin="9" * 5_000)),
                ("QuerySegments", bulk.QuerySegmentsRequest(topic="orders", start=2, end=1)),
                ("QuerySegments", bulk.QuerySegmentsRequest(topic="orders", queue_id=7)),
            ):
                refused = await ask(channel, name, request)
                assert refused.status.code == pb.BAD_REQUEST, name

    asyncio.run(main())


@pytest.mark.parametrize("name", ["ReadQueue", "QuerySegments", "ReleaseSegments"])
def test_a_log_that_is_elsewhere_is_read_by_pulling(name: str) -> None:
    async def scenario(world: ProxyWorld) -> None:
        answer = await world.call(name, METHODS[name].request())
        assert answer.status.code == pb.UNSUPPORTED
        assert "PullMessage" in answer.status.message

    run(scenario)


def test_a_message_that_is_as_no_client_sends_it_stops_no_read(tmp_path: Path) -> None:
    """Protobuf reads it, so a producer of any make may have sent it."""
    second, group = 1_000_000, b"\xa3\x06\x08\x01\xa4\x06"
    born_s = {"plain": 9, "before 1970": -9, "first": -62_135_596_800, "last": 253_402_300_799}

    async def main() -> None:
        async with running(settings(tmp_path)) as (_, channel):
            for name, seconds in born_s.items():
                one = message(topic="orders", message_id=name, body_encoding=-1)
                one.system_properties.born_timestamp.seconds = seconds
                one.system_properties.MergeFromString(group)
                sent = await ask(channel, "SendMessage", rpc.SendMessageRequest(messages=[one]))
                assert sent.status.code == pb.OK
            asked = read_request(columns=["message_id", "born_timestamp"], end=len(born_s))
            answer = await ask(channel, "ReadQueue", asked)
            assert answer.status.code == pb.OK
            kind = pa.timestamp("us", tz="UTC")
            schema = pa.schema([("message_id", pa.string()), ("born_timestamp", kind)])
            batch = pa.ipc.read_record_batch(pa.py_buffer(answer.ipc), schema)
            assert batch["message_id"].to_pylist() == list(born_s)
            found = batch["born_timestamp"].cast(pa.int64()).to_pylist()
            assert found == [seconds * second for seconds in born_s.values()]

    asyncio.run(main())
