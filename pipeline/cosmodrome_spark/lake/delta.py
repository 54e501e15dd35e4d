"""A Delta table, by delta-rs: no JVM, object stores built in.

The origin of a commit is Delta's own application transaction: app id `job/lineage`, version
the batch number. The offsets stand in the commit's metadata.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from cosmodrome_spark.errors import MissingDependency, TableConflict
from cosmodrome_spark.lake.base import (
    DataFile,
    Layout,
    Origin,
    Progress,
    check_columns,
    is_repeat,
)
from cosmodrome_spark.offsets import from_json, to_json

try:
    from deltalake import CommitProperties, DeltaTable, Transaction
    from deltalake.exceptions import CommitFailedError, TableNotFoundError
    from deltalake.transaction import AddAction
except ImportError as error:
    raise MissingDependency(
        "format = 'delta' needs deltalake: pip install 'cosmodrome[delta]'"
    ) from error

_ORIGIN = "cosmodrome.origin"
# So many commits are looked through for the last one of a job: reading all takes the longer, the
# older a table is, and it is looked for with each batch.
_HISTORY = (16, 1_024, None)


class DeltaLakeTable:
    """A `LakeTable` in Delta's format."""

    def __init__(self, layout: Layout) -> None:
        self._layout = replace(layout, keeps_partition_columns=False, with_stats=True)

    @property
    def layout(self) -> Layout:
        """How tasks write files of this table."""
        return self._layout

    def create(self, schema: pa.Schema) -> None:
        """Create the table where there is none; raises TableConflict for other columns."""
        table = DeltaTable.create(
            self._layout.root,
            schema,
            mode="ignore",
            partition_by=list(self._layout.partition_by),
            storage_options=self._layout.storage or None,
        )
        found = [each.name for each in table.schema().fields]
        check_columns(found, schema.names, self._layout.root)

    def progress(self, job: str) -> Progress | None:
        """What `job` committed last."""
        try:
            table = self._table()
        except TableNotFoundError:
            return None
        for most in _HISTORY:
            history = table.history(most)  # newest first
            for entry in history:
                origin = _parsed(entry.get(_ORIGIN, {}))
                if origin.get("job") == job:
                    offsets = from_json(origin["offsets"])
                    return Progress(origin["lineage"], origin["batch"], offsets)
            if most is None or len(history) < most:
                break
        return None

    def commit(self, files: Sequence[DataFile], origin: Origin) -> bool:
        """Make files visible, all or none; False when this origin is there already."""
        table = self._table()
        app_id = f"{origin.job}/{origin.lineage}"
        before = self.progress(origin.job)
        done = table.transaction_version(app_id)
        if is_repeat(before, origin) or (done is not None and 0 <= origin.batch <= done):
            return False
        offsets = {**(before.offsets if before else {}), **origin.offsets}
        metadata = {
            "job": origin.job,
            "lineage": origin.lineage,
            "batch": origin.batch,
            "offsets": to_json(offsets),
        }
        properties = CommitProperties(
            custom_metadata={_ORIGIN: json.dumps(metadata)},
            app_transactions=[Transaction(app_id, origin.batch)],
        )
        try:
            table.create_write_transaction(
                [_action(each) for each in files],
                mode="append",
                schema=table.schema(),
                partition_by=list(self._layout.partition_by),
                commit_properties=properties,
            )
        except CommitFailedError as error:
            # A concurrent writer of the same origin, if the table now knows it.
            if is_repeat(self.progress(origin.job), origin):
                return False
            raise TableConflict(f"commit to {self._layout.root} failed: {error}") from error
        return True

    def files(self) -> list[DataFile]:
        """The visible files, by path."""
        actions = pa.table(self._table().get_add_actions(flatten=True)).to_pylist()
        return sorted(
            (
                DataFile(
                    path=unquote(row["path"]),  # Delta's log has it as a URL
                    rows=row.get("num_records") or 0,
                    bytes=row["size_bytes"],
                    partition={
                        name: str(row.get(f"partition.{name}"))
                        for name in self._layout.partition_by
                    },
                    modified_ms=_milliseconds(row["modification_time"]),
                )
                for row in actions
            ),
            key=lambda each: each.path,
        )

    def replace(self, _old: Sequence[DataFile], _new: Sequence[DataFile], job: str) -> None:
        """Not how Delta compacts: `optimize` does it inside the library."""
        raise TableConflict(f"job {job!r}: Delta compacts itself, see DeltaLakeTable.optimize")

    def optimize(self, partition: dict[str, str]) -> dict[str, Any]:
        """Join the small files of one partition, sorted by nothing; return Delta's figures."""
        filters = [(name, "=", value) for name, value in partition.items()]
        figures: dict[str, Any] = self._table().optimize.compact(
            partition_filters=filters, target_size=self._layout.target_bytes
        )
        return figures

    def vacuum(self, older_than_ms: int, *, dry_run: bool) -> list[str]:
        """Remove (or only name) files that the table does not know any more."""
        hours = max(0, (time.time_ns() // 1_000_000 - older_than_ms) // 3_600_000)
        removed: list[str] = self._table().vacuum(
            retention_hours=hours, dry_run=dry_run, enforce_retention_duration=False
        )
        return removed

    def _table(self) -> DeltaTable:
        return DeltaTable(self._layout.root, storage_options=self._layout.storage or None)


def _parsed(metadata: str | dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(metadata) if isinstance(metadata, str) else metadata
    return found


def _milliseconds(value: Any) -> int:  # noqa: ANN401 - a datetime or a number, by version
    return int(value.timestamp() * 1000) if hasattr(value, "timestamp") else int(value)


def _action(file: DataFile) -> AddAction:
    return AddAction(
        path=file.path,
        size=file.bytes,
        partition_values=file.partition,
        modification_time=file.modified_ms,
        data_change=True,
        stats=file.stats,
    )
