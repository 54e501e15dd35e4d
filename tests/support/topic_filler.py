"""Sends messages whose contents follow from their number to a server, and waits for the acks."""

from cosmodrome_proto import Timestamp
from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_proto import service_pb2 as verbs
from cosmodrome_spark.options import Connection
from cosmodrome_spark.read.wire import MESSAGING, Wire, check

BATCH = 500


def fill(endpoints: str, topic: str, count: int, *, body_bytes: int = 40, first: int = 0) -> None:
    """Send `count` messages with bodies of at least `body_bytes`."""
    wire = Wire(Connection((endpoints,)))
    path = f"{MESSAGING}SendMessage"
    try:
        for begin in range(first, first + count, BATCH):
            numbers = range(begin, min(first + count, begin + BATCH))
            request = verbs.SendMessageRequest(
                messages=[numbered(topic, each, body_bytes) for each in numbers]
            )
            reply = wire.unary(path, request.SerializeToString())
            check(verbs.SendMessageResponse.FromString(reply).status, f"filling {topic}")
    finally:
        wire.close()


def numbered(topic: str, number: int, body_bytes: int) -> pb.Message:
    return pb.Message(
        topic=pb.Resource(name=topic),
        user_properties={"region": "eu-west", "number": str(number)},
        system_properties=pb.SystemProperties(
            tag="odd" if number % 2 else "even",
            keys=[f"k{number}"],
            message_id=f"{topic}-{number:012d}",
            message_type=pb.NORMAL,
            born_timestamp=Timestamp(seconds=1_700_000_000, nanos=number % 1000 * 1_000_000),
            born_host="127.0.0.1",
        ),
        body=(b'{"number": %d}' % number).ljust(body_bytes),
    )
