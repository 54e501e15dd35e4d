"""Receives as plain values: what a consumer asks for, it asks for again, byte for byte.

    ReceiveMessageRequest ──▶ seen before? ─┬─ yes ──▶ the same `Asked`; nothing is decoded
                                            └─ no ───▶ decoded, and kept if it is short

Push consumers give each receive a name, `attempt_id`, which is written last:

    …  what they ask for  … │ 42 24 │ 36 characters

What comes before the name is a request of its own and known as such; protobuf reads the two
together as what the first says, and the name. Nothing is checked here.
"""

from typing import Final

import msgspec
from google.protobuf.message import DecodeError

from cosmodrome_proto import service_pb2 as rpc
from cosmodrome_server.errors import BadRequest
from cosmodrome_server.model.filter import Filter
from cosmodrome_server.proxy.convert import duration_ms, filter_of

# Requests kept: as many as there are groups, topics and clients' settings, mostly. Longer ones,
# which only large filters are, are not: they come from outside.
KNOWN_MAX = 1_024
_KNOWN_BYTES = 512
# The field `attempt_id` of 36 characters, which a UUID has.
_NAME_HEAD: Final = b"\x42\x24"
_NAME_BYTES = 36


class Asked(msgspec.Struct, gc=False):
    """A ReceiveMessageRequest.

    Attributes:
        group: The consumer group's name.
        topic: The topic's name.
        queue_id: The queue it names.
        batch_size: How many messages.
        invisible_ms: How long they are to be hidden.
        auto_renew: Whether the server renews.
        filter_type: As sent.
        filter: What is wanted; None if there is no such type.
        polling_ms: How long to wait; None if it does not say.
        attempt_id: "" for none.
    """

    group: str
    topic: str
    queue_id: int
    batch_size: int
    invisible_ms: int
    auto_renew: bool
    filter_type: int
    filter: Filter | None
    polling_ms: int | None
    attempt_id: str


class Receives:
    """Reads receives, those it knows without decoding them."""

    def __init__(self) -> None:
        self._known: dict[bytes, Asked] = {}

    def __len__(self) -> int:
        return len(self._known)

    def read(self, payload: bytes) -> Asked:
        """What a request asks for; not to be changed.

        Raises:
            DecodeError: The bytes are none.
        """
        asked = self._known.get(payload)
        if asked is not None:
            return asked
        if payload[-_NAME_BYTES - 2 : -_NAME_BYTES] == _NAME_HEAD:
            name = payload[-_NAME_BYTES:]
            asked = self._of(payload[: -_NAME_BYTES - 2])
            if asked is not None and name.isascii():
                return _named(asked, name.decode("ascii"))
        asked = _decoded(payload)
        if not asked.attempt_id:
            self._keep(payload, asked)
        return asked

    def _of(self, payload: bytes) -> Asked | None:
        """What comes before a name asks for; None if that is no request."""
        asked = self._known.get(payload)
        if asked is None and len(payload) <= _KNOWN_BYTES:
            try:
                asked = _decoded(payload)
            except DecodeError:
                return None
            self._keep(payload, asked)
        return asked

    def _keep(self, payload: bytes, asked: Asked) -> None:
        if len(payload) > _KNOWN_BYTES:
            return
        if len(self._known) >= KNOWN_MAX:
            self._known.clear()
        self._known[payload] = asked


def _decoded(payload: bytes) -> Asked:
    request = rpc.ReceiveMessageRequest.FromString(payload)
    queue, expression = request.message_queue, request.filter_expression
    try:
        wanted = filter_of(expression)
    except BadRequest:
        wanted = None
    polling_ms = None
    if request.HasField("long_polling_timeout"):
        polling_ms = duration_ms(request.long_polling_timeout)
    return Asked(
        request.group.name,
        queue.topic.name,
        queue.id,
        request.batch_size,
        duration_ms(request.invisible_duration),
        request.auto_renew,
        expression.type,
        wanted,
        polling_ms,
        request.attempt_id,
    )


def _named(asked: Asked, attempt_id: str) -> Asked:
    return Asked(
        asked.group,
        asked.topic,
        asked.queue_id,
        asked.batch_size,
        asked.invisible_ms,
        asked.auto_renew,
        asked.filter_type,
        asked.filter,
        asked.polling_ms,
        attempt_id,
    )
