"""A folder of Parquet files with a manifest: the default table, nothing to install.

    table/
      data/topic=orders/date=2026-11-20/6f….parquet
      _manifest/00000000000000000000.json     one file for each commit, in order
      _manifest/00000000000000000001.json     {"add": […], "remove": […], "job", "batch", …}
      _manifest/snapshot-00000000000000000063.json   all visible files, now and then

A commit is a new manifest file under the next number, brought into place by `link`, which
fails where the name exists: of two writers one wins, the other looks again. Readers that
ignore the manifest see orphans and files that compaction replaced; `cosmodrome_spark.lake.
open.read_table` does not.

For file systems with `link` and `fsync`: local disks, NFS. On object stores take Delta.
"""

import json
import os
import time
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from cosmodrome_spark.errors import TableConflict
from cosmodrome_spark.lake.base import (
    DataFile,
    Layout,
    Origin,
    Progress,
    check_columns,
    is_repeat,
)
from cosmodrome_spark.lake.files import remove_unnamed, sync_file
from cosmodrome_spark.offsets import OffsetsJson, from_json, to_json

SNAPSHOT_EVERY = 64
ATTEMPTS = 20


@dataclass(slots=True)
class _State:
    """What the manifests up to `version` say."""

    version: int = -1
    columns: list[str] = field(default_factory=list)
    files: dict[str, DataFile] = field(default_factory=dict)
    jobs: dict[str, dict[str, Any]] = field(default_factory=dict)

    def apply(self, entry: dict[str, Any]) -> None:
        self.version += 1
        self.columns = entry.get("columns") or self.columns
        for path in entry.get("remove", ()):
            self.files.pop(path, None)
        for each in entry.get("add", ()):
            self.files[each["path"]] = DataFile(**each)
        if "job" in entry and entry["batch"] >= 0:
            known: OffsetsJson = self.jobs.get(entry["job"], {}).get("offsets", {})
            offsets = to_json(from_json(known) | from_json(entry["offsets"]))
            self.jobs[entry["job"]] = {
                "lineage": entry["lineage"],
                "batch": entry["batch"],
                "offsets": offsets,
            }

    def to_snapshot(self) -> dict[str, Any]:
        return {
            "version": self.version,
            "columns": self.columns,
            "files": [asdict(each) for each in self.files.values()],
            "jobs": self.jobs,
        }


class ParquetTable:
    """A `LakeTable` in a folder."""

    def __init__(self, layout: Layout) -> None:
        if "://" in layout.root:
            raise TableConflict(
                f"a Parquet table needs a folder, not {layout.root}: an object store cannot "
                "commit by renaming; take format = 'delta' there"
            )
        self._layout = replace(layout, keeps_partition_columns=True)
        self._manifest = Path(layout.root) / "_manifest"
        self._state = _State()

    @property
    def layout(self) -> Layout:
        """How tasks write files of this table."""
        return self._layout

    def create(self, schema: pa.Schema) -> None:
        """Create the table where there is none; raises TableConflict for other columns."""
        self._manifest.mkdir(parents=True, exist_ok=True)
        state = self._refreshed()
        if state.version < 0:
            self._append({"columns": schema.names})
            return
        check_columns(state.columns, schema.names, self._layout.root)

    def progress(self, job: str) -> Progress | None:
        """What `job` committed last."""
        found = self._refreshed().jobs.get(job)
        if found is None:
            return None
        return Progress(found["lineage"], found["batch"], from_json(found["offsets"]))

    def commit(self, files: Sequence[DataFile], origin: Origin) -> bool:
        """Make files visible, all or none; False when this origin is there already."""
        for _ in range(ATTEMPTS):
            if is_repeat(self.progress(origin.job), origin):
                return False
            entry = {
                "job": origin.job,
                "lineage": origin.lineage,
                "batch": origin.batch,
                "offsets": to_json(origin.offsets),
                "add": [asdict(each) for each in files],
            }
            if self._append(entry):
                return True
        raise TableConflict(f"{ATTEMPTS} commits to {self._layout.root} lost against others")

    def files(self) -> list[DataFile]:
        """The visible files, by path."""
        state = self._refreshed()
        return [state.files[path] for path in sorted(state.files)]

    def replace(self, old: Sequence[DataFile], new: Sequence[DataFile], job: str) -> None:
        """Swap files that hold the same rows; raises TableConflict when one is gone."""
        entry = {
            "job": job,
            "lineage": "",
            "batch": -1,
            "remove": [each.path for each in old],
            "add": [asdict(each) for each in new],
        }
        for _ in range(ATTEMPTS):
            visible = self._refreshed().files
            gone = [each.path for each in old if each.path not in visible]
            if gone:
                raise TableConflict(f"{gone[0]} was replaced by another compaction")
            if self._append(entry):
                return
        raise TableConflict(f"{ATTEMPTS} commits to {self._layout.root} lost against others")

    def vacuum(self, older_than_ms: int, *, dry_run: bool) -> list[str]:
        """Remove (or only name) invisible files written before a time."""
        visible = self._refreshed().files
        root = Path(self._layout.root)
        return remove_unnamed(root, visible, older_than_ms, dry_run=dry_run)

    def _refreshed(self) -> _State:
        """Read what was committed since the last look."""
        if self._state.version < 0:
            self._state = self._from_snapshot()
        while True:
            path = self._manifest / f"{self._state.version + 1:020d}.json"
            try:
                entry = json.loads(path.read_text())
            except FileNotFoundError:
                return self._state
            self._state.apply(entry)

    def _from_snapshot(self) -> _State:
        snapshots = sorted(self._manifest.glob("snapshot-*.json"))
        if not snapshots:
            return _State()
        found = json.loads(snapshots[-1].read_text())
        files = {each["path"]: DataFile(**each) for each in found["files"]}
        return _State(found["version"], found["columns"], files, found["jobs"])

    def _append(self, entry: dict[str, Any]) -> bool:
        """Write the next manifest; False when another writer took the number."""
        version = self._state.version + 1
        target = self._manifest / f"{version:020d}.json"
        entry = {**entry, "committed_ms": time.time_ns() // 1_000_000}
        if not self._place(target, json.dumps(entry)):
            return False
        self._state.apply(entry)
        if version % SNAPSHOT_EVERY == SNAPSHOT_EVERY - 1:
            snapshot = self._manifest / f"snapshot-{version:020d}.json"
            self._place(snapshot, json.dumps(self._state.to_snapshot()))
        return True

    def _place(self, target: Path, text: str) -> bool:
        """Bring a whole, durable file under a name that nobody has."""
        temporary = target.with_name(f".{uuid.uuid4().hex}")
        temporary.write_text(text)
        sync_file(temporary)
        try:
            os.link(temporary, target)
        except FileExistsError:
            return False
        finally:
            temporary.unlink()
        sync_file(target)
        return True
