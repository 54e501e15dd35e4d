"""What a topic is: a type, and message queues."""

from enum import StrEnum

import msgspec

RETRY_PREFIX = "%RETRY%"
DEAD_LETTER_PREFIX = "%DLQ%"
LITE_PREFIX = "%LMQ%"


class TopicType(StrEnum):
    """Which messages a topic takes; the values of the reference's `message.type` attribute."""

    NORMAL = "NORMAL"
    FIFO = "FIFO"
    DELAY = "DELAY"
    TRANSACTION = "TRANSACTION"
    MIXED = "MIXED"
    LITE = "LITE"
    PRIORITY = "PRIORITY"


class Permission(StrEnum):
    """What clients may do with a topic's queues."""

    NONE = "NONE"
    READ = "READ"
    WRITE = "WRITE"
    READ_WRITE = "READ_WRITE"

    @property
    def is_readable(self) -> bool:
        """Whether consumers may receive."""
        return self in _READABLE

    @property
    def is_writable(self) -> bool:
        """Whether producers may send."""
        return self in _WRITABLE


# Looking members up in their enum takes longer than what is done with them.
_READABLE = frozenset((Permission.READ, Permission.READ_WRITE))
_WRITABLE = frozenset((Permission.WRITE, Permission.READ_WRITE))


class Topic(msgspec.Struct, frozen=True):
    """A topic as its creator asked for it.

    Attributes:
        name: As clients say it.
        topic_type: Which messages it takes.
        queues: How many message queues, ids 0 to queues - 1; may grow, never shrink.
        permission: What clients may do.
        retention_ms: How long messages are kept at least; 0 for the broker's setting.
        lite_expiration_ms: How long an idle lite topic lives; 0 for ever.
        created_ms: When it was created.
        attributes: Anything else, kept as it is.
    """

    name: str
    topic_type: TopicType = TopicType.NORMAL
    queues: int = 8
    permission: Permission = Permission.READ_WRITE
    retention_ms: int = 0
    lite_expiration_ms: int = 0
    created_ms: int = 0
    attributes: dict[str, str] = msgspec.field(default_factory=dict)


def dead_letter_topic(consumer_group: str) -> str:
    """Name the topic that holds the dead letters of a group."""
    return DEAD_LETTER_PREFIX + consumer_group
