"""ChangeLogLevel: say more, or less, in the server's log until it restarts."""

import logging

from cosmodrome_proto import admin_pb2 as admin
from cosmodrome_server.errors import BadRequest
from cosmodrome_server.proxy.context import Context
from cosmodrome_server.proxy.front import Call

_LEVELS = {
    admin.ChangeLogLevelRequest.TRACE: logging.DEBUG,
    admin.ChangeLogLevelRequest.DEBUG: logging.DEBUG,
    admin.ChangeLogLevelRequest.INFO: logging.INFO,
    admin.ChangeLogLevelRequest.WARN: logging.WARNING,
    admin.ChangeLogLevelRequest.ERROR: logging.ERROR,
}


def change_log_level(
    _context: Context, _call: Call, request: admin.ChangeLogLevelRequest
) -> admin.ChangeLogLevelResponse:
    """Set the level of the server's own loggers.

    Raises:
        BadRequest: No such level.
    """
    level = _LEVELS.get(request.level)
    if level is None:
        raise BadRequest(f"there is no log level {request.level}")
    logging.getLogger("cosmodrome_server").setLevel(level)
    name = admin.ChangeLogLevelRequest.Level.Name(request.level)
    return admin.ChangeLogLevelResponse(remark=f"log level changed to {name}")
