"""SipHash-2-4, by which Java and Go producers choose a queue for a message group.

Key bytes 00 … 0f; the result is read as a signed 64-bit number and floor-divided by the number
of writable queues (clients.md 2.5.3; its vectors are tests).
"""

from functools import lru_cache

_MASK = (1 << 64) - 1
_K0, _K1 = 0x0706050403020100, 0x0F0E0D0C0B0A0908


def _rotated(value: int, bits: int) -> int:
    return ((value << bits) | (value >> (64 - bits))) & _MASK


class _State:
    __slots__ = ("v0", "v1", "v2", "v3")

    def __init__(self) -> None:
        self.v0 = _K0 ^ 0x736F6D6570736575
        self.v1 = _K1 ^ 0x646F72616E646F6D
        self.v2 = _K0 ^ 0x6C7967656E657261
        self.v3 = _K1 ^ 0x7465646279746573

    def rounds(self, times: int) -> None:
        for _ in range(times):
            self.v0 = (self.v0 + self.v1) & _MASK
            self.v1 = _rotated(self.v1, 13) ^ self.v0
            self.v0 = _rotated(self.v0, 32)
            self.v2 = (self.v2 + self.v3) & _MASK
            self.v3 = _rotated(self.v3, 16) ^ self.v2
            self.v0 = (self.v0 + self.v3) & _MASK
            self.v3 = _rotated(self.v3, 21) ^ self.v0
            self.v2 = (self.v2 + self.v1) & _MASK
            self.v1 = _rotated(self.v1, 17) ^ self.v2
            self.v2 = _rotated(self.v2, 32)

    def absorb(self, word: int) -> None:
        self.v3 ^= word
        self.rounds(2)
        self.v0 ^= word


def siphash24(data: bytes) -> int:
    """The hash as an unsigned 64-bit number."""
    state = _State()
    whole = len(data) & ~7
    for start in range(0, whole, 8):
        state.absorb(int.from_bytes(data[start : start + 8], "little"))
    last = int.from_bytes(data[whole:], "little") | (len(data) & 0xFF) << 56
    state.absorb(last)
    state.v2 ^= 0xFF
    state.rounds(4)
    return state.v0 ^ state.v1 ^ state.v2 ^ state.v3


@lru_cache(maxsize=65_536)  # 12 µs a group in Python; groups repeat
def queue_of(message_group: str, queues: int) -> int:
    """Which of `queues` writable queues a message group goes to."""
    value = siphash24(message_group.encode())
    signed = value - (1 << 64) if value >> 63 else value
    return signed % queues
