"""Two hash functions whose values clients and disks rely on (protocol.md F.1, F.2)."""

from functools import lru_cache

_U32 = 0xFFFF_FFFF
_U64 = 0xFFFF_FFFF_FFFF_FFFF
_LCG_MULTIPLIER = 2862933555777941757


@lru_cache(maxsize=16_384)
def java_hash(text: str) -> int:
    """Hash as Java's `String.hashCode` does, read as unsigned 32 bits.

    Source: java.lang.String; 31·h + each UTF-16 code unit, modulo 2³².
    """
    value = 0
    if text.isascii():
        for unit in text.encode("ascii"):
            value = (31 * value + unit) & _U32
        return value
    encoded = text.encode("utf-16-le", "surrogatepass")
    for low, high in zip(encoded[::2], encoded[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & _U32
    return value


def jump_hash(key: int, buckets: int) -> int:
    """Choose a bucket so that adding buckets moves only the necessary share of keys.

    Args:
        key: Any integer; used modulo 2⁶⁴.
        buckets: How many there are, at least 1.

    Source: jump consistent hash with a 64-bit linear congruential generator.
    """
    state = key & _U64
    candidate = 0
    while True:
        state = (_LCG_MULTIPLIER * state + 1) & _U64
        divisor = ((state >> 33) + 1) / (1 << 31)
        following = int((candidate + 1) / divisor)
        if not 0 <= following < buckets:
            return candidate
        candidate = following


@lru_cache(maxsize=16_384)
def queue_of_message_group(message_group: str, queues: int) -> int:
    """The queue all messages of a message group go to."""
    unsigned = java_hash(message_group)
    signed = unsigned - (1 << 32) if unsigned >> 31 else unsigned
    return jump_hash(signed, queues)
