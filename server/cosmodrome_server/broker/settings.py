"""What the broker can be told; `app` fills it from the configuration."""

import msgspec

from cosmodrome_server.core.transaction import TransactionRules


class BrokerSettings(msgspec.Struct, frozen=True):
    """Settings of one broker.

    Attributes:
        is_auto_create: Topics and groups are created on first use.
        queues: Message queues of a topic created on first use.
        topics_max: How many topics there may be.
        groups_max: How many consumer groups there may be.
        waiters_max: Receives and pulls that may wait in all.
        waiters_per_group: … of one group on one topic or queue.
        inflight_per_group: Messages one group may have in flight on one topic; a group's
            attribute `inflight.max` lowers it.
        renew_total_ms: For how long after its receive a delivery is renewed.
        transaction_first_check_ms: When a half message is first asked about.
        transactions: When it is asked about again, and given up.
        transactions_max: How many half messages may be open.
        delayed_max: How many delayed messages may wait.
        is_recall_enabled: Whether producers may take delayed messages back.
        lite_topics_max: How many lite topics there may be.
        lite_subscriptions_max: How many subscriptions to them all clients together have.
        lite_subscriptions_per_client: … one client, where its group does not say.
        checkpoint_ms: At most so long between checkpoints, while anything changes.
        checkpoint_bytes: At most so much log between checkpoints.
    """

    is_auto_create: bool = False
    queues: int = 8
    topics_max: int = 100_000
    groups_max: int = 100_000
    waiters_max: int = 100_000
    waiters_per_group: int = 10_000
    inflight_per_group: int = 1_000_000
    renew_total_ms: int = 10_800_000
    transaction_first_check_ms: int = 6_000
    transactions: TransactionRules = msgspec.field(default_factory=TransactionRules)
    transactions_max: int = 1_000_000
    delayed_max: int = 10_000_000
    is_recall_enabled: bool = True
    lite_topics_max: int = 20_000
    lite_subscriptions_max: int = 100_000
    lite_subscriptions_per_client: int = 2_000
    checkpoint_ms: int = 30_000
    checkpoint_bytes: int = 64 << 20
