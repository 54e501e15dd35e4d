"""A micro-batch into a lake table: tasks write files, the driver commits them once.

foreachBatch(frame, n)
  table knows (job, lineage, n)?  ──yes──▶ done: Spark repeats what was committed
  frame ──mapInArrow──▶ files, offsets ──collect──▶ table.commit
"""

import json
import logging
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from cosmodrome_spark.errors import InvalidJobConfig
from cosmodrome_spark.lake.base import (
    DataFile,
    LakeTable,
    Layout,
    Origin,
    check_lineage,
    is_repeat,
)
from cosmodrome_spark.lake.files import write_files
from cosmodrome_spark.offsets import Offsets, from_json, to_json

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_log = logging.getLogger(__name__)
_LINEAGE_FILE = "cosmodrome-lineage"
BATCHES_KEPT = 64


@dataclass(frozen=True, slots=True)
class Resumed:
    """How a job goes on.

    Attributes:
        lineage: The checkpoint's id.
        offsets: Where to begin, for a checkpoint without batches; empty for "as configured".
    """

    lineage: str
    offsets: Offsets


def resume(
    table: LakeTable,
    job: str,
    checkpoint: str,
    *,
    force_new: bool = False,
    has_state: bool = False,
) -> Resumed:
    """Check that a checkpoint and a table belong together.

    An empty checkpoint goes on from the offsets in the table: nothing comes twice and
    nothing is left out even where the checkpoint was lost.

    Args:
        table: The table.
        job: The job's name.
        checkpoint: Its folder.
        force_new: Take a table over from another checkpoint.
        has_state: Whether the job's query keeps more than offsets in its checkpoint: no offsets
            of the table make up for that.

    Raises:
        InvalidJobConfig: The checkpoint is not in a folder of this machine.
        TableConflict: Another checkpoint wrote after this one, or before an empty one that the
            job cannot do without.
    """
    folder = _folder(checkpoint)
    file = folder / _LINEAGE_FILE
    progress = table.progress(job)
    is_new = not _has_batches(folder)
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        file.write_text(uuid.uuid4().hex)
    lineage = file.read_text().strip()
    if not force_new:
        check_lineage(progress, job, lineage, is_new=is_new and not has_state)
    elif progress is not None and progress.lineage != lineage:
        # Once: a job that is started again with the same words is still the one that took over.
        lineage = uuid.uuid4().hex
        file.write_text(lineage)
    offsets = progress.offsets if progress is not None and is_new else {}
    if offsets:
        _log.warning("job %s goes on from the table's offsets: the checkpoint is empty", job)
    return Resumed(lineage, offsets)


class TableSink:
    """What `foreachBatch` calls; lives on the driver."""

    def __init__(self, table: LakeTable, job: str, lineage: str) -> None:
        self._table = table
        self._job = job
        self._lineage = lineage

    def __call__(self, frame: "DataFrame", batch: int) -> None:
        """Write one micro-batch; again is fine."""
        origin = Origin(self._job, self._lineage, batch)
        if is_repeat(self._table.progress(self._job), origin):
            return
        files, offsets = self._write(frame)
        self._table.commit(files, Origin(self._job, self._lineage, batch, offsets))

    def _write(self, frame: "DataFrame") -> tuple[list[DataFile], Offsets]:
        return write_frame(self._table.layout, frame)


class WrittenSink(TableSink):
    """A `TableSink` of a stream whose tasks wrote the files already (option writeFiles).

    Attributes:
        rows_of: Batch → messages, of the latest batches.
    """

    def __init__(self, table: LakeTable, job: str, lineage: str) -> None:
        super().__init__(table, job, lineage)
        self.rows_of: dict[int, int] = {}
        self._batch = -1

    def __call__(self, frame: "DataFrame", batch: int) -> None:
        """Commit one micro-batch; again is fine."""
        self.rows_of.pop(batch - BATCHES_KEPT, None)
        self._batch = batch
        super().__call__(frame, batch)

    def _write(self, frame: "DataFrame") -> tuple[list[DataFile], Offsets]:
        files, offsets = _joined([(row["files"], row["offsets"]) for row in frame.collect()])
        self.rows_of[self._batch] = sum(each.rows for each in files)
        return files, offsets


def layout_text(layout: Layout) -> str:
    """A layout as the option writeFiles takes it."""
    return json.dumps(asdict(layout))


def write_frame(layout: Layout, frame: "DataFrame") -> tuple[list[DataFile], Offsets]:
    """Write the rows of a frame as files of a table, in tasks; nothing is committed."""

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        files, reached = write_files(layout, batches)
        said = {
            "files": [json.dumps([asdict(each) for each in files])],
            "offsets": [json.dumps(to_json(reached))],
        }
        yield pa.RecordBatch.from_pydict(said)

    rows = frame.mapInArrow(write, "files STRING, offsets STRING").collect()
    return _joined([(row["files"], row["offsets"]) for row in rows])


def _joined(said: Sequence[tuple[str, str]]) -> tuple[list[DataFile], Offsets]:
    files: list[DataFile] = []
    offsets: Offsets = {}
    for file_text, offset_text in said:
        files += [DataFile(**each) for each in json.loads(file_text)]
        for queue, offset in from_json(json.loads(offset_text)).items():
            offsets[queue] = max(offset, offsets.get(queue, 0))
    return files, offsets


def _folder(checkpoint: str) -> Path:
    """The folder of a checkpoint, where the lineage is kept beside Spark's offsets."""
    scheme, colon, rest = checkpoint.partition(":")
    if not colon or "/" in scheme:
        return Path(checkpoint)
    if scheme != "file":
        raise InvalidJobConfig(
            f"stream.checkpoint = {checkpoint!r}: this job keeps the checkpoint's id there too, "
            "which takes a folder on a local disk or NFS"
        )
    return Path("/" + rest.lstrip("/"))


def _has_batches(folder: Path) -> bool:
    return any((folder / "offsets").glob("[0-9]*"))
