"""GetTopicRoute: a topic's route as the JSON text the reference's tools read."""

import json

from cosmodrome_proto import admin_pb2 as admin
from cosmodrome_server.model.topic import Topic
from cosmodrome_server.proxy import status
from cosmodrome_server.proxy.context import Context
from cosmodrome_server.proxy.front import Call

# Bits of the reference's permission.
_READ, _WRITE = 4, 2


def get_topic_route(
    context: Context, _call: Call, request: admin.GetTopicRouteRequest
) -> admin.GetTopicRouteResponse:
    """Return the route.

    Raises:
        IllegalTopic, TopicNotFound
    """
    topic = context.known_topic(request.topic.name)
    server = context.config.server
    host, port = context.endpoint
    route = {
        "brokerDatas": [
            {
                "brokerName": server.name,
                "cluster": server.cluster,
                "brokerAddrs": {"0": f"{host}:{port}"},
            }
        ],
        "queueDatas": [
            {
                "brokerName": server.name,
                "perm": _permission_bits(topic),
                "readQueueNums": topic.queues,
                "writeQueueNums": topic.queues,
                "topicSysFlag": 0,
            }
        ],
        "filterServerTable": {},
    }
    return admin.GetTopicRouteResponse(status=status.OK_STATUS, topic_route_data=json.dumps(route))


def _permission_bits(topic: Topic) -> int:
    readable = _READ if topic.permission.is_readable else 0
    return readable | (_WRITE if topic.permission.is_writable else 0)
