"""Checksums of bodies, as brokers and clients write them.

CRC32 is upper-case hex *without* leading zeros, so it is compared as a number; MD5 and SHA-1
are upper-case hex. A digest covers the body as sent, compressed or not. One whose type is
unknown is no proof of damage (clients.md 2.9).
"""

import hashlib
import zlib

from cosmodrome_proto import definition_pb2 as pb


def crc32(body: bytes) -> str:
    """The CRC32 digest text."""
    return f"{zlib.crc32(body):X}"


def is_intact(digest: pb.Digest, body: bytes) -> bool:
    """Whether a body fits its digest, as far as its type is known."""
    given = digest.checksum
    if not given:
        return True
    if digest.type == pb.CRC32:
        try:
            return int(given, 16) == zlib.crc32(body)
        except ValueError:
            return False
    if digest.type == pb.MD5:
        return hashlib.md5(body, usedforsecurity=False).hexdigest() == given.lower()
    if digest.type == pb.SHA1:
        return hashlib.sha1(body, usedforsecurity=False).hexdigest() == given.lower()
    return True
