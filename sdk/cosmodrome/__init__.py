"""A client for brokers that speak RocketMQ 5's gRPC protocol: async first, with blocking twins.

    async with cosmodrome.Producer("127.0.0.1:8081", topics=["orders"]) as producer:
        await producer.send(cosmodrome.Message("orders", b"hello"))

`cosmodrome.sync` holds the blocking twins, `cosmodrome.testing` a broker for tests. Importing has
no effect: no thread, no file, no log handler; log records go to the logger "cosmodrome".
"""

from cosmodrome import _forks, errors, sync  # noqa: F401 - the first imports gRPC as we want it
from cosmodrome.admin import AdminClient
from cosmodrome.config import ClientConfiguration, Tls
from cosmodrome.credentials import Credentials
from cosmodrome.errors import (
    ClientError,
    CosmodromeError,
    IllegalArgument,
    NotRunning,
    StatusError,
    TransportError,
)
from cosmodrome.filters import Filter, FilterType
from cosmodrome.interceptors import ConsumeReturnType, HookContext, HookPoint, Interceptor
from cosmodrome.lite_consumer import LitePushConsumer, LiteSimpleConsumer, OffsetOption
from cosmodrome.message import DelayLevel, Message, MessageType, MessageView
from cosmodrome.offsets import FileOffsetStore, MemoryOffsetStore, OffsetStore
from cosmodrome.orderly import ConsumeOrderlyContext, ConsumeOrderlyStatus
from cosmodrome.producer import Batching, Producer
from cosmodrome.pull_consumer import PullConsumer
from cosmodrome.pulling import FlowControl, OffsetReset, StartFrom
from cosmodrome.push_consumer import PushConsumer
from cosmodrome.receipt import SendReceipt
from cosmodrome.results import ConsumeResult, TopicLimits
from cosmodrome.simple_consumer import SimpleConsumer
from cosmodrome.statistics import ConsumerStatistics, QueueInfo, RunningInfo, TopicStatistics
from cosmodrome.transaction import Transaction, TransactionResolution

__all__ = [
    "AdminClient",
    "Batching",
    "ClientConfiguration",
    "ClientError",
    "ConsumeOrderlyContext",
    "ConsumeOrderlyStatus",
    "ConsumeResult",
    "ConsumeReturnType",
    "ConsumerStatistics",
    "CosmodromeError",
    "Credentials",
    "DelayLevel",
    "FileOffsetStore",
    "Filter",
    "FilterType",
    "FlowControl",
    "HookContext",
    "HookPoint",
    "IllegalArgument",
    "Interceptor",
    "LitePushConsumer",
    "LiteSimpleConsumer",
    "MemoryOffsetStore",
    "Message",
    "MessageType",
    "MessageView",
    "NotRunning",
    "OffsetOption",
    "OffsetReset",
    "OffsetStore",
    "Producer",
    "PullConsumer",
    "PushConsumer",
    "QueueInfo",
    "RunningInfo",
    "SendReceipt",
    "SimpleConsumer",
    "StartFrom",
    "StatusError",
    "Tls",
    "TopicLimits",
    "TopicStatistics",
    "Transaction",
    "TransactionResolution",
    "TransportError",
    "errors",
    "sync",
]
