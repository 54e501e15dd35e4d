"""`cosmodrome store`: look at the files of a stopped broker, and make its indexes anew."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from cosmodrome_server.cli.connect import new_app
from cosmodrome_server.errors import StoreError
from cosmodrome_server.model.log import RecordKind
from cosmodrome_server.store import check as checker

app = new_app("Check, dump, rebuild the files of a stopped broker.")
Data = Annotated[
    Path,
    typer.Option(envvar="COSMODROME_DATA", help="The data directory", file_okay=False, exists=True),
]
DEFAULT_DATA = Path("cosmodrome-data")


@app.command()
def check(data: Data = DEFAULT_DATA) -> None:
    """Read every byte; exits with 1 when messages or state may be lost."""
    try:
        report = checker.check(data)
    except (OSError, StoreError) as error:
        _refuse(error)
    typer.echo(
        f"{report.segments} segments, {report.frames} frames, {report.records} records, "
        f"{report.messages} messages in {report.queues} queues, {report.bytes_used:,} bytes"
    )
    if report.torn_bytes_at is not None:
        typer.echo(
            f"the last frame is half written at byte {report.torn_bytes_at}: it was never "
            "acknowledged and is cut at the next start"
        )
    for problem in report.problems:
        word = "LOSS" if problem.is_loss else "mends itself"
        typer.echo(f"{word}: {problem.file} byte {problem.start}: {problem.what}")
    if not report.is_whole:
        raise typer.Exit(1)
    typer.echo("whole")


@app.command()
def dump(
    data: Data = DEFAULT_DATA,
    first_segment: Annotated[int, typer.Option(help="Begin with this segment")] = 0,
    most: Annotated[int, typer.Option("--max", min=0, help="How many records; 0 for all")] = 0,
) -> None:
    """Print records, one a line, oldest first."""
    try:
        for number, record in enumerate(checker.dump(data, first_segment)):
            if most and number == most:
                return
            typer.echo(_line(record))
    except (OSError, StoreError) as error:
        _refuse(error)


@app.command()
def rebuild(data: Data = DEFAULT_DATA) -> None:
    """Remove what is derived (indexes, checkpoint); the next start makes it from the log."""
    try:
        removed = checker.rebuild(data)
    except (OSError, StoreError) as error:
        _refuse(error)
    for name in removed:
        typer.echo(f"removed {name}")
    typer.echo("the next start reads the whole log and makes them again")


def _line(dumped: checker.DumpedRecord) -> str:
    """One record; kept values are shown by their length, for there are secrets among them."""
    record = dumped.record
    when = datetime.fromtimestamp(record.timestamp_ms / 1000, UTC).isoformat(
        timespec="milliseconds"
    )
    start = f"{dumped.lsn:>10}  {record.position:#018x}  {when}  {record.kind.name:<18}"
    if record.message is not None:
        message = record.message
        return (
            f"{start}  topic {message.topic_id} queue {message.queue_id} "
            f"offset {message.queue_offset} {message.state.name.lower()} {len(message.body)} bytes"
        )
    if record.kind is RecordKind.KEEP:
        return f"{start}  {len(record.payload)} bytes"
    return f"{start}  {record.payload.hex()}"


def _refuse(error: Exception) -> NoReturn:
    typer.echo(f"cosmodrome: {error}", err=True)
    raise typer.Exit(1)
