"""Flow control: who has to come back later (protocol.md 14).

    call ──▶ lane of its class          flow.calls_per_class
         ──▶ bucket of its client       flow.client_calls_per_s
         ──▶ bucket of its topic        flow.topic_sends_per_s, flow.topics
             or of its group            flow.group_receives_per_s, flow.groups
         ──▶ activity

A lane bounds the calls whose answer is held until it is durable: what piles up when the disk
is slow. Answers that leave at once (routes, heartbeats) never are under way for longer than
a turn of the loop; consumers that wait for messages have bounds of their own
(`delivery.waiters_max`, `delivery.waiters_per_group`).

A bucket holds what may be taken at once, one second's worth, and fills by its rate. Nothing
is taken of one bucket when another refuses. Without rates in the settings there are no
buckets and nothing is asked. `adopt` takes new settings while calls come in.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from threading import Lock
from typing import Any

from cosmodrome_proto import service_pb2 as rpc
from cosmodrome_server.broker.interface import ReplySink
from cosmodrome_server.clock import Clock
from cosmodrome_server.config import Flow
from cosmodrome_server.errors import OverloadedError
from cosmodrome_server.proxy.context import client_id_of
from cosmodrome_server.proxy.convert import resource
from cosmodrome_server.proxy.front import Call
from cosmodrome_server.proxy.receives import Asked

# The worker pools of the reference (protocol.md 1.0.2); RPCs it has none for go with their kin.
CLASSES = {
    "QueryRoute": "route",
    "QueryAssignment": "route",
    "SendMessage": "producer",
    "ForwardMessageToDeadLetterQueue": "producer",
    "RecallMessage": "producer",
    "ReceiveMessage": "consumer",
    "AckMessage": "consumer",
    "ChangeInvisibleDuration": "consumer",
    "PullMessage": "consumer",
    "UpdateOffset": "consumer",
    "GetOffset": "consumer",
    "QueryOffset": "consumer",
    "SyncLiteSubscription": "consumer",
    "Heartbeat": "client manager",
    "NotifyClientTermination": "client manager",
    "EndTransaction": "transaction",
}
# A client that calls too often must not be taken for dead besides.
ALWAYS_WELCOME = frozenset({"Heartbeat", "NotifyClientTermination"})
# Per kind; the bucket that was not asked for longest gives way.
BUCKETS_MAX = 10_000
# How many of those not asked for longest are looked at for each that is made.
SWEPT = 2
# Longer names are no topics or groups; client ids share a bucket beyond it.
KEY_CHARS = 255
# A frame is on disk by then, usually.
LANE_HINT_MS = 100

Charge = Callable[[Call, Any], None]
# Whose bucket a request is charged to, and how much; "" for nobody's.
Measure = Callable[[Any], tuple[str, int]]


class TokenBucket:
    """Admits `rate` a second, and one second's worth at once; knows no clock.

    A cost above one second's worth is admitted by a full bucket, which then owes the rest.
    Counts in thousandths, so that each millisecond adds `rate` of them and nothing is rounded.
    """

    __slots__ = ("_at_ms", "_level", "_most", "_rate")

    def __init__(self, rate: int, now_ms: int) -> None:
        """Be full."""
        self._rate = rate
        self._most = self._level = rate * 1000
        self._at_ms = now_ms

    def wait_ms(self, cost: int, now_ms: int) -> int:
        """How long until `cost` is admitted if nobody else comes; 0 for now."""
        self._level = min(self._most, self._level + (now_ms - self._at_ms) * self._rate)
        self._at_ms = now_ms
        missing = min(cost * 1000, self._most) - self._level
        return -(-missing // self._rate) if missing > 0 else 0

    def is_full(self, now_ms: int) -> bool:
        """Whether it is what a new one would be."""
        return self._level + (now_ms - self._at_ms) * self._rate >= self._most

    def become(self, rate: int) -> None:
        """Fill by another rate from when it was last asked; what is owed stays owed."""
        if rate != self._rate:
            self._rate, self._most = rate, rate * 1000
            self._level = min(self._level, self._most)

    def take(self, cost: int) -> None:
        """Take what `wait_ms` admitted."""
        self._level -= cost * 1000


class Buckets:
    """The buckets of one kind, by name; made when first asked for."""

    def __init__(
        self, what: str, setting: str, rate: int, table: str, own: Mapping[str, int]
    ) -> None:
        """Take a kind of buckets.

        Args:
            what: A text with {name} and {rate}, for who is refused.
            setting: Holds `rate`.
            rate: Of names not in `own`; 0 for no bound.
            table: The setting that holds `own`.
            own: Rates by name; 0 for no bound.
        """
        self._what = what
        self._setting = setting
        self._table = table
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()
        self.adopt(rate, own)

    def adopt(self, rate: int, own: Mapping[str, int]) -> None:
        """Admit by these rates from now on."""
        self._rate = rate
        self._own = own

    def __len__(self) -> int:
        return len(self._buckets)

    @property
    def has_bounds(self) -> bool:
        """Whether any name is bounded."""
        return self._rate > 0 or any(self._own.values())

    def admitting(self, name: str, cost: int, now_ms: int) -> TokenBucket | None:
        """The bucket to take the cost from; None where nothing bounds this name.

        Raises:
            OverloadedError: It does not hold enough now.
        """
        rate = self._own.get(name, self._rate)
        if not rate:
            return None
        bucket = self._bucket(name[:KEY_CHARS], rate, now_ms)
        wait_ms = bucket.wait_ms(cost, now_ms)
        if wait_ms:
            setting = self._table if name in self._own else self._setting
            what = self._what.format(name=name[:KEY_CHARS], rate=rate)
            raise OverloadedError(f"{what} ({setting}); come back in {wait_ms} ms", setting)
        return bucket

    def _bucket(self, key: str, rate: int, now_ms: int) -> TokenBucket:
        bucket = self._buckets.get(key)
        if bucket is None:
            self._sweep(now_ms)
            bucket = self._buckets[key] = TokenBucket(rate, now_ms)
        else:
            bucket.become(rate)
            self._buckets.move_to_end(key)
        return bucket

    def _sweep(self, now_ms: int) -> None:
        """Forget those that have filled up since: they say no more than new ones would."""
        for _ in range(SWEPT):
            if not self._buckets:
                return
            oldest = next(iter(self._buckets))
            if len(self._buckets) < BUCKETS_MAX and not self._buckets[oldest].is_full(now_ms):
                return
            del self._buckets[oldest]


class Lane:
    """The calls of one class that are under way: a `ReplySink` that counts.

    Calls begin on the loop's thread and end on the writer's or the loop's, hence two counts:
    `_begun` is written by the loop alone, `_ended` under the lock.
    """

    __slots__ = ("_begun", "_ended", "_lock", "_most", "_name", "_sink")

    def __init__(self, name: str, most: int, sink: Callable[[], ReplySink]) -> None:
        self._name = name
        self._most = most
        self._sink = sink
        self._begun = self._ended = 0
        self._lock = Lock()

    @property
    def under_way(self) -> int:
        """How many have begun and not ended."""
        return self._begun - self._ended

    def adopt(self, most: int) -> None:
        """Let so many in from now on."""
        self._most = most

    def check(self) -> None:
        """Let one more call in.

        Raises:
            OverloadedError: As many as may be are under way.
        """
        if self._begun - self._ended >= self._most:
            raise OverloadedError(
                f"{self._most} {self._name} calls are under way (flow.calls_per_class); "
                f"come back in {LANE_HINT_MS} ms",
                "flow.calls_per_class",
            )

    def begin(self) -> ReplySink:
        """Count a call until its answer is handed to the sink that is returned."""
        self._begun += 1
        return self

    def reply_many(self, replies: list[tuple[object, bytes]]) -> None:
        """Pass answers on; from any thread."""
        with self._lock:
            self._ended += len(replies)
        self._sink().reply_many(replies)


class Toll:
    """What the calls of one method are asked; `charge` is None while no rate bounds them."""

    __slots__ = ("charge",)

    def __init__(self, charge: Charge | None) -> None:
        self.charge = charge


class FlowControl:
    """All bounds of one server."""

    def __init__(self, settings: Flow, clock: Clock, sink: Callable[[], ReplySink]) -> None:
        """Take the settings; `sink` says where answers of unary calls go."""
        self._clock = clock
        self._lanes = {
            name: Lane(name, settings.calls_per_class, sink) for name in set(CLASSES.values())
        }
        self.clients = Buckets(
            "client {name} may make {rate} calls a second",
            *("flow.client_calls_per_s", settings.client_calls_per_s, "", {}),
        )
        self.topics = Buckets(
            "topic {name} takes {rate} messages a second",
            *("flow.topic_sends_per_s", settings.topic_sends_per_s),
            *("flow.topics", settings.topics),
        )
        self.groups = Buckets(
            "group {name} may receive {rate} times a second",
            *("flow.group_receives_per_s", settings.group_receives_per_s),
            *("flow.groups", settings.groups),
        )
        self._tolls = {method: Toll(self.charge_of(method)) for method in CLASSES}

    def adopt(self, settings: Flow) -> None:
        """Admit by these settings from now on; on the loop's thread."""
        for lane in self._lanes.values():
            lane.adopt(settings.calls_per_class)
        self.clients.adopt(settings.client_calls_per_s, {})
        self.topics.adopt(settings.topic_sends_per_s, settings.topics)
        self.groups.adopt(settings.group_receives_per_s, settings.groups)
        for method, toll in self._tolls.items():
            toll.charge = self.charge_of(method)

    def under_way(self) -> dict[str, int]:
        """Calls of each class that wait for the disk now."""
        return {name: lane.under_way for name, lane in self._lanes.items()}

    def toll_of(self, method: str) -> Toll:
        """What the calls of a method are asked, whatever the settings become."""
        return self._tolls[method]

    def lane_of(self, method: str) -> Lane:
        """The lane of a method of MessagingService."""
        return self._lanes[CLASSES[method]]

    def charge_of(self, method: str) -> Charge | None:
        """What to ask before each call of a method; None where no rate bounds it."""
        buckets, measure = self._measured(method)
        is_counted = self.clients.has_bounds and method not in ALWAYS_WELCOME
        if not is_counted and measure is None:
            return None

        def charge(call: Call, request: Any) -> None:  # noqa: ANN401 - the method's request
            now_ms = self._clock.monotonic_ms()
            client = self.clients.admitting(client_id_of(call), 1, now_ms) if is_counted else None
            if measure is not None:
                name, cost = measure(request)
                bucket = buckets.admitting(name, cost, now_ms) if name else None
                if bucket is not None:
                    bucket.take(cost)
            if client is not None:
                client.take(1)

        return charge

    def _measured(self, method: str) -> tuple[Buckets, Measure | None]:
        if method == "SendMessage":
            return self.topics, _sent if self.topics.has_bounds else None
        if method == "ReceiveMessage" and self.groups.has_bounds:
            return self.groups, _received
        pulls = method == "PullMessage" and self.groups.has_bounds
        return self.groups, _pulled if pulls else None


def _sent(request: Any) -> tuple[str, int]:  # noqa: ANN401 - a SentMessages
    messages = request.messages
    return (resource(messages[0].topic)[0], len(messages)) if messages else ("", 0)


def _received(request: Asked) -> tuple[str, int]:
    return request.group, 1


def _pulled(request: rpc.PullMessageRequest) -> tuple[str, int]:
    return request.group.name, 1
