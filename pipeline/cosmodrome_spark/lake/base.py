"""What a job needs of a lake table, whatever its format.

    tasks     FileWriter: batches → Parquet files, invisible until committed
    driver    LakeTable.commit(files, origin): all of them visible, exactly once

Exactly once. A commit carries its origin (job, lineage, batch) and the next offset of every
queue, inside the table's own atomic commit. Spark repeats a batch after a crash; the table
then knows the origin and the repeat changes nothing. The files of an attempt that never
committed are orphans: invisible, and removed by `vacuum` once they are old.

Lineage. Batch numbers begin again with a new checkpoint, so they are told apart by an id
that lives in the checkpoint's folder. A new checkpoint goes on from the table's offsets;
an older checkpoint than the one that wrote last is refused: two would write in turn.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from cosmodrome_spark.errors import TableConflict
from cosmodrome_spark.offsets import Offsets

PARTITION_COLUMNS = ("topic", "date")
DATE = "date"


@dataclass(frozen=True, slots=True)
class DataFile:
    """A Parquet file that a task wrote.

    Attributes:
        path: Relative to the table.
        rows: How many.
        bytes: Its size.
        partition: The values of the table's partition columns, as text.
        modified_ms: When it was written.
        stats: Delta's statistics as JSON; "" where the format needs none.
    """

    path: str
    rows: int
    bytes: int
    partition: dict[str, str]
    modified_ms: int
    stats: str = ""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a commit comes from.

    Attributes:
        job: The job's name, unique in the table.
        lineage: The id of the checkpoint.
        batch: Spark's number; -1 for work that is no micro-batch.
        offsets: The next offset of each queue that the batch held rows of.
    """

    job: str
    lineage: str
    batch: int
    offsets: Offsets = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a job is in a table, by the table's own word."""

    lineage: str
    batch: int
    offsets: Offsets


class LakeTable(Protocol):
    """One table."""

    @property
    def layout(self) -> "Layout":
        """How tasks write files of this table."""

    def create(self, schema: pa.Schema) -> None:
        """Create the table where there is none.

        Raises:
            TableConflict: There is one with other columns.
        """

    def progress(self, job: str) -> Progress | None:
        """What `job` committed last; None for nothing."""

    def commit(self, files: Sequence[DataFile], origin: Origin) -> bool:
        """Make files visible, all or none.

        Returns:
            False when this origin is committed already; nothing changes then.

        Raises:
            TableConflict: Another writer won every attempt.
        """

    def files(self) -> list[DataFile]:
        """The visible files."""

    def replace(self, old: Sequence[DataFile], new: Sequence[DataFile], job: str) -> None:
        """Swap files that hold the same rows, atomically.

        Raises:
            TableConflict: An old file is not visible any more.
        """

    def vacuum(self, older_than_ms: int, *, dry_run: bool) -> list[str]:
        """Remove (or only name) files that are not visible and were written before a time."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How files of a table are written; small and picklable, for tasks.

    Attributes:
        root: The table's folder or URI.
        partition_by: Columns that a file holds one value of.
        keeps_partition_columns: Whether the file itself holds them too.
        target_bytes: About how large a file may get.
        with_stats: Whether `DataFile.stats` is wanted.
        storage: Settings of an object store.
    """

    root: str
    partition_by: tuple[str, ...] = PARTITION_COLUMNS
    keeps_partition_columns: bool = True
    target_bytes: int = 128 << 20
    with_stats: bool = False
    storage: dict[str, str] = field(default_factory=dict)


def check_lineage(progress: Progress | None, job: str, lineage: str, *, is_new: bool) -> None:
    """Check that a checkpoint may go on writing.

    Args:
        progress: What the table knows of the job.
        job: Its name.
        lineage: The checkpoint's id.
        is_new: Whether the checkpoint has no batch yet: it then begins at the table's offsets.

    Raises:
        TableConflict: Another checkpoint wrote after this one.
    """
    if progress is None or is_new or progress.lineage == lineage:
        return
    raise TableConflict(
        f"job {job!r} wrote batch {progress.batch} from another checkpoint (lineage "
        f"{progress.lineage}, this one is {lineage}): two would write the same rows; use that "
        "checkpoint, another table, or force_new_lineage = true to write from where this "
        "checkpoint is, whatever the table holds"
    )


def is_repeat(progress: Progress | None, origin: Origin) -> bool:
    """Whether the table holds a batch already."""
    return (
        progress is not None
        and progress.lineage == origin.lineage
        and 0 <= origin.batch <= progress.batch
    )


def check_columns(found: Iterable[str], wanted: Iterable[str], table: str) -> None:
    """Check that a table has the columns that a job writes.

    Raises:
        TableConflict: Some are missing.
    """
    missing = set(wanted) - set(found)
    if missing:
        raise TableConflict(
            f"table {table} lacks the columns {', '.join(sorted(missing))}: it was made with "
            "other columns; choose another table, or the columns it has"
        )
