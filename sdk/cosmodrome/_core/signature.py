"""The headers of every call: who calls, and the signature over the time.

Source: protocol.md 2.1, 2.2; the vector of F.4 is a test.
"""

import hashlib
import hmac
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime

from cosmodrome.credentials import Credentials

VERSION = "5.3.0"  # the level of the protocol we speak, as the official clients count
LANGUAGE = "PYTHON"
Metadata = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Identity:
    """What of the metadata never changes for one client."""

    client_id: str
    namespace: str

    def fixed(self) -> Metadata:
        """Those headers."""
        return (
            ("x-mq-client-id", self.client_id),
            ("x-mq-language", LANGUAGE),
            ("x-mq-protocol", "v2"),
            ("x-mq-client-version", VERSION),
            ("x-mq-namespace", self.namespace),
        )


def signed(fixed: Metadata, credentials: Credentials | None, now: datetime) -> tuple[Metadata, str]:
    """All headers of one call, and its request id."""
    request_id = str(uuid.uuid4())
    moment = now.astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
    headers: Metadata = (*fixed, ("x-mq-request-id", request_id), ("x-mq-date-time", moment))
    if credentials is None or not credentials.access_key:
        return headers, request_id
    headers += (("authorization", authorization(credentials, moment)),)
    if credentials.session_token:
        headers += (("x-mq-session-token", credentials.session_token),)
    return headers, request_id


def authorization(credentials: Credentials, moment: str) -> str:
    """The signature header over `moment`, the value of x-mq-date-time."""
    secret = credentials.secret_key.encode()
    signature = hmac.new(secret, moment.encode(), hashlib.sha1).hexdigest().upper()
    return (
        f"MQv2-HMAC-SHA1 Credential={credentials.access_key}, "
        f"SignedHeaders=x-mq-date-time, Signature={signature}"
    )
