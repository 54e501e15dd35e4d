"""Durations and moments as people write them."""

import re
from datetime import UTC, datetime

import typer
from google.protobuf.timestamp_pb2 import Timestamp

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def milliseconds(text: str) -> int:
    """Read `500ms`, `10s`, `5m`, `12h`, `7d`.

    Raises:
        typer.BadParameter: Anything else.
    """
    found = re.fullmatch(r"([0-9]+)(ms|s|m|h|d)", text.strip())
    if found is None:
        raise typer.BadParameter(f"{text!r} is no duration; write 500ms, 10s, 5m, 12h or 7d")
    return int(found[1]) * _UNITS_MS[found[2]]


def duration(duration_ms: int) -> str:
    """Write milliseconds in the largest unit that leaves no rest."""
    units = reversed(_UNITS_MS.items())
    return next(f"{duration_ms // ms}{unit}" for unit, ms in units if duration_ms % ms == 0)


def epoch_ms(text: str) -> int:
    """Read an ISO 8601 moment (local time unless it names a zone) or milliseconds since the epoch.

    Raises:
        typer.BadParameter: Anything else.
    """
    if text.isdigit():
        return int(text)
    try:
        return int(datetime.fromisoformat(text).astimezone(UTC).timestamp() * 1000)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is no moment; write 2026-11-21T04:00:00Z") from error


def moment(timestamp: Timestamp) -> str | None:
    """Write a timestamp in UTC to the second; None for none."""
    if not timestamp.seconds:
        return None
    return datetime.fromtimestamp(timestamp.seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
