"""What the proxy may ask of the broker, and what the broker tells the proxy.

Every verb is a plain method: it decides at once, stages what must be written, and
returns its result or raises a `BrokerError`. Its effect is durable when the open
frame is, so whoever answers a client says

    result = broker.send("orders", messages)
    broker.reply_when_durable(sink, token, encode(result))

and the reply leaves when the group commit that holds the effect is on disk, together
with all others of that frame: no task, future or callback per call. A reply that
needs no durability (a route, an empty receive) is given to the sink at once.

All methods are called on the loop's thread. `ReplySink.reply_many` is the one thing
called elsewhere: by the writer thread, with every reply of a frame in one list.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from cosmodrome_server.errors import BrokerError, InvalidReceiptHandle
from cosmodrome_server.model.group import Group
from cosmodrome_server.model.lite import LiteChange
from cosmodrome_server.model.message import Delivery, NewMessage, SendReceipt, StoredMessage
from cosmodrome_server.model.queries import (
    Accumulation,
    MessageSearch,
    OpenTransaction,
    Pulled,
    PullQuery,
    PullWaiter,
    QueueBounds,
    ReceiveQuery,
    Redriven,
    RedriveQuery,
    Scheduled,
    Waiter,
    Waiting,
)
from cosmodrome_server.model.topic import Topic


class ReplySink(Protocol):
    """Where finished replies go. Thread-safe, never blocks, never raises."""

    def reply_many(self, replies: list[tuple[object, bytes]]) -> None:
        """Hand over (token, encoded reply) pairs; the token is the sink's own."""


class BrokerEvents(Protocol):
    """What the broker tells the proxy, on the loop's thread."""

    def check_transaction(self, message: StoredMessage, transaction_id: str) -> bool:
        """Ask one live producer of the topic what became of a half message.

        Returns:
            Whether there was a producer to ask.
        """

    def topic_changed(self, name: str) -> None:
        """A topic was created, changed or deleted."""

    def group_changed(self, name: str) -> None:
        """A group was created, changed or deleted."""

    def lite_unsubscribed(self, client_id: str, group: str, lite_topic: str) -> None:
        """Another client of an exclusive group took a lite topic over."""


class Messaging(Protocol):
    """The verbs of producers and consumers."""

    def send(
        self, topic: str, messages: Sequence[NewMessage], queue_id: int = -1
    ) -> list[SendReceipt]:
        """Store messages of one topic, atomically; receipts in the same order.

        Args:
            topic: Where to.
            messages: What.
            queue_id: The queue for all of them; -1 for the broker's choice.

        Raises:
            BadRequest: There is no such queue.
            TopicNotFound: No such topic, and topics are not created on first use.
            MessageTypeConflict: A message the topic does not take.
            Forbidden: The topic takes no writes.
            LiteTopicQuotaExceeded: A new lite topic would be one too many.
            StoreFull: No space for messages.
            OverloadedError: Too many bytes wait to be written.
        """

    def receive(self, query: ReceiveQuery) -> list[Delivery]:
        """Deliver what is there now, up to `query.max_messages`; maybe nothing.

        Raises:
            TopicNotFound, ConsumerGroupNotFound: Where they are not created on first use.
            IllegalFilterExpression: The filter does not compile.
            Forbidden: The group or the topic is not readable.
        """

    def receive_soon(
        self, query: ReceiveQuery, then: Callable[[list[Delivery] | Exception], None]
    ) -> None:
        """`receive` at the end of this turn of the loop, as one with those that ask for the same.

        Args:
            query: What is wanted.
            then: Called once, on the loop, with what `receive` returns or raises; does not raise.

        Raises:
            BadRequest: A name that is too long.
        """

    def wait(self, waiter: Waiter) -> None:
        """Serve `waiter` when something arrives, or at its deadline.

        Raises:
            OverloadedError: The group has as many waiters as it may.
        """

    def cancel(self, waiter: Waiter | PullWaiter) -> None:
        """Forget a waiter whose client went away."""

    def return_undelivered(self, group: str, handles: Iterable[str]) -> None:
        """Make messages visible again that could not be written to their client.

        The redelivery does not count as an attempt.
        """

    def ack(self, group: str, topic: str, handle: str) -> None:
        """End a delivery for good; again is fine.

        Raises:
            InvalidReceiptHandle: Malformed, foreign, expired or replaced.
        """

    def ack_many(
        self, group: str, topic: str, handles: Sequence[str]
    ) -> list[InvalidReceiptHandle | None]:
        """`ack` for each handle, in order; what it raises for one is returned in its place."""

    def change_invisible_duration(
        self, group: str, topic: str, handle: str, invisible_ms: int, *, suspend: bool
    ) -> str:
        """Hide a message for `invisible_ms` from now; return the new handle.

        Raises:
            InvalidReceiptHandle: As `ack`, and after an ack.
        """

    def forward_to_dead_letter_queue(self, group: str, topic: str, handle: str) -> None:
        """Move a message to the dead letters of its group, exactly once.

        Raises:
            InvalidReceiptHandle: As `ack`, and after an ack.
        """

    def end_transaction(
        self, topic: str, transaction_id: str, *, commit: bool, from_check: bool
    ) -> None:
        """Make a half message visible, or drop it; the same resolution again is fine.

        Raises:
            InvalidTransactionId: Unknown, or expired.
            BadRequest: It was resolved the other way.
        """

    def recall(self, topic: str, recall_handle: str) -> str:
        """Take back a message that waits for its delivery time; return its message id.

        Raises:
            BadRequest: The handle is malformed or of another topic.
            MessageNotFound: Delivered or recalled already, or never there.
        """

    def pull(self, query: PullQuery) -> Pulled:
        """Read messages at an offset; hides and counts nothing.

        Raises:
            TopicNotFound, BadRequest: No such topic, no such queue.
            IllegalOffset: Outside the queue; says the nearest offset inside.
        """

    def wait_pull(self, waiter: PullWaiter) -> None:
        """Serve a pull when something arrives, or at its deadline."""

    def sync_lite_subscription(self, change: LiteChange) -> None:
        """Change which lite topics a client reads; see `model.lite`."""

    def client_gone(self, client_id: str) -> None:
        """Release what is renewed for a client that went away: visible again after 1 s."""


