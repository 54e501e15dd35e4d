"""GetProxyRuntimeStats: how many clients are there."""

from cosmodrome_proto import admin_pb2 as admin
from cosmodrome_server import __version__
from cosmodrome_server.core.client_session import CONSUMERS, ClientType
from cosmodrome_server.proxy import status
from cosmodrome_server.proxy.context import Context
from cosmodrome_server.proxy.front import Call


def get_proxy_runtime_stats(
    context: Context, _call: Call, _request: admin.GetProxyRuntimeStatsRequest
) -> admin.GetProxyRuntimeStatsResponse:
    """Count the clients by what they are; rates are in /metrics."""
    kinds = [session.client_type for session in context.sessions.known]
    return admin.GetProxyRuntimeStatsResponse(
        status=status.OK_STATUS,
        proxy_name=context.config.server.name,
        version=__version__,
        connections=context.sessions.streams,
        producers=kinds.count(ClientType.PRODUCER),
        consumers=sum(kind in CONSUMERS for kind in kinds),
    )
