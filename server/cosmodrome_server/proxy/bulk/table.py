"""The table of `cosmodrome.v1.Bulk`: name of the RPC → what answers it."""

from typing import Any

from cosmodrome_server.proxy.bulk.read_queue import read_queue
from cosmodrome_server.proxy.bulk.segments import query_segments, release_segments
from cosmodrome_server.proxy.bulk.staging import publish_staged, stage_messages

BULK: dict[str, Any] = {
    "ReadQueue": read_queue,
    "QuerySegments": query_segments,
    "ReleaseSegments": release_segments,
    "StageMessages": stage_messages,
    "PublishStaged": publish_staged,
}
