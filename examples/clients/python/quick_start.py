"""The official Python client: send a message, receive it, acknowledge it."""

import sys

from rocketmq import (
    ClientConfiguration,
    Credentials,
    FilterExpression,
    Message,
    Producer,
    SimpleConsumer,
)

endpoint = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:8081"
configuration = ClientConfiguration(endpoint, Credentials())

producer = Producer(configuration, ["quick-start"])
producer.startup()
message = Message()
message.topic = "quick-start"
message.body = b"hello from Python"
print("sent", producer.send(message).message_id)
producer.shutdown()

consumer = SimpleConsumer(configuration, "quick-start-python", {"quick-start": FilterExpression()})
consumer.startup()
for received in consumer.receive(16, 30):
    consumer.ack(received)
    print("received", received.body.decode())
consumer.shutdown()
