"""StageMessages, PublishStaged: many messages of many tasks become visible exactly once.

    stage     a request's messages ──▶ one message of rmq_sys_staged; its offset is the token
    publish   tokens in order: staged message ──▶ its messages, sent to their topic
              with each: how many tokens of (job, lineage, batch) are done, kept with them

Messages and mark are staged in one turn of the loop, so they are in one frame: after a crash
there are both or neither, and a publish that is asked for again goes on where it was. So do its
tokens, until all are published: a batch that is computed anew after a crash may be cut into other
requests, and what was staged for it anew stands for other messages. What nobody publishes goes
with the retention of the staging topic.

Between the first and the last token others may see some of a batch: what is exact is that
every message comes once, not that all come in one instant.
"""

from array import array
from collections.abc import Sequence

import msgspec

from cosmodrome_proto import bulk_pb2 as rpc
from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_proto.sent_pb2 import SentMessages
from cosmodrome_server.errors import BadRequest, BrokerError, MessageNotFound
from cosmodrome_server.model.filter import EVERYTHING
from cosmodrome_server.model.message import MessageType, NewMessage
from cosmodrome_server.model.queries import PullQuery
from cosmodrome_server.model.topic import Topic
from cosmodrome_server.proxy import convert
from cosmodrome_server.proxy.context import Context
from cosmodrome_server.proxy.front import Call
from cosmodrome_server.proxy.security import needs

STAGED_TOPIC = "rmq_sys_staged"
STAGED_RETENTION_MS = 24 * 3_600_000
MARK_PREFIX = "published/"
TOKENS_PREFIX = "publishing/"
MARKS_MAX = 1_024
# Of one batch: they are kept in memory while it is published, 8 bytes each.
TOKENS_MAX = 100_000
# What one call publishes: bounds one turn of the loop and one frame.
PUBLISH_BYTES = 4 << 20
JOB_CHARS_MAX = 200


class Mark(msgspec.Struct, frozen=True):
    """How far a job is.

    Attributes:
        batch: The last batch that was begun.
        count: How many of its tokens are published.
        is_done: Whether that was all.
        at_ms: When.
    """

    batch: int
    count: int
    is_done: bool
    at_ms: int


def stage_messages(
    context: Context, call: Call, request: rpc.StageMessagesRequest
) -> rpc.StageMessagesResponse:
    """Keep a request's messages, checked as a send checks them.

    Raises:
        RequestError: The first rule a message breaks.
        OverloadedError, StoreError
    """
    _check_job(request.job)
    content = request.content.SerializeToString()
    sent = SentMessages.FromString(content)
    topic = convert.topic_of(sent.messages, context.names)
    context.broker.topic(topic)
    _converted(context, sent, call.peer)
    _ensure_topic(context)
    staged = NewMessage(
        request.job,
        MessageType.NORMAL,
        *("", "", 0, 0, "", -1),
        *(b"", b"", content),
    )
    receipt = context.broker.send(STAGED_TOPIC, [staged])[0]
    return rpc.StageMessagesResponse(status=_OK, token=receipt.queue_offset)


def publish_staged(
    context: Context, call: Call, request: rpc.PublishStagedRequest
) -> rpc.PublishStagedResponse:
    """Publish the next part of a batch, or say that it is done.

    Raises:
        Unauthorized: Whoever asks may not send to a topic that messages were staged for.
        BadRequest: No job, no lineage, or too many tokens.
        MessageNotFound: A token is unknown: retention took it.
        RequestError: A topic does not take what was staged for it.
        OverloadedError, StoreError
    """
    _check_job(request.job)
    if not request.lineage or len(request.lineage) > JOB_CHARS_MAX:
        raise BadRequest(f"a lineage has 1 to {JOB_CHARS_MAX} characters")
    if not request.tokens:
        # Done as it is, also when it is repeated: nothing of it could come twice. Without a mark,
        # for it names no topic that whoever asks had to have a right to: a batch of any number
        # would end another's job.
        return rpc.PublishStagedResponse(status=_OK, is_done=True)
    if len(request.tokens) > TOKENS_MAX:
        raise BadRequest(f"{len(request.tokens)} tokens in a batch, at most {TOKENS_MAX} may be")
    name = f"{request.job}/{request.lineage}"
    mark = _mark(context, MARK_PREFIX + name)
    if mark is not None and (request.batch < mark.batch or _is_done(mark, request.batch)):
        return rpc.PublishStagedResponse(status=_OK, is_done=True, published=len(request.tokens))
    is_begun = mark is not None and mark.batch == request.batch
    tokens = _tokens(context, name) if is_begun else None
    batch = _Batch(name, request.batch, tokens or request.tokens)
    count = mark.count if mark is not None and is_begun else 0
    if tokens is None and len(batch.tokens) > 1:
        count = _begin(context, call, batch, count)
    else:
        count = _publish_part(context, call, batch, count)
    return rpc.PublishStagedResponse(
        status=_OK, is_done=count >= len(batch.tokens), published=count
    )


