"""Packed bodies are unpacked where they are read, in batches that stay as large as asked."""

import gzip
import zlib

import pyarrow as pa
import pytest

from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_spark.options import ReadQuery
from cosmodrome_spark.read import unpack
from cosmodrome_spark.read.unpack import columns_to_ask, schema_of, unpacked

CUT = gzip.compress(b"hello")[:-9]


def batch_of(*rows: tuple[bytes, int]) -> pa.RecordBatch:
    columns = {
        "queue_offset": list(range(len(rows))),
        "body": [body for body, _ in rows],
        "body_encoding": [encoding for _, encoding in rows],
    }
    return pa.RecordBatch.from_pydict(columns, schema_of(tuple(columns)))


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
    batch = batch_of((body, pb.GZIP), (body, pb.IDENTITY))

    (found,) = unpacked(batch, ReadQuery(columns=("body", "queue_offset")))

    assert found.to_pydict() == {"body": [read, body], "queue_offset": [0, 1]}


def test_a_body_that_becomes_too_large_is_as_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpack, "UNPACKED_BYTES_MAX", 1_000)
    for size, is_read in ((1_000, True), (1_001, False), (1_000_000, False)):
        body = gzip.compress(bytes(size))
        (found,) = unpacked(batch_of((body, pb.GZIP)), ReadQuery(columns=("body",)))
        assert found["body"].to_pylist() == [bytes(size) if is_read else body]


def test_bodies_that_become_large_come_in_more_batches() -> None:
    rows = [(gzip.compress(bytes(1_000)), pb.GZIP)] * 9 + [(b"plain", pb.IDENTITY)]

    found = list(unpacked(batch_of(*rows), ReadQuery(("queue_offset", "body"), batch_bytes=2_500)))

    assert [each["queue_offset"].to_pylist() for each in found] == [
        [0, 1, 2],
        [3, 4, 5],
        [6, 7, 8],
        [9],
    ]
    assert found[3]["body"].to_pylist() == [b"plain"]


def test_how_bodies_are_packed_is_asked_for_only_where_it_is_needed() -> None:
    assert columns_to_ask(ReadQuery(("body", "tag"))) == ("body", "tag", "body_encoding")
    assert columns_to_ask(ReadQuery(("body",), decode_body=False)) == ("body",)
    assert columns_to_ask(ReadQuery(("tag",))) == ("tag",)


def test_rows_without_packed_bodies_are_handed_on_as_they_are() -> None:
    batch = batch_of((b"a", pb.IDENTITY), (b"b", 0))

    (found,) = unpacked(batch, ReadQuery(("body",)))

    assert found.to_pydict() == {"body": [b"a", b"b"]}
