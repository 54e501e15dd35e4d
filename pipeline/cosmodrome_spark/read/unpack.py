"""Bodies as their producers had them: GZIP unpacked, in batches that stay as large as asked.

    batch with body_encoding ──▶ bodies one by one ──▶ `batchBytes` are full: the rows so far

Done by who reads and not by the broker, on any road: a body of a few KiB may become a
thousand times as much.
"""

import zlib
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_spark.options import ReadQuery
from cosmodrome_spark.schema import arrow_schema

ENCODING = "body_encoding"
# A body becomes at most this when it is unpacked; packed, it has 4 MiB.
UNPACKED_BYTES_MAX = 256 << 20
_GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS  # zlib's own way to say: whichever it begins as


def columns_to_ask(query: ReadQuery) -> tuple[str, ...]:
    """The columns of a query, and how bodies are packed where they are to be unpacked."""
    if "body" in query.columns and query.decode_body:
        return (*query.columns, ENCODING)
    return query.columns


def schema_of(columns: Sequence[str]) -> pa.Schema:
    """`arrow_schema`, where one of the columns may be `body_encoding`."""
    fields = [
        pa.field(name, pa.int32()) if name == ENCODING else arrow_schema([name]).field(0)
        for name in columns
    ]
    return pa.schema(fields)


def unpacked(batch: pa.RecordBatch, query: ReadQuery) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a batch with the columns of `query`, bodies unpacked.

    Args:
        batch: With the columns of `columns_to_ask`, and perhaps more.
        query: Its `batch_bytes` bound the bodies of one batch; one body is always taken.
    """
    names = batch.schema.names
    plain = batch.select(list(query.columns))
    if ENCODING not in names:
        yield plain
        return
    packed = np.asarray(batch.column(names.index(ENCODING))) == pb.GZIP
    if not packed.any():
        yield plain
        return
    place = query.columns.index("body")
    first = 0
    while first < plain.num_rows:
        bodies = _bodies(plain.column(place), packed, first, query.batch_bytes)
        rows = plain.slice(first, len(bodies))
        yield rows.set_column(place, "body", pa.array(bodies, pa.binary()))
        first += len(bodies)


def _bodies(column: pa.Array, packed: "np.ndarray", first: int, bytes_max: int) -> list[bytes]:
    """The bodies from row `first` on, unpacked: as many as fit, at least one."""
    found: list[bytes] = []
    size = 0
    while first + len(found) < len(column) and size < bytes_max:
        row = first + len(found)
        body: bytes = column[row].as_py()
        found.append(unpack(body) if packed[row] else body)
        size += len(found[-1])
    return found


def unpack(body: bytes) -> bytes:
    """GZIP as the protocol says, or zlib, which the older Java clients send under that name.

    What is neither, or damaged, or becomes more than `UNPACKED_BYTES_MAX`, as it came: its
    producer is wrong about one message, and who reads a queue wants the others too.
    """
    parts, packed, room = [], body, UNPACKED_BYTES_MAX
    try:
        while packed:
            engine = zlib.decompressobj(_GZIP_OR_ZLIB)
            parts.append(engine.decompress(packed, room + 1))
            room -= len(parts[-1])
            if room < 0 or not engine.eof:
                return body
            packed = engine.unused_data.lstrip(b"\0")  # GZIP may have several parts, and padding
    except zlib.error:
        return body
    return b"".join(parts)
