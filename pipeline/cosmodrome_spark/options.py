"""The options of `format("rocketmq")`: one table, parsed once, into frozen values.

Spark hands options as text with lower-cased names. Everything that can be wrong with them
is said here, on the driver, before anything runs: an unknown option is refused with the
nearest known one, because a misspelt `failOnDataLoss` that is silently ignored is a bug
nobody finds.

`option_table.OPTIONS` is the single source of the table in docs/pipeline.md; a test compares them.
"""

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cosmodrome_spark import option_values as parse
from cosmodrome_spark.errors import InvalidOption
from cosmodrome_spark.option_table import OPTIONS
from cosmodrome_spark.option_values import OffsetChoice, TopicChoice
from cosmodrome_spark.schema import ALL_COLUMNS, check_columns

# Spark adds these to a sink's or a source's options by itself.
SPARK_OPTIONS = frozenset({"checkpointlocation", "path", "queryname", "outputmode"})


@dataclass(frozen=True, slots=True)
class Connection:
    """How to reach and convince a broker.

    Attributes:
        endpoints: `host:port`, at least one.
        tls: Whether to speak TLS.
        ca_file: Certificates to trust; None trusts any.
        access_key, secret_key: None where the broker asks for nothing.
        timeout_ms: How long one request may take.
    """

    endpoints: tuple[str, ...]
    tls: bool = False
    ca_file: str | None = None
    access_key: str | None = None
    secret_key: str | None = None
    timeout_ms: int = 30_000

    def __repr__(self) -> str:
        """Without the secret: options end up in logs."""
        return f"Connection({';'.join(self.endpoints)}, tls={self.tls})"


@dataclass(frozen=True, slots=True)
class ReadQuery:
    """What a reader delivers of the messages in a range.

    Attributes:
        columns: Which columns, in this order.
        filter: The expression; `*` is everything.
        filter_type: TAG or SQL.
        batch_bytes: About how large a batch may get.
        decode_body: Unpack bodies.
        verify_digest: Check the producer's checksum.
        fail_on_data_loss: Raise `DataLoss` at an unexplained gap.
        read_mode: auto, segments, bulk or pull.
        group: The consumer group in whose name PullMessage reads.
    """

    columns: tuple[str, ...]
    filter: str = "*"
    filter_type: str = "TAG"
    batch_bytes: int = 8 << 20
    decode_body: bool = True
    verify_digest: bool = False
    fail_on_data_loss: bool = True
    read_mode: str = "auto"
    group: str = "cosmodrome-spark"

    @property
    def is_filtered(self) -> bool:
        """Whether messages may be left out on purpose."""
        return not (self.filter_type == "TAG" and self.filter.strip() == "*")


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Everything a reader was asked for; see `option_table` for the meanings."""

    connection: Connection
    topics: TopicChoice
    starting: OffsetChoice
    ending: OffsetChoice
    query: ReadQuery
    write_files: str | None
    filter_pushdown: bool
    group: str | None
    report_group_offsets: bool
    max_offsets: int | None
    max_bytes: int | None
    min_offsets: int | None
    max_trigger_delay_ms: int
    min_partitions: int | None
    max_partitions: int
    max_records: int | None
    cores: int


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Everything a writer was asked for; see `option_table` for the meanings."""

    connection: Connection
    topic: str | None
    batch_messages: int
    batch_bytes: int
    max_in_flight: int
    compress_over: int
    rate_limit: int | None
    on_error: str
    dead_letter_path: str | None
    dedup: str
    dedup_key: str | None
    job: str | None


