"""A message that becomes visible when the work around it is done.

python examples/transaction.py [HOST:PORT]      (a broker of `make run`)
"""

import asyncio
import sys

from cosmodrome import AdminClient, Message, MessageView, Producer, TransactionResolution

ADDRESS = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:8081"


async def check(message: MessageView) -> TransactionResolution:
    """Say what became of the work: asked when the producer died before it could."""
    print("asked about", message.message_id)
    return TransactionResolution.ROLLBACK


async def main() -> None:
    async with AdminClient(ADDRESS) as admin:
        await admin.create_topic("payments", topic_type="TRANSACTION")
    async with Producer(ADDRESS, topics=["payments"], transaction_checker=check) as producer:
        async with producer.begin_transaction() as transaction:
            await producer.send(Message("payments", b"paid"), transaction=transaction)
            await transaction.commit()
        print("committed")


if __name__ == "__main__":
    asyncio.run(main())
