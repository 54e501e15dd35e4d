"""Formats that others must read: ids, signatures, digests, codecs, hashes. Vectors: clients.md."""

import gzip
import os
import zlib
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosmodrome import Credentials
from cosmodrome._core import codec, digest, siphash
from cosmodrome._core.codec import UndecodableBody
from cosmodrome._core.message_id import ForkSafeIds, MessageIds, NowSeconds
from cosmodrome._core.signature import Identity, authorization, signed
from cosmodrome_proto import definition_pb2 as pb


def test_message_ids_are_version_1() -> None:
    ids = MessageIds(mac=0x0A1B2C3D4E5F, pid=0x1234, start_s=1_609_459_200 + 86_400)
    made = [ids.next() for _ in range(8)]
    assert made[7] == "010A1B2C3D4E5F12340001518000000007"
    assert len(set(made)) == 8


def test_a_forked_child_does_not_repeat_its_parents_ids() -> None:
    class At(NowSeconds):
        def __call__(self) -> int:
            return 1_700_000_000

    ids = ForkSafeIds(At())
    ids.next()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, ids.next().encode())
        os._exit(0)
    os.waitpid(child, 0)
    theirs = os.read(reader, 64).decode()
    os.close(reader)
    os.close(writer)
    assert theirs[:14] == ids.next()[:14]
    assert theirs[14:18] != ids.next()[14:18]


def test_the_signature_is_the_published_one() -> None:
    header = authorization(Credentials("ak", "mySecret"), "20260102T030405Z")
    assert header == (
        "MQv2-HMAC-SHA1 Credential=ak, SignedHeaders=x-mq-date-time, "
        "Signature=81091CC5AB04DBFE1D2F73905E122B3E4A247D41"
    )


def test_a_call_is_signed_only_with_credentials() -> None:
    fixed = Identity("client", "space").fixed()
    now = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    bare, request_id = signed(fixed, None, now)
    assert dict(bare)["x-mq-date-time"] == "20260102T030405Z"
    assert dict(bare)["x-mq-request-id"] == request_id
    assert "authorization" not in dict(bare)
    assert "authorization" not in dict(signed(fixed, Credentials(""), now)[0])
    full = dict(signed(fixed, Credentials("ak", "sk", "token"), now)[0])
    assert full["x-mq-session-token"] == "token"
    assert full["authorization"].startswith("MQv2-HMAC-SHA1 Credential=ak,")


@pytest.mark.parametrize(
    ("kind", "checksum", "expected"),
    [
        (pb.CRC32, "3610A686", True),
        (pb.CRC32, "3610a686", True),
        (pb.CRC32, "3610A687", False),
        (pb.CRC32, "nonsense", False),
        (pb.MD5, "5D41402ABC4B2A76B9719D911017C592", True),
        (pb.MD5, "5D41402ABC4B2A76B9719D911017C593", False),
        (pb.SHA1, "AAF4C61DDCC5E8A2DABEDE0F3B482CD9AEA9434D", True),
        (pb.SHA1, "", True),
        (9, "whatever", True),
    ],
)
def test_digests_of_hello(kind: int, checksum: str, expected: bool) -> None:
    given_ = pb.Digest(type=pb.DigestType.ValueType(kind), checksum=checksum)
    assert digest.is_intact(given_, b"hello") is expected


def test_a_crc_is_written_without_leading_zeros() -> None:
    body = next(b for n in range(10_000) if zlib.crc32(b := str(n).encode()) < 0x01000000)
    assert len(digest.crc32(body)) < 7
    assert digest.is_intact(pb.Digest(type=pb.CRC32, checksum=digest.crc32(body)), body)


@given(st.binary(min_size=1, max_size=5_000))
def test_every_codec_is_told_by_its_first_bytes(body: bytes) -> None:
    assert codec.decoded(codec.compressed(body)) == body
    assert codec.decoded(zlib.compress(body)) == body
    assert codec.decoded(gzip.compress(body)) == body


@pytest.mark.parametrize(
    "body", [b"", b"plain", b"\x1f\x8bxx", gzip.compress(b"x" * 99, mtime=0)[:-9]]
)
def test_a_body_that_does_not_decompress_says_so(body: bytes) -> None:
    with pytest.raises(UndecodableBody):
        codec.decoded(body)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0x726FDB47DD0E0E31),
        (b"\x00", 0x74F839C593DC67FD),
        (bytes(range(15)), 0xA129CA6149BE45E5),
        (b"a", 0x2BA3E8E9A71148CA),
        (b"order-1", 0xC37E18DB31B97687),
        ("消息组".encode(), 0xE11B0A4B14A40A3B),
    ],
)
def test_siphash_24_is_the_published_one(data: bytes, expected: int) -> None:
    assert siphash.siphash24(data) == expected


@pytest.mark.parametrize(
    ("group", "of_three", "of_eight"),
    [("a", 1, 2), ("order-1", 0, 7), ("fifo-group", 2, 4), ("user:42", 0, 0), ("消息组", 1, 3)],
)
def test_a_message_group_goes_where_java_and_go_send_it(
    group: str, of_three: int, of_eight: int
) -> None:
    assert siphash.queue_of(group, 3) == of_three
    assert siphash.queue_of(group, 8) == of_eight
