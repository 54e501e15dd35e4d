"""How the text of one option becomes a value; each parser says what it expected.

Parsers raise ValueError (which InvalidOption is); `options` adds the option's name.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cosmodrome_spark.errors import InvalidOption
from cosmodrome_spark.offsets import EARLIEST, MessageQueue, Offsets, from_text

_SIZES = {"": 1, "b": 1, "kb": 1 << 10, "kib": 1 << 10, "k": 1 << 10, "mb": 1 << 20}
_SIZES |= {"mib": 1 << 20, "m": 1 << 20, "gb": 1 << 30, "gib": 1 << 30, "g": 1 << 30}
_DURATIONS_MS = {"ms": 1, "": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


@dataclass(frozen=True, slots=True)
class TopicChoice:
    """Which queues are read: by topic, by pattern, or one by one. Exactly one is set."""

    topics: tuple[str, ...] = ()
    pattern: str = ""
    queues: tuple[MessageQueue, ...] = ()


@dataclass(frozen=True, slots=True)
class OffsetChoice:
    """Where reading begins or ends, before the broker was asked.

    Attributes:
        word: earliest, latest or group; for queues that nothing below names.
        by_queue: Offsets, with -2 for earliest and -1 for latest.
        timestamp_ms: For all queues; goes before the others.
        timestamps_ms: By queue; goes before `by_queue`.
        latest_if_none: What to do where no message is that young: latest, or an error.
    """

    word: str
    by_queue: Offsets = field(default_factory=dict)
    timestamp_ms: int | None = None
    timestamps_ms: Offsets = field(default_factory=dict)
    latest_if_none: bool = False


def endpoints(text: str) -> tuple[str, ...]:
    """`host:port`, or several, separated by `;` or `,`."""
    found = tuple(part.strip() for part in re.split("[;,]", text) if part.strip())
    for each in found:
        host, colon, port = each.rpartition(":")
        if not (colon and host and port.isdecimal() and 0 < int(port) < 65536):
            raise InvalidOption(f"expected host:port, got {each!r}")
    if not found:
        raise InvalidOption("expected host:port")
    return found


def names(text: str) -> tuple[str, ...]:
    """Names separated by commas."""
    found = tuple(part.strip() for part in text.split(",") if part.strip())
    if not found:
        raise InvalidOption("expected a name, or several separated by commas")
    return found


def pattern(text: str) -> str:
    """A regular expression."""
    try:
        re.compile(text)
    except re.error as error:
        raise InvalidOption(f"not a regular expression: {error}") from error
    return text


def assignment(text: str) -> tuple[MessageQueue, ...]:
    """`{"orders": {"broker-a": [0, 1]}}`."""
    try:
        document = json.loads(text)
        queues = [
            MessageQueue(topic, broker, int(queue_id))
            for topic, brokers in document.items()
            for broker, ids in brokers.items()
            for queue_id in ids
        ]
    except (ValueError, AttributeError, TypeError) as error:
        raise InvalidOption('expected JSON like {"orders": {"broker-a": [0, 1]}}') from error
    if not queues:
        raise InvalidOption("expected at least one queue")
    return tuple(sorted(queues))


def offsets(text: str) -> Offsets:
    """`{"orders": {"broker-a:0": 23}}`."""
    return from_text(text)


def starting_offsets(text: str) -> OffsetChoice:
    """A word, or JSON by queue."""
    word = text.strip().lower()
    if word in {"earliest", "latest", "group"}:
        return OffsetChoice(word)
    return OffsetChoice("earliest", by_queue=_checked(from_text(text)))


def ending_offsets(text: str) -> OffsetChoice:
    """`latest`, or JSON by queue."""
    if text.strip().lower() == "latest":
        return OffsetChoice("latest")
    by_queue = _checked(from_text(text))
    if EARLIEST in by_queue.values():
        raise InvalidOption("-2 (earliest) is no place to end")
    return OffsetChoice("latest", by_queue=by_queue)


def _checked(by_queue: Offsets) -> Offsets:
    for queue, offset in by_queue.items():
        if offset < EARLIEST:
            raise InvalidOption(f"offset {offset} of {queue}: at least 0, or -1, or -2")
    return by_queue


def timestamp_ms(text: str) -> int:
    """Milliseconds since the epoch."""
    if not text.strip().isdecimal():
        raise InvalidOption("expected milliseconds since the epoch")
    return int(text)


def positive(text: str) -> int:
    """An integer above zero."""
    if not text.strip().isdecimal() or int(text) == 0:
        raise InvalidOption("expected an integer above zero")
    return int(text)


def flag(text: str) -> bool:
    """`true` or `false`."""
    word = text.strip().lower()
    if word not in {"true", "false"}:
        raise InvalidOption("expected true or false")
    return word == "true"


def size(text: str) -> int:
    """Bytes, with an optional KiB, MiB or GiB."""
    match = re.fullmatch(r"(\d+)\s*([a-z]*)", text.strip().lower())
    if match is None or match[2] not in _SIZES:
        raise InvalidOption("expected bytes, like 65536 or 8MiB")
    return int(match[1]) * _SIZES[match[2]]


def some_size(text: str) -> int:
    """As `size`, and not nothing."""
    found = size(text)
    if found == 0:
        raise InvalidOption("expected bytes above zero, like 65536 or 8MiB")
    return found


def duration_ms(text: str) -> int:
    """A duration like `500ms`, `30s`, `15m`, `1h`; a plain number is milliseconds."""
    match = re.fullmatch(r"(\d+)\s*([a-z]*)", text.strip().lower())
    if match is None or match[2] not in _DURATIONS_MS:
        raise InvalidOption("expected a duration like 500ms, 30s, 15m or 1h")
    return int(match[1]) * _DURATIONS_MS[match[2]]


def one_of(*words: str) -> Callable[[str], str]:
    """One of some words, compared without case."""
    by_lower = {word.lower(): word for word in words}

    def parse(text: str) -> str:
        if text.strip().lower() not in by_lower:
            raise InvalidOption(f"expected {' or '.join(words)}")
        return by_lower[text.strip().lower()]

    return parse


def upper_one_of(*words: str) -> Callable[[str], str]:
    """As `one_of`, for words written in capitals (SQL92 counts as SQL)."""
    known = one_of(*words)
    return lambda text: known("SQL" if text.strip().upper() == "SQL92" else text)


def topic_choice(value: Mapping[str, Any]) -> TopicChoice:
    """Exactly one of subscribe, subscribePattern and assign."""
    given = [name for name in ("subscribe", "subscribePattern", "assign") if value[name]]
    if len(given) != 1:
        found = " and ".join(given) or "none"
        raise InvalidOption(f"give exactly one of subscribe, subscribePattern, assign; got {found}")
    return TopicChoice(
        topics=value["subscribe"] or (),
        pattern=value["subscribePattern"] or "",
        queues=value["assign"] or (),
    )


def starting_choice(value: Mapping[str, Any], *, default: str) -> OffsetChoice:
    """Join the options that say where to begin."""
    base: OffsetChoice = value["startingOffsets"] or OffsetChoice(default)
    return OffsetChoice(
        word=base.word,
        by_queue=base.by_queue,
        timestamp_ms=value["startingTimestamp"],
        timestamps_ms=value["startingOffsetsByTimestamp"] or {},
        latest_if_none=value["startingOffsetsByTimestampStrategy"] == "latest",
    )


def ending_choice(value: Mapping[str, Any]) -> OffsetChoice:
    """Join the options that say where to end."""
    base: OffsetChoice = value["endingOffsets"] or OffsetChoice("latest")
    return OffsetChoice(
        word=base.word,
        by_queue=base.by_queue,
        timestamp_ms=value["endingTimestamp"],
        timestamps_ms=value["endingOffsetsByTimestamp"] or {},
        latest_if_none=True,
    )
