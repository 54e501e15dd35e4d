"""export-segments: what the broker has sealed, into a table of the object store.

Reads only sealed segments, so it costs the broker a manifest and no message; goes on from
the table's own offsets, so a run that is repeated adds what was sealed since.
"""

import json
import sys
from typing import TYPE_CHECKING

from cosmodrome_spark.jobs.read import read_batch
from cosmodrome_spark.jobs.run import JobContext
from cosmodrome_spark.jobs.table_sink import write_frame
from cosmodrome_spark.lake.base import Origin
from cosmodrome_spark.lake.files import table_schema
from cosmodrome_spark.offsets import Offsets, QueueRange, to_text
from cosmodrome_spark.options import source_options
from cosmodrome_spark.read.road import open_cluster
from cosmodrome_spark.read.segments import SegmentReader
from cosmodrome_spark.schema import arrow_schema
from cosmodrome_spark.source.resolve import choose_queues

if TYPE_CHECKING:
    from cosmodrome_spark.options import SourceOptions


def run(context: JobContext) -> int:
    """Export; return the exit code."""
    config = context.config
    source = source_options(config.source, streaming=False)
    table = config.must_table().open()
    table.create(table_schema(arrow_schema()))
    progress = table.progress(config.name)
    start, end = sealed_range(source, progress.offsets if progress else {})
    rows = sum(end[queue] - start[queue] for queue in end)
    if rows:
        span = {"startingOffsets": to_text(start), "endingOffsets": to_text(end)}
        frame = read_batch(context, **span, readMode="segments")
        files, offsets = write_frame(table.layout, frame)
        batch = progress.batch + 1 if progress else 0
        table.commit(files, Origin(config.name, "segments", batch, offsets))
    sys.stdout.write(json.dumps({"job": config.name, "rows": rows, "queues": len(end)}) + "\n")
    return 0


def sealed_range(source: "SourceOptions", known: Offsets) -> tuple[Offsets, Offsets]:
    """From the table's offsets to where each queue is sealed; queues without news left out.

    Raises:
        UnsupportedByServer: No Cosmodrome server, or its files cannot be seen from here.
    """
    cluster = open_cluster(source.connection)
    start: Offsets = {}
    end: Offsets = {}
    with SegmentReader(source.connection) as reader:
        try:
            for queue, bounds in cluster.bounds(choose_queues(cluster, source.topics)).items():
                begin = max(bounds.min_offset, known.get(queue, 0))
                manifest = reader.manifest(QueueRange(queue, begin, bounds.max_offset))
                stop = min(manifest.sealed_end, bounds.max_offset) if manifest else begin
                start[queue], end[queue] = begin, max(begin, stop)
        finally:
            cluster.close()
    return start, end
