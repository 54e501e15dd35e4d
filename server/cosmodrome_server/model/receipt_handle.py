"""Receipt handles: what a client shows to settle a delivery.

    0        1        3           7           11          13       21       29        31         34
    ┌────────┬────────┬───────────┬───────────┬───────────┬────────┬────────┬─────────┬──────────┐
    │ format │ shard  │ group id  │ topic id  │ queue id  │ base   │ lease  │ attempt │ life     │
    │ u8     │ u16    │ u32       │ u32       │ u16       │ u64    │ u64    │ u16     │ 3 bytes  │
    └────────┴────────┴───────────┴───────────┴───────────┴────────┴────────┴─────────┴──────────┘
    then the tag: 8 bytes of keyed BLAKE2b over those 34; together 42 bytes = 56 characters
    of URL-safe base64; then 2 characters: queue offset - base

The first 56 characters are the same for all messages of a lease, so the tag is computed
once per receive, and checked once however many of its messages are acknowledged. The
offset needs no tag of its own: it counts only if the lease holds it, and everything the
lease holds was given to the same client.

A handle names numbers, not a host: it is good on every owner of the shard, after a
restart, and for as long as the lease is, however often that is renewed. It also says in
which life of the broker it was written, by random bytes: what an earlier life gave out, a
power cut can have taken, the message too, and another may have its offset since.
"""

from base64 import urlsafe_b64decode
from binascii import b2a_base64
from struct import Struct

import msgspec

from cosmodrome_server.errors import InvalidReceiptHandle
from cosmodrome_server.model.digests import blake2b

_FORMAT = 2
_HEAD = Struct("<BHIIHQQH3s")
LIFE_BYTES = 3
_TAG_BYTES = 8
_SEAL_CHARS = 56
_DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
# What names a message of a lease: its offset minus the base.
SUFFIXES = [high + low for high in _DIGITS for low in _DIGITS][:512]
_DELTAS = {suffix: delta for delta, suffix in enumerate(SUFFIXES)}
_CACHE_MAX = 16_384
# What `urlsafe_b64encode` does, without its calls.
_URL_SAFE = bytes.maketrans(b"+/", b"-_")


class ReceiptHandle(msgspec.Struct, frozen=True, gc=False):
    """A handle, read and found authentic.

    Attributes:
        group_id: The consumer group.
        topic_id: The topic.
        queue_id: The message queue.
        base: The first offset of the lease.
        lease_id: The lease.
        attempt: The delivery attempt.
        is_of_this_life: Written since the broker started.
    """

    group_id: int
    topic_id: int
    queue_id: int
    base: int
    lease_id: int
    attempt: int
    is_of_this_life: bool = True


class ReceiptHandles:
    """Writes and reads the handles of one shard.

    Args:
        key: 16 to 64 secret bytes, the same for as long as handles are to be good.
        shard: The number of the shard.
        life: Three bytes that no earlier life had; random ones will do.
    """

    def __init__(self, key: bytes, shard: int = 0, life: bytes = bytes(LIFE_BYTES)) -> None:
        self._key = key
        self._shard = shard
        self._life = life
        self._known: dict[str, ReceiptHandle] = {}

    def seal(self, handle: ReceiptHandle) -> str:
        """The part all messages of a lease share; add `suffix(offset - base)`."""
        head = _HEAD.pack(
            _FORMAT,
            self._shard,
            handle.group_id,
            handle.topic_id,
            handle.queue_id,
            handle.base,
            handle.lease_id,
            handle.attempt,
            self._life,
        )
        text = b2a_base64(head + self._tag(head), newline=False).translate(_URL_SAFE)
        sealed = text.decode("ascii")
        self._remember(sealed, handle)
        return sealed

    def open(self, text: str) -> tuple[ReceiptHandle, int]:
        """Read a handle; return it and the queue offset.

        Raises:
            InvalidReceiptHandle: Malformed, of another shard, or not ours.
        """
        delta = _DELTAS.get(text[_SEAL_CHARS:])
        if delta is None:
            raise InvalidReceiptHandle("receipt handle is malformed")
        sealed = text[:_SEAL_CHARS]
        handle = self._known.get(sealed)
        if handle is None:
            handle = self._check(sealed)
        return handle, handle.base + delta

    def _check(self, sealed: str) -> ReceiptHandle:
        try:
            data = urlsafe_b64decode(sealed)
        except ValueError:
            raise InvalidReceiptHandle("receipt handle is malformed") from None
        if len(data) != _HEAD.size + _TAG_BYTES:
            raise InvalidReceiptHandle("receipt handle is malformed")
        head = data[: _HEAD.size]
        if self._tag(head) != data[_HEAD.size :]:
            raise InvalidReceiptHandle("receipt handle is not of this broker")
        form, shard, group_id, topic_id, queue_id, base, lease_id, attempt, life = _HEAD.unpack(
            head
        )
        if form != _FORMAT or shard != self._shard:
            raise InvalidReceiptHandle(f"receipt handle is of shard {shard}, not {self._shard}")
        handle = ReceiptHandle(
            group_id, topic_id, queue_id, base, lease_id, attempt, life == self._life
        )
        self._remember(sealed, handle)
        return handle

    def _tag(self, head: bytes) -> bytes:
        # At once: copying a hash that knows the key already takes twice as long.
        return blake2b(head, digest_size=_TAG_BYTES, key=self._key).digest()

    def _remember(self, sealed: str, handle: ReceiptHandle) -> None:
        if len(self._known) >= _CACHE_MAX:
            self._known.clear()
        self._known[sealed] = handle


def lease_of(text: str) -> str:
    """The part of a handle that all messages of its lease share."""
    return text[:_SEAL_CHARS]


def suffix(delta: int) -> str:
    """The characters that name a message of a lease: its offset minus the base, below 512."""
    return SUFFIXES[delta]
