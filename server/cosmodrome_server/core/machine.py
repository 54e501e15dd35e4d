"""The seams inside the core: what the shard asks of each of its machines.

    verb ──▶ plan_*  (reads state, changes nothing) ──▶ records, or a BrokerError
    records ──▶ staged in the open frame ──▶ apply   (the only mutator)
    start:  restore(row)… of the last checkpoint, then apply(record)… after it

`Shard` composes the machines and routes rows and records. A machine never holds the
shard; what it needs of its neighbours it is handed (`Catalogue`, `QueueReader`).

Two clocks, both integer milliseconds and handed in:

    now_ms     the log's time: wall clock, never behind an earlier record. Store
               timestamps and delivery times.
    lease_ms   starts at max(last known, wall) and then rides the monotonic clock, so
               that a wall clock that jumps ends no delivery early. Every state record
               carries it; replay hands it to `advance` before the record is applied.
"""

from collections.abc import Iterator
from typing import Protocol

from cosmodrome_server.model.log import MessageRecord

Row = tuple[bytes, bytes]
DirtyRow = tuple[bytes, bytes | None]

NEVER_MS = 1 << 62


class Machine(Protocol):
    """State that survives restarts as rows; its keys begin with `row_prefix`, one byte."""

    row_prefix: bytes

    def rows(self) -> Iterator[Row]:
        """All of the state."""

    def dirty_rows(self) -> Iterator[DirtyRow]:
        """What changed since the last call; None deletes. Calling it marks all clean."""

    def restore(self, key: bytes, value: bytes) -> None:
        """Take back one row, at start."""


class Matcher(Protocol):
    """A compiled filter; made by `core.filter_expression.compile_filter(Filter)`.

    Attributes:
        is_everything: Matches every message; neither hashes nor messages need be looked at.
        tag_hashes: Only messages whose tag hash is in it can match; None for any.
    """

    @property
    def is_everything(self) -> bool:
        """See the class."""

    @property
    def tag_hashes(self) -> frozenset[int] | None:
        """See the class."""

    def matches(self, record: MessageRecord) -> bool:
        """Whether the message matches exactly: the tag itself, the SQL predicate."""
