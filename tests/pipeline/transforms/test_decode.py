"""Bodies into columns: what fits, and why the rest does not."""

import json
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from pyspark.sql import DataFrame, SparkSession

from cosmodrome_spark.transforms.decode import ToDict, from_dicts, protobuf_decoder

ENVELOPE = "topic STRING, broker STRING, queue_id INT, queue_offset BIGINT, message_id STRING"


def messages(spark: SparkSession, *bodies: bytes) -> DataFrame:
    rows = [("t", "b", 0, offset, "m", None, body) for offset, body in enumerate(bodies)]
    return spark.createDataFrame(rows, f"{ENVELOPE}, store_timestamp TIMESTAMP, body BINARY")


def test_a_value_that_is_not_of_the_schema_is_rejected_and_no_null(spark: SparkSession) -> None:
    bodies = (b"7", b"8589934592", b'"seven"', b"null")

    def make() -> ToDict:
        return lambda body: {"number": json.loads(body), "raw": b"\x00\xff"}

    good, bad = from_dicts(messages(spark, *bodies), "number INT, raw BINARY", make)

    found = [(row["queue_offset"], row["number"], bytes(row["raw"])) for row in good.collect()]
    assert sorted(found) == [(0, 7, b"\x00\xff"), (3, None, b"\x00\xff")]
    reasons = {row["queue_offset"]: row["reason"] for row in bad.collect()}
    assert sorted(reasons) == [1, 2]
    assert "seven" in reasons[2]


@pytest.fixture
def measured() -> descriptor_pb2.FileDescriptorProto:
    """`message Measured` with integers of 64 bits in every place that has a JSON of its own."""
    wide, text, nested = 3, 9, 11  # int64, string, message
    file = descriptor_pb2.FileDescriptorProto(name="m.proto", package="m", syntax="proto3")
    message = file.message_type.add(name="Measured")
    entry = message.nested_type.add(name="ByNameEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=text, label=1)
    entry.field.add(name="value", number=2, type=wide, label=1)
    message.field.add(name="id", number=1, type=wide, label=1)
    message.field.add(name="many", number=2, type=wide, label=3)
    message.field.add(name="inner", number=3, type=nested, label=1, type_name=".m.Measured")
    message.field.add(
        name="by_name", number=4, type=nested, label=3, type_name=".m.Measured.ByNameEntry"
    )
    message.field.add(name="name", number=5, type=text, label=1)
    return file


def test_integers_of_64_bits_are_numbers(
    measured: descriptor_pb2.FileDescriptorProto, tmp_path: Path
) -> None:
    described = tmp_path / "m.bin"
    described.write_bytes(descriptor_pb2.FileDescriptorSet(file=[measured]).SerializeToString())
    pool = descriptor_pool.DescriptorPool()
    pool.Add(measured)
    kind: Any = message_factory.GetMessageClass(pool.FindMessageTypeByName("m.Measured"))
    big = 1 << 40
    body = kind(
        id=big, many=[1, big], inner=kind(id=big), by_name={"a": big}, name="7"
    ).SerializeToString()

    decoded = protobuf_decoder(str(described), "m.Measured")()(body)

    assert decoded == {
        "id": big, "many": [1, big], "inner": {"id": big}, "by_name": {"a": big}, "name": "7",
    }  # fmt: skip
