"""Rows of Arrow batches as messages.

    body (required)   topic  tag  keys  message_group  properties
    delivery_timestamp  message_type  priority  message_id

A message that Spark writes again after a crash carries the same id, in `message_id` and in
the property `spark_dedup_id`: `<job>:<batch>:<partition>:<row>`, or `<job>:<key>` where a
column names the row. The first holds while Spark repeats a task's rows in the same order,
which it does as long as nothing is shuffled; a shuffled query says `dedupKey`.
"""

import gzip
import hashlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from cosmodrome_proto import Timestamp
from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_spark.errors import InvalidOption
from cosmodrome_spark.options import SinkOptions

COLUMNS = {
    "body": ("string", "binary"),
    "topic": ("string",),
    "tag": ("string",),
    "keys": ("array<string>",),
    "message_group": ("string",),
    "properties": ("map<string,string>",),
    "delivery_timestamp": ("timestamp",),
    "message_type": ("string",),
    "priority": ("int",),
    "message_id": ("string",),
}
DEDUP_PROPERTY = "spark_dedup_id"


def check_schema(columns: Mapping[str, str], options: SinkOptions) -> None:
    """Check the columns of a DataFrame, name → Spark type.

    Raises:
        InvalidOption: A column is missing, unknown, or of another type.
    """
    if "body" not in columns:
        raise InvalidOption("a write needs a column body, of type string or binary")
    if options.topic is None and "topic" not in columns:
        raise InvalidOption("say where to: the option topic, or a column topic")
    extra = {options.dedup_key} if options.dedup_key else set()
    if options.dedup_key and options.dedup_key not in columns:
        raise InvalidOption(f"dedupKey names {options.dedup_key!r}, which is no column")
    for name, kind in columns.items():
        if name in extra and name not in COLUMNS:
            continue
        if name not in COLUMNS:
            raise InvalidOption(
                f"column {name!r} is not written to topics ({', '.join(COLUMNS)} are): "
                "select what to write, or put it into properties"
            )
        if kind not in COLUMNS[name]:
            raise InvalidOption(f"column {name!r} is {kind}, not {' or '.join(COLUMNS[name])}")


@dataclass(frozen=True, slots=True)
class Place:
    """Which task of which batch writes: what repeats are recognised by.

    Attributes:
        job: Its name.
        batch: Spark's number; 0 for a write that is no stream.
        partition: The task's number.
        run: Tells apart what has the same three: the checkpoint's id, or that of one write.
    """

    job: str
    batch: int
    partition: int
    run: str = ""


class Encoder:
    """Makes the messages of one task."""

    def __init__(self, options: SinkOptions, place: Place, now_ms: int) -> None:
        self._options = options
        self._place = place
        self._born = _timestamp(now_ms)
        self._row = 0

    def messages(self, batch: pa.RecordBatch) -> Iterator[pb.Message]:
        """One message for each row, in order."""
        columns = {name: batch.column(name).to_pylist() for name in batch.schema.names}
        for index in range(batch.num_rows):
            yield self._message({name: values[index] for name, values in columns.items()})

    def _message(self, row: dict[str, Any]) -> pb.Message:
        body = row["body"]
        body = body.encode() if isinstance(body, str) else body or b""
        properties = dict(row.get("properties") or ())
        _check_no_null("properties", properties.values())
        _check_no_null("keys", row.get("keys") or ())
        dedup_id = self._dedup_id(row)
        if self._options.dedup == "property":
            properties[DEDUP_PROPERTY] = dedup_id
        system = pb.SystemProperties(
            message_id=row.get("message_id") or hashlib.blake2s(dedup_id.encode()).hexdigest()[:32],
            born_timestamp=self._born,
            keys=row.get("keys") or (),
            body_encoding=pb.IDENTITY,
        )
        for name in ("tag", "message_group"):
            if row.get(name):
                setattr(system, name, row[name])
        if row.get("priority") is not None:
            system.priority = row["priority"]
        if row.get("delivery_timestamp") is not None:
            moment = row["delivery_timestamp"]
            system.delivery_timestamp.CopyFrom(_timestamp(int(moment.timestamp() * 1000)))
        system.message_type = _type_of(system, row.get("message_type"))
        if 0 < self._options.compress_over < len(body):
            body, system.body_encoding = gzip.compress(body, 6, mtime=0), pb.GZIP
        topic = self._options.topic or row["topic"]
        return pb.Message(
            topic=pb.Resource(name=topic),
            user_properties=properties,
            system_properties=system,
            body=body,
        )

    def _dedup_id(self, row: dict[str, Any]) -> str:
        place, number = self._place, self._row
        self._row += 1
        if self._options.dedup_key:
            key = row[self._options.dedup_key]
            if key is None:
                raise InvalidOption(
                    f"dedupKey: column {self._options.dedup_key!r} holds a null, which names no row"
                )
            return f"{place.job}:{key}"
        return f"{place.job}:{place.batch}:{place.partition}:{number}"


def _check_no_null(column: str, values: Collection[object]) -> None:
    if None in values:
        raise InvalidOption(
            f"column {column!r} holds a null, which no message can carry: leave it out "
            "(map_filter, array_compact) or write another value (coalesce)"
        )


def _type_of(system: pb.SystemProperties, said: str | None) -> "pb.MessageType.ValueType":
    """The type that follows from the properties, unless the row says it."""
    if said:
        if said not in pb.MessageType.keys():  # noqa: SIM118 - an enum wrapper, no dict
            raise InvalidOption(
                f"message_type {said!r} is none of {', '.join(pb.MessageType.keys())}"
            )
        if said == "TRANSACTION":
            raise InvalidOption(
                "message_type 'TRANSACTION' is not written: nobody would commit that half "
                "message, and nobody see it; leave the column out, or write 'NORMAL'"
            )
        return pb.MessageType.Value(said)
    if system.HasField("delivery_timestamp"):
        return pb.DELAY
    if system.message_group:
        return pb.FIFO
    if system.HasField("priority"):
        return pb.PRIORITY
    return pb.NORMAL


def _timestamp(time_ms: int) -> Timestamp:
    return Timestamp(seconds=time_ms // 1000, nanos=time_ms % 1000 * 1_000_000)
