"""An Iceberg table, by pyiceberg: a catalog in SQLite beside the data, or one of yours.

The origin of a commit stands in its snapshot and, because snapshots expire, in the table's
properties too; both change in one Iceberg transaction.
"""

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

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
from cosmodrome_spark.lake.files import remove_unnamed
from cosmodrome_spark.offsets import from_json, to_json

try:
    from pyiceberg.catalog import Catalog, load_catalog
    from pyiceberg.exceptions import (
        CommitFailedException,
        NamespaceAlreadyExistsError,
        NoSuchTableError,
        TableAlreadyExistsError,
    )
    from pyiceberg.expressions import In, Reference
    from pyiceberg.io.pyarrow import parquet_files_to_data_files
    from pyiceberg.manifest import ManifestEntry
    from pyiceberg.table import Table
    from pyiceberg.transforms import IdentityTransform
except ImportError as error:
    raise MissingDependency(
        "format = 'iceberg' needs pyiceberg: pip install 'cosmodrome[iceberg]'"
    ) from error

_NAMESPACE = "cosmodrome"
_PROPERTY = "cosmodrome.origin."
ATTEMPTS = 10


class IcebergTable:
    """A `LakeTable` in Iceberg's format.

    `layout.storage` are the catalog's properties; without them it is SQLite in the folder.
    """

    def __init__(self, layout: Layout, name: str = "messages") -> None:
        self._layout = replace(layout, keeps_partition_columns=True)
        self._name = (_NAMESPACE, name)
        self._catalog: Catalog | None = None

    @property
    def layout(self) -> Layout:
        """How tasks write files of this table."""
        return self._layout

    def create(self, schema: pa.Schema) -> None:
        """Create the table where there is none; raises TableConflict for other columns."""
        catalog = self._opened()
        with contextlib.suppress(NamespaceAlreadyExistsError):
            catalog.create_namespace(_NAMESPACE)
        try:
            table = catalog.create_table(self._name, schema, location=self._location())
            with table.update_spec() as spec:
                for column in self._layout.partition_by:
                    spec.add_field(column, IdentityTransform(), column)
        except TableAlreadyExistsError:
            table = catalog.load_table(self._name)
        found = [each.name for each in table.schema().fields]
        check_columns(found, schema.names, self._layout.root)

    def progress(self, job: str) -> Progress | None:
        """What `job` committed last."""
        try:
            return _progress(self._table(), job)
        except NoSuchTableError:
            return None

    def commit(self, files: Sequence[DataFile], origin: Origin) -> bool:
        """Make files visible, all or none; False when this origin is there already."""
        for _ in range(ATTEMPTS):
            table = self._table()
            before = _progress(table, origin.job)
            if is_repeat(before, origin):
                return False
            offsets = {**(before.offsets if before else {}), **origin.offsets}
            said = json.dumps(
                {"lineage": origin.lineage, "batch": origin.batch, "offsets": to_json(offsets)}
            )
            key = _PROPERTY + origin.job
            try:
                with table.transaction() as transaction:
                    if files:
                        transaction.add_files(
                            [self._full(each.path) for each in files],
                            snapshot_properties={key: said},
                            check_duplicate_files=False,
                        )
                    transaction.set_properties({key: said})
            except CommitFailedException:
                continue
            return True
        raise TableConflict(f"{ATTEMPTS} commits to {self._layout.root} lost against others")

    def files(self) -> list[DataFile]:
        """The visible files, by path."""
        root = self._full("")
        table = self._table()
        rows = table.inspect.files().to_pylist()
        written_ms = {
            each.data_file.file_path: _committed_ms(table, each.snapshot_id)
            for each in _entries(table)
        }
        return sorted(
            (
                DataFile(
                    path=row["file_path"].removeprefix(root),
                    rows=row["record_count"],
                    bytes=row["file_size_in_bytes"],
                    partition={
                        name: str(row["partition"].get(name)) for name in self._layout.partition_by
                    },
                    modified_ms=written_ms.get(row["file_path"], 0),
                )
                for row in rows
            ),
            key=lambda each: each.path,
        )

    def replace(self, old: Sequence[DataFile], new: Sequence[DataFile], job: str) -> None:
        """Swap files that hold the same rows, in one commit; other files stay as they are.

        Raises:
            TableConflict: An old file is not visible any more, or another commit came first.
        """
        table = self._table()
        visible = {each.data_file.file_path: each.data_file for each in _entries(table)}
        paths = [self._full(each.path) for each in old]
        gone = [path for path in paths if path not in visible]
        if gone:
            raise TableConflict(f"{gone[0]} was replaced by another compaction")
        added = iter([self._full(each.path) for each in new])
        properties = {"cosmodrome.compacted-by": job}
        try:
            with (
                table.transaction() as transaction,
                transaction.update_snapshot(properties).overwrite() as swap,
            ):
                for path in paths:
                    swap.delete_data_file(visible[path])
                for file in parquet_files_to_data_files(table.io, table.metadata, added):
                    swap.append_data_file(file)
        except CommitFailedException as error:
            raise TableConflict(f"compaction in {paths[0]} lost against a commit") from error

    def delete(self, column: str, values: Sequence[str]) -> None:
        """Delete the rows whose column has one of some values."""
        self._table().delete(In(Reference(column), set(values)))  # type: ignore[call-arg, arg-type]  # pydantic hides the positions

    def vacuum(self, older_than_ms: int, *, dry_run: bool) -> list[str]:
        """Remove (or only name) files in the data folder that no snapshot names."""
        known = {
            row["file_path"].removeprefix(self._full(""))
            for row in self._table().inspect.all_files().to_pylist()
        }
        root = Path(self._layout.root)
        return remove_unnamed(root, known, older_than_ms, dry_run=dry_run)

    def _opened(self) -> Catalog:
        if self._catalog is None:
            properties = self._layout.storage
            if not properties:
                root = Path(self._layout.root).resolve()
                root.mkdir(parents=True, exist_ok=True)
                properties = {
                    "type": "sql",
                    "uri": f"sqlite:///{root / 'catalog.db'}",
                    "warehouse": root.as_uri(),
                }
            self._catalog = load_catalog("cosmodrome", **properties)
        return self._catalog

    def _table(self) -> Table:
        return self._opened().load_table(self._name)

    def _location(self) -> str:
        return self._full("").rstrip("/")

    def _full(self, path: str) -> str:
        if "://" in self._layout.root:
            return f"{self._layout.root.rstrip('/')}/{path}"
        return f"{Path(self._layout.root).resolve().as_uri()}/{path}"


def _progress(table: Table, job: str) -> Progress | None:
    said = table.properties.get(_PROPERTY + job)
    if said is None:
        return None
    found = json.loads(said)
    return Progress(found["lineage"], found["batch"], from_json(found["offsets"]))


def _entries(table: Table) -> Iterator[ManifestEntry]:
    """What the table's manifests say of each visible file."""
    snapshot = table.current_snapshot()
    for manifest in snapshot.manifests(table.io) if snapshot else ():
        yield from manifest.fetch_manifest_entry(table.io)


def _committed_ms(table: Table, snapshot_id: int | None) -> int:
    """When a snapshot was committed; 0 for one that has expired, which is long ago."""
    snapshot = table.snapshot_by_id(snapshot_id) if snapshot_id is not None else None
    return snapshot.timestamp_ms if snapshot else 0
