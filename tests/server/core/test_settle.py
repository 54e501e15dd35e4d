"""Which deliveries a handle may end, and for how long those of a living client go on."""

import pytest

from cosmodrome_server.core import settle
from cosmodrome_server.core.lease import Lease
from cosmodrome_server.core.progress import Progress
from cosmodrome_server.core.records import Ack, AckMany, ChangeInvisible, Pop, Renew
from cosmodrome_server.errors import InvalidReceiptHandle
from cosmodrome_server.model.group import CustomizedBackoff
from cosmodrome_server.model.receipt_handle import ReceiptHandle

PLACE = (1, 2, 3)
LEASE = 7
POPPED_MS, INVISIBLE_MS = 100, 50
MINUTE_MS = 60_000
BACKOFF = CustomizedBackoff((5_000, 9_000))


def popped() -> Progress:
    """Offsets 10, 11 and 13 are in flight for the first time, 12 was passed over."""
    progress = Progress(PLACE, 10)
    record = Pop(POPPED_MS, *PLACE, LEASE, 10, 4, 0b1011, invisible_ms=INVISIBLE_MS)
    progress.pop(record)
    return progress


def handle(
    *, lease_id: int = LEASE, attempt: int = 1, is_of_this_life: bool = True
) -> ReceiptHandle:
    return ReceiptHandle(*PLACE, 10, lease_id, attempt, is_of_this_life)


def lease_of(progress: Progress) -> Lease:
    return settle.leased(progress, handle(), 10)


def test_what_is_in_flight_is_acknowledged_by_its_lease() -> None:
    assert settle.plan_ack(popped(), handle(), 13, 120) == Ack(120, *PLACE, LEASE, 13)


def test_an_ack_again_of_what_is_done_is_nothing_to_do() -> None:
    progress = popped()
    progress.settle(LEASE, 11)
    assert settle.plan_ack(progress, handle(), 11, 120) is None


def test_what_waits_as_the_attempt_the_handle_is_of_is_acknowledged_without_a_lease() -> None:
    progress = popped()
    lease = lease_of(progress)
    lease.is_suspended = True  # given back: what comes next is the same attempt
    progress.expire(lease)
    assert settle.plan_ack(progress, handle(), 11, 200) == Ack(200, *PLACE, 0, 11)


@pytest.mark.parametrize(
    "stale",
    [handle(), handle(attempt=2, is_of_this_life=False)],
    ids=["an earlier attempt", "an earlier life"],
)
def test_what_waits_is_not_acknowledged_by_a_handle_of(stale: ReceiptHandle) -> None:
    progress = popped()
    progress.expire(lease_of(progress))
    with pytest.raises(InvalidReceiptHandle, match="queue offset 11 has expired"):
        settle.plan_ack(progress, stale, 11, 200)


def test_many_of_one_lease_are_acknowledged_together() -> None:
    planned = settle.plan_ack_many(popped(), handle(), [13, 10], 120)
    assert planned == AckMany(120, *PLACE, LEASE, 10, 0b1001)


@pytest.mark.parametrize("offsets", [[10, 10], [10, 12], [9, 10], [10, 14]], ids=str)
def test_many_are_not_when_the_lease_does_not_hold_each_once(offsets: list[int]) -> None:
    assert settle.plan_ack_many(popped(), handle(), offsets, 120) is None


def test_many_are_not_when_the_lease_is_gone() -> None:
    assert settle.plan_ack_many(popped(), handle(lease_id=8), [10], 120) is None


def test_nothing_but_an_ack_may_follow_an_ack() -> None:
    progress = popped()
    progress.settle(LEASE, 11)
    with pytest.raises(InvalidReceiptHandle, match="attempt 1 at queue offset 11"):
        settle.leased(progress, handle(), 11)


def test_a_change_gives_one_message_a_lease_of_its_own() -> None:
    progress = popped()
    planned = settle.plan_change(progress, lease_of(progress), (11, 900, True), 8, 120)
    assert planned == ChangeInvisible(120, *PLACE, LEASE, 11, 8, 900, True)
    old, changed = progress.change(planned)
    assert old is not None
    assert (old.offsets(), changed.offsets(), changed.deadline_ms) == ([10, 13], [11], 1_020)


@pytest.mark.parametrize(
    ("renewals", "minutes"), [(0, 1), (1, 3), (2, 5), (3, 10), (4, 30), (5, 60), (6, 60)]
)
def test_each_renewal_is_longer_up_to_an_hour(renewals: int, minutes: int) -> None:
    progress = popped()
    lease = lease_of(progress)
    lease.popped_ms, lease.renewals = POPPED_MS, renewals
    planned = settle.plan_renewal(
        progress, lease, BACKOFF, POPPED_MS, total_ms=settle.RENEWAL_TOTAL_MS
    )
    assert planned == Renew(POPPED_MS, *PLACE, LEASE, minutes * MINUTE_MS, is_last=False)


@pytest.mark.parametrize(
    ("left_ms", "invisible_ms", "is_last"),
    [(10_001, 10_001, False), (10_000, 15_000, True), (0, 5_000, True), (-1, 5_000, True)],
)
def test_renewals_end_three_hours_after_the_receive_with_the_backoff_of_the_group(
    left_ms: int, invisible_ms: int, *, is_last: bool
) -> None:
    progress = popped()
    lease = lease_of(progress)
    lease.popped_ms = POPPED_MS
    now_ms = POPPED_MS + settle.RENEWAL_TOTAL_MS - left_ms
    planned = settle.plan_renewal(
        progress, lease, BACKOFF, now_ms, total_ms=settle.RENEWAL_TOTAL_MS
    )
    assert planned == Renew(now_ms, *PLACE, LEASE, invisible_ms, is_last)


def test_the_lease_of_a_client_that_is_gone_ends_in_a_second_or_sooner() -> None:
    progress = popped()
    lease = lease_of(progress)
    ends_ms = POPPED_MS + INVISIBLE_MS
    assert settle.plan_release(progress, lease, ends_ms - settle.CLIENT_GONE_MS) is None
    lease.deadline_ms += 1
    planned = settle.plan_release(progress, lease, ends_ms - settle.CLIENT_GONE_MS)
    assert planned == Renew(
        ends_ms - settle.CLIENT_GONE_MS, *PLACE, LEASE, settle.CLIENT_GONE_MS, is_last=True
    )
