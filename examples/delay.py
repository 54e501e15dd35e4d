"""A message that arrives later.

python examples/delay.py [HOST:PORT]      (a broker of `make run`)
"""

import asyncio
import sys
from datetime import timedelta

from cosmodrome import AdminClient, Message, Producer, SimpleConsumer

ADDRESS = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:8081"


async def main() -> None:
    async with AdminClient(ADDRESS) as admin:
        await admin.create_topic("reminders", topic_type="DELAY")
        await admin.create_group("diary")
    async with (
        Producer(ADDRESS, topics=["reminders"]) as producer,
        SimpleConsumer(ADDRESS, group="diary", subscriptions={"reminders": "*"}) as consumer,
    ):
        await producer.send(Message("reminders", b"now", delay=timedelta(seconds=1)))
        messages = await consumer.receive()
        await consumer.ack(messages)
        print("came", [message.body.decode() for message in messages])


if __name__ == "__main__":
    asyncio.run(main())
