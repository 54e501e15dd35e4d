"""Sending one batch: choose a broker, call, try again where that helps, tell each message.

attempt ─▶ answer ─▶ a receipt or an error per message
├─ no answer / broker failed ─▶ pass the broker over, next candidate
├─ TOO_MANY_REQUESTS ─▶ rest by the policy, next attempt
├─ topic not found ─▶ ask for the route once more, once
└─ anything else the broker refuses ─▶ no second try: it would refuse again
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from cosmodrome._client.rpc import Answer, Rpc
from cosmodrome._core import convert, route, status
from cosmodrome._core.isolation import Isolation
from cosmodrome._core.retry import RetryPolicy
from cosmodrome._core.route import MessageQueue, RoundRobin, Route
from cosmodrome.errors import (
    CosmodromeError,
    InternalError,
    NotFound,
    StatusError,
    TooManyRequests,
    TopicNotFound,
    TransportError,
)
from cosmodrome.message import SendReceipt
from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_proto import service_pb2 as rpc

Outcome = SendReceipt | CosmodromeError
QueueSelector = Callable[[Sequence[MessageQueue], pb.Message], MessageQueue]


@dataclass(slots=True)
class Sender:
    """What sending needs; one per producer."""

    rpc: Rpc
    isolation: Isolation
    round_robin: RoundRobin
    max_attempts: int
    policy: Callable[[], RetryPolicy]
    find_route: Callable[[str], Awaitable[Route]]
    refresh_route: Callable[[str], Awaitable[Route]]
    select: QueueSelector | None
    deadline_s: float
    request_timeout_s: float

    async def send(self, topic: str, messages: list[pb.Message]) -> list[Outcome]:
        """One outcome per message, in order. Never raises a CosmodromeError."""
        ends = _now_s() + self.deadline_s
        tried_fresh_route = False
        failure: CosmodromeError = NotFound(f"topic {topic} has no queue that takes messages")
        maybe_stored = False
        attempt = 0
        while attempt < self.max_attempts:
            attempt += 1
            left_s = ends - _now_s()
            if left_s <= 0:
                break
            try:
                candidates = self._candidates(await self.find_route(topic), messages)
                queue = candidates[(attempt - 1) % len(candidates)]
                return await self._attempt(queue, topic, messages, left_s)
            except TopicNotFound as error:
                failure = error
                if tried_fresh_route or not await self._has_fresh_route(topic):
                    break
                tried_fresh_route = True
                attempt -= 1
            except CosmodromeError as error:
                failure = error
                maybe_stored = maybe_stored or error.maybe_stored
                if not error.is_retryable or attempt == self.max_attempts:
                    break
                await self._rest(error, attempt, ends)
        failure.maybe_stored = maybe_stored or failure.maybe_stored
        return [failure] * len(messages)

    def _candidates(self, found: Route, messages: list[pb.Message]) -> list[MessageQueue]:
        writable = found.writable
        if self.select is not None and writable:
            return [self.select(writable, messages[0])]
        group = messages[0].system_properties.message_group
        if group:
            return [route.queue_for_group(writable, group)]
        isolated = self.isolation.isolated(_now_ms())
        return self.round_robin.candidates(writable, self.max_attempts, isolated)

    async def _attempt(
        self, queue: MessageQueue, topic: str, messages: list[pb.Message], left_s: float
    ) -> list[Outcome]:
        for message in messages:
            message.system_properties.queue_id = queue.queue_id
        started = _now_s()
        try:
            answer = await self.rpc.call(
                queue.endpoints,
                "SendMessage",
                rpc.SendMessageRequest(messages=messages),
                timeout_s=min(left_s, self.request_timeout_s),
            )
        except TransportError:
            self.isolation.failed(queue.endpoints)
            raise
        latency_ms = (_now_s() - started) * 1000
        self.isolation.answered(queue.endpoints, latency_ms, _now_ms())
        return outcomes(answer, topic, messages)

    async def _has_fresh_route(self, topic: str) -> bool:
        try:
            await self.refresh_route(topic)
        except CosmodromeError:
            return False
        return True

    async def _rest(self, error: CosmodromeError, attempt: int, ends: float) -> None:
        if isinstance(error, TooManyRequests):
            rest_s = self.policy().delay_ms(attempt) / 1000
            await asyncio.sleep(min(rest_s, max(0.0, ends - _now_s())))


def outcomes(answer: Answer, topic: str, messages: list[pb.Message]) -> list[Outcome]:
    """What an answer says of each message.

    The reference's proxy answers a batch with one entry; then all were stored, and only the
    first one's offset is known.

    Raises:
        StatusError: The whole request was refused.
    """
    response = answer.response
    entries = response.entries
    if not entries:
        error = status.error_of(
            response.status, endpoint=answer.endpoint, request_id=answer.request_id
        )
        raise error or InternalError("the broker answered a send with no entry")
    if len(messages) == 1 and len(entries) == 1:
        _raise_if_refused(answer, entries[0])
    elif len(entries) < len(messages):
        _raise_if_refused(answer, entries[0])
        return [_unplaced(message, topic, answer.endpoint) for message in messages]
    return [
        _outcome(entry, message, topic, answer)
        for entry, message in zip(entries, messages, strict=False)
    ]


def _raise_if_refused(answer: Answer, entry: rpc.SendResultEntry) -> None:
    error = _error(entry, answer)
    if error is not None:
        raise error


def _error(entry: rpc.SendResultEntry, answer: Answer) -> StatusError | None:
    return status.error_of(entry.status, endpoint=answer.endpoint, request_id=answer.request_id)


def _outcome(
    entry: rpc.SendResultEntry, message: pb.Message, topic: str, answer: Answer
) -> Outcome:
    error = _error(entry, answer)
    if error is not None:
        return error
    message_id = message.system_properties.message_id
    return convert.receipt(entry, topic, message_id, answer.endpoint)


def _unplaced(message: pb.Message, topic: str, endpoint: str) -> SendReceipt:
    message_id = message.system_properties.message_id
    return SendReceipt(message_id, topic, queue_offset=-1, endpoint=endpoint)


def _now_s() -> float:
    return asyncio.get_running_loop().time()


def _now_ms() -> int:
    return int(_now_s() * 1000)
