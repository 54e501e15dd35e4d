"""Recall handles: what a producer shows to take a delayed message back.

    0        1        3           7          15         23              31
    ┌────────┬────────┬───────────┬──────────┬──────────┬───────────────┬────────────┐
    │ format │ shard  │ topic id  │ due ms   │ position │ tag           │ message id │
    │ u8     │ u16    │ u32       │ u64      │ u64      │ 8 bytes       │ the rest   │
    └────────┴────────┴───────────┴──────────┴──────────┴───────────────┴────────────┘

In URL-safe base64. The tag is keyed BLAKE2b over everything else: who was not given the
handle cannot take the message back.
"""

import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode

import msgspec

from cosmodrome_server.errors import BadRequest
from cosmodrome_server.model.digests import blake2b

_FORMAT = 1
_HEAD = struct.Struct("<BHIQQ")
_TAG_BYTES = 8
# Tells these tags from those of receipt handles under the same key.
_PERSON = b"recall"


class RecallHandle(msgspec.Struct, frozen=True):
    """A handle, read and found authentic.

    Attributes:
        topic_id: The topic of the message.
        due_ms: Its delivery time.
        position: Where the log has, or had, it.
        message_id: Its producer's id.
    """

    topic_id: int
    due_ms: int
    position: int
    message_id: str


class RecallHandles:
    """Writes and reads the handles of one shard; arguments as for `ReceiptHandles`."""

    def __init__(self, key: bytes, shard: int = 0) -> None:
        self._key = key
        self._shard = shard

    def seal(self, handle: RecallHandle) -> str:
        """The text a producer is given."""
        head = _HEAD.pack(_FORMAT, self._shard, handle.topic_id, handle.due_ms, handle.position)
        name = handle.message_id.encode()
        return urlsafe_b64encode(head + self._tag(head + name) + name).decode()

    def open(self, text: str) -> RecallHandle:
        """Read a handle.

        Raises:
            BadRequest: Malformed, of another shard, or not ours.
        """
        try:
            data = urlsafe_b64decode(text)
            form, shard, topic_id, due_ms, position = _HEAD.unpack_from(data)
        except (ValueError, struct.error):
            raise BadRequest("recall handle is malformed") from None
        head, name = data[: _HEAD.size], data[_HEAD.size + _TAG_BYTES :]
        if form != _FORMAT or shard != self._shard:
            raise BadRequest(f"recall handle is of shard {shard}, not {self._shard}")
        if self._tag(head + name) != data[_HEAD.size : _HEAD.size + _TAG_BYTES]:
            raise BadRequest("recall handle is not of this broker")
        return RecallHandle(topic_id, due_ms, position, name.decode())

    def _tag(self, content: bytes) -> bytes:
        return blake2b(content, digest_size=_TAG_BYTES, key=self._key, person=_PERSON).digest()
