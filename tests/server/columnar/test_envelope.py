"""Columns of messages as protobuf reads them one by one."""

import gzip
import zlib
from datetime import UTC, datetime

import numpy as np
import pytest

from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_server.columnar import envelope
from cosmodrome_server.columnar.envelope import Messages, to_batch
from cosmodrome_server.columnar.protobuf import Buffer

CUT = gzip.compress(b"hello")[:-9]


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


@pytest.mark.parametrize(
    ("body", "read"),
    [
        pytest.param(gzip.compress(b"hello"), b"hello", id="gzip"),
        pytest.param(gzip.compress(b"hel") + gzip.compress(b"lo"), b"hello", id="two parts"),
        pytest.param(gzip.compress(b"hello") + b"\0\0", b"hello", id="padded"),
        pytest.param(zlib.compress(b"hello"), b"hello", id="zlib"),
        pytest.param(gzip.compress(b""), b"", id="nothing"),
        pytest.param(b"hello", b"hello", id="neither"),
        pytest.param(CUT, CUT, id="cut"),
        pytest.param(b"", b"", id="no body"),
    ],
)
def test_a_packed_body_is_unpacked_and_what_is_none_is_as_it_came(body: bytes, read: bytes) -> None:
    packed = pb.SystemProperties(body_encoding=pb.GZIP)
    batch = to_batch(messages_of(packed, pb.SystemProperties(), body=body), ["body"])
    assert batch["body"].to_pylist() == [read, body]


def test_a_body_that_becomes_too_large_is_as_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(envelope, "UNPACKED_BYTES_MAX", 1_000)
    packed = pb.SystemProperties(body_encoding=pb.GZIP)
    for size, is_read in ((1_000, True), (1_001, False), (1_000_000, False)):
        body = gzip.compress(bytes(size))
        batch = to_batch(messages_of(packed, body=body), ["body"])
        assert batch["body"].to_pylist() == [bytes(size) if is_read else body]
