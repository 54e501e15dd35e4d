"""The table of all options of `format("rocketmq")`; `options` reads by it."""
# ruff: noqa: E501, FBT003 - a table reads best with one option a line

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cosmodrome_spark import option_values as parse


@dataclass(frozen=True, slots=True)
class Option:
    """One option: its name as documented, how it is read, and where it applies.

    Attributes:
        name: In camel case, as Kafka's options are written.
        parse: Text to value; raises ValueError with what was expected.
        default: The value when it is absent.
        where: Letters: b batch read, s streaming read, w write.
        meaning: One line for people.
    """

    name: str
    parse: Callable[[str], Any]
    default: Any
    where: str
    meaning: str


# fmt: off
OPTIONS: tuple[Option, ...] = (
    Option("endpoints", parse.endpoints, None, "bsw", "`host:port` list, separated by `;` or `,`"),
    Option("subscribe", parse.names, None, "bs", "topics, separated by `,`"),
    Option("subscribePattern", parse.pattern, None, "bs", "a regular expression over the topics of a Cosmodrome server"),
    Option("assign", parse.assignment, None, "bs", "single queues: `{\"orders\": {\"broker-a\": [0, 1]}}`"),
    Option("startingOffsets", parse.starting_offsets, None, "bs", "`earliest`, `latest`, `group`, or JSON by queue, -2 for earliest and -1 for latest; default `latest` for streams, `earliest` for batches"),
    Option("startingTimestamp", parse.timestamp_ms, None, "bs", "milliseconds, for all queues; goes before the other two"),
    Option("startingOffsetsByTimestamp", parse.offsets, None, "bs", "JSON of milliseconds by queue; goes before `startingOffsets`"),
    Option("startingOffsetsByTimestampStrategy", parse.one_of("error", "latest"), "error", "bs", "where no message is that young: `error` or `latest`"),
    Option("endingOffsets", parse.ending_offsets, None, "b", "`latest` or JSON by queue"),
    Option("endingTimestamp", parse.timestamp_ms, None, "b", "milliseconds, for all queues: the first message not to read"),
    Option("endingOffsetsByTimestamp", parse.offsets, None, "b", "JSON of milliseconds by queue"),
    Option("failOnDataLoss", parse.flag, True, "bs", "fail when offsets to be read are gone; else go on and warn"),
    Option("maxOffsetsPerTrigger", parse.positive, None, "s", "offsets in one micro-batch, shared in proportion to the backlog"),
    Option("maxBytesPerTrigger", parse.some_size, None, "s", "the same in bytes, by the estimated size of messages: `64MiB`"),
    Option("minOffsetsPerTrigger", parse.positive, None, "s", "wait for this many, or for `maxTriggerDelay`"),
    Option("maxTriggerDelay", parse.duration_ms, 900_000, "s", "how long `minOffsetsPerTrigger` may wait: `15m`"),
    Option("minPartitions", parse.positive, None, "bs", "cut the work into at least this many tasks; default: by the work, up to `cores`"),
    Option("maxPartitions", parse.positive, None, "bs", "and at most this many; default twice `cores`"),
    Option("maxRecordsPerPartition", parse.positive, None, "bs", "offsets in one task"),
    Option("cores", parse.positive, None, "bs", "how many tasks run at a time; default the driver's cores; the jobs set the cluster's"),
    Option("filter", str, "*", "bs", "tag or SQL92 expression, evaluated by the broker"),
    Option("filterType", parse.upper_one_of("TAG", "SQL"), "TAG", "bs", "how `filter` is read"),
    Option("columns", parse.names, None, "bs", "columns to read, separated by `,`; the same as `.schema(…)`"),
    Option("filterPushdown", parse.flag, False, "b", "turn conditions on queue and offset into ranges; needs spark.sql.python.filterPushdown.enabled"),
    Option("group", str, None, "bs", "a consumer group: for `startingOffsets=group` and `reportGroupOffsets`"),
    Option("reportGroupOffsets", parse.flag, False, "s", "commit offsets of `group` after each batch, for lag monitors"),
    Option("readMode", parse.one_of("auto", "segments", "bulk", "pull"), "auto", "bs", "the road; `auto` takes segments where they can be seen, else bulk, else pull"),
    Option("batchBytes", parse.some_size, 8 << 20, "bsw", "bytes of one Arrow batch read; of one request written (default there 1MiB)"),
    Option("decodeBody", parse.flag, True, "bs", "unpack bodies that the producer packed"),
    Option("verifyDigest", parse.flag, False, "bs", "check the producer's checksum of each body"),
    Option("writeFiles", str, None, "s", "a lake table's layout as JSON: tasks write what they read into files at once and the stream's rows name them; what the archive job does"),
    Option("topic", str, None, "w", "write everything to this topic; goes before the column `topic`"),
    Option("batchMessages", parse.positive, 500, "w", "messages in one request"),
    Option("maxInFlight", parse.positive, 8, "w", "requests of one task that wait for their answer"),
    Option("compressOver", parse.size, 4096, "w", "pack bodies larger than this; 0 never packs"),
    Option("rateLimit", parse.positive, None, "w", "messages per second, over all tasks of a machine that write to the same place"),
    Option("onError", parse.one_of("fail", "deadLetterPath"), "fail", "w", "what to do with a message that the broker refuses for good"),
    Option("deadLetterPath", str, None, "w", "a folder for refused messages, as Parquet, with the reason"),
    Option("dedup", parse.one_of("property", "transaction", "none"), "property", "w", "how repeats are kept out, see docs/pipeline.md"),
    Option("dedupKey", str, None, "w", "a column that names a row, for queries that shuffle"),
    Option("job", str, None, "w", "the name under which writes are repeated; default the query's id"),
    Option("tls.enabled", parse.flag, False, "bsw", "speak TLS"),
    Option("tls.caFile", str, None, "bsw", "certificates to trust; without it the server's is not verified"),
    Option("accessKey", str, None, "bsw", "prefer `credentialsFile`"),
    Option("secretKey", str, None, "bsw", "prefer `credentialsFile`"),
    Option("credentialsFile", str, None, "bsw", "a file of two lines: access key, secret key"),
    Option("requestTimeout", parse.duration_ms, 30_000, "bsw", "how long one request may take"),
)
# fmt: on
