"""Requests that are wrong, made from the descriptors: whole messages of any type, then damage.

    fill     a message of the method's type: names that exist and names that never may, handles
             that were given out and forged ones, extreme numbers, unknown enum values, missing
             submessages
    damage   of its bytes: flipped, cut, repeated, wrong UTF-8, nested without end, spliced
    noise    bytes that never were a request

Everything comes from one `random.Random`, so a seed is the whole story of a failure.
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from cosmodrome_proto import Method, methods

SERVICES = (
    "apache.rocketmq.v2.MessagingService",
    "apache.rocketmq.v2.Admin",
    "cosmodrome.v1.Control",
    "cosmodrome.v1.Bulk",
)
METHODS: tuple[Method, ...] = tuple(one for service in SERVICES for one in methods(service))

TOPICS = ("normal", "fifo", "delay", "transaction", "lite", "mixed", "priority")
GROUPS = ("billing", "ledger", "readers")
CLIENTS = ("client", "client-2", "a@b@1@x")
_KNOWN = {"topic": TOPICS, "group": GROUPS, "message_queue": TOPICS, "client_id": CLIENTS}

TEXTS = (
    *("", " ", "\t\n", "\0", "a\0b", "a|b", "a||b", "*", "ü", "\U0001f680", "\ufffe", "\u202e"),
    *("%RETRY%billing", "%DLQ%billing", "rmq_sys_staged", "%LMQ%lite", "DefaultCluster", "TBW102"),
    *("../../etc/passwd", "a/b", "{}", "%s%s%n", "$(id)", "' OR 1=1 --", "null", "-1", "0x10"),
    *("x" * 64, "x" * 128, "x" * 300, "x" * 5_000, "\U0001f680" * 40),
)
EXPRESSIONS = (
    *("*", "a || b", "||", "a = 1", "a > 1 AND", "((((", "a IN ('x', 'y')", "a BETWEEN 1 AND 'x'"),
    *("NOT " * 500 + "a", "(" * 2_000 + "a = 1" + ")" * 2_000, "a = 1 AND " * 800 + "a = 1"),
    *("a = '" + "'" * 101, "a = " + "9" * 400, "a = 1e999", "-" * 3_000 + "1 = a", "a LIKE '%'"),
    *("a IS NOT NULL", "\0 = 1", "a = 1; DROP", "1 = 1", "TRUE", "a + 1 / 0 = 2", "tag" * 1_000),
)
NUMBERS = (0, 1, -1, 2, 7, 31, 32, 127, 128, 1_000, 65_536, 2**31 - 1, -(2**31), 2**31, 2**32 - 1)
WIDE = (2**53, 2**62, 2**63 - 1, -(2**63), -(2**53), 10**12, 1_700_000_000_000, -(10**15))
SECONDS = (0, 1, 10, 30, 60, -1, 253_402_300_800, 1_700_000_000, 2**63 - 1, -(2**63), 10**18)
NANOS = (0, 0, 1, 999_999_999, 1_000_000_000, -1, 2**31 - 1, -(2**31))
REALS = (0.0, -0.0, 1.5, float("inf"), float("-inf"), float("nan"), 1e308)

_INTEGERS = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}
# Harvested from answers: what only the server can make.
_HANDLES = frozenset({"receipt_handle", "recall_handle", "transaction_id", "message_id", "nonce"})
_KEPT = 300
_DEPTH = 6


class Inputs:
    """Makes calls; `learn` shows it what the server answered."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self._handles: dict[str, list[str]] = {name: [] for name in sorted(_HANDLES)}
        self._scalars: dict[int, Callable[[FieldDescriptor, str], Any]] = {
            FieldDescriptor.CPPTYPE_STRING: self._text_or_bytes,
            FieldDescriptor.CPPTYPE_ENUM: self._enum,
            FieldDescriptor.CPPTYPE_BOOL: lambda field, about: self.random.random() < 0.5,
            FieldDescriptor.CPPTYPE_DOUBLE: lambda field, about: self.random.choice(REALS),
            FieldDescriptor.CPPTYPE_FLOAT: lambda field, about: self.random.choice(REALS),
        }

    def method(self) -> Method:
        """A method; those of clients half the time."""
        of_clients = self.random.random() < 0.5
        return self.random.choice(METHODS[:17] if of_clients else METHODS)

    def payload(self, method: Method) -> bytes:
        """The bytes of a request."""
        chance = self.random.random()
        if chance < 0.05:
            return self.random.randbytes(self.random.choice((0, 1, 2, 5, 20, 200, 3_000)))
        encoded = self.message(method.request).SerializeToString()
        return encoded if chance < 0.6 else self._damaged(encoded)

    def headers(self) -> dict[str, str]:
        """What goes beside; nearly always a client id, as nothing passes without."""
        headers = {"x-mq-client-id": self.random.choice(CLIENTS)}
        if self.random.random() < 0.05:
            headers["x-mq-client-id"] = self.random.choice(TEXTS)
        if self.random.random() < 0.05:
            headers["x-mq-client-version"] = self.random.choice(TEXTS)
        if self.random.random() < 0.03:
            headers["authorization"] = self.random.choice((*TEXTS, "MQv2-HMAC-SHA1 Credential=x"))
        return headers

    def deadline_ms(self) -> int | None:
        """What a client says it would wait."""
        return self.random.choice((None, None, 3_000, 10_000, 30_000, 0, 1, -1, 2**40))

    def message(self, kind: type[Message]) -> Message:
        """A message of this type, filled."""
        made = kind()
        # Most fields are there as a rule: a request with half of them missing goes nowhere.
        self._fill(made, "", self.random.choice((1.0, 0.95, 0.9, 0.6, 0.2)), _DEPTH)
        return made

    def learn(self, answer: Message) -> None:
        """Keep the handles of an answer, to send them back."""
        for name, text in _strings(answer):
            kept = self._handles.get(name)
            if kept is not None and text:
                if len(kept) < _KEPT:
                    kept.append(text)
                else:
                    kept[self.random.randrange(_KEPT)] = text

    def _fill(self, message: Message, about: str, likely: float, depth: int) -> None:
        """Set fields; `about` is the field this message stands in."""
        fields: Sequence[FieldDescriptor] = message.DESCRIPTOR.fields  # type: ignore[assignment] # upb's have the same shape
        for field in fields:
            if self.random.random() > likely:
                continue
            if field.message_type is not None and field.message_type.GetOptions().map_entry:
                for _ in range(self.random.choice((0, 1, 2, 5, 130))):
                    getattr(message, field.name)[self._text("", about)] = self._text("", about)
            elif field.is_repeated:
                self._fill_repeated(message, field, likely, depth)
            elif field.message_type is None:
                setattr(message, field.name, self._scalar(field, about))
            elif depth:
                inside = getattr(message, field.name)
                inside.SetInParent()
                self._fill(inside, field.name, likely, depth - 1)

    def _fill_repeated(
        self, message: Message, field: FieldDescriptor, likely: float, depth: int
    ) -> None:
        into = getattr(message, field.name)
        for _ in range(self.random.choice((0, 1, 1, 1, 2, 3, 20))):
            if field.message_type is None:
                into.append(self._scalar(field, field.name))
            elif depth:
                self._fill(into.add(), field.name.removesuffix("s"), likely, depth - 1)

    def _scalar(self, field: FieldDescriptor, about: str) -> Any:
        make = self._scalars.get(field.cpp_type)
        return self._integer(field) if make is None else make(field, about)

    def _integer(self, field: FieldDescriptor) -> int:
        low, high = _INTEGERS[field.cpp_type]
        pool: tuple[int, ...] = (*NUMBERS, *WIDE)
        if field.name == "seconds":
            pool = SECONDS
        elif field.name == "nanos":
            pool = NANOS
        elif self.random.random() < 0.6:
            pool = (0, 0, 1, 2, 8, 32)
        return min(max(self.random.choice(pool), low), high)

    def _enum(self, field: FieldDescriptor, _about: str) -> int:
        if self.random.random() < 0.1:
            return self.random.choice((-1, 99, 2**31 - 1, -(2**31)))
        assert field.enum_type is not None
        numbers: list[int] = list(field.enum_type.values_by_number)
        return self.random.choice(numbers)

    def _text_or_bytes(self, field: FieldDescriptor, about: str) -> str | bytes:
        if field.type == FieldDescriptor.TYPE_BYTES:
            return self.random.randbytes(self.random.choice((0, 1, 10, 10, 10, 5_000)))
        return self._text(field.name, about)

    def _text(self, name: str, about: str) -> str:
        """A text for a field: what belongs there, or anything at all."""
        if self.random.random() < 0.15:
            return self.random.choice(TEXTS)
        if name in _HANDLES:
            return self._handle(name)
        if name == "expression":
            return self.random.choice(EXPRESSIONS)
        known = _KNOWN.get(about if name == "name" else name)
        if known is None:
            return self.random.choice((*TOPICS, *GROUPS, "a", "b", "k1", "10.0.0.1", "id"))
        return self.random.choice(known)

    def _handle(self, name: str) -> str:
        """One that was given out, one of another kind, one that was tampered with, or none."""
        kind = name if self.random.random() < 0.8 else self.random.choice(sorted(_HANDLES))
        kept = self._handles[kind]
        if not kept:
            return self.random.choice(("", "id1", "AAAA", "x" * 40, "0 1 2 3 4 5 6 7"))
        handle = self.random.choice(kept)
        chance = self.random.random()
        if chance < 0.5:
            return handle
        at = self.random.randrange(len(handle))
        if chance < 0.7:
            return handle[:at]
        if chance < 0.9:
            return handle[:at] + self.random.choice("A0z=+/ \0é") + handle[at + 1 :]
        return handle + handle

    def _damaged(self, encoded: bytes) -> bytes:
        damages = (_flip, _cut, _repeat, _wrong_utf8, _nest, _unknown, _long_length, _splice)
        for _ in range(self.random.choice((1, 1, 1, 2, 4))):
            encoded = self.random.choice(damages)(self.random, encoded)
        return encoded


