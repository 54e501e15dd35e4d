"""Every metric the broker exports: name, kind, labels, buckets, meaning.

Names that begin with `rocketmq_` are those of RocketMQ 5 (protocol.md 16) with its labels and
units; a gauge in milliseconds carries the unit suffix its Prometheus exporter adds, and its bare
name too, since boards in the wild query either. Names that begin with `cosmodrome_` are ours.
"""

from enum import StrEnum

import msgspec

from cosmodrome_server.broker.statistics import DELAY_BOUNDS_S, FINISH_BOUNDS_S, SIZE_BOUNDS


class Kind(StrEnum):
    """How a metric behaves."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Metric(msgspec.Struct, frozen=True, eq=False):
    """One exported name. Compared by identity: it is a key on the hot path.

    Attributes:
        name: Without `_total` for counters; the exporter adds it.
        kind: How it behaves.
        meaning: One sentence.
        labels: Beside the common ones (cluster, node_type, node_id).
        buckets: Upper bounds of a histogram, in the unit of the name.
        node_type: Which half of the reference exports it.
        alias: Another name with the same samples; "" for none.
    """

    name: str
    kind: Kind
    meaning: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    node_type: str = "broker"
    alias: str = ""


TOPIC = ("topic", "message_type", "is_system")
OUT = ("topic", "consumer_group", "is_retry", "is_system")
GROUP = ("consumer_group", "topic", "is_retry", "is_system")
FAST_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)
LONG_S = (0.001, 0.01, 0.1, 0.5, 1, 5, 10, 20, 30)

MESSAGES_IN = Metric("rocketmq_messages_in", Kind.COUNTER, "Messages stored.", TOPIC)
THROUGHPUT_IN = Metric("rocketmq_throughput_in", Kind.COUNTER, "Bytes of messages stored.", TOPIC)
MESSAGES_OUT = Metric("rocketmq_messages_out", Kind.COUNTER, "Messages delivered.", OUT)
THROUGHPUT_OUT = Metric("rocketmq_throughput_out", Kind.COUNTER, "Bytes delivered.", OUT)
MESSAGE_SIZE = Metric(
    "rocketmq_message_size",
    Kind.HISTOGRAM,
    "Bytes of a stored message.",
    TOPIC,
    SIZE_BOUNDS,
)
TOPICS = Metric("rocketmq_topic_number", Kind.GAUGE, "Topics.")
GROUPS = Metric("rocketmq_consumer_group_number", Kind.GAUGE, "Consumer groups.")
PERMISSION = Metric("rocketmq_broker_permission", Kind.GAUGE, "6: the broker reads and writes.")
PRODUCERS = Metric(
    "rocketmq_producer_connections",
    Kind.GAUGE,
    "Producers registered.",
    ("language", "version", "protocol_type"),
)
CONSUMERS = Metric(
    "rocketmq_consumer_connections",
    Kind.GAUGE,
    "Consumers registered.",
    ("consumer_group", "language", "version", "consume_mode", "protocol_type", "is_system"),
)
LAG = Metric(
    "rocketmq_consumer_lag_messages", Kind.GAUGE, "Messages a group has not settled.", GROUP
)
LAG_LATENCY = Metric(
    "rocketmq_consumer_lag_latency_milliseconds",
    Kind.GAUGE,
    "Age of the first message not settled.",
    GROUP,
    alias="rocketmq_consumer_lag_latency",
)
INFLIGHT = Metric(
    "rocketmq_consumer_inflight_messages", Kind.GAUGE, "Delivered and not settled.", GROUP
)
QUEUEING_LATENCY = Metric(
    "rocketmq_consumer_queueing_latency_milliseconds",
    Kind.GAUGE,
    "Age of the first message not delivered.",
    GROUP,
    alias="rocketmq_consumer_queueing_latency",
)
READY = Metric("rocketmq_consumer_ready_messages", Kind.GAUGE, "Stored and not delivered.", GROUP)
DEAD_LETTERS = Metric(
    "rocketmq_send_to_dlq_messages",
    Kind.COUNTER,
    "Messages moved to the dead letters.",
    ("consumer_group", "topic", "is_system"),
)
COMMITS = Metric("rocketmq_commit_messages", Kind.COUNTER, "Transactions committed.", ("topic",))
ROLLBACKS = Metric("rocketmq_rollback_messages", Kind.COUNTER, "Transactions undone.", ("topic",))
FINISH_LATENCY = Metric(
    "rocketmq_finish_message_latency",
    Kind.HISTOGRAM,
    "Seconds from a half message to its commit or rollback.",
    ("topic",),
    FINISH_BOUNDS_S,
)
HALF_MESSAGES = Metric("rocketmq_half_messages", Kind.GAUGE, "Half messages open.", ("topic",))
STORAGE_SIZE = Metric(
    "rocketmq_storage_size_bytes",
    Kind.GAUGE,
    "Bytes of the log on disk.",
    ("storage_type", "storage_medium"),
    alias="rocketmq_storage_size",
)
FLUSH_BEHIND = Metric(
    "rocketmq_storage_flush_behind_bytes",
    Kind.GAUGE,
    "Bytes staged and not on disk.",
    ("storage_type", "storage_medium"),
)
DISPATCH_BEHIND = Metric(
    "rocketmq_storage_dispatch_behind_bytes",
    Kind.GAUGE,
    "Bytes on disk and not visible; 0, queues are built as frames are written.",
    ("storage_type", "storage_medium"),
)
RESERVE_TIME = Metric(
    "rocketmq_storage_message_reserve_time_milliseconds",
    Kind.GAUGE,
    "Age of the oldest segment of the log that is kept.",
    ("storage_type", "storage_medium"),
    alias="rocketmq_storage_message_reserve_time",
)
TIMING = Metric("rocketmq_timing_messages", Kind.GAUGE, "Delayed messages.", ("topic",))
TIMER_IN = Metric("rocketmq_timer_enqueue", Kind.COUNTER, "Messages delayed.", ("topic",))
TIMER_OUT = Metric("rocketmq_timer_dequeue", Kind.COUNTER, "Delayed ones delivered.", ("topic",))
TIMER_LAG = Metric(
    "rocketmq_timer_dequeue_lag", Kind.GAUGE, "Delayed messages that are due and not delivered."
)
TIMER_IN_LAG = Metric(
    "rocketmq_timer_enqueue_lag",
    Kind.GAUGE,
    "Delayed messages that are in the log only, not in the file of their hour yet.",
)
TIMER_LATENCY = Metric(
    "rocketmq_timer_dequeue_latency_milliseconds",
    Kind.GAUGE,
    "For how long the first delayed message that is due has been due.",
    alias="rocketmq_timer_dequeue_latency",
)
DELAY_LATENCY = Metric(
    "rocketmq_delay_message_latency",
    Kind.HISTOGRAM,
    "Seconds to the delivery time that a send asked for.",
    ("topic",),
    DELAY_BOUNDS_S,
)
WATERMARK = Metric(
    "rocketmq_processor_watermark",
    Kind.GAUGE,
    "Calls whose answer waits for the disk; flow.calls_per_class bounds each.",
    ("processor",),
)
PROXY_UP = Metric(
    "rocketmq_proxy_up", Kind.GAUGE, "1 while it serves.", ("proxy_mode",), node_type="proxy"
)
RESPONSES = Metric(
    "cosmodrome_responses", Kind.COUNTER, "Calls answered.", ("rpc", "code"), node_type="proxy"
)
REFUSALS = Metric(
    "cosmodrome_refusals",
    Kind.COUNTER,
    "Calls answered TOO_MANY_REQUESTS, by the setting that holds the bound.",
    ("setting",),
    node_type="proxy",
)
RPC_SECONDS = Metric(
    "cosmodrome_rpc_seconds",
    Kind.HISTOGRAM,
    "Seconds the broker worked on a call; waiting for disk and messages left out.",
    ("rpc",),
    FAST_S,
    node_type="proxy",
)
CONNECTIONS = Metric(
    "cosmodrome_connections", Kind.GAUGE, "Connections that are open.", (), node_type="proxy"
)
CONNECTIONS_IN = Metric(
    "cosmodrome_connections_accepted", Kind.COUNTER, "Connections taken.", (), node_type="proxy"
)
CONNECTIONS_OUT = Metric(
    "cosmodrome_connections_refused",
    Kind.COUNTER,
    "Connections not taken, or cut off: too many, no handshake, abuse, silence.",
    ("reason",),
    node_type="proxy",
)
CALLS_OPEN = Metric(
    "cosmodrome_calls", Kind.GAUGE, "Calls that are not answered yet.", (), node_type="proxy"
)
RECEIVE_WAIT = Metric(
    "cosmodrome_receive_wait_seconds",
    Kind.HISTOGRAM,
    "Seconds a receive waited for messages.",
    (),
    LONG_S,
    node_type="proxy",
)
FSYNC = Metric(
    "cosmodrome_fsync_seconds", Kind.HISTOGRAM, "Seconds a group commit took.", (), FAST_S
)
LOOP_LAG = Metric(
    "cosmodrome_event_loop_lag_seconds",
    Kind.HISTOGRAM,
    "Seconds the event loop came too late to a timer.",
    (),
    FAST_S,
)
LATE_ACKS = Metric(
    "cosmodrome_ack_after_expiry",
    Kind.COUNTER,
    "Acks of deliveries that had run out.",
    ("consumer_group", "topic"),
)
LAG_RETENTION = Metric(
    "cosmodrome_lag_retention_ratio",
    Kind.GAUGE,
    "The first message not settled, against what is kept: by age, or by size where that is nearer.",
    ("consumer_group", "topic"),
)
PARKED = Metric(
    "cosmodrome_parked_transactions", Kind.GAUGE, "Half messages given up on.", ("topic",)
)
WAITING = Metric("cosmodrome_waiting_receives", Kind.GAUGE, "Receives that wait.")
STAGED = Metric("cosmodrome_staged_bytes", Kind.GAUGE, "Bytes that wait to be written.")
FREE = Metric("cosmodrome_store_free_bytes", Kind.GAUGE, "Free bytes under the data directory.")
FULL = Metric("cosmodrome_store_full", Kind.GAUGE, "1 while sends are refused for lack of space.")
CORRUPT = Metric("cosmodrome_corrupt_frames", Kind.COUNTER, "Damaged frames found.")
MEMORY = Metric("process_resident_memory_bytes", Kind.GAUGE, "Resident memory.")
CPU = Metric("process_cpu_seconds", Kind.COUNTER, "Processor time used.")
OPEN_FILES_MAX = Metric(
    "process_max_fds",
    Kind.GAUGE,
    "Files the process may have open; a connection takes one, on grpcio up to three.",
)
DROPPED_SERIES = Metric(
    "cosmodrome_dropped_series", Kind.COUNTER, "Series left out: metrics.series_max is reached."
)

CATALOGUE: tuple[Metric, ...] = tuple(
    value for value in list(globals().values()) if isinstance(value, Metric)
)