class Offsets(Protocol):
    """Where groups are on queues."""

    def bounds(self, topic: str, queue_id: int) -> QueueBounds:
        """The offsets a queue holds.

        Raises:
            TopicNotFound, BadRequest: No such topic, no such queue.
        """

    def offset_at(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """The first offset stored at or after a time; the next offset if all are older."""

    def committed_offset(self, group: str, topic: str, queue_id: int) -> int:
        """What the group committed.

        Raises:
            OffsetNotFound: Nothing.
        """

    def commit_offset(self, group: str, topic: str, queue_id: int, queue_offset: int) -> None:
        """Commit progress; backwards is allowed. Ignored while a reset is pending."""

    def reset_offset(self, group: str, topic: str, queue_id: int, queue_offset: int) -> None:
        """Move a group on one queue and forget what it has in flight there."""

    def accumulation(self, group: str, topic: str) -> Accumulation:
        """How far behind a group is."""

    def topics_of(self, group: str) -> list[str]:
        """The topics a group has progress on, by name; looks at all there is of all groups."""

    def topics_by_group(self) -> dict[str, list[str]]:
        """The topics that each group has progress on, by name; groups with none are left out."""


class Catalogue(Protocol):
    """Topics, groups, and what a restart must not forget."""

    def create_topic(self, topic: Topic) -> None:
        """Create or change a topic; the type of an existing one stays.

        Raises:
            BadRequest: Another type, or fewer queues than it has.
        """

    def delete_topic(self, name: str) -> None:
        """Delete a topic with its messages and progress."""

    def topic(self, name: str) -> Topic:
        """Look a topic up; creates it where `auto_create` is on and the name is a client's.

        Raises:
            TopicNotFound: It does not exist.
        """

    def has_topic(self, name: str) -> bool:
        """Whether there is such a topic, one of dead letters included; creates none."""

    def topics(self) -> list[Topic]:
        """All topics by name, those of dead letters included; sorts them, so no look-up."""

    def create_group(self, group: Group) -> None:
        """Create or change a group."""

    def delete_group(self, name: str) -> None:
        """Delete a group with its progress."""

    def group(self, name: str) -> Group:
        """Look a group up; creates it where `auto_create` is on.

        Raises:
            ConsumerGroupNotFound: It does not exist.
        """

    def has_group(self, name: str) -> bool:
        """Whether there is such a group; creates none."""

    def groups(self) -> list[Group]:
        """All groups by name; sorts them, so no look-up."""

    def keep(self, key: str, value: bytes | None) -> None:
        """Remember a small value across restarts (client settings, users); None forgets it."""

    def kept(self, prefix: str) -> dict[str, bytes]:
        """All remembered values whose key begins with `prefix`."""


class Operations(Protocol):
    """What operators do."""

    def redrive(self, query: RedriveQuery) -> Redriven:
        """Send dead letters of a group back to the topics they came from, each once.

        One call looks at some thousands; `Redriven.next_offset` says where to go on.

        Raises:
            ConsumerGroupNotFound: No such group.
            TopicNotFound: None of those that are left has a topic to go back to.
        """

    def redriven(self, topic: str) -> int:
        """How many of the messages that a topic of dead letters holds were sent back."""

    def scheduled(self, topic: str, max_messages: int) -> list[Scheduled]:
        """What waits for its delivery time, soonest first; of all topics for ""."""

    def transactions(self, topic: str, max_messages: int) -> list[OpenTransaction]:
        """Half messages, oldest first; of all topics for ""."""

    def waiting(self) -> Waiting:
        """How many messages wait for a time, a resolution or an operator."""

    def find(
        self, search: MessageSearch, on_found: Callable[[list[StoredMessage] | BrokerError], None]
    ) -> None:
        """Look for messages with an id or a key, off the loop; newest first to `on_found`.

        Raises:
            TopicNotFound: No such topic.
            OverloadedError: Too many searches wait.
            Unsupported: This log has no key index.
        """


class Broker(Messaging, Offsets, Catalogue, Operations, Protocol):
    """Everything the proxy may ask for."""

    def reply_when_durable(self, sink: ReplySink, token: object, reply: bytes) -> None:
        """Hold `reply` until everything staged so far is durable."""

    def catch_up(self) -> None:
        """Let everything be visible whose reply may have left: the beginning of every call."""
