"""DescribeServer: what this server is."""

from cosmodrome_proto import control_pb2 as wire
from cosmodrome_server import __version__
from cosmodrome_server.proxy.context import Context
from cosmodrome_server.proxy.front import Call
from cosmodrome_server.proxy.status import OK_STATUS


def describe_server(
    context: Context, _call: Call, _request: wire.DescribeServerRequest
) -> wire.DescribeServerResponse:
    """Say name, version, front and durability, and a few counts."""
    config = context.config
    return wire.DescribeServerResponse(
        status=OK_STATUS,
        name=config.server.name,
        version=__version__,
        front=config.server.front,
        durability=config.store.durability,
        figures={
            "topics": len(context.broker.topics()),
            "groups": len(context.broker.groups()),
        },
    )
