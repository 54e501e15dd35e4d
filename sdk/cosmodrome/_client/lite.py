"""Which lite topics a client reads, kept in step with the broker.

    subscribe ──PARTIAL_ADD──▶ broker        every 30 s and after its settings: COMPLETE_ADD
    unsubscribe ──PARTIAL_REMOVE──▶ broker   close: COMPLETE_REMOVE
    broker ──NOTIFY_UNSUBSCRIBE_LITE──▶ somebody else took an exclusive lite topic over

Changes carry a version that grows, so that one which arrives late changes nothing, and go one after
the other: a set that is said again while a name is being added would leave it out. A broker that
restarted, or forgot the client, sends settings anew; it knows of no lite topic then.
"""

import asyncio
import contextlib
import logging
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Self

from cosmodrome._client.rpc import Rpc
from cosmodrome._core import convert
from cosmodrome._core.endpoints import Endpoints
from cosmodrome.errors import CosmodromeError, IllegalArgument, LiteSubscriptionQuotaExceeded
from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_proto import service_pb2 as rpc

_log = logging.getLogger("cosmodrome")
SYNC_S, FAILED_S = 30.0, 1.0
_ALLOWED = re.compile(r"[a-zA-Z0-9_-]+")


@dataclass(frozen=True, slots=True)
class OffsetOption:
    """Where reading a newly subscribed lite topic begins.

    Example:
        >>> OffsetOption.tail(10).value
        10
    """

    kind: str
    value: int = 0

    @classmethod
    def last(cls) -> Self:
        """Where the group is; at the end if it never read it."""
        return cls("policy", pb.OffsetOption.LAST)

    @classmethod
    def first(cls) -> Self:
        """At the first message there is."""
        return cls("policy", pb.OffsetOption.MIN)

    @classmethod
    def end(cls) -> Self:
        """At the next message."""
        return cls("policy", pb.OffsetOption.MAX)

    @classmethod
    def at(cls, offset: int) -> Self:
        """At an offset."""
        return cls("offset", offset)

    @classmethod
    def tail(cls, messages: int) -> Self:
        """So many messages before where the group is."""
        return cls("tail_n", messages)

    @classmethod
    def since(cls, moment: datetime) -> Self:
        """At the first message stored at or after a moment."""
        return cls("timestamp", convert.milliseconds(moment))

    def to_wire(self) -> pb.OffsetOption:
        """As a protobuf message."""
        option = pb.OffsetOption()
        setattr(option, self.kind, self.value)
        return option


class LiteTopics:
    """The lite topics of one client.

    Args:
        rpc_: The client's calls.
        group, topic: As they go over the wire.
        where: The brokers that must know.
        limits: How many there may be (0 for unknown) and how long a name.
    """

    def __init__(
        self,
        rpc_: Rpc,
        group: pb.Resource,
        topic: pb.Resource,
        where: Callable[[], Iterable[Endpoints]],
        limits: Callable[[], tuple[int, int]],
    ) -> None:
        self._rpc = rpc_
        self._group = group
        self._topic = topic
        self._where = where
        self._limits = limits
        self._names: dict[str, None] = {}
        self._version = 0
        self._changing = asyncio.Lock()
        self._told_settings = asyncio.Event()

    @property
    def names(self) -> frozenset[str]:
        """What is subscribed to now."""
        return frozenset(self._names)

    async def subscribe(self, name: str, option: OffsetOption | None) -> None:
        """Read a lite topic too.

        Raises:
            IllegalArgument: A name no broker takes.
            LiteSubscriptionQuotaExceeded: One too many.
            StatusError: The broker refused.
        """
        quota, most_bytes = self._limits()
        if not _ALLOWED.fullmatch(name) or len(name) > most_bytes:
            raise IllegalArgument(f"lite topic {name!r}: 1 to {most_bytes} of a-z A-Z 0-9 _ -")
        async with self._changing:
            if name in self._names:
                return
            if 0 < quota <= len(self._names):
                raise LiteSubscriptionQuotaExceeded(
                    f"{quota} lite topics are subscribed to, the most"
                )
            await self._send(pb.PARTIAL_ADD, [name], option)
            self._names[name] = None

    async def unsubscribe(self, name: str) -> None:
        """Read a lite topic no longer."""
        async with self._changing:
            if name in self._names:
                await self._send(pb.PARTIAL_REMOVE, [name])
                self._names.pop(name, None)

    async def sync(self) -> None:
        """Say everything again; it also keeps the subscription alive."""
        async with self._changing:
            await self._send(pb.COMPLETE_ADD, list(self._names))

    def settings_came(self) -> None:
        """The broker may not know of any lite topic: say them soon."""
        self._told_settings.set()

    async def keep(self) -> None:
        """Say everything again and again until cancelled."""
        rest_s = SYNC_S
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(rest_s):
                    await self._told_settings.wait()
            self._told_settings.clear()
            rest_s = SYNC_S
            try:
                await self.sync()
            except CosmodromeError as error:
                _log.info("lite topics of %s are said again in 1 s: %s", self._topic.name, error)
                rest_s = FAILED_S

    async def leave(self) -> None:
        """Say goodbye."""
        async with self._changing:
            if self._names:
                await self._send(pb.COMPLETE_REMOVE, [])

    def taken_over(self, name: str) -> None:
        """Another client reads it now."""
        self._names.pop(name, None)

    async def _send(
        self,
        action: pb.LiteSubscriptionAction.ValueType,
        names: list[str],
        option: OffsetOption | None = None,
    ) -> None:
        self._version += 1
        request = rpc.SyncLiteSubscriptionRequest(
            action=action,
            topic=self._topic,
            group=self._group,
            lite_topic_set=names,
            version=self._version,
        )
        if option is not None:
            request.offset_option.CopyFrom(option.to_wire())
        for endpoints in self._where():
            (await self._rpc.call(endpoints, "SyncLiteSubscription", request)).check()
