"""Signature headers as each official client writes them."""

import pytest

from cosmodrome_server.errors import Unauthorized
from cosmodrome_server.proxy.security.signature import is_genuine, is_recent, parse

# protocol.md F.4
DATE, SECRET = "20260102T030405Z", "mySecret"
SIGNATURE = "81091CC5AB04DBFE1D2F73905E122B3E4A247D41"


def header(credential: str = "ak", signature: str = SIGNATURE) -> str:
    return (
        f"MQv2-HMAC-SHA1 Credential={credential}, SignedHeaders=x-mq-date-time, "
        f"Signature={signature}"
    )


@pytest.mark.parametrize("signature", [SIGNATURE, SIGNATURE.lower()])
@pytest.mark.parametrize("credential", ["ak", "ak//Rocketmq", "ak/region/RocketMQ"])
def test_every_official_spelling_is_genuine(credential: str, signature: str) -> None:
    claimed = parse(header(credential, signature))
    assert claimed.access_key == "ak"
    assert is_genuine(claimed, SECRET, DATE)


def test_another_secret_or_date_is_not_genuine() -> None:
    claimed = parse(header())
    assert not is_genuine(claimed, "other", DATE)
    assert not is_genuine(claimed, SECRET, "20260102T030406Z")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "MQv2-HMAC-SHA1",
        "Basic abc",
        header(credential=""),
        header(signature=""),
        header(signature="xyz"),
        header().replace("MQv2", "MQv3"),
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(Unauthorized, match="authentication header is incorrect"):
        parse(text)


@pytest.mark.parametrize(
    ("date", "expected"),
    [
        ("20260102T030405Z", True),
        ("2026-01-02T03:04:05+00:00", True),
        ("2026-01-02T03:04:05.123456+00:00", True),
        ("2026-01-02T11:04:05.123456789+08:00", True),
        ("2026-01-02T03:04:05.123456789+08:00", False),
        ("2026-01-02T03:04:05", True),
        ("20260102T032000Z", False),
        ("yesterday", False),
    ],
)
def test_a_date_is_recent_within_the_window_in_any_known_format(date: str, expected: bool) -> None:
    assert is_recent(date, now_ms=1_767_323_045_000, window_s=900) is expected
