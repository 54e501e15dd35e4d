"""Messages of a group in their order.

python examples/fifo.py [HOST:PORT]      (a broker of `make run`)
"""

import asyncio
import sys

from cosmodrome import AdminClient, Message, Producer, SimpleConsumer

ADDRESS = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:8081"


async def main() -> None:
    async with AdminClient(ADDRESS) as admin:
        await admin.create_topic("steps", topic_type="FIFO")
        await admin.create_group("walker", fifo=True)
    async with Producer(ADDRESS, topics=["steps"]) as producer:
        for step in range(3):
            await producer.send(Message("steps", f"step {step}".encode(), message_group="walk"))
    async with SimpleConsumer(ADDRESS, group="walker", subscriptions={"steps": "*"}) as consumer:
        messages = await consumer.receive()
        await consumer.ack(messages)
        print("in order", [message.body.decode() for message in messages])


if __name__ == "__main__":
    asyncio.run(main())
