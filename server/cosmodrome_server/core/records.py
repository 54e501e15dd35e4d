"""What the log says about consumption: the records of `core`, and their bytes.

All integers are little-endian. Every state record begins with the lease clock, and those
about one queue of one group go on with its place:

    0          8             12            16            20
    ┌──────────┬─────────────┬─────────────┬─────────────┬─────────
    │ at_ms u64│ group_id u32│ topic_id u32│ queue_id u32│ the rest
    └──────────┴─────────────┴─────────────┴─────────────┴─────────

    Pop          lease u64 · base u64 · replaces u64 · count u32 · invisible u32 · attempt u16 ·
                 is auto-renewed u8 · lengths: mask u8, held u8, client u16, attempt id u16 ·
                 those bytes
    Ack          lease u64 · offset u64
    AckMany      lease u64 · base u64 · mask: the rest
    Change       lease u64 · offset u64 · new lease u64 · invisible u32 · is suspended u8
    Renew        lease u64 · invisible u32 · is last u8
    DeadLetter   lease u64 · offset u64 · copy offset u64
    Offset       offset u64 · is reset u8         (commit, start and reset)

`core.catalogue` has its own: topics, groups and kept values.
"""

from struct import Struct
from typing import ClassVar

import msgspec

from cosmodrome_server.model.log import RecordKind

LEASE_SPAN = 512

_AT = Struct("<Q")
_POP = Struct("<QIIIQQQIIH?BBHH")
_ACK = Struct("<QIIIQQ")
_ACK_MANY = Struct("<QIIIQQ")
_CHANGE = Struct("<QIIIQQQI?")
_RENEW = Struct("<QIIIQI?")
_DEAD_LETTER = Struct("<QIIIQQQ")
_OFFSET = Struct("<QIIIQ?")


def record_at_ms(payload: bytes) -> int:
    """The lease clock of a state record, in milliseconds."""
    at_ms: int = _AT.unpack_from(payload)[0]
    return at_ms


def _mask_bytes(mask: int) -> bytes:
    return mask.to_bytes((mask.bit_length() + 7) >> 3, "little")


class Pop(msgspec.Struct, gc=False):
    """Messages of one queue handed to one consumer, under one lease.

    Attributes:
        lease_id: Unique in the shard, growing; 0 when nothing is delivered.
        base: The offset of bit 0 of the masks.
        count: [base, base + count) were never looked at before and the group's cursor
            moves past them: what is in neither mask did not match and is settled. 0 when
            messages are delivered again.
        mask: Bit i: base + i is delivered; below LEASE_SPAN bits.
        held: Bit i: base + i is passed over and waits for its message group (FIFO).
        attempt: Delivery attempt of all of them, from 1.
        invisible_ms: How long they are hidden.
        replaces: The lease these messages are taken over from, or 0 (a repeated receive
            of a FIFO group).
        is_auto_renewed: Whether the lease is extended while its client lives.
        client_id: Who renews; "" unless auto-renewed.
        attempt_id: The client's name for this receive (FIFO), or "".
    """

    kind: ClassVar[RecordKind] = RecordKind.POP

    at_ms: int
    group_id: int
    topic_id: int
    queue_id: int
    lease_id: int
    base: int
    count: int
    mask: int
    held: int = 0
    attempt: int = 1
    invisible_ms: int = 0
    replaces: int = 0
    is_auto_renewed: bool = False
    client_id: str = ""
    attempt_id: str = ""

    def encode(self) -> bytes:
        """The payload."""
        masked = self.mask.bit_length() + 7 >> 3
        rest = self.mask.to_bytes(masked, "little")
        held = client = attempt_id = b""
        if self.held or self.client_id or self.attempt_id:
            held = _mask_bytes(self.held)
            client = self.client_id.encode()
            attempt_id = self.attempt_id.encode()
            rest += held + client + attempt_id
        head = _POP.pack(
            self.at_ms,
            self.group_id,
            self.topic_id,
            self.queue_id,
            self.lease_id,
            self.base,
            self.replaces,
            self.count,
            self.invisible_ms,
            self.attempt,
            self.is_auto_renewed,
            masked,
            len(held),
            len(client),
            len(attempt_id),
        )
        return head + rest

    @staticmethod
    def decode(payload: bytes) -> "Pop":
        """The inverse of `encode`."""
        (
            at_ms,
            group_id,
            topic_id,
            queue_id,
            lease_id,
            base,
            replaces,
            count,
            invisible_ms,
            attempt,
            is_auto_renewed,
            masked,
            held,
            client,
            attempt_id,
        ) = _POP.unpack_from(payload)
        held_at = _POP.size + masked
        client_at = held_at + held
        attempt_at = client_at + client
        return Pop(
            at_ms,
            group_id,
            topic_id,
            queue_id,
            lease_id,
            base,
            count,
            int.from_bytes(payload[_POP.size : held_at], "little"),
            int.from_bytes(payload[held_at:client_at], "little") if held else 0,
            attempt,
            invisible_ms,
            replaces,
            is_auto_renewed,
            payload[client_at:attempt_at].decode() if client else "",
            payload[attempt_at : attempt_at + attempt_id].decode() if attempt_id else "",
        )


