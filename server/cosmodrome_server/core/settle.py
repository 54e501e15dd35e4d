"""How a delivery ends, or goes on: acknowledge, change the invisible duration, renew.

    handle ──▶ the lease it names holds the message? ──▶ yes: act
                                                     ├─▶ no, the message is done: an ack
                                                     │   again is fine, all else refused
                                                     └─▶ no: expired, changed or delivered
                                                         again since: refused

Renewing follows the reference's steps, 1 m, 3 m, 5 m, 10 m, 30 m, 1 h and on, up to 3 h
from the receive; then, or when its client is gone, the lease ends after one last term.

Source: protocol.md 7.7–7.9 and their DO marks.
"""

from collections.abc import Sequence

from cosmodrome_server.core.consumptions import RENEW_AHEAD_MS
from cosmodrome_server.core.lease import Lease
from cosmodrome_server.core.progress import Progress
from cosmodrome_server.core.records import Ack, AckMany, ChangeInvisible, Renew
from cosmodrome_server.errors import InvalidReceiptHandle
from cosmodrome_server.model.group import Backoff
from cosmodrome_server.model.receipt_handle import ReceiptHandle

RENEWAL_STEPS_MS = (60_000, 180_000, 300_000, 600_000, 1_800_000, 3_600_000)
RENEWAL_TOTAL_MS = 10_800_000
CLIENT_GONE_MS = 1_000


def plan_ack(
    progress: Progress, handle: ReceiptHandle, queue_offset: int, lease_ms: int
) -> Ack | None:
    """End a delivery for good; None if it has ended so already.

    Raises:
        InvalidReceiptHandle: Expired, or replaced by a newer handle.
    """
    lease = progress.leases.get(handle.lease_id)
    if lease is not None and lease.holds(queue_offset):
        return Ack(lease_ms, *progress.place, lease.lease_id, queue_offset)
    if queue_offset in progress.done:
        return None
    # Nobody was given the message since, and its redelivery is the same attempt again:
    # taking the ack spares a duplicate. Not so from an earlier life: a power cut may have taken
    # lease and message, and another message may be ready there.
    if handle.is_of_this_life and progress.ready.get(queue_offset) == handle.attempt:
        return Ack(lease_ms, *progress.place, 0, queue_offset)
    raise stale(handle, queue_offset)


def plan_ack_many(
    progress: Progress, handle: ReceiptHandle, queue_offsets: Sequence[int], lease_ms: int
) -> AckMany | None:
    """End deliveries of one lease; None if it does not hold each of them, once."""
    lease = progress.leases.get(handle.lease_id)
    if lease is None or min(queue_offsets) < lease.base:
        return None
    mask = 0
    for queue_offset in queue_offsets:
        mask |= 1 << (queue_offset - lease.base)
    if mask & ~lease.mask or mask.bit_count() != len(queue_offsets):
        return None
    return AckMany(lease_ms, *progress.place, lease.lease_id, lease.base, mask)


def leased(progress: Progress, handle: ReceiptHandle, queue_offset: int) -> Lease:
    """The lease that holds the message.

    Raises:
        InvalidReceiptHandle: Acknowledged, expired, or replaced by a newer handle.
    """
    lease = progress.leases.get(handle.lease_id)
    if lease is None or not lease.holds(queue_offset):
        raise stale(handle, queue_offset)
    return lease


def stale(handle: ReceiptHandle, queue_offset: int) -> InvalidReceiptHandle:
    """The error for a handle whose delivery has ended."""
    return InvalidReceiptHandle(
        f"receipt handle of attempt {handle.attempt} at queue offset {queue_offset} has expired,"
        " was settled or was replaced by a newer one"
    )


def plan_change(
    progress: Progress,
    lease: Lease,
    change: tuple[int, int, bool],
    new_lease_id: int,
    lease_ms: int,
) -> ChangeInvisible:
    """Hide one message of `lease` anew; change = (queue offset, invisible ms, is suspended)."""
    queue_offset, invisible_ms, is_suspended = change
    return ChangeInvisible(
        lease_ms,
        *progress.place,
        lease.lease_id,
        queue_offset,
        new_lease_id,
        invisible_ms,
        is_suspended,
    )


def plan_renewal(
    progress: Progress, lease: Lease, backoff: Backoff, lease_ms: int, *, total_ms: int
) -> Renew:
    """Extend the lease of a client that lives; the last time by the group's backoff."""
    step_ms = RENEWAL_STEPS_MS[min(lease.renewals, len(RENEWAL_STEPS_MS) - 1)]
    left_ms = lease.popped_ms + total_ms - lease_ms
    # A renewal by less than it is due ahead would be due again at once.
    is_last = left_ms <= RENEW_AHEAD_MS
    last_ms = max(left_ms, 0) + backoff.delay_ms(lease.attempt)
    invisible_ms = last_ms if is_last else min(step_ms, left_ms)
    return Renew(lease_ms, *progress.place, lease.lease_id, invisible_ms, is_last)


def plan_release(progress: Progress, lease: Lease, lease_ms: int) -> Renew | None:
    """End the lease of a client that is gone soon; None if it ends sooner anyhow."""
    if lease.deadline_ms <= lease_ms + CLIENT_GONE_MS:
        return None
    return Renew(lease_ms, *progress.place, lease.lease_id, CLIENT_GONE_MS, is_last=True)
