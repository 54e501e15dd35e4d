"""What a client says of its lite topics, and in which order."""

import asyncio
from typing import cast

from cosmodrome._client.lite import LiteTopics
from cosmodrome._client.rpc import Answer, Rpc
from cosmodrome._core import endpoints
from cosmodrome._core.endpoints import Endpoints
from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_proto import service_pb2 as rpc

BROKER = endpoints.parse("127.0.0.1:8081")
Said = tuple[pb.LiteSubscriptionAction.ValueType, list[str]]


class Broker:
    """Writes down what is said, and answers while `answers` is set."""

    def __init__(self) -> None:
        self.said: list[Said] = []
        self.answers = asyncio.Event()

    async def call(
        self, _where: Endpoints, _name: str, request: rpc.SyncLiteSubscriptionRequest
    ) -> Answer:
        self.said.append((request.action, list(request.lite_topic_set)))
        await self.answers.wait()
        response = rpc.SyncLiteSubscriptionResponse(status=pb.Status(code=pb.OK))
        return Answer(response, str(BROKER), "1")


async def test_the_whole_set_is_not_said_while_a_name_is_being_added() -> None:
    broker = Broker()
    topics = LiteTopics(
        cast("Rpc", broker),
        pb.Resource(name="g"),
        pb.Resource(name="t"),
        lambda: [BROKER],
        lambda: (0, 64),
    )
    adding = asyncio.create_task(topics.subscribe("a", None))
    syncing = asyncio.create_task(topics.sync())
    removing = asyncio.create_task(topics.unsubscribe("a"))
    await asyncio.sleep(0)
    broker.answers.set()
    await asyncio.gather(adding, syncing, removing)
    assert broker.said == [
        (pb.PARTIAL_ADD, ["a"]),
        (pb.COMPLETE_ADD, ["a"]),
        (pb.PARTIAL_REMOVE, ["a"]),
    ]
    assert not topics.names
