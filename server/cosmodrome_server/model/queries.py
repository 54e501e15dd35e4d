"""What the proxy asks of the broker, where more than a few names and numbers are needed."""

from collections.abc import Callable

import msgspec

from cosmodrome_server.model.filter import EVERYTHING, Filter
from cosmodrome_server.model.message import Delivery, StoredMessage

ANY_QUEUE = -1


class ReceiveQuery(msgspec.Struct, frozen=True, gc=False):
    """One receive.

    Attributes:
        group: The consumer group.
        topic: The topic it wants.
        queue_id: `ANY_QUEUE`, or the queue of a FIFO group. Other groups are served from
            all queues whatever the client names.
        client_id: Who asks; owner of what is renewed for it.
        max_messages: At least 1.
        invisible_ms: How long messages are hidden.
        auto_renew: Extend while the client lives; `invisible_ms` is then the first term.
        filter: What of the topic is wanted.
        attempt_id: Names this receive to a repeat of it, "" for none.
    """

    group: str
    topic: str
    queue_id: int
    client_id: str
    max_messages: int
    invisible_ms: int
    auto_renew: bool = False
    filter: Filter = EVERYTHING
    attempt_id: str = ""


class Waiter(msgspec.Struct):
    """A receive that found nothing and waits.

    Attributes:
        query: What it wants.
        deadline_ms: When it gives up, on the monotonic clock.
        on_ready: Called once, on the loop: with the deliveries, or with none at the deadline.
        is_open: False once `on_ready` was called or the wait cancelled.
    """

    query: ReceiveQuery
    deadline_ms: int
    on_ready: Callable[[list[Delivery]], None]
    is_open: bool = True


class PullQuery(msgspec.Struct, frozen=True):
    """One read at an offset.

    Attributes:
        group: Who reads ("" for nobody in particular).
        topic: What is read.
        queue_id: Which queue.
        queue_offset: Where to begin.
        max_messages: 1 to delivery.pull_max.
        filter: What is wanted; the rest is passed over.
    """

    group: str
    topic: str
    queue_id: int
    queue_offset: int
    max_messages: int
    filter: Filter = EVERYTHING


class Pulled(msgspec.Struct, frozen=True):
    """What a pull found: messages in offset order, and where to go on."""

    messages: list[StoredMessage]
    next_offset: int


class PullWaiter(msgspec.Struct):
    """A pull that found nothing and waits; as `Waiter`."""

    query: PullQuery
    deadline_ms: int
    on_ready: Callable[[Pulled], None]
    is_open: bool = True


class QueueBounds(msgspec.Struct, frozen=True):
    """The offsets a queue holds now: [min_offset, max_offset)."""

    min_offset: int
    max_offset: int


class Accumulation(msgspec.Struct, frozen=True):
    """How far behind a group is on a topic.

    Attributes:
        ready: Stored and not yet delivered, those that rest after a failure included.
        inflight: Delivered and not settled.
        oldest_unconsumed_ms: Store time of the first message not settled; 0 for none.
        oldest_ready_ms: Store time of the first message not delivered; 0 for none.
    """

    ready: int
    inflight: int
    oldest_unconsumed_ms: int
    oldest_ready_ms: int


class RedriveQuery(msgspec.Struct, frozen=True):
    """Which dead letters of a group go back to the topics they came from.

    Attributes:
        group: Whose dead letters.
        topic: Only those that came from this topic; "" for all.
        queue_offsets: Only these of the dead letter topic; empty for all.
        from_offset: Only from this one on.
        max_messages: How many at most.
        dry_run: Count, and move nothing.
    """

    group: str
    topic: str = ""
    queue_offsets: tuple[int, ...] = ()
    from_offset: int = 0
    max_messages: int = 256
    dry_run: bool = False


class Redriven(msgspec.Struct, frozen=True):
    """What a redrive did.

    Attributes:
        moved: Dead letters sent back, or that would be.
        remaining: Dead letters not sent back yet.
        next_offset: Where the next call goes on; 0 after the last dead letter.
    """

    moved: int
    remaining: int
    next_offset: int = 0


class Scheduled(msgspec.Struct, frozen=True):
    """A message that waits for its delivery time."""

    topic: str
    message_id: str
    due_ms: int
    recall_handle: str


class OpenTransaction(msgspec.Struct, frozen=True):
    """A half message; a parked one is no longer checked and waits for an operator."""

    topic: str
    transaction_id: str
    stored_ms: int
    checks: int
    is_parked: bool


class MessageSearch(msgspec.Struct, frozen=True):
    """Which stored messages are looked for.

    Attributes:
        topic: Where.
        key: A message id or one of the message keys; both are indexed alike.
        begin_ms, end_ms: Store times, [begin, end); 0 for unbounded.
        max_messages: How many at most, newest first.
    """

    topic: str
    key: str
    begin_ms: int
    end_ms: int
    max_messages: int


class Waiting(msgspec.Struct, frozen=True):
    """How many messages wait for something other than a consumer, by topic.

    Attributes:
        delayed: For their delivery time.
        overdue_ms: For how long the first of them has been due; 0 if none is.
        overdue: How many of them are due.
        uncopied: How many of them only the log has yet.
        half: For their transaction's end.
        parked: For an operator to end it.
    """

    delayed: dict[str, int]
    half: dict[str, int]
    parked: dict[str, int]
    overdue_ms: int = 0
    overdue: int = 0
    uncopied: int = 0
