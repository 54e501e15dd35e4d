"""Durations and moments on the command line."""

from collections.abc import Callable

import pytest
import typer
from google.protobuf.timestamp_pb2 import Timestamp

from cosmodrome_server.cli.units import duration, epoch_ms, milliseconds, moment


@pytest.mark.parametrize(
    ("text", "expected"),
    [("500ms", 500), ("10s", 10_000), ("5m", 300_000), ("12h", 43_200_000), ("7d", 604_800_000)],
)
def test_durations_carry_their_unit(text: str, expected: int) -> None:
    assert milliseconds(text) == expected
    assert duration(expected) == text


@pytest.mark.parametrize("text", ["", "5", "h", "1.5h", "-1s", "5 weeks"])
def test_a_duration_without_a_known_unit_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="no duration"):
        milliseconds(text)


@pytest.mark.parametrize(
    ("text", "read", "words"),
    [
        ("9999999999d", milliseconds, "longer than 10,000 years"),
        ("99999999999999999999", epoch_ms, "between 1970 and the year 9999"),
        ("1960-01-01T00:00:00Z", epoch_ms, "between 1970 and the year 9999"),
        ("0001-01-01", epoch_ms, "moment|between"),
        ("٣", epoch_ms, "no moment"),
        ("9" * 5000, epoch_ms, "no moment"),
        (f"{'9' * 5000}d", milliseconds, "no duration"),
    ],
)
def test_what_no_timestamp_can_hold_is_refused(
    text: str, read: Callable[[str], int], words: str
) -> None:
    with pytest.raises(typer.BadParameter, match=words):
        read(text)


def test_seconds_are_not_taken_for_milliseconds() -> None:
    with pytest.raises(typer.BadParameter, match="early seventies; write milliseconds"):
        epoch_ms("1767323045")
    assert epoch_ms("0") == 0


def test_a_duration_is_shown_in_the_largest_unit_that_leaves_no_rest() -> None:
    shown = [duration(each) for each in (0, 1, 90_000, 86_400_000, 86_401_000)]
    assert shown == ["0d", "1ms", "90s", "1d", "86401s"]


def test_moments_are_iso_8601_or_epoch_milliseconds() -> None:
    assert epoch_ms("2026-01-02T03:04:05Z") == 1_767_323_045_000
    assert epoch_ms("1767323045000") == 1_767_323_045_000
    with pytest.raises(typer.BadParameter, match="no moment"):
        epoch_ms("yesterday")


def test_moments_are_shown_in_utc() -> None:
    assert moment(Timestamp(seconds=1_767_323_045)) == "2026-01-02T03:04:05Z"
    assert moment(Timestamp()) is None
