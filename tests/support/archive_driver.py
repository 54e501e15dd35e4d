"""Runs archive, or a stream into a topic, in a process that ends itself at a chosen moment.

    python -m tests.support.archive_driver '{"sets": […], "kill": "after-commit", "batch": 1}'

Moments: `before-commit`, `after-commit` (sink committed, checkpoint not), `before-log` (when
the batch's offsets are asked for), `never`. Killing inside tasks is done from outside.
"""

import json
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

from cosmodrome_spark.jobs import archive, mirror
from cosmodrome_spark.jobs.config import TableConfig, load
from cosmodrome_spark.jobs.run import JobContext
from cosmodrome_spark.lake.base import DataFile, LakeTable, Origin


def die() -> None:
    """End this process and the JVM that it started, at once."""
    os.killpg(0, signal.SIGKILL)


class DyingTable:
    """A table that ends the process beside one of its commits."""

    def __init__(self, table: LakeTable, moment: str, batch: int) -> None:
        self._table, self._moment, self._batch = table, moment, batch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._table, name)

    def commit(self, files: Sequence[DataFile], origin: Origin) -> bool:
        if self._moment == "before-commit" and origin.batch == self._batch:
            die()
        done = self._table.commit(files, origin)
        if self._moment == "after-commit" and origin.batch == self._batch:
            die()
        return done


def main(told: dict[str, Any]) -> int:
    moment, batch = told["kill"], told["batch"]
    opened = TableConfig.open

    def open_dying(self: TableConfig, *arguments: Any) -> Any:
        return DyingTable(opened(self, *arguments), moment, batch)

    TableConfig.open = open_dying  # type: ignore[method-assign, assignment]  # the point of it
    job = told.get("job", "archive")
    config = load(job, None, told["sets"])
    context = JobContext(config, once=True)
    run = {"archive": archive.run, "mirror": mirror.run}[job]
    try:
        return run(context)
    finally:
        context.close()


if __name__ == "__main__":
    os.setpgid(0, 0)
    sys.exit(main(json.loads(sys.argv[1])))
