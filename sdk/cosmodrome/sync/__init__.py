"""Blocking twins of the async clients: the same names, the same arguments, one hidden loop.

    with cosmodrome.sync.Producer("127.0.0.1:8081", topics=["orders"]) as producer:
        producer.send(cosmodrome.Message("orders", b"hello"))

Every client of a process shares one loop on one daemon thread (`_portal`). Safe to use from many
threads. Listeners of a push consumer run in its pool, so that they may block.
"""

from cosmodrome.sync.admin import AdminClient
from cosmodrome.sync.lite_consumer import LitePushConsumer, LiteSimpleConsumer
from cosmodrome.sync.producer import Producer, Transaction
from cosmodrome.sync.pull_consumer import PullConsumer
from cosmodrome.sync.push_consumer import PushConsumer
from cosmodrome.sync.simple_consumer import SimpleConsumer

__all__ = [
    "AdminClient",
    "LitePushConsumer",
    "LiteSimpleConsumer",
    "Producer",
    "PullConsumer",
    "PushConsumer",
    "SimpleConsumer",
    "Transaction",
]
