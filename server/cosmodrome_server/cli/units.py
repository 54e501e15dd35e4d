"""Durations and moments as people write them."""

import re
from datetime import UTC, datetime

import typer
from google.protobuf.timestamp_pb2 import Timestamp

# The largest number that a field of 32 bits holds: counts are such, so options say so.
INT32_MAX = (1 << 31) - 1
INT64_MAX = (1 << 63) - 1

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
# The last moment that a timestamp of protobuf can hold, and the longest duration: 10,000 years.
_LAST_MS = 253_402_300_799_999
_LONGEST_MS = 315_576_000_000_000
# Fewer milliseconds than this, before March 1973, are seconds that somebody took for them.
_MILLISECONDS_FROM = 100_000_000_000


def milliseconds(text: str) -> int:
    """Read `500ms`, `10s`, `5m`, `12h`, `7d`.

    Raises:
        typer.BadParameter: Anything else, or more than 10,000 years.
    """
    # Python reads no numbers of thousands of digits.
    found = re.fullmatch(r"([0-9]{1,20})(ms|s|m|h|d)", text.strip())
    if found is None:
        raise typer.BadParameter(f"{text!r} is no duration; write 500ms, 10s, 5m, 12h or 7d")
    read_ms = int(found[1]) * _UNITS_MS[found[2]]
    if read_ms > _LONGEST_MS:
        raise typer.BadParameter(f"{text!r} is longer than 10,000 years")
    return read_ms


def duration(duration_ms: int) -> str:
    """Write milliseconds in the largest unit that leaves no rest."""
    units = reversed(_UNITS_MS.items())
    return next(f"{duration_ms // ms}{unit}" for unit, ms in units if duration_ms % ms == 0)


def epoch_ms(text: str) -> int:
    """Read an ISO 8601 moment (local time unless it names a zone) or milliseconds since the epoch.

    Raises:
        typer.BadParameter: Anything else, a moment after the year 9999, or a number that must
            have been meant in seconds.
    """
    if text.isascii() and text.isdigit() and len(text) <= 20:
        if 0 < int(text) < _MILLISECONDS_FROM:
            raise typer.BadParameter(
                f"{text} milliseconds are a moment of the early seventies; "
                "write milliseconds since 1970, or 2026-11-21T04:00:00Z"
            )
        read_ms = int(text)
    else:
        try:
            read_ms = int(datetime.fromisoformat(text).astimezone(UTC).timestamp() * 1000)
        except (ValueError, OverflowError) as error:
            raise typer.BadParameter(
                f"{text!r} is no moment; write 2026-11-21T04:00:00Z"
            ) from error
    if not 0 <= read_ms <= _LAST_MS:
        raise typer.BadParameter(f"{text!r} is not between 1970 and the year 9999")
    return read_ms


def exact_moment(timestamp: Timestamp) -> str:
    """Write a timestamp in UTC so that `epoch_ms` reads the same again."""
    found = datetime.fromtimestamp(timestamp.seconds, UTC)
    millisecond = timestamp.nanos // 1_000_000
    rest = f".{millisecond:03}" if millisecond else ""
    return f"{found:%Y-%m-%dT%H:%M:%S}{rest}Z"


def moment(timestamp: Timestamp) -> str | None:
    """Write a timestamp in UTC to the second; None for none."""
    if not timestamp.seconds:
        return None
    return datetime.fromtimestamp(timestamp.seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
