"""Routes: which queues a topic has, who may be asked, and in what order.

Only queues of masters (broker id 0) count. Endpoints that failed lately are isolated: they are
passed over while another one is there, and come back with their next heartbeat.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count

from cosmodrome._core import endpoints as endpoint_text
from cosmodrome._core import siphash
from cosmodrome._core.endpoints import Endpoints
from cosmodrome.errors import NotFound
from cosmodrome.message import MessageType
from cosmodrome_proto import definition_pb2 as pb

MASTER = 0


@dataclass(frozen=True, slots=True)
class MessageQueue:
    """One queue of a topic, and where it is.

    Attributes:
        topic: Its topic.
        queue_id: Its number; -1 in an assignment means any queue of the broker.
        broker: The broker's name.
        endpoints: Where the broker is.
        is_readable, is_writable: What clients may do.
        accepts: Which message types it takes; empty for any.
    """

    topic: str
    queue_id: int
    broker: str
    endpoints: Endpoints
    is_readable: bool = True
    is_writable: bool = True
    accepts: frozenset[MessageType] = frozenset()

    def to_wire(self, namespace: str = "") -> pb.MessageQueue:
        """As a protobuf message."""
        return pb.MessageQueue(
            topic=pb.Resource(resource_namespace=namespace, name=self.topic),
            id=self.queue_id,
            broker=pb.Broker(name=self.broker, id=MASTER, endpoints=self.endpoints.to_wire()),
        )


@dataclass(frozen=True, slots=True)
class Route:
    """The queues of a topic, those of masters only, in the order of the broker."""

    topic: str
    queues: tuple[MessageQueue, ...]

    @property
    def endpoints(self) -> tuple[Endpoints, ...]:
        """Every broker of the topic, once."""
        return tuple(dict.fromkeys(queue.endpoints for queue in self.queues))

    @property
    def writable(self) -> tuple[MessageQueue, ...]:
        """The queues that take messages."""
        return tuple(queue for queue in self.queues if queue.is_writable)

    @property
    def readable(self) -> tuple[MessageQueue, ...]:
        """The queues that give messages."""
        return tuple(queue for queue in self.queues if queue.is_readable)


def route_of(topic: str, queues: Iterable[pb.MessageQueue]) -> Route:
    """Read the answer to QueryRoute."""
    return Route(topic, tuple(queue_of(q) for q in queues if q.broker.id == MASTER))


def queue_of(queue: pb.MessageQueue) -> MessageQueue:
    """Read one queue of a route or an assignment."""
    known = {int(kind) for kind in MessageType}
    permission = queue.permission
    return MessageQueue(
        topic=queue.topic.name,
        queue_id=queue.id,
        broker=queue.broker.name,
        endpoints=endpoint_text.from_wire(queue.broker.endpoints),
        is_readable=permission in (pb.READ, pb.READ_WRITE),
        is_writable=permission in (pb.WRITE, pb.READ_WRITE),
        accepts=frozenset(MessageType(k) for k in queue.accept_message_types if k in known and k),
    )


class RoundRobin:
    """Takes queues in turn, one of each broker per choice, from a start the caller draws."""

    def __init__(self, start: int) -> None:
        self._turn = count(start)

    def candidates(
        self, queues: Sequence[MessageQueue], wanted: int, isolated: frozenset[Endpoints]
    ) -> list[MessageQueue]:
        """Up to `wanted` queues of distinct brokers to try in order.

        Isolated brokers are left out, unless nothing would be left.

        Raises:
            NotFound: There is no queue.
        """
        if not queues:
            raise NotFound("the topic has no queue that takes messages")
        start = next(self._turn) % len(queues)
        rotated = [*queues[start:], *queues[:start]]
        by_broker: dict[str, MessageQueue] = {}
        for queue in rotated:
            if queue.endpoints not in isolated:
                by_broker.setdefault(queue.broker, queue)
        if not by_broker:
            for queue in rotated:
                by_broker.setdefault(queue.broker, queue)
        return list(by_broker.values())[:wanted]


def queue_for_group(queues: Sequence[MessageQueue], message_group: str) -> MessageQueue:
    """The one queue of a message group, as Java and Go choose it.

    Raises:
        NotFound: There is no queue.
    """
    if not queues:
        raise NotFound("the topic has no queue that takes messages")
    return queues[siphash.queue_of(message_group, len(queues))]
