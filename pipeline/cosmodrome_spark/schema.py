"""The row: one message with all that the broker knows of it.

The Arrow types are the ones Spark derives from the same columns, to the letter (list items
named `element`, timestamps in microseconds and UTC): it refuses a batch that differs.

Spark never tells a Python source which columns a query needs. So a reader that wants few
columns says so, by `.schema("queue_offset BIGINT, body BINARY")` or by the option
`columns`; only those are then decoded, and on the bulk road only those travel.
"""

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from cosmodrome_spark.errors import InvalidOption

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_TIMESTAMP = pa.timestamp("us", tz="UTC")


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name, its type for Spark and for Arrow, and what it means."""

    name: str
    sql_type: str
    arrow_type: pa.DataType
    meaning: str


COLUMNS: tuple[Column, ...] = (
    Column("topic", "STRING", pa.string(), "the topic"),
    Column("broker", "STRING", pa.string(), "the broker's name in the route"),
    Column("queue_id", "INT", pa.int32(), "the message queue"),
    Column("queue_offset", "BIGINT", pa.int64(), "the place in the queue"),
    Column("message_id", "STRING", pa.string(), "the producer's id"),
    Column("message_type", "STRING", pa.string(), "NORMAL, FIFO, DELAY, TRANSACTION, …"),
    Column("tag", "STRING", pa.string(), "null for none"),
    Column("keys", "ARRAY<STRING>", pa.list_(pa.field("element", pa.string())), "empty for none"),
    Column("message_group", "STRING", pa.string(), "the FIFO key; null for none"),
    Column(
        "properties", "MAP<STRING, STRING>", pa.map_(pa.string(), pa.string()), "user properties"
    ),
    Column("body", "BINARY", pa.binary(), "unpacked where `decodeBody` is on"),
    Column("born_timestamp", "TIMESTAMP", _TIMESTAMP, "the producer's clock"),
    Column("store_timestamp", "TIMESTAMP", _TIMESTAMP, "the broker's clock"),
    Column("delivery_timestamp", "TIMESTAMP", _TIMESTAMP, "of a delayed message; else null"),
    Column("born_host", "STRING", pa.string(), "where the producer ran"),
    Column("store_host", "STRING", pa.string(), "the broker's address"),
    Column("delivery_attempt", "INT", pa.int32(), "null: nothing was delivered, only read"),
    Column("priority", "INT", pa.int32(), "null for none"),
    Column("lite_topic", "STRING", pa.string(), "null for none"),
    Column("trace_context", "STRING", pa.string(), "null for none"),
    Column(
        "dlq",
        "STRUCT<topic: STRING, message_id: STRING>",
        pa.struct([pa.field("topic", pa.string()), pa.field("message_id", pa.string())]),
        "where a dead letter came from; else null",
    ),
)
BY_NAME: dict[str, Column] = {column.name: column for column in COLUMNS}
ALL_COLUMNS: tuple[str, ...] = tuple(BY_NAME)


def check_columns(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names, in their order.

    Raises:
        InvalidOption: A name is unknown or comes twice, or there is none.
    """
    chosen = tuple(names)
    for name in chosen:
        if name not in BY_NAME:
            near = difflib.get_close_matches(name, ALL_COLUMNS, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise InvalidOption(f"unknown column {name!r}{hint} (columns: {', '.join(BY_NAME)})")
    if len(set(chosen)) != len(chosen):
        raise InvalidOption(f"a column is named twice: {', '.join(chosen)}")
    if not chosen:
        raise InvalidOption("no column is chosen: name at least one")
    return chosen


def ddl(names: Sequence[str] = ALL_COLUMNS) -> str:
    """The columns as Spark's DDL."""
    return ", ".join(f"{name} {BY_NAME[name].sql_type}" for name in names)


def arrow_schema(names: Sequence[str] = ALL_COLUMNS) -> pa.Schema:
    """The columns as Arrow, types as Spark expects them."""
    return pa.schema([pa.field(name, BY_NAME[name].arrow_type) for name in names])


def columns_of(schema: "StructType") -> tuple[str, ...]:
    """The columns that a schema given by the user asks for.

    Raises:
        InvalidOption: A column is unknown, or asked for under another type.
    """
    names = check_columns(field.name for field in schema.fields)
    for field in schema.fields:
        ours = BY_NAME[field.name].sql_type.lower().replace(", ", ",").replace(": ", ":")
        asked = field.dataType.simpleString()
        if asked != ours:
            raise InvalidOption(
                f"column {field.name!r} is {ours}, not {asked}: cast it after reading"
            )
    return names
