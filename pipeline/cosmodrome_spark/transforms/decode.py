"""Bodies into columns: JSON by Spark itself, Avro and Protobuf by the column in tasks.

A row whose body does not decode goes to the rejects with the reason; none is dropped.
"""

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from cosmodrome_spark.errors import InvalidJobConfig, MissingDependency

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ENVELOPE = ("topic", "broker", "queue_id", "queue_offset", "message_id", "store_timestamp")
_CORRUPT = "_corrupt"
ToDict = Callable[[bytes], Any]


def from_json(messages: "DataFrame", schema: str) -> tuple["DataFrame", "DataFrame"]:
    """Good rows (envelope and the columns of `schema`) and rejects.

    Args:
        messages: At least the envelope and the body.
        schema: DDL of the columns.
    """
    parsed, fits = _parsed(messages, F.col("body").cast("string"), schema)
    good = parsed.where(fits).select(*ENVELOPE, "_row.*").drop(_CORRUPT)
    bad = parsed.where(~fits).select(
        *ENVELOPE, "body", F.lit("no JSON of this schema").alias("reason")
    )
    return good, bad


def _parsed(frame: "DataFrame", text: "Column", schema: str) -> tuple["DataFrame", "Column"]:
    """The frame with JSON read into `_row`, and whether a row's is of the schema."""
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    row = F.from_json(text, f"{schema}, {_CORRUPT} STRING", options)
    fits = F.col("_row").isNotNull() & F.col(f"_row.{_CORRUPT}").isNull()
    return frame.withColumn("_row", row), fits


def from_dicts(
    messages: "DataFrame", schema: str, make: Callable[[], ToDict]
) -> tuple["DataFrame", "DataFrame"]:
    """As `from_json`, with a decoder that gives a dictionary of JSON values.

    Args:
        messages: At least the envelope and the body.
        schema: DDL of the columns.
        make: Makes the decoder, in each task.
    """

    def decode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        to_dict = make()
        for batch in batches:
            texts, reasons = [], []
            for body in batch.column("body").to_pylist():
                text, reason = _decoded(to_dict, body)
                texts.append(text)
                reasons.append(reason)
            kept = [batch.column(name) for name in (*ENVELOPE, "body")]
            yield pa.RecordBatch.from_arrays(
                [*kept, pa.array(texts, pa.string()), pa.array(reasons, pa.string())],
                names=[*ENVELOPE, "body", "_json", "reason"],
            )

    columns = [f"{each.name} {each.dataType.simpleString()}" for each in messages.schema.fields
               if each.name in {*ENVELOPE, "body"}]  # fmt: skip
    ordered = sorted(columns, key=lambda text: (*ENVELOPE, "body").index(text.split()[0]))
    decoded = messages.select(*ENVELOPE, "body").mapInArrow(
        decode, ", ".join([*ordered, "_json STRING", "reason STRING"])
    )
    parsed, fits = _parsed(decoded, F.col("_json"), schema)
    good = parsed.where(F.col("reason").isNull() & fits).select(*ENVELOPE, "_row.*").drop(_CORRUPT)
    unfit = F.coalesce("reason", F.concat(F.lit("not of this schema: "), F.col("_json")))
    bad = parsed.where(F.col("reason").isNotNull() | ~fits)
    return good, bad.select(*ENVELOPE, "body", unfit.alias("reason"))


def avro_decoder(schema_file: str) -> Callable[[], ToDict]:
    """Decode bodies that are one Avro datum of a schema.

    Raises:
        InvalidJobConfig: The file is no Avro schema.
        MissingDependency: fastavro is not installed.
    """
    try:
        import fastavro  # noqa: F401, PLC0415  # optional
    except ImportError as error:
        raise MissingDependency("format = 'avro' needs fastavro: pip install fastavro") from error
    try:
        schema = json.loads(Path(schema_file).read_text())
    except (OSError, ValueError) as error:
        raise InvalidJobConfig(f"job.schema_file: {error}") from error

    def make() -> ToDict:
        import io  # noqa: PLC0415  # in the task

        import fastavro  # noqa: PLC0415  # as above

        parsed = fastavro.parse_schema(schema)
        return lambda body: fastavro.schemaless_reader(io.BytesIO(body), parsed)

    return make


def protobuf_decoder(descriptor_file: str, message: str) -> Callable[[], ToDict]:
    """Decode bodies that are one Protobuf message.

    Args:
        descriptor_file: What `protoc --descriptor_set_out --include_imports` wrote.
        message: The message's full name.

    Raises:
        InvalidJobConfig: The file cannot be read, or does not know the message.
    """
    from google.protobuf import descriptor_pb2, descriptor_pool  # noqa: PLC0415  # its own kind

    def pool_of(content: bytes) -> descriptor_pool.DescriptorPool:
        pool = descriptor_pool.DescriptorPool()
        for file in descriptor_pb2.FileDescriptorSet.FromString(content).file:
            pool.Add(file)
        return pool

    try:
        content = Path(descriptor_file).read_bytes()
        pool_of(content).FindMessageTypeByName(message)
    except (OSError, KeyError) as error:
        raise InvalidJobConfig(f"job.schema_file: {message}: {error}") from error

    def make() -> ToDict:
        from google.protobuf import json_format, message_factory  # noqa: PLC0415  # in the task

        kind = message_factory.GetMessageClass(pool_of(content).FindMessageTypeByName(message))

        def to_dict(body: bytes) -> dict[str, Any]:
            found = json_format.MessageToDict(
                kind.FromString(body), preserving_proto_field_name=True
            )
            return _with_numbers(found, kind.DESCRIPTOR)

        return to_dict

    return make


# The wrappers of 64 bits: their JSON is the number itself.
_WRAPPED = frozenset({"google.protobuf.Int64Value", "google.protobuf.UInt64Value"})


def _with_numbers(values: dict[str, Any], message: Any) -> dict[str, Any]:  # noqa: ANN401 - a descriptor, of one of two kinds
    """Protobuf's JSON with integers of 64 bits as numbers: it writes them as texts."""
    for name, value in values.items():
        field = message.fields_by_name.get(name)
        if field is not None:  # the well-known types have a JSON of their own
            values[name] = _with_number(value, field)
    return values


def _with_number(value: Any, field: Any) -> Any:  # noqa: ANN401 - whatever JSON has; as above
    kind = field.message_type
    if kind is not None and kind.GetOptions().map_entry:
        of = kind.fields_by_name["value"]
        return {key: _with_number(each, of) for key, each in value.items()}
    if isinstance(value, list):
        return [_with_number(each, field) for each in value]
    is_wide = field.cpp_type in {field.CPPTYPE_INT64, field.CPPTYPE_UINT64}
    if is_wide or (kind is not None and kind.full_name in _WRAPPED):
        return int(value)
    return _with_numbers(value, kind) if kind is not None and isinstance(value, dict) else value


def _decoded(to_dict: ToDict, body: bytes) -> tuple[str | None, str | None]:
    """JSON text, or the reason why there is none."""
    try:
        return json.dumps(to_dict(body), default=_as_json), None
    except Exception as error:
        return None, f"{type(error).__name__}: {error}"


def _as_json(value: object) -> str:
    """What JSON has no type for, as Spark reads it: bytes in base 64, times as text."""
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)
