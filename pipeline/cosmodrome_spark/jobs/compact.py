"""compact: many small files of a partition into few, sorted; orphans removed.

Only partitions that nobody writes to any more: whose newest file is older than `older_than`.
Its small files are joined by as many as make one of the wanted size: what is held in memory is
as much. Each of these is one atomic swap; where another commit spoils it, the next run takes it.
"""

import json
import logging
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from cosmodrome_spark.errors import TableConflict
from cosmodrome_spark.jobs.run import JobContext
from cosmodrome_spark.lake.base import DataFile, LakeTable, Layout
from cosmodrome_spark.lake.files import rewrite
from cosmodrome_spark.option_values import duration_ms

if TYPE_CHECKING:
    from cosmodrome_spark.lake.delta import DeltaLakeTable

_log = logging.getLogger(__name__)
SMALL = 0.75
ORDER = ("topic", "broker", "queue_id", "queue_offset")


@dataclass(frozen=True, slots=True)
class CompactOptions:
    """Options of compact.

    Attributes:
        older_than: A partition rests when its newest file is older.
        vacuum_older_than: Orphans older than this are removed; "" keeps them.
        dry_run: Only say what would be done.
    """

    older_than: str = "1h"
    vacuum_older_than: str = "24h"
    dry_run: bool = False


def run(context: JobContext) -> int:
    """Compact the table; return the exit code."""
    options = context.config.options(CompactOptions)
    table = context.config.must_table().open()
    now_ms = time.time_ns() // 1_000_000
    groups = groups_to_compact(
        table.files(), table.layout, resting_before_ms=now_ms - duration_ms(options.older_than)
    )
    compacted = 0
    for group in groups:
        _say(context, partition=group[0].partition, files=len(group), dry_run=options.dry_run)
        if options.dry_run:
            continue
        try:
            _compact(context, table, group)
            compacted += 1
        except TableConflict as error:
            _log.warning("%s; the next run takes it", error)
    if options.vacuum_older_than:
        before_ms = now_ms - duration_ms(options.vacuum_older_than)
        removed = table.vacuum(before_ms, dry_run=options.dry_run)
        _say(context, partitions=compacted, removed=len(removed), dry_run=options.dry_run)
    return 0


def groups_to_compact(
    files: list[DataFile], layout: Layout, *, resting_before_ms: int
) -> list[list[DataFile]]:
    """The small files of each resting partition, two or more at a time: as many as make one."""
    by_partition: dict[tuple[str, ...], list[DataFile]] = {}
    for file in files:
        by_partition.setdefault(tuple(file.partition.values()), []).append(file)
    found = []
    for _, members in sorted(by_partition.items()):
        if max(file.modified_ms for file in members) >= resting_before_ms:
            continue
        small = [file for file in members if file.bytes < SMALL * layout.target_bytes]
        found += [group for group in _filled(small, layout.target_bytes) if len(group) > 1]
    return found


def _filled(files: Sequence[DataFile], bytes_max: int) -> list[list[DataFile]]:
    """The files in groups of at most so many bytes, in their order."""
    groups: list[list[DataFile]] = []
    size = bytes_max
    for file in files:
        if size + file.bytes > bytes_max:
            groups.append([])
            size = 0
        groups[-1].append(file)
        size += file.bytes
    return groups


def _compact(context: JobContext, table: LakeTable, group: list[DataFile]) -> None:
    if table.layout.with_stats:
        delta: DeltaLakeTable = table  # type: ignore[assignment]  # the one format with statistics
        delta.optimize(group[0].partition)  # all of its groups
        return
    table.replace(group, _rewritten(context, table.layout, group), context.config.name)


def _rewritten(context: JobContext, layout: Layout, group: list[DataFile]) -> list[DataFile]:
    """Rewrite in one task of the cluster: the driver only holds names."""
    paths = [each.path for each in group]

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            files = rewrite(layout, paths, ORDER)
            yield pa.RecordBatch.from_pydict({"files": [json.dumps([asdict(f) for f in files])]})

    rows = context.spark.range(1, numPartitions=1).mapInArrow(work, "files STRING").collect()
    return [DataFile(**each) for row in rows for each in json.loads(row["files"])]


def _say(context: JobContext, **facts: Any) -> None:  # noqa: ANN401 - whatever JSON takes
    sys.stdout.write(json.dumps({"job": context.config.name, **facts}) + "\n")
