"""The signature header of RocketMQ 5 clients.

    MQv2-HMAC-SHA1 Credential=<key>[/…], SignedHeaders=x-mq-date-time, Signature=<hex>

The signature is HMAC-SHA1 of the bytes of `x-mq-date-time` under the user's secret; nothing
else is signed. The date is opaque: clients write local time with a literal Z, RFC 3339, or
something else, so its window is an option (protocol.md 2.2).
"""

import hashlib
import hmac
from datetime import UTC, datetime

import msgspec

from cosmodrome_server.errors import Unauthorized

SCHEME = "MQv2-HMAC-SHA1"


class Credential(msgspec.Struct, frozen=True):
    """What a header claims.

    Attributes:
        access_key: The user's name.
        signature: Raw bytes of the HMAC.
    """

    access_key: str
    signature: bytes


def parse(header: str) -> Credential:
    """Read an `authorization` header.

    Raises:
        Unauthorized: It is not one of ours, or incomplete.
    """
    scheme, _, rest = header.strip().partition(" ")
    fields = dict(part.strip().partition("=")[::2] for part in rest.split(","))
    # Go writes `Credential=key//Rocketmq`.
    access_key = fields.get("Credential", "").partition("/")[0]
    try:
        signature = bytes.fromhex(fields.get("Signature", ""))
    except ValueError:
        signature = b""
    if scheme != SCHEME or not access_key or not signature:
        raise Unauthorized("authentication header is incorrect")
    return Credential(access_key, signature)


def is_genuine(credential: Credential, secret: str, date: str) -> bool:
    """Whether the header was made with this secret; compares in constant time."""
    expected = hmac.new(secret.encode(), date.encode(), hashlib.sha1).digest()
    return hmac.compare_digest(expected, credential.signature)


def is_recent(date: str, now_ms: int, window_s: int) -> bool:
    """Whether a date lies within `window_s` of now.

    Any ISO 8601 date is one: Rust clients write local time with its offset and nanoseconds.
    Without an offset it is read as UTC. Anything else is not recent.
    """
    try:
        moment = datetime.fromisoformat(date)
    except ValueError:
        return False
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return abs(moment.timestamp() * 1000 - now_ms) <= window_s * 1000