def source_options(options: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """Parse the options of a read.

    Raises:
        InvalidOption: One is unknown, malformed, missing, or contradicts another.
    """
    value = _parse(options, "s" if streaming else "b")
    cores = value["cores"] or os.cpu_count() or 1
    if value["reportGroupOffsets"] and not value["group"]:
        raise InvalidOption("reportGroupOffsets needs the option group")
    starting = parse.starting_choice(value, default="latest" if streaming else "earliest")
    if starting.word == "group" and not value["group"]:
        raise InvalidOption("startingOffsets=group needs the option group")
    query = ReadQuery(
        columns=check_columns(value["columns"] or ALL_COLUMNS),
        filter=value["filter"],
        filter_type=value["filterType"],
        batch_bytes=value["batchBytes"],
        decode_body=value["decodeBody"],
        verify_digest=value["verifyDigest"],
        fail_on_data_loss=value["failOnDataLoss"],
        read_mode=value["readMode"],
        group=value["group"] or "cosmodrome-spark",
    )
    _check_road(query)
    return SourceOptions(
        connection=_connection(value),
        topics=parse.topic_choice(value),
        starting=starting,
        ending=parse.ending_choice(value),
        query=query,
        write_files=value["writeFiles"],
        filter_pushdown=value["filterPushdown"],
        group=value["group"],
        report_group_offsets=value["reportGroupOffsets"],
        max_offsets=value["maxOffsetsPerTrigger"],
        max_bytes=value["maxBytesPerTrigger"],
        min_offsets=value["minOffsetsPerTrigger"],
        max_trigger_delay_ms=value["maxTriggerDelay"],
        min_partitions=value["minPartitions"],
        max_partitions=value["maxPartitions"] or max(2 * cores, value["minPartitions"] or 0),
        max_records=value["maxRecordsPerPartition"],
        cores=cores,
    )


def _check_road(query: ReadQuery) -> None:
    if query.read_mode == "segments" and query.is_filtered:
        raise InvalidOption(
            "readMode=segments takes no filter, which the broker evaluates: "
            "readMode=auto reads a filtered range by the bulk road"
        )
    if query.read_mode == "bulk" and query.verify_digest:
        raise InvalidOption("verifyDigest works with readMode=segments, pull and auto, not bulk")


def sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Parse the options of a write.

    Raises:
        InvalidOption: One is unknown, malformed, missing, or contradicts another.
    """
    given = {name.lower() for name in options}
    value = _parse(options, "w")
    if value["onError"] == "deadLetterPath" and not value["deadLetterPath"]:
        raise InvalidOption("onError=deadLetterPath needs the option deadLetterPath, a folder")
    if value["dedup"] == "transaction" and value["onError"] == "deadLetterPath":
        raise InvalidOption(
            "onError=deadLetterPath does not apply to dedup=transaction: a message that is refused "
            "fails its task while nothing is visible yet"
        )
    if value["dedup"] == "transaction" and value["rateLimit"]:
        raise InvalidOption(
            "rateLimit does not apply to dedup=transaction: a batch becomes visible at once; "
            "limit what a batch reads (maxOffsetsPerTrigger)"
        )
    return SinkOptions(
        connection=_connection(value),
        topic=value["topic"],
        batch_messages=value["batchMessages"],
        batch_bytes=value["batchBytes"] if "batchbytes" in given else 1 << 20,
        max_in_flight=value["maxInFlight"],
        compress_over=value["compressOver"],
        rate_limit=value["rateLimit"],
        on_error=value["onError"],
        dead_letter_path=value["deadLetterPath"],
        dedup=value["dedup"],
        dedup_key=value["dedupKey"],
        job=value["job"],
    )


def _parse(options: Mapping[str, str], where: str) -> dict[str, Any]:
    """Read every option of the table; names compare without case."""
    table = {option.name.lower(): option for option in OPTIONS}
    value = {option.name: option.default for option in OPTIONS}
    for name, text in options.items():
        option = table.get(name.lower())
        if option is None:
            if name.lower() in SPARK_OPTIONS:
                continue
            raise InvalidOption(_unknown(name))
        if where not in option.where:
            raise InvalidOption(f"option {option.name} does not apply to {_PLACES[where]}")
        try:
            value[option.name] = option.parse(text)
        except ValueError as error:
            raise InvalidOption(f"option {option.name} = {text!r}: {error}") from error
    if value["endpoints"] is None:
        raise InvalidOption("option endpoints is required: host:port of the broker")
    return value


_PLACES = {"b": "a batch read", "s": "a streaming read", "w": "a write"}


def _unknown(name: str) -> str:
    names = {option.name.lower(): option.name for option in OPTIONS}
    near = difflib.get_close_matches(name.lower(), names, n=1)
    hint = f"; did you mean {names[near[0]]}?" if near else ""
    return f"unknown option {name!r}{hint}"


def _connection(value: Mapping[str, Any]) -> Connection:
    access_key, secret_key = value["accessKey"], value["secretKey"]
    if value["credentialsFile"]:
        if access_key or secret_key:
            raise InvalidOption("give either credentialsFile or accessKey and secretKey")
        access_key, secret_key = _credentials(Path(value["credentialsFile"]))
    if (access_key is None) != (secret_key is None):
        raise InvalidOption("accessKey and secretKey come together")
    return Connection(
        endpoints=value["endpoints"],
        tls=value["tls.enabled"],
        ca_file=value["tls.caFile"],
        access_key=access_key,
        secret_key=secret_key,
        timeout_ms=value["requestTimeout"],
    )


def _credentials(path: Path) -> tuple[str, str]:
    try:
        lines = path.read_text().split()
    except OSError as error:
        raise InvalidOption(f"option credentialsFile: {error}") from error
    if len(lines) != 2:
        raise InvalidOption(f"option credentialsFile: {path} must hold two lines")
    return lines[0], lines[1]
