"""A listener that is called for every message.

python examples/push.py [HOST:PORT]      (a broker of `make run`)
"""

import asyncio
import sys

from cosmodrome import ConsumeResult, Message, MessageView, Producer, PushConsumer

ADDRESS = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:8081"


async def main() -> None:
    done = asyncio.Event()

    async def listener(message: MessageView) -> ConsumeResult:
        print("consumed", message.body.decode())
        done.set()
        return ConsumeResult.SUCCESS

    consumer = PushConsumer(
        ADDRESS, group="billing", subscriptions={"parcels": "*"}, listener=listener
    )
    async with consumer, Producer(ADDRESS, topics=["parcels"]) as producer:
        await producer.send(Message("parcels", b"hello"))
        await done.wait()


if __name__ == "__main__":
    asyncio.run(main())
