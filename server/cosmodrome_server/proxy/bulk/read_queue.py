"""ReadQueue: the messages of a range as one Arrow batch of the wanted columns."""

from collections.abc import Sequence

from cosmodrome_proto import bulk_pb2 as rpc
from cosmodrome_server.core.filter_expression import compile_filter
from cosmodrome_server.errors import BadRequest, IllegalOffset, Unsupported
from cosmodrome_server.proxy import status
from cosmodrome_server.proxy.bulk.plan import COLUMNS, Plan
from cosmodrome_server.proxy.bulk.segments import place_of
from cosmodrome_server.proxy.bulk.source import BulkSource
from cosmodrome_server.proxy.context import Context
from cosmodrome_server.proxy.convert import filter_of
from cosmodrome_server.proxy.encoding import bytes_field, varint_field
from cosmodrome_server.proxy.front import Call
from cosmodrome_server.store.ranges import Entries
from cosmodrome_server.store.segment import OFFSET_BITS

_RPC = "ReadQueue"
BATCH_BYTES = 8 << 20
BATCH_BYTES_MAX = 64 << 20
# What one call looks at: bounds the work of a filter that matches nothing.
ROWS_MAX = 32_768
PIN_MS = 60_000


def read_queue(context: Context, call: Call, request: rpc.ReadQueueRequest) -> bytes | None:
    """Answer with the messages at `start`, as many as a batch holds.

    Raises:
        IllegalTopic, TopicNotFound, BadRequest: No such topic, queue or column.
        IllegalOffset: `start` is not inside the queue.
        IllegalFilterExpression: The filter does not compile.
        OverloadedError: Too many reads wait.
        Unsupported: This server cannot read in bulk.
    """
    source = _source(context)
    topic_id, bounds = place_of(context, source, request.topic, request.queue_id)
    if not bounds.min_offset <= request.start <= bounds.max_offset:
        nearest = min(max(request.start, bounds.min_offset), bounds.max_offset)
        raise IllegalOffset(
            f"offset {request.start} is outside [{bounds.min_offset}, {bounds.max_offset})",
            corrected=nearest,
        )
    end = min(request.end, bounds.max_offset, request.start + ROWS_MAX)
    if end <= request.start:
        return status.OK + varint_field(3, request.start)
    plan = _plan(context, source, request, topic_id, end)
    pin = source.ranges.pin(_lowest(plan.entries), context.clock.now_ms() + PIN_MS)

    def done(result: tuple[bytes, int] | Exception) -> None:
        source.ranges.release(pin)
        if isinstance(result, Exception):
            context.reply_late(_RPC, call, result)
            return
        ipc, resume = result
        rows = bytes_field(2, ipc) if ipc else b""
        context.reply_late(_RPC, call, status.OK + rows + varint_field(3, resume))

    source.run(lambda: encoded(source, plan), lambda result: len(result[0]), done)
    return None


def encoded(source: BulkSource, plan: Plan) -> tuple[bytes, int]:
    """The Arrow bytes and where to go on; on the reader thread.

    Raises:
        MessageNotFound, CorruptFrame: What the index names is not there.
    """
    from cosmodrome_server.proxy.bulk.encode import encode  # noqa: PLC0415  # pyarrow is optional

    return encode(source.ranges.map, plan)


def _source(context: Context) -> BulkSource:
    if context.bulk is None:
        raise Unsupported("this server's log is elsewhere: read by PullMessage")
    try:
        import pyarrow as pa  # noqa: F401, PLC0415  # is it there?
    except ImportError as error:
        raise Unsupported("bulk reads need pyarrow on the server: cosmodrome[bulk]") from error
    return context.bulk


def _plan(
    context: Context, source: BulkSource, request: rpc.ReadQueueRequest, topic_id: int, end: int
) -> Plan:
    unknown = [name for name in request.columns if name not in COLUMNS]
    if unknown or not request.columns:
        raise BadRequest(f"unknown column {unknown[0]!r}" if unknown else "no column is asked for")
    matcher = compile_filter(filter_of(request.filter))
    host, port = context.endpoint
    return Plan(
        entries=source.ranges.entries(topic_id, request.queue_id, request.start, end),
        end=end,
        columns=tuple(request.columns),
        batch_bytes=min(request.batch_bytes or BATCH_BYTES, BATCH_BYTES_MAX),
        matcher=None if matcher.is_everything else matcher,
        constants={
            "topic": request.topic,
            "broker": context.config.server.name,
            "queue_id": request.queue_id,
            "store_host": f"{host}:{port}",
        },
    )


def _lowest(entries: Sequence[Entries]) -> int:
    """The lowest position that is read, rounded down to its segment."""
    lowest = 1 << 63
    for each in entries:
        words = memoryview(each.words).cast("Q")
        lowest = min([lowest, *(position for position in words[::3] if position)])
    return lowest >> OFFSET_BITS << OFFSET_BITS
