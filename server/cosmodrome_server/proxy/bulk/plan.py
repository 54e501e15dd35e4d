"""What one bulk read is to fetch: decided on the loop, carried out on the reader thread.

read_queue ──Plan──▶ encode      (which needs pyarrow; the rest of the server does not)
"""

from collections.abc import Sequence

import msgspec

from cosmodrome_server.store.ranges import Entries

COLUMNS = frozenset(
    {
        *("topic", "broker", "queue_id", "queue_offset", "message_id", "message_type", "tag"),
        *("keys", "message_group", "properties", "body", "born_timestamp", "store_timestamp"),
        *("delivery_timestamp", "born_host", "store_host", "delivery_attempt", "priority"),
        *("lite_topic", "trace_context", "dlq", "body_encoding"),
    }
)


class Plan(msgspec.Struct, frozen=True):
    """One read, as it leaves the loop.

    Attributes:
        entries: Where the messages lie.
        end: The offset after the last one that is looked at.
        columns: What is wanted of them.
        batch_bytes: About how much.
        matcher: The filter, compiled; None for everything.
        constants: Columns with one value.
    """

    entries: Sequence[Entries]
    end: int
    columns: tuple[str, ...]
    batch_bytes: int
    matcher: object | None
    constants: dict[str, str | int]
