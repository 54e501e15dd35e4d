"""dlq-redrive: dead letters back to their topics, limited, counted, audited.

    last audited offset ──▶ letters ──where, max──▶ redriven fewer than redrives_max times?
                                                     yes ▶ origin topic   no ▶ quarantine
    then the audit table is committed with the offsets: the next run goes on from there

At least once: a crash between sending and the audit's commit sends some again, under the
same message ids and with the property `cosmodrome_redrives` counting up.
"""

import json
import sys
from dataclasses import dataclass

import pyarrow as pa

from cosmodrome_spark.errors import InvalidJobConfig
from cosmodrome_spark.jobs.config import JobConfig
from cosmodrome_spark.jobs.read import read_batch
from cosmodrome_spark.jobs.run import JobContext
from cosmodrome_spark.jobs.table_sink import write_frame
from cosmodrome_spark.lake.base import Origin
from cosmodrome_spark.lake.files import table_schema
from cosmodrome_spark.offsets import to_text
from cosmodrome_spark.schema import BY_NAME

LETTER = "letter"  # the column of `dead_letters.to_send` that names a row
AUDIT = ("topic", "broker", "queue_id", "queue_offset", "message_id", "store_timestamp")


@dataclass(frozen=True, slots=True)
class RedriveOptions:
    """Options of dlq-redrive.

    Attributes:
        group: Whose dead letters.
        where: A SQL condition on the letters.
        max: How many at most in this run.
        rate: Messages per second; 0 for no bound.
        redrives_max: A letter that was sent back so often goes to quarantine.
        quarantine: That topic; default `<group>-quarantine`.
        dry_run: Only say what would be done.
    """

    group: str
    where: str = ""
    max: int = 10_000
    rate: int = 100
    redrives_max: int = 3
    quarantine: str = ""
    dry_run: bool = False


def run(context: JobContext) -> int:
    """Redrive; return the exit code."""
    from cosmodrome_spark.transforms import dead_letters  # noqa: PLC0415  # needs Spark

    config = context.config
    options = config.options(RedriveOptions)
    quarantine = options.quarantine or f"{options.group}-quarantine"
    table = config.must_table().open()
    audit = pa.schema([pa.field(name, BY_NAME[name].arrow_type) for name in AUDIT])
    table.create(table_schema(audit.append(pa.field("outcome", pa.string()))))
    progress = table.progress(config.name)
    begin = {"startingOffsets": to_text(progress.offsets)} if progress else {}
    letters = read_batch(context, subscribe=f"%DLQ%{options.group}", **begin)
    if options.where:
        letters = letters.where(options.where)
    chosen = dead_letters.first_of(letters, options.max).persist()
    rows = dead_letters.to_send(chosen, redrives_max=options.redrives_max, quarantine=quarantine)
    if options.dry_run:
        counts = rows.groupBy("topic", "outcome").count().orderBy("topic").collect()
        for row in counts:
            sys.stdout.write(json.dumps({"dry_run": True, **row.asDict()}) + "\n")
        return 0
    sent = rows.drop("outcome").coalesce(1)
    sent.write.format("rocketmq").mode("append").options(**_target(config, options.rate)).save()
    outcome = dead_letters.outcome(options.redrives_max)
    done = chosen.withColumn("outcome", outcome).select(*AUDIT, "outcome")
    files, offsets = write_frame(table.layout, done)
    batch = progress.batch + 1 if progress else 0
    table.commit(files, Origin(config.name, "redrive", batch, offsets))
    count = sum(each.rows for each in files)
    sys.stdout.write(json.dumps({"job": config.name, "letters": count, "batch": batch}) + "\n")
    return 0


def _target(config: JobConfig, rate: int) -> dict[str, str]:
    """The options of the write: a letter's place names it, in this run and in a repeat of it."""
    target = {"endpoints": config.source.get("endpoints", ""), **config.target}
    given = {name.lower(): value for name, value in target.items()}
    if "topic" in given:
        raise InvalidJobConfig("target.topic: letters go back to the topics they came from")
    if rate and "ratelimit" not in given and given.get("dedup") != "transaction":
        target["rateLimit"] = str(rate)
    return {"job": config.name, "dedupKey": LETTER, **target}
