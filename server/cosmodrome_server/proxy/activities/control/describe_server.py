"""DescribeServer: what this server is."""

from cosmodrome_proto import control_pb2 as wire
from cosmodrome_server import __version__
from cosmodrome_server.proxy.context import Context
from cosmodrome_server.proxy.convert import to_timestamp
from cosmodrome_server.proxy.front import Call
from cosmodrome_server.proxy.status import OK_STATUS


def describe_server(
    context: Context, _call: Call, _request: wire.DescribeServerRequest
) -> wire.DescribeServerResponse:
    """Say name, version, front, durability and since when it runs, and a few counts."""
    config = context.config
    return wire.DescribeServerResponse(
        status=OK_STATUS,
        name=config.server.name,
        version=__version__,
        front=context.front,
        durability=config.store.durability,
        started=to_timestamp(context.started_ms),
        figures={
            "topics": len(context.broker.topics()),
            "groups": len(context.broker.groups()),
        },
    )
