"""Read everything a topic holds, from its beginning.

python examples/pull.py [HOST:PORT]      (a broker of `make run`)
"""

import asyncio
import sys

from cosmodrome import Message, Producer, PullConsumer

ADDRESS = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:8081"


async def main() -> None:
    async with Producer(ADDRESS, topics=["history"]) as producer:
        await producer.send(Message("history", b"hello"))
    async with PullConsumer(ADDRESS, group="audit", topics=["history"]) as consumer:
        await consumer.seek_to_beginning()
        while messages := await consumer.poll(timeout=1):
            print("read", [message.body.decode() for message in messages])
            await consumer.commit()


if __name__ == "__main__":
    asyncio.run(main())