def _flip(random: Random, encoded: bytes) -> bytes:
    if not encoded:
        return random.randbytes(3)
    changed = bytearray(encoded)
    for _ in range(random.choice((1, 1, 3, 10))):
        changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
    return bytes(changed)


def _cut(random: Random, encoded: bytes) -> bytes:
    return encoded[: random.randrange(len(encoded) + 1)]


def _repeat(random: Random, encoded: bytes) -> bytes:
    """A field that comes twice: the last wins, submessages merge."""
    return encoded * random.choice((2, 2, 5))


def _wrong_utf8(random: Random, encoded: bytes) -> bytes:
    at = random.randrange(len(encoded) + 1)
    wrong = random.choice((b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf8\x88\x80\x80\x80"))
    return encoded[:at] + wrong + encoded[at + len(wrong) :]


def _nest(random: Random, encoded: bytes) -> bytes:
    """Groups in groups, or messages in messages, of a field this or no version knows."""
    depth = random.choice((1, 50, 99, 101, 5_000))
    number = random.choice((1, 2, 3, 1_000))
    if random.random() < 0.5:
        return encoded + _varint(number << 3 | 3) * depth + _varint(number << 3 | 4) * depth
    inside = b""
    for _ in range(min(depth, 200)):
        inside = _varint(number << 3 | 2) + _varint(len(inside)) + inside
    return encoded + inside


def _unknown(random: Random, encoded: bytes) -> bytes:
    number = random.choice((15, 100, 19_000, 2**29 - 1, 0))
    value = random.choice((b"", b"\0" * 10, random.randbytes(100)))
    fields = (
        _varint(number << 3) + _varint(random.choice(NUMBERS) & (2**64 - 1)),
        _varint(number << 3 | 2) + _varint(len(value)) + value,
        _varint(number << 3 | 5) + struct.pack("<I", 7),
        _varint(number << 3 | 6),
    )
    return encoded + random.choice(fields)


def _long_length(random: Random, encoded: bytes) -> bytes:
    """A field that says it is longer than all there is."""
    length = random.choice((2**31 - 1, 2**32, 2**63, 2**64 - 1, len(encoded) + 1))
    return encoded + _varint(random.choice((1, 2, 3)) << 3 | 2) + _varint(length) + b"abc"


def _splice(random: Random, encoded: bytes) -> bytes:
    at, other = random.randrange(len(encoded) + 1), random.randrange(len(encoded) + 1)
    return encoded[:at] + encoded[other:]


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*encoded, value))


def _strings(message: Message) -> Iterator[tuple[str, str]]:
    """Every string of a message, with its field's name."""
    for field, value in message.ListFields():
        if field.message_type is not None:
            if not field.message_type.GetOptions().map_entry:
                for inside in value if field.is_repeated else (value,):
                    yield from _strings(inside)
        elif isinstance(value, str):
            yield field.name, value


def decoded(method: Method, payload: bytes) -> str:
    """A request for the eyes of whoever reads a failure."""
    try:
        return str(method.request.FromString(payload))
    except DecodeError:
        return "no request"
