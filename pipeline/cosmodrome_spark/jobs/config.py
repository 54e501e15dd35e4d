"""What a job is told: a TOML file, and `--set section.key=value` on top.

    [job]      name = "archive-orders"         and the job's own options
    [source]   endpoints, subscribe, …         options of format("rocketmq")
    [target]   endpoints, topic, …             options of a write, for jobs that send
    [table]    format, path, target_bytes
    [rejects]  the same, for rows that do not decode
    [stream]   checkpoint, trigger, retries
    [session]  master, driver_memory, conf = { … }

Each section is a frozen dataclass; a key it does not have is refused with the nearest one.
"""

import dataclasses
import difflib
import json
import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from cosmodrome_spark.errors import InvalidJobConfig
from cosmodrome_spark.lake.base import LakeTable, Layout
from cosmodrome_spark.lake.open import FORMATS, open_table
from cosmodrome_spark.option_values import duration_ms, size
from cosmodrome_spark.session import SessionOptions

SECTIONS = ("job", "source", "target", "table", "rejects", "stream", "session")
Options = TypeVar("Options")


@dataclass(frozen=True, slots=True)
class TableConfig:
    """A lake table. `storage` are settings of an object store, or of an Iceberg catalog."""

    path: str
    format: str = "parquet"
    target_bytes: str = "128MiB"
    storage: dict[str, str] = field(default_factory=dict)

    def open(self, partition_by: Sequence[str] | None = None) -> LakeTable:
        """The table; raises InvalidJobConfig, MissingDependency."""
        if self.format not in FORMATS:
            raise InvalidJobConfig(f"table.format = {self.format!r}: {' or '.join(FORMATS)}")
        layout = Layout(root=self.path, target_bytes=size(self.target_bytes), storage=self.storage)
        if partition_by is not None:
            layout = dataclasses.replace(layout, partition_by=tuple(partition_by))
        return open_table(self.format, layout)


@dataclass(frozen=True, slots=True)
class StreamConfig:
    """How a streaming job runs.

    Attributes:
        checkpoint: A folder on a local disk, NFS or HDFS.
        trigger: How often a batch begins, like `60s`; `0s` for one after the other.
        retries: How often in a row a failed query is started again, with back-off.
    """

    checkpoint: str = ""
    trigger: str = "10s"
    retries: int = 5

    @property
    def trigger_ms(self) -> int:
        """The trigger in milliseconds."""
        return duration_ms(self.trigger)


@dataclass(frozen=True, slots=True)
class JobConfig:
    """A parsed configuration."""

    name: str
    job: dict[str, Any]
    source: dict[str, str]
    target: dict[str, str]
    stream: StreamConfig
    session: SessionOptions
    table: TableConfig | None = None
    rejects: TableConfig | None = None

    def must_table(self) -> TableConfig:
        """The table; raises InvalidJobConfig where the section is missing."""
        if self.table is None:
            raise InvalidJobConfig("section [table] is missing: it needs at least path")
        return self.table

    def must_checkpoint(self) -> str:
        """The checkpoint; raises InvalidJobConfig where there is none."""
        if not self.stream.checkpoint:
            raise InvalidJobConfig(
                "stream.checkpoint is missing: a folder where Spark keeps offsets"
            )
        return self.stream.checkpoint

    def options(self, kind: type[Options]) -> Options:
        """The job's own options."""
        return section(kind, self.job, "job")


def load(job: str, file: Path | None, sets: Sequence[str]) -> JobConfig:
    """Read a configuration.

    Args:
        job: The job's name, which is the default of `job.name`.
        file: TOML, or None where `sets` say everything.
        sets: `section.key=value`; a value that reads as JSON is one.

    Raises:
        InvalidJobConfig: Says which key, and what was expected.
    """
    document = _document(file)
    for each in sets:
        _apply(document, each)
    unknown = set(document) - set(SECTIONS)
    if unknown:
        raise InvalidJobConfig(_unknown("section", min(unknown), SECTIONS))
    own = dict(document.get("job", {}))
    name = str(own.pop("name", job))
    defaults = {"app_name": name, "share_classes": True, "warm_workers": True}
    session = {**defaults, **document.get("session", {})}
    return JobConfig(
        name=name,
        job=own,
        source=_texts(document.get("source", {})),
        target=_texts(document.get("target", {})),
        stream=section(StreamConfig, document.get("stream", {}), "stream"),
        session=section(SessionOptions, session, "session"),
        table=_table(document, "table"),
        rejects=_table(document, "rejects"),
    )


def section(kind: type[Options], values: Mapping[str, Any], name: str) -> Options:
    """Make a dataclass of a section's values.

    Raises:
        InvalidJobConfig: A key is unknown or missing, or a value has another type.
    """
    hints = typing.get_type_hints(kind)
    for key, value in values.items():
        if key not in hints:
            raise InvalidJobConfig(_unknown(f"key {name}.", key, hints))
        if not _fits(value, hints[key]):
            raise InvalidJobConfig(f"{name}.{key} = {value!r}: expected {_said(hints[key])}")
    required = [
        each.name
        for each in dataclasses.fields(kind)  # type: ignore[arg-type]  # always a dataclass
        if each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING
    ]
    missing = [each for each in required if each not in values]
    if missing:
        raise InvalidJobConfig(f"{name}.{missing[0]} is missing")
    return kind(**values)


def _document(file: Path | None) -> dict[str, Any]:
    if file is None:
        return {}
    try:
        return tomllib.loads(file.read_text())
    except OSError as error:
        raise InvalidJobConfig(f"cannot read {file}: {error.strerror}") from error
    except tomllib.TOMLDecodeError as error:
        raise InvalidJobConfig(f"{file} is no TOML: {error}") from error


def _apply(document: dict[str, Any], text: str) -> None:
    path, equals, value = text.partition("=")
    names = path.split(".", 1)
    if not equals or len(names) != 2:
        raise InvalidJobConfig(f"--set {text!r}: expected section.key=value")
    try:
        parsed = json.loads(value)
    except ValueError:
        parsed = value
    if names[0] in {"source", "target"}:
        parsed = value
    document.setdefault(names[0], {})[names[1]] = parsed


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    """Spark options are text; TOML may hold numbers, booleans and tables."""
    found = {}
    for name, value in values.items():
        is_json = isinstance(value, dict | list | bool)
        found[name] = json.dumps(value) if is_json else str(value)
    return found


def _table(document: Mapping[str, Any], name: str) -> TableConfig | None:
    return section(TableConfig, document[name], name) if name in document else None


def _fits(value: object, hint: Any) -> bool:  # noqa: ANN401 - a type, or a union of types
    origin = typing.get_origin(hint)
    if origin in {types.UnionType, typing.Union}:
        return any(_fits(value, each) for each in typing.get_args(hint))
    kind = origin or hint
    if kind is int and isinstance(value, bool):
        return False
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, kind)


def _said(hint: Any) -> str:  # noqa: ANN401 - as above
    return getattr(hint, "__name__", str(hint))


def _unknown(what: str, name: str, known: Mapping[str, Any] | Sequence[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    hint = f"; did you mean {near[0]}?" if near else f" ({', '.join(known)} are known)"
    return f"unknown {what}{'' if what.endswith('.') else ' '}{name}{hint}"
