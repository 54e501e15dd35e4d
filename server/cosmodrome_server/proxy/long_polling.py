"""How long a consumer's call may wait for messages (protocol.md 1.5 step 2)."""

from cosmodrome_server.config import Delivery
from cosmodrome_server.errors import BadRequest, IllegalPollingTime
from cosmodrome_server.proxy.context import CLIENT_VERSION
from cosmodrome_server.proxy.front import Call

# The answer is sent this much before the polling time is over, as the reference does.
RESERVE_MS = 50
# Where the deadline cuts the polling time short the call itself dies with it, so the answer
# needs time to travel.
DEADLINE_RESERVE_MS = 250
# A client that gives itself the minimum has spent some of it when the call arrives here: it had to
# connect, or one of the two machines is busy.
TRAVEL_MS = 500
# Clients before this one do not know ILLEGAL_POLLING_TIME; compared as text, as the
# reference does.
_KNOWS_POLLING_TIME = "5.0.3"


def polling_ms(call: Call, asked_ms: int | None, request_timeout_ms: int, bounds: Delivery) -> int:
    """How long to wait: what was asked for, within the server's bounds and the deadline.

    Args:
        call: Its deadline bounds the wait.
        asked_ms: What the client asked for; None for nothing.
        request_timeout_ms: Of its settings; 0 for unknown.
        bounds: The server's.

    Raises:
        IllegalPollingTime: The deadline leaves less than the server's minimum.
        BadRequest: The same, to clients too old to know.
    """
    left_ms = call.deadline_ms
    if asked_ms is None:
        asked_ms = bounds.polling_max_ms if left_ms is None else left_ms - request_timeout_ms // 2
    wanted_ms = min(max(asked_ms, bounds.polling_min_ms), bounds.polling_max_ms)
    wait_ms = wanted_ms - RESERVE_MS
    if left_ms is None or left_ms - DEADLINE_RESERVE_MS >= wait_ms:
        return wait_ms
    if wanted_ms <= left_ms or left_ms + TRAVEL_MS >= bounds.polling_min_ms:
        return min(wait_ms, left_ms - DEADLINE_RESERVE_MS)
    text = (
        f"the deadline of the call leaves {left_ms} ms, long polling takes at least "
        f"{bounds.polling_min_ms} (delivery.polling_min_ms)"
    )
    if call.headers.get(CLIENT_VERSION, "") < _KNOWS_POLLING_TIME:
        raise BadRequest(text)
    raise IllegalPollingTime(text)
