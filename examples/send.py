"""Send one message, and several at once.

python examples/send.py [HOST:PORT]      (a broker of `make run`)
"""

import asyncio
import sys

from cosmodrome import Message, Producer

ADDRESS = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:8081"


async def main() -> None:
    async with Producer(ADDRESS, topics=["orders"]) as producer:
        receipt = await producer.send(Message("orders", b"hello", tag="new", keys="42"))
        print("sent", receipt.message_id)
        await asyncio.gather(*(producer.send(Message("orders", b"more")) for _ in range(10)))


if __name__ == "__main__":
    asyncio.run(main())
