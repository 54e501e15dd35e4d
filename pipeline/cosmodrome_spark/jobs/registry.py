"""All jobs by name; a job's module is imported when it is run."""

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cosmodrome_spark.jobs.run import JobContext

JOBS = {
    "archive": "topics into a lake table, exactly once",
    "compact": "join the small files of closed partitions; remove orphans",
    "decode": "bodies into columns (json, avro, protobuf); bad rows into a rejects table",
    "replay": "a table or a range of topics into a topic",
    "dlq-report": "what lies in a group's dead letters, and why",
    "dlq-redrive": "dead letters back to their topics, limited and counted",
    "latency": "percentiles of born → stored → delivered → acked",
    "lag": "sample the lag of groups into a history; when each will have caught up",
    "dedup": "the first of each key within a horizon, into a table",
    "aggregate": "a SQL query over messages, into a table or a topic",
    "latest": "the latest row of each key, in a Delta table",
    "mirror": "topics into the topics of another cluster",
    "audit": "is every offset in the table exactly once?",
    "purge": "delete the rows of some keys from a table",
    "export-segments": "what the broker has sealed into a table of the object store",
}


def job(name: str) -> "Callable[[JobContext], int]":
    """The function that runs a job.

    Raises:
        KeyError: There is none of that name.
    """
    if name not in JOBS:
        raise KeyError(name)
    module = importlib.import_module(f"cosmodrome_spark.jobs.{name.replace('-', '_')}")
    run: Callable[[JobContext], int] = module.run
    return run
