"""How long to rest before the next try: the policies servers send, and our own for calls."""

from dataclasses import dataclass

from cosmodrome_proto import definition_pb2 as pb


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """A policy of the settings.

    Attributes:
        max_attempts: Tries or deliveries in all.
        rests_ms: Customised rests by attempt, the last repeats; empty for exponential.
        initial_ms, max_ms, multiplier: The exponential rests.
    """

    max_attempts: int
    rests_ms: tuple[int, ...] = ()
    initial_ms: int = 10
    max_ms: int = 1000
    multiplier: float = 2.0

    def delay_ms(self, attempt: int) -> int:
        """How long to rest after attempt `attempt` (from 1) failed."""
        if self.rests_ms:
            return self.rests_ms[min(max(attempt, 1), len(self.rests_ms)) - 1]
        # Past 64 doublings every bound is reached; it keeps the power finite.
        grown = self.initial_ms * self.multiplier ** min(max(attempt - 1, 0), 64)
        return int(min(self.max_ms, grown))


# What the reference's proxy sends, until ours has spoken.
PRODUCER_DEFAULT = RetryPolicy(3)
CONSUMER_DEFAULT = RetryPolicy(
    17,
    tuple(
        seconds * 1000
        for seconds in (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800)
    ),
)


def from_wire(policy: pb.RetryPolicy, default: RetryPolicy) -> RetryPolicy:
    """Read a policy; what it leaves out is the default's."""
    attempts = policy.max_attempts or default.max_attempts
    if policy.WhichOneof("strategy") == "customized_backoff" and policy.customized_backoff.next:
        rests = tuple(rest.ToMilliseconds() for rest in policy.customized_backoff.next)
        return RetryPolicy(attempts, rests)
    if policy.WhichOneof("strategy") == "exponential_backoff":
        grown = policy.exponential_backoff
        return RetryPolicy(
            attempts,
            (),
            grown.initial.ToMilliseconds(),
            max(grown.max.ToMilliseconds(), grown.initial.ToMilliseconds()),
            max(1.0, grown.multiplier),
        )
    return RetryPolicy(
        attempts, default.rests_ms, default.initial_ms, default.max_ms, default.multiplier
    )