_OK = pb.Status(code=pb.OK, message="OK")
_PUBLISH = rpc.PublishStagedRequest.DESCRIPTOR.full_name


class _Batch(msgspec.Struct, frozen=True):
    """What is published.

    Attributes:
        name: Its mark and its tokens are kept under it.
        number: Of the batch.
        tokens: In order.
    """

    name: str
    number: int
    tokens: Sequence[int]


def _begin(context: Context, call: Call, batch: _Batch, count: int) -> int:
    """Keep the tokens, then publish a part: whoever asks for the rest gets the rest of these."""
    key = TOKENS_PREFIX + batch.name
    context.broker.keep(key, array("q", batch.tokens).tobytes())
    try:
        return _publish_part(context, call, batch, count)
    except BrokerError:
        mark = _mark(context, MARK_PREFIX + batch.name)
        if mark is None or mark.batch != batch.number:
            # Nothing of it was published: nobody else would forget them.
            context.broker.keep(key, None)
        raise


def _publish_part(context: Context, call: Call, batch: _Batch, count: int) -> int:
    """Send the messages of some tokens; each together with its mark."""
    size = 0
    tokens = batch.tokens
    allowed: set[str] = set()
    while count < len(tokens) and size < PUBLISH_BYTES:
        content = _staged(context, batch, count)
        size += content.ByteSize()
        topic, _ = convert.resource(content.messages[0].topic)
        if context.is_guarded and topic not in allowed:
            # A token is a number that anybody may count to.
            context.access.admit(_PUBLISH, call.headers, call.peer, needs.sending_to(topic))
            allowed.add(topic)
        messages = _converted(context, content, call.peer)
        _make_room(context, MARK_PREFIX + batch.name)
        # Messages leave space for what goes with them: the mark cannot be what finds none.
        context.broker.send(topic, messages)
        count += 1
        mark = Mark(batch.number, count, count == len(tokens), context.clock.now_ms())
        context.broker.keep(MARK_PREFIX + batch.name, msgspec.json.encode(mark))
    if count == len(tokens):
        context.broker.keep(TOKENS_PREFIX + batch.name, None)
    return count


def _tokens(context: Context, name: str) -> Sequence[int] | None:
    """Those of the batch that is being published."""
    key = TOKENS_PREFIX + name
    found = context.broker.kept(key).get(key)
    return None if found is None else array("q", found)


def _staged(context: Context, batch: _Batch, count: int) -> SentMessages:
    token = batch.tokens[count]
    query = PullQuery("", STAGED_TOPIC, 0, token, 1, EVERYTHING)
    pulled = context.broker.pull(query)
    if not pulled.messages or pulled.messages[0].queue_offset != token:
        way_out = "; under another job all of the batch is published" if count else ""
        raise MessageNotFound(
            f"staged messages {token} are gone: they are kept for "
            f"{STAGED_RETENTION_MS // 3_600_000} hours{way_out}"
        )
    return SentMessages.FromString(pulled.messages[0].body)


def _converted(context: Context, content: SentMessages, peer: str) -> list[NewMessage]:
    now_ms = context.clock.now_ms()
    return convert.new_messages(content.messages, context.rules, context.names, now_ms, peer)


def _ensure_topic(context: Context) -> None:
    if not context.broker.has_topic(STAGED_TOPIC):
        now_ms = context.clock.now_ms()
        topic = Topic(STAGED_TOPIC, queues=1, retention_ms=STAGED_RETENTION_MS, created_ms=now_ms)
        context.broker.create_topic(topic)


def _mark(context: Context, key: str) -> Mark | None:
    found = context.broker.kept(key).get(key)
    return None if found is None else msgspec.json.decode(found, type=Mark)


def _make_room(context: Context, key: str) -> None:
    """Have a place for a mark; of very many, the one that was done longest ago is forgotten."""
    marks = context.broker.kept(MARK_PREFIX)
    if key not in marks and len(marks) >= MARKS_MAX:
        done = [
            (decoded.at_ms, name)
            for name, found in marks.items()
            if (decoded := msgspec.json.decode(found, type=Mark)).is_done
        ]
        if not done:
            raise BadRequest(f"{len(marks)} jobs are publishing already")
        context.broker.keep(min(done)[1], None)


def _is_done(mark: Mark, batch: int) -> bool:
    return mark.batch == batch and mark.is_done


def _check_job(job: str) -> None:
    if not job or len(job) > JOB_CHARS_MAX:
        raise BadRequest(f"a job's name has 1 to {JOB_CHARS_MAX} characters")
