"""What every consumer of a group does beside what every client does."""

import asyncio
import logging
import weakref
from collections.abc import Iterable
from datetime import timedelta

from cosmodrome._client.client import Client
from cosmodrome._client.receiving import Received, receive
from cosmodrome._client.settling import Settler
from cosmodrome._core import settings
from cosmodrome._core.route import MessageQueue
from cosmodrome.config import ClientConfiguration
from cosmodrome.errors import IllegalArgument
from cosmodrome.filters import Filter, Subscriptions, filters_of
from cosmodrome.interceptors import HookContext, HookPoint, Interceptor
from cosmodrome.message import MessageView
from cosmodrome_proto import Duration
from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_proto import service_pb2 as rpc

_log = logging.getLogger("cosmodrome")


class Consumer(Client):
    """Base of the consumers that receive and acknowledge.

    Args:
        configuration: Where the broker is.
        group: The consumer group.
        subscriptions: Topics and what is wanted of them.
        await_duration: How long a receive waits for messages, until the broker says.
        interceptors: Hooks.
    """

    client_type: int = pb.CLIENT_TYPE_UNSPECIFIED

    def __init__(
        self,
        configuration: ClientConfiguration | str,
        *,
        group: str,
        subscriptions: Subscriptions,
        await_duration: timedelta,
        interceptors: Iterable[Interceptor] = (),
    ) -> None:
        self._group = group
        super().__init__(configuration, interceptors=interceptors)
        if not group.strip():
            raise IllegalArgument("a consumer needs a group")
        self._subscriptions = filters_of(subscriptions)
        self._await_ms = await_duration // timedelta(milliseconds=1)
        self._told = settings.ConsumerSettings(long_polling_ms=self._await_ms)
        self._settler: Settler

    @property
    def group(self) -> str:
        """The consumer group."""
        return self._group

    @property
    def subscriptions(self) -> dict[str, Filter]:
        """What is subscribed to now, as a copy."""
        return dict(self._subscriptions)

    def _receive_request(
        self, queue: MessageQueue, wanted: Filter, batch: int
    ) -> rpc.ReceiveMessageRequest:
        return rpc.ReceiveMessageRequest(
            group=self._resource(self._group),
            message_queue=queue.to_wire(self._configuration.namespace),
            filter_expression=wanted.to_wire(),
            batch_size=batch,
            long_polling_timeout=_duration(self._told.long_polling_ms),
        )

    async def _hooked_receive(
        self, queue: MessageQueue, request: rpc.ReceiveMessageRequest
    ) -> Received:
        """Receive once, for a listener."""
        timeout_s = self._receive_timeout_s
        if not self._interceptors:
            return await self._receive_once(queue, request, timeout_s)
        context = HookContext(HookPoint.RECEIVE, self._client_id, queue.topic, self._group)
        with self._interceptors.around_ours(context):
            received = await self._receive_once(queue, request, timeout_s)
            context.messages = list(received.messages)
        return received

    async def _receive_once(
        self, queue: MessageQueue, request: rpc.ReceiveMessageRequest, timeout_s: float
    ) -> Received:
        return await receive(
            self._rpc,
            queue.endpoints,
            request,
            timeout_s=timeout_s,
            give_back=self._settler.give_back,
        )

    def _leave_out(self, messages: list[MessageView], wanted: Filter) -> list[MessageView]:
        """Messages whose tag is wanted; the others are acknowledged unseen.

        Brokers that select by the hash of a tag deliver others of the same hash.
        """
        if wanted.takes_all_tags:
            return messages
        kept = [message for message in messages if wanted.takes_tag(message.tag)]
        if len(kept) < len(messages):
            for message in messages:
                if not wanted.takes_tag(message.tag):
                    self._tasks.spawn(self._settler.ack_for_sure(message), "ack unwanted")
        return kept

    def _warn_of_others(self) -> None:
        """Members of a group that subscribe differently lose messages: say so."""
        for other in list(_started):
            if (
                other is not self
                and other.is_running
                and other.group == self._group
                and other._access_point == self._access_point  # noqa: SLF001 - a sibling
                and other.subscriptions != self.subscriptions
            ):
                _log.warning(
                    "members of group %s subscribe differently, %s to %s and %s to %s: "
                    "each gets only part of what it wants",
                    self._group,
                    self._client_id,
                    sorted(self._subscriptions),
                    other.client_id,
                    sorted(other.subscriptions),
                    extra={"group": self._group},
                )

    @property
    def _receive_timeout_s(self) -> float:
        return self._told.long_polling_ms / 1000 + self._configuration.request_timeout_s

    async def _on_started(self) -> None:
        self._settler = Settler(
            self._rpc,
            self._tasks,
            self._group,
            self._resource,
            (self._interceptors, self._client_id),
        )
        _started.add(self)
        self._warn_of_others()

    async def _flush_acks(self) -> None:
        """Wait for acks under way, one request timeout at most."""
        try:
            async with asyncio.timeout(self._configuration.request_timeout_s):
                await self._settler.flush()
        except TimeoutError:
            return  # they come again, which every consumer must bear

    def _metered_group(self) -> str:
        return self._group

    def _settings(self) -> pb.Settings:
        return settings.consumer_settings(
            self._configuration,
            self.client_type,
            self._group,
            self._subscriptions,
            self._await_ms,
        )

    def _take_settings(self, told: pb.Settings) -> None:
        self._told = settings.read_consumer(told)

    def _startup_topics(self) -> list[str]:
        return list(self._subscriptions)

    def _heartbeat_request(self) -> rpc.HeartbeatRequest:
        return rpc.HeartbeatRequest(
            client_type=pb.ClientType.ValueType(self.client_type),
            group=self._resource(self._group),
        )

    def _termination_request(self) -> rpc.NotifyClientTerminationRequest:
        return rpc.NotifyClientTerminationRequest(group=self._resource(self._group))


# Consumers of this process, to find members of one group that subscribe differently.
_started: "weakref.WeakSet[Consumer]" = weakref.WeakSet()


def _duration(milliseconds: int) -> Duration:
    return Duration(seconds=milliseconds // 1000, nanos=milliseconds % 1000 * 1_000_000)


def invisible(request: rpc.ReceiveMessageRequest, duration: timedelta) -> None:
    """Say for how long received messages are hidden."""
    request.invisible_duration.CopyFrom(_duration(duration // timedelta(milliseconds=1)))


def seconds_or_delta(duration: timedelta | float) -> timedelta:
    """A duration given as a timedelta or as seconds."""
    return duration if isinstance(duration, timedelta) else timedelta(seconds=duration)
