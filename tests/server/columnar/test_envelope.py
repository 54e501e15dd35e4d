"""Columns of messages as protobuf reads them one by one."""

import gzip
from datetime import UTC, datetime

import numpy as np
import pytest

from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_server.columnar.envelope import Messages, to_batch
from cosmodrome_server.columnar.protobuf import Buffer


def messages_of(*systems: pb.SystemProperties, body: bytes = b"") -> Messages:
    """Messages that have nothing but these, and all of them this body."""
    encoded = [system.SerializeToString() for system in systems]
    ends = np.cumsum([len(one) for one in encoded]).astype(np.int64)
    starts = np.concatenate([[0], ends[:-1]]).astype(np.int64)
    nothing = np.zeros(len(encoded), np.int64)
    return Messages(
        Buffer(b"".join([*encoded, body])),
        system=(starts, ends),
        user=(nothing, nothing),
        body=(nothing + ends[-1], nothing + ends[-1] + len(body)),
        queue_offsets=nothing,
        store_timestamps_ms=nothing,
        constants={},
    )


@pytest.mark.parametrize(
    ("seconds", "nanos", "read"),
    [
        (9, 8_000, datetime(1970, 1, 1, 0, 0, 9, 8, UTC)),
        (-1, 999_999_000, datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC)),
        (-62_135_596_800, 0, datetime(1, 1, 1, tzinfo=UTC)),
        (253_402_300_799, 0, datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)),
        (-62_135_596_801, 0, None),
        (253_402_300_800, 0, None),
        (1 << 62, 0, None),
    ],
)
def test_a_time_is_read_and_what_is_none_is_null(
    seconds: int, nanos: int, read: datetime | None
) -> None:
    odd = pb.SystemProperties(message_id="odd")
    odd.born_timestamp.seconds, odd.born_timestamp.nanos = seconds, nanos
    never = pb.SystemProperties(message_id="never")
    batch = to_batch(messages_of(odd, never), ["message_id", "born_timestamp"])
    assert batch["message_id"].to_pylist() == ["odd", "never"]
    assert batch["born_timestamp"].to_pylist() == [read, None]


def test_a_body_is_as_it_is_stored_and_its_encoding_says_how_that_is() -> None:
    packed = pb.SystemProperties(body_encoding=pb.GZIP)
    body = gzip.compress(b"hello")
    messages = messages_of(packed, pb.SystemProperties(), body=body)

    batch = to_batch(messages, ["body", "body_encoding"])

    assert batch.to_pydict() == {"body": [body, body], "body_encoding": [pb.GZIP, 0]}
