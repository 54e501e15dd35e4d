"""The driver's questions, asked with the standard verbs: any RocketMQ 5 server that has them.

Routes are asked for anew each time: a queue that was added must be seen by the next batch.
Questions about several queues travel together.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from cosmodrome_proto import Timestamp, control_pb2
from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_proto import service_pb2 as verbs
from cosmodrome_spark.errors import BrokerRefused, TopicNotFound, UnsupportedByServer
from cosmodrome_spark.offsets import MessageQueue, Offsets, QueueBounds
from cosmodrome_spark.options import Connection
from cosmodrome_spark.read.base import Closing
from cosmodrome_spark.read.wire import MESSAGING, Wire, check

_CONTROL = "/cosmodrome.v1.Control/"
IN_FLIGHT_MAX = 64
# Topics of dead letters, retries and lite topics; and those that no client may use.
_NOT_FOR_CLIENTS = ("%", "rmq_sys_")


class WireCluster(Closing):
    """A `Cluster` over the wire."""

    def __init__(self, connection: Connection) -> None:
        self.wire = Wire(connection)
        self._endpoints = endpoints(connection)

    def close(self) -> None:
        """Let the connection go."""
        self.wire.close()

    def topics(self) -> list[str]:
        """All topics of a Cosmodrome server.

        Raises:
            UnsupportedByServer: Another server: the protocol has no verb for it.
        """
        request = control_pb2.ListTopicsRequest()
        try:
            reply = self.wire.unary(f"{_CONTROL}ListTopics", request.SerializeToString())
        except UnsupportedByServer as error:
            raise UnsupportedByServer(
                "subscribePattern needs a Cosmodrome server: the protocol has no verb that "
                "lists topics; name them with subscribe"
            ) from error
        answer = control_pb2.ListTopicsResponse.FromString(reply)
        check(answer.status, "listing topics")
        names = (state.topic.name for state in answer.topics)
        return sorted(name for name in names if not name.startswith(_NOT_FOR_CLIENTS))

    def queues(self, topic: str) -> list[MessageQueue]:
        """The readable queues of a topic, sorted.

        Raises:
            TopicNotFound: It does not exist.
        """
        request = verbs.QueryRouteRequest(topic=pb.Resource(name=topic), endpoints=self._endpoints)
        reply = self.wire.unary(f"{MESSAGING}QueryRoute", request.SerializeToString())
        answer = verbs.QueryRouteResponse.FromString(reply)
        check(answer.status, f"route of topic {topic!r}")
        return sorted(
            MessageQueue(topic, queue.broker.name, queue.id)
            for queue in answer.message_queues
            if queue.permission in {pb.READ, pb.READ_WRITE} and queue.broker.id == 0
        )

    def bounds(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, QueueBounds]:
        """What the queues hold now; a queue that is gone is left out."""
        wanted = list(queues)
        lows = self._query({queue: _request(queue, pb.BEGINNING) for queue in wanted})
        highs = self._query({queue: _request(queue, pb.END) for queue in wanted})
        return {
            queue: QueueBounds(lows[queue], highs[queue])
            for queue in wanted
            if queue in lows and queue in highs
        }

    def offsets_at(self, timestamps_ms: Mapping[MessageQueue, int]) -> Offsets:
        """The first offset stored at or after a time; the next one where all are older."""
        requests = {}
        for queue, timestamp_ms in timestamps_ms.items():
            request = _request(queue, pb.TIMESTAMP)
            request.timestamp.CopyFrom(_timestamp(timestamp_ms))
            requests[queue] = request
        return self._query(requests)

    def committed(self, group: str, queues: Iterable[MessageQueue]) -> Offsets:
        """What a group committed; queues without are left out."""
        name = pb.Resource(name=group)
        requests = {
            queue: verbs.GetOffsetRequest(group=name, message_queue=on_wire(queue))
            for queue in queues
        }
        replies = self._ask("GetOffset", requests, verbs.GetOffsetResponse.FromString)
        found: Offsets = {}
        for queue, answer in replies.items():
            check(answer.status, f"offset of group {group!r}", good=(pb.OFFSET_NOT_FOUND,))
            if answer.status.code == pb.OK:
                found[queue] = answer.offset
        return found

    def commit(self, group: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Commit the progress of a group.

        Raises:
            BrokerRefused: The group does not exist, or the offset is none.
        """
        requests = {
            queue: verbs.UpdateOffsetRequest(
                group=pb.Resource(name=group), message_queue=on_wire(queue), offset=offset
            )
            for queue, offset in offsets.items()
        }
        replies = self._ask("UpdateOffset", requests, verbs.UpdateOffsetResponse.FromString)
        for queue, answer in replies.items():
            check(answer.status, f"committing {queue} for group {group!r}")

    def _query(self, requests: Mapping[MessageQueue, verbs.QueryOffsetRequest]) -> Offsets:
        replies = self._ask("QueryOffset", requests, verbs.QueryOffsetResponse.FromString)
        found: Offsets = {}
        for queue, answer in replies.items():
            try:
                check(answer.status, f"offsets of {queue}")
            except TopicNotFound:
                continue
            except BrokerRefused as error:
                # A queue id past the end of the topic: it was there when the checkpoint was.
                if error.code == pb.BAD_REQUEST:
                    continue
                raise
            found[queue] = answer.offset
        return found

    def _ask(
        self,
        verb: str,
        requests: Mapping[MessageQueue, Any],
        parse: Callable[[bytes], Any],
    ) -> dict[MessageQueue, Any]:
        """Ask one question for each queue, some at a time; replies by queue."""
        path = MESSAGING + verb
        items = list(requests.items())
        replies = {}
        for begin in range(0, len(items), IN_FLIGHT_MAX):
            started = [
                (queue, self.wire.start(path, request.SerializeToString()))
                for queue, request in items[begin : begin + IN_FLIGHT_MAX]
            ]
            for queue, call in started:
                replies[queue] = parse(self.wire.finish(call))
        return replies


def on_wire(queue: MessageQueue) -> pb.MessageQueue:
    """A queue as requests name it."""
    return pb.MessageQueue(
        topic=pb.Resource(name=queue.topic),
        id=queue.queue_id,
        broker=pb.Broker(name=queue.broker, id=0),
    )


def endpoints(connection: Connection) -> pb.Endpoints:
    """How we reach the broker, as QueryRoute wants it."""
    found = pb.Endpoints(scheme=pb.IPv4)
    for each in connection.endpoints:
        host, _, port = each.rpartition(":")
        found.addresses.add(host=host, port=int(port))
        if not host.replace(".", "").isdecimal():
            found.scheme = pb.DOMAIN_NAME
    return found


def _request(
    queue: MessageQueue, policy: "pb.QueryOffsetPolicy.ValueType"
) -> verbs.QueryOffsetRequest:
    return verbs.QueryOffsetRequest(message_queue=on_wire(queue), query_offset_policy=policy)


def _timestamp(timestamp_ms: int) -> Timestamp:
    seconds, rest_ms = divmod(timestamp_ms, 1000)
    return Timestamp(seconds=seconds, nanos=rest_ms * 1_000_000)
