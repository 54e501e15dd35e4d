"""How long a receive may wait; protocol.md 1.5 step 2 and F.14."""

import pytest

from cosmodrome_server.config import Delivery
from cosmodrome_server.errors import BadRequest, IllegalPollingTime
from cosmodrome_server.proxy.long_polling import polling_ms
from tests.support.proxy_world import FakeCall

BOUNDS = Delivery()


@pytest.mark.parametrize(
    ("asked_ms", "left_ms", "request_timeout_ms", "expected_ms"),
    [
        (20_000, None, 0, 19_950),
        (2_000, None, 0, 4_950),  # clamped up
        (60_000, None, 0, 19_950),  # clamped down
        (None, None, 3_000, 19_950),  # no deadline at all is no bound
        (None, 23_000, 3_000, 19_950),
        (None, 12_000, 3_000, 10_450),
        (20_000, 23_000, 3_000, 19_950),
        (20_000, 8_000, 0, 7_750),  # the deadline is the bound
        (5_000, 5_000, 0, 4_750),
        (30_000, 4_990, 0, 4_740),  # "5 s" has spent some of itself on the way
        (5_000, 4_500, 0, 4_250),  # a busy machine
    ],
)
def test_a_receive_waits(
    asked_ms: int | None, left_ms: int | None, request_timeout_ms: int, expected_ms: int
) -> None:
    call = FakeCall(deadline_ms=left_ms)
    assert polling_ms(call, asked_ms, request_timeout_ms, BOUNDS) == expected_ms


@pytest.mark.parametrize("left_ms", [3_000, 4_499, 0, -1])
def test_a_deadline_below_the_minimum_is_refused(left_ms: int) -> None:
    with pytest.raises(IllegalPollingTime):
        polling_ms(FakeCall(deadline_ms=left_ms), 20_000, 0, BOUNDS)


@pytest.mark.parametrize("version", ["", "5.0.2"])
def test_clients_that_do_not_know_the_code_get_bad_request(version: str) -> None:
    call = FakeCall(deadline_ms=3_000, headers={"x-mq-client-version": version})
    with pytest.raises(BadRequest):
        polling_ms(call, 20_000, 0, BOUNDS)
