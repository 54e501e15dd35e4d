"""Writing Parquet files in tasks: one file at a time for each partition value.

Files are complete, and on disk, before their names leave the task: a commit must never
name a file that a power cut can take back.
"""

import contextlib
import json
import os
import time
import uuid
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from cosmodrome_spark.lake.base import DATE, DataFile, Layout
from cosmodrome_spark.offsets import MessageQueue, Offsets

OPEN_FILES_MAX = 32
ROW_GROUP_ROWS = 128 * 1024


def table_schema(columns: pa.Schema) -> pa.Schema:
    """The columns of a table of messages: the row, and the day it was stored on."""
    return columns.append(pa.field(DATE, pa.date32()))


def with_date(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Add the day of the store timestamp."""
    day = pc.cast(batch.column("store_timestamp"), pa.timestamp("us")).cast(pa.date32(), safe=False)
    return batch.append_column(DATE, day)


def highest_offsets(batch: pa.RecordBatch) -> Offsets:
    """One past the highest offset of each queue in a batch."""
    names = ["topic", "broker", "queue_id"]
    if not {*names, "queue_offset"} <= set(batch.schema.names):
        return {}
    found = pa.Table.from_batches([batch]).group_by(names).aggregate([("queue_offset", "max")])
    return {
        MessageQueue(row["topic"], row["broker"], row["queue_id"]): row["queue_offset_max"] + 1
        for row in found.to_pylist()
    }


@dataclass(slots=True)
class _OpenFile:
    path: str
    partition: dict[str, str]
    sink: Any  # pyarrow's NativeFile
    writer: pq.ParquetWriter
    rows: int = 0


class FileWriter:
    """Sorts batches into files of a layout; `with`, or `close` by hand.

    After `close`, `files` holds what was written; after an error the files are removed.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._fs, self._root = filesystem(layout)
        self._open: dict[tuple[str, ...], _OpenFile] = {}
        self.files: list[DataFile] = []

    def write(self, batch: pa.RecordBatch) -> None:
        """Write one batch, split by partition value."""
        for values, part in self._split(batch):
            file = self._open.get(values)
            if file is None:
                file = self._begin(values, part.schema)
            file.writer.write_batch(part, row_group_size=ROW_GROUP_ROWS)
            file.rows += part.num_rows
            if file.sink.tell() >= self._layout.target_bytes:
                self._end(values)

    def close(self) -> None:
        """Finish every file."""
        for values in list(self._open):
            self._end(values)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
            return
        for file in self._open.values():
            with contextlib.suppress(OSError):
                file.writer.close()
                file.sink.close()
        for path in [each.path for each in self._open.values()] + [
            each.path for each in self.files
        ]:
            with contextlib.suppress(OSError):
                self._fs.delete_file(f"{self._root}/{path}")

    def _split(self, batch: pa.RecordBatch) -> Iterator[tuple[tuple[str, ...], pa.RecordBatch]]:
        names = self._layout.partition_by
        kept = [
            name
            for name in batch.schema.names
            if self._layout.keeps_partition_columns or name not in names
        ]
        table = pa.Table.from_batches([batch])
        keys = table.group_by(list(names)).aggregate([]).to_pylist() if names else [{}]
        for key in keys:
            part = batch
            if len(keys) > 1:
                mask = None
                for name, value in key.items():
                    same = (
                        pc.is_null(batch.column(name))
                        if value is None
                        else pc.equal(
                            batch.column(name), pa.scalar(value, batch.schema.field(name).type)
                        )
                    )
                    mask = same if mask is None else pc.and_(mask, same)
                part = batch.filter(pc.fill_null(mask, False))  # noqa: FBT003 - pyarrow's
            yield tuple(str(key[name]) for name in names), part.select(kept)

    def _begin(self, values: tuple[str, ...], schema: pa.Schema) -> _OpenFile:
        if len(self._open) >= OPEN_FILES_MAX:
            self._end(next(iter(self._open)))
        partition = dict(zip(self._layout.partition_by, values, strict=True))
        folder = "/".join(f"{name}={quote(value, safe='')}" for name, value in partition.items())
        path = "/".join(filter(None, ["data", folder, f"{uuid.uuid4().hex}.parquet"]))
        full = f"{self._root}/{path}"
        self._fs.create_dir(full.rpartition("/")[0], recursive=True)
        sink = self._fs.open_output_stream(full)
        writer = pq.ParquetWriter(sink, schema, compression="zstd", store_schema=False)
        file = self._open[values] = _OpenFile(path, partition, sink, writer)
        return file

    def _end(self, values: tuple[str, ...]) -> None:
        file = self._open.pop(values)
        file.writer.close()
        size = file.sink.tell()
        file.sink.close()
        full = f"{self._root}/{file.path}"
        if isinstance(self._fs, fs.LocalFileSystem):
            sync_file(Path(full))
        stats = _delta_stats(self._fs, full) if self._layout.with_stats else ""
        now_ms = time.time_ns() // 1_000_000
        self.files.append(DataFile(file.path, file.rows, size, file.partition, now_ms, stats))


def write_files(
    layout: Layout, batches: Iterable[pa.RecordBatch]
) -> tuple[list[DataFile], Offsets]:
    """Write all batches of a task; return the files and the offsets they reach."""
    reached: Offsets = {}
    with FileWriter(layout) as writer:
        for batch in batches:
            if not batch.num_rows:
                continue
            for queue, offset in highest_offsets(batch).items():
                reached[queue] = max(offset, reached.get(queue, 0))
            has_day = DATE in batch.schema.names or DATE not in layout.partition_by
            writer.write(batch if has_day else with_date(batch))
    return writer.files, reached


def rewrite(layout: Layout, old: Sequence[str], order: Sequence[str]) -> list[DataFile]:
    """Write the rows of some files into as few as the target size allows, sorted.

    Raises:
        OSError: A file cannot be read or written.
    """
    filesystem_, root = filesystem(layout)
    tables = [pq.ParquetFile(filesystem_.open_input_file(f"{root}/{path}")).read() for path in old]
    table = pa.concat_tables(tables, promote_options="default")
    names = [name for name in order if name in table.schema.names]
    if names:
        table = table.sort_by([(name, "ascending") for name in names])
    with FileWriter(layout) as writer:
        for batch in table.to_batches(max_chunksize=ROW_GROUP_ROWS):
            writer.write(batch)
    return writer.files


def remove_unnamed(
    root: Path, named: Container[str], older_than_ms: int, *, dry_run: bool
) -> list[str]:
    """Remove (or only name) data files that a table does not name and that are old enough.

    A task may still be writing a young one.
    """
    removed = []
    for path in sorted((root / "data").rglob("*.parquet")):
        name = path.relative_to(root).as_posix()
        if name in named or path.stat().st_mtime_ns // 1_000_000 >= older_than_ms:
            continue
        removed.append(name)
        if not dry_run:
            path.unlink()
    return removed


def filesystem(layout: Layout) -> tuple[fs.FileSystem, str]:
    """The file system of a table and its root there; local paths and URIs."""
    if "://" not in layout.root:
        return fs.LocalFileSystem(), str(Path(layout.root).resolve())
    found: tuple[fs.FileSystem, str] = fs.FileSystem.from_uri(layout.root)
    return found


def sync_file(path: Path) -> None:
    """Put a file and its name on disk."""
    for each in (path, path.parent):
        descriptor = os.open(each, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _delta_stats(filesystem_: fs.FileSystem, full: str) -> str:
    """Row count and bounds of the offset: what Delta readers skip files by."""
    metadata = pq.ParquetFile(filesystem_.open_input_file(full)).metadata
    bounds: dict[str, list[int]] = {}
    for group in range(metadata.num_row_groups):
        for index in range(metadata.num_columns):
            column = metadata.row_group(group).column(index)
            if column.path_in_schema in {"queue_id", "queue_offset"} and column.is_stats_set:
                found = bounds.setdefault(column.path_in_schema, [])
                found += [column.statistics.min, column.statistics.max]
    return json.dumps(
        {
            "numRecords": metadata.num_rows,
            "minValues": {name: min(values) for name, values in bounds.items()},
            "maxValues": {name: max(values) for name, values in bounds.items()},
            "nullCount": dict.fromkeys(bounds, 0),
        }
    )
