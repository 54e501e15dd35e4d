"""What a client says about the lite topics it reads (protocol.md 7.13)."""

from enum import IntEnum

import msgspec


class LiteAction(IntEnum):
    """How the set changes; the numbers of the wire."""

    PARTIAL_ADD = 0
    PARTIAL_REMOVE = 1
    COMPLETE_ADD = 2
    COMPLETE_REMOVE = 3


class LiteStart(IntEnum):
    """Where reading a newly added lite topic begins."""

    LAST = 0  # where the group is; at the end if it never read it
    MIN = 1  # the first message there is
    MAX = 2  # the next message
    OFFSET = 3  # at `LiteChange.start_value`
    TAIL = 4  # `start_value` messages before where the group is


class LiteChange(msgspec.Struct, frozen=True):
    """One SyncLiteSubscription.

    Attributes:
        client_id: Whose set.
        group: Its group, bound to `topic`.
        topic: The LITE topic all the lite topics are under.
        action: How the set changes.
        lite_topics: The names; all of them for COMPLETE_ADD, none for COMPLETE_REMOVE.
        version: Orders changes of one client; 0 for unordered.
        start: For PARTIAL_ADD.
        start_value: For `LiteStart.OFFSET` and `LiteStart.TAIL`.
    """

    client_id: str
    group: str
    topic: str
    action: LiteAction
    lite_topics: tuple[str, ...]
    version: int = 0
    start: LiteStart = LiteStart.LAST
    start_value: int = 0
