"""Listeners of single topics with limits of their own, and an orderly one that commits.

python examples/listeners.py [HOST:PORT]      (a broker of `make run`)
"""

import asyncio
import sys
from collections.abc import Sequence

from cosmodrome import (
    AdminClient,
    ConsumeOrderlyContext,
    ConsumeOrderlyStatus,
    ConsumeResult,
    Message,
    MessageView,
    Producer,
    PushConsumer,
    TopicLimits,
)

ADDRESS = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:8081"
arrived = asyncio.Queue[str]()

shop = PushConsumer(ADDRESS, group="shop")


@shop.listener("bills", "paid", limits=TopicLimits(concurrency=2, rate=50))
async def bill(message: MessageView) -> ConsumeResult:
    arrived.put_nowait(f"bill {message.body.decode()}")
    return ConsumeResult.SUCCESS


@shop.listener("clicks", kind="batch", batch=16)
async def count(messages: Sequence[MessageView]) -> ConsumeResult:
    arrived.put_nowait(f"clicks up to {messages[-1].body.decode()}")
    return ConsumeResult.SUCCESS


async def replay(
    messages: Sequence[MessageView], context: ConsumeOrderlyContext
) -> ConsumeOrderlyStatus:
    context.auto_commit = False
    if messages[-1].body != b"commit":
        return ConsumeOrderlyStatus.SUCCESS  # kept until the transaction's end is here
    arrived.put_nowait(f"replayed a transaction of {context.uncommitted + 1}")
    return ConsumeOrderlyStatus.COMMIT


async def main() -> None:
    async with AdminClient(ADDRESS) as admin:
        await admin.create_topic("binlog", topic_type="FIFO", queues=1)
        await admin.create_group("replica", fifo=True)
    replica = PushConsumer(
        ADDRESS, group="replica", subscriptions={"binlog": "*"}, orderly_listener=replay
    )
    async with Producer(ADDRESS, topics=["binlog"]) as producer:
        await producer.send(Message("bills", b"42", tag="paid"))
        await producer.send(Message("clicks", b"1"))
        lines = (b"begin", b"insert", b"commit")
        await asyncio.gather(
            *(producer.send(Message("binlog", line, message_group="db")) for line in lines)
        )
        async with shop, replica:
            for _ in range(3):
                print(await arrived.get())
            print("rates", {name: one.pull_tps for name, one in shop.statistics().topics.items()})


if __name__ == "__main__":
    asyncio.run(main())
