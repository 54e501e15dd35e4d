"""audit: is every offset in the table exactly once, up to what the table says it has?"""

import json
import sys
from dataclasses import dataclass

from cosmodrome_spark.jobs.run import JobContext
from cosmodrome_spark.lake.open import read_table
from cosmodrome_spark.schema import ddl

GAPS_SHOWN = 100


@dataclass(frozen=True, slots=True)
class AuditOptions:
    """Options of audit.

    Attributes:
        of: The job whose offsets are compared; "" compares with the rows alone.
        fail_on_gap: Exit with 1 when something is missing or repeated.
    """

    of: str = ""
    fail_on_gap: bool = True


def run(context: JobContext) -> int:
    """Audit; return the exit code."""
    from cosmodrome_spark.transforms import audit  # noqa: PLC0415  # needs Spark

    options = context.config.options(AuditOptions)
    table = context.config.must_table().open()
    rows = read_table(context.spark, table, schema=ddl()).select(*audit.QUEUE, "queue_offset")
    progress = table.progress(options.of) if options.of else None
    expected = {
        (queue.topic, queue.broker, queue.queue_id): offset
        for queue, offset in (progress.offsets if progress else {}).items()
    }
    bad = 0
    for row in audit.by_queue(rows).collect():
        facts = row.asDict()
        promised = expected.pop((row["topic"], row["broker"], row["queue_id"]), row["last"] + 1)
        facts["missing"] += max(0, promised - row["last"] - 1)
        bad += facts["missing"] + facts["repeated"]
        sys.stdout.write(json.dumps(facts) + "\n")
    for (topic, broker, queue_id), offset in sorted(expected.items()):
        bad += offset
        facts = {"topic": topic, "broker": broker, "queue_id": queue_id, "missing": offset}
        sys.stdout.write(json.dumps(facts) + "\n")
    if bad:
        for row in audit.gaps(rows).limit(GAPS_SHOWN).collect():
            sys.stdout.write(json.dumps({"gap": row.asDict()}) + "\n")
    sys.stdout.write(json.dumps({"job": context.config.name, "is_complete": not bad}) + "\n")
    return 1 if bad and options.fail_on_gap else 0
