"""Send a message, receive it, acknowledge it.

python examples/receive.py [HOST:PORT]      (a broker of `make run`)
"""

import asyncio
import sys

from cosmodrome import Message, Producer, SimpleConsumer

ADDRESS = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:8081"


async def main() -> None:
    async with Producer(ADDRESS, topics=["letters"]) as producer:
        await producer.send(Message("letters", b"hello"))
    async with SimpleConsumer(ADDRESS, group="reader", subscriptions={"letters": "*"}) as consumer:
        for message in await consumer.receive(max_messages=16, invisible=30):
            async with consumer.processing(message):
                print("received", message.body.decode())


if __name__ == "__main__":
    asyncio.run(main())
