"""Compressed bodies. The wire says GZIP for anything compressed; the first bytes tell which.

1F 8B         gzip      what we write
78            zlib      what 4.x producers wrote
04 22 4D 18   LZ4       needs the extra [compress]
28 B5 2F FD   zstd      needs the extra [compress]
"""

import gzip
import zlib

from cosmodrome.errors import ClientError

# A body decompresses to at most this; brokers take 4 MiB, compressed or not.
DECODED_BYTES_MAX = 256 << 20


class UndecodableBody(ClientError):
    """A compressed body that does not decompress, or whose codec is not installed."""


def compressed(body: bytes) -> bytes:
    """Gzip a body, at the level that 4.x producers used."""
    return gzip.compress(body, 5, mtime=0)


def decoded(body: bytes) -> bytes:
    """Decompress by magic.

    Raises:
        UndecodableBody: Damaged, too large, unknown, or its codec is missing.
    """
    try:
        if body[:2] == b"\x1f\x8b":
            return _inflated(body, 31)
        if body[:1] == b"\x78":
            return _inflated(body, 15)
        if body[:4] == b"\x04\x22\x4d\x18":
            return _lz4(body)
        if body[:4] == b"\x28\xb5\x2f\xfd":
            return _zstd(body)
    except UndecodableBody:
        raise
    except Exception as error:
        raise UndecodableBody(f"the body does not decompress: {error}") from error
    raise UndecodableBody(f"no codec begins with {body[:4].hex()}")


def _inflated(body: bytes, window_bits: int) -> bytes:
    engine = zlib.decompressobj(window_bits)
    data = engine.decompress(body, DECODED_BYTES_MAX)
    if engine.unconsumed_tail:
        raise UndecodableBody(f"the body decompresses to more than {DECODED_BYTES_MAX} bytes")
    if not engine.eof:
        raise UndecodableBody("the compressed body ends early")
    return data


def _lz4(body: bytes) -> bytes:
    try:
        import lz4.frame  # noqa: PLC0415 - an extra
    except ImportError:
        raise UndecodableBody("an LZ4 body needs cosmodrome[compress]") from None
    data: bytes = lz4.frame.decompress(body)
    return data


def _zstd(body: bytes) -> bytes:
    try:
        import zstandard  # noqa: PLC0415 - an extra
    except ImportError:
        raise UndecodableBody("a zstd body needs cosmodrome[compress]") from None
    data: bytes = zstandard.ZstdDecompressor().decompress(body, DECODED_BYTES_MAX)
    return data
