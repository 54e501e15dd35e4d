"""Queue offsets: which queue, how far, and the JSON that Spark's checkpoint keeps.

    {"@v": 1, "orders": {"broker-a:0": 120, "broker-a:1": 118}}
              topic      broker : queue id   next offset to read

Rules
1. The keys are sorted. Spark compares offsets as strings: the same numbers in another
   order look like progress and make it run empty batches for ever.
2. An offset is the *next* one to read, so a range is half open: [start, end).
3. `@` cannot stand in a topic name, so the version never collides with a topic.

Pure: no Spark, no network.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cosmodrome_spark.errors import InvalidOption

VERSION_KEY = "@v"
VERSION = 1
EARLIEST = -2
LATEST = -1


@dataclass(frozen=True, order=True, slots=True)
class MessageQueue:
    """One queue of a topic on one broker."""

    topic: str
    broker: str
    queue_id: int

    def __str__(self) -> str:
        """As people read it, and as errors say it."""
        return f"{self.topic}/{self.broker}:{self.queue_id}"


@dataclass(frozen=True, order=True, slots=True)
class QueueBounds:
    """The offsets a queue holds: [min_offset, max_offset)."""

    min_offset: int
    max_offset: int


@dataclass(frozen=True, order=True, slots=True)
class QueueRange:
    """The offsets [start, end) of one queue."""

    queue: MessageQueue
    start: int
    end: int

    def __len__(self) -> int:
        """How many offsets."""
        return self.end - self.start


Offsets = dict[MessageQueue, int]
OffsetsJson = dict[str, Any]  # Spark hands and takes plain JSON values


def to_json(offsets: Mapping[MessageQueue, int]) -> OffsetsJson:
    """Write offsets as Spark keeps them: sorted by topic, broker and queue id."""
    topics: OffsetsJson = {VERSION_KEY: VERSION}
    for queue in sorted(offsets):
        queues = topics.setdefault(queue.topic, {})
        queues[f"{queue.broker}:{queue.queue_id}"] = offsets[queue]
    return topics


def from_json(document: Mapping[str, Any]) -> Offsets:
    """Read offsets back, as Spark kept them or as a user wrote them.

    Raises:
        InvalidOption: The shape is not topic → queue → integer, or the version is unknown.
    """
    version = document.get(VERSION_KEY, VERSION)
    if version != VERSION:
        raise InvalidOption(
            f"offsets of version {version!r}, this package reads {VERSION}: "
            "the checkpoint was written by a newer cosmodrome"
        )
    found: Offsets = {}
    for topic, queues in document.items():
        if topic == VERSION_KEY:
            continue
        if not isinstance(queues, Mapping):
            raise InvalidOption(f"offsets of topic {topic!r}: expected an object of queues")
        for name, offset in queues.items():
            if not isinstance(offset, int) or isinstance(offset, bool):
                raise InvalidOption(
                    f"offset of {topic}/{name}: expected an integer, got {offset!r}"
                )
            found[parse_queue(topic, name)] = offset
    return found


def from_text(text: str) -> Offsets:
    """Read offsets from JSON text.

    Raises:
        InvalidOption: It is not JSON, or not of the shape of `from_json`.
    """
    try:
        document = json.loads(text)
    except ValueError as error:
        raise InvalidOption(f"not JSON: {error}") from error
    if not isinstance(document, dict):
        raise InvalidOption('expected an object like {"topic": {"broker:0": 23}}')
    return from_json(document)


def to_text(offsets: Mapping[MessageQueue, int]) -> str:
    """Write offsets as one line of JSON text, sorted."""
    return json.dumps(to_json(offsets), separators=(",", ":"))


def parse_queue(topic: str, name: str) -> MessageQueue:
    """Read `broker-a:0`.

    Raises:
        InvalidOption: No broker name, or the queue id is no number.
    """
    broker, colon, number = name.rpartition(":")
    if not colon or not broker or not number.isdecimal():
        raise InvalidOption(f"queue {name!r} of topic {topic!r}: expected broker:queue-id")
    return MessageQueue(topic, broker, int(number))


def backlog(start: Mapping[MessageQueue, int], end: Mapping[MessageQueue, int]) -> int:
    """How many offsets lie between, over all queues of both."""
    return sum(max(0, end[queue] - start[queue]) for queue in end if queue in start)


def topics_of(queues: Iterable[MessageQueue]) -> list[str]:
    """The topics of some queues, sorted, each once."""
    return sorted({queue.topic for queue in queues})