class Ack(msgspec.Struct, gc=False):
    """A delivery ended for good; lease 0: a message that waits for redelivery is given up."""

    kind: ClassVar[RecordKind] = RecordKind.ACK

    at_ms: int
    group_id: int
    topic_id: int
    queue_id: int
    lease_id: int
    queue_offset: int

    def encode(self) -> bytes:
        """The payload."""
        return _ACK.pack(
            self.at_ms,
            self.group_id,
            self.topic_id,
            self.queue_id,
            self.lease_id,
            self.queue_offset,
        )

    @staticmethod
    def decode(payload: bytes) -> "Ack":
        """The inverse of `encode`."""
        return Ack(*_ACK.unpack(payload))


class AckMany(msgspec.Struct, gc=False):
    """Deliveries of one lease ended for good, in one call.

    Attributes:
        base: The offset of bit 0 of the mask.
        mask: Bit i: base + i; below LEASE_SPAN bits.
    """

    kind: ClassVar[RecordKind] = RecordKind.ACK_MANY

    at_ms: int
    group_id: int
    topic_id: int
    queue_id: int
    lease_id: int
    base: int
    mask: int

    def encode(self) -> bytes:
        """The payload."""
        head = _ACK_MANY.pack(
            self.at_ms, self.group_id, self.topic_id, self.queue_id, self.lease_id, self.base
        )
        return head + _mask_bytes(self.mask)

    @staticmethod
    def decode(payload: bytes) -> "AckMany":
        """The inverse of `encode`."""
        at_ms, group_id, topic_id, queue_id, lease_id, base = _ACK_MANY.unpack_from(payload)
        mask = int.from_bytes(payload[_ACK_MANY.size :], "little")
        return AckMany(at_ms, group_id, topic_id, queue_id, lease_id, base, mask)


class ChangeInvisible(msgspec.Struct):
    """One message leaves its lease for a new one of its own.

    Attributes:
        lease_id: The lease it leaves.
        queue_offset: Which message.
        new_lease_id: The lease it gets.
        invisible_ms: How long it is hidden from now.
        is_suspended: Whether the redelivery keeps its attempt.
    """

    kind: ClassVar[RecordKind] = RecordKind.CHANGE_INVISIBLE

    at_ms: int
    group_id: int
    topic_id: int
    queue_id: int
    lease_id: int
    queue_offset: int
    new_lease_id: int
    invisible_ms: int
    is_suspended: bool

    def encode(self) -> bytes:
        """The payload."""
        return _CHANGE.pack(
            self.at_ms,
            self.group_id,
            self.topic_id,
            self.queue_id,
            self.lease_id,
            self.queue_offset,
            self.new_lease_id,
            self.invisible_ms,
            self.is_suspended,
        )

    @staticmethod
    def decode(payload: bytes) -> "ChangeInvisible":
        """The inverse of `encode`."""
        return ChangeInvisible(*_CHANGE.unpack(payload))


class Renew(msgspec.Struct):
    """A whole lease ends `invisible_ms` from now; its handles stay good.

    Attributes:
        is_last: It is not renewed again: its client is gone, or it was renewed long enough.
    """

    kind: ClassVar[RecordKind] = RecordKind.RENEW

    at_ms: int
    group_id: int
    topic_id: int
    queue_id: int
    lease_id: int
    invisible_ms: int
    is_last: bool

    def encode(self) -> bytes:
        """The payload."""
        return _RENEW.pack(
            self.at_ms,
            self.group_id,
            self.topic_id,
            self.queue_id,
            self.lease_id,
            self.invisible_ms,
            self.is_last,
        )

    @staticmethod
    def decode(payload: bytes) -> "Renew":
        """The inverse of `encode`."""
        return Renew(*_RENEW.unpack(payload))


class DeadLetter(msgspec.Struct):
    """A message is settled because its copy, in the same frame, is a dead letter.

    Attributes:
        lease_id: The lease it is taken from; 0 when it waited for redelivery.
        queue_offset: Which message.
        copy_offset: Where its copy lies in the dead letter topic.
    """

    kind: ClassVar[RecordKind] = RecordKind.DEAD_LETTER

    at_ms: int
    group_id: int
    topic_id: int
    queue_id: int
    lease_id: int
    queue_offset: int
    copy_offset: int

    def encode(self) -> bytes:
        """The payload."""
        return _DEAD_LETTER.pack(
            self.at_ms,
            self.group_id,
            self.topic_id,
            self.queue_id,
            self.lease_id,
            self.queue_offset,
            self.copy_offset,
        )

    @staticmethod
    def decode(payload: bytes) -> "DeadLetter":
        """The inverse of `encode`."""
        return DeadLetter(*_DEAD_LETTER.unpack(payload))


class SetOffset(msgspec.Struct):
    """A group begins, commits or is reset: its progress on the queue is this offset.

    Attributes:
        is_reset: An operator did it: commits of clients that do not know yet are ignored.
    """

    at_ms: int
    group_id: int
    topic_id: int
    queue_id: int
    queue_offset: int
    is_reset: bool = False

    @property
    def kind(self) -> RecordKind:
        """RESET_OFFSET or COMMIT_OFFSET."""
        return RecordKind.RESET_OFFSET if self.is_reset else RecordKind.COMMIT_OFFSET

    def encode(self) -> bytes:
        """The payload."""
        return _OFFSET.pack(
            self.at_ms,
            self.group_id,
            self.topic_id,
            self.queue_id,
            self.queue_offset,
            self.is_reset,
        )

    @staticmethod
    def decode(payload: bytes) -> "SetOffset":
        """The inverse of `encode`."""
        return SetOffset(*_OFFSET.unpack(payload))


ConsumptionRecord = Pop | Ack | AckMany | ChangeInvisible | Renew | DeadLetter | SetOffset
