"""Sending one batch: choose a broker, call, try again where that helps, tell each message.

attempt ─▶ answer ─▶ a receipt or an error per message
├─ no answer / broker failed ─▶ pass the broker over, next candidate; where there is no other,
│                               wait for it, a request timeout at most
├─ TOO_MANY_REQUESTS ─▶ rest by the policy, next attempt
├─ topic not found ─▶ ask for the route once more, once
└─ anything else the broker refuses ─▶ no second try: it would refuse again
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from cosmodrome._client.rpc import Answer, Rpc
from cosmodrome._core import convert, route, status
from cosmodrome._core.endpoints import Endpoints
from cosmodrome._core.isolation import Isolation
from cosmodrome._core.retry import RetryPolicy
from cosmodrome._core.route import MessageQueue, RoundRobin, Route
from cosmodrome.errors import (
    ConnectionFailed,
    CosmodromeError,
    DeadlineExceeded,
    InternalError,
    StatusError,
    TooManyRequests,
    TopicNotFound,
    TransportError,
    UnrecognizedClientType,
)
from cosmodrome.receipt import SendReceipt
from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_proto import service_pb2 as rpc

Outcome = SendReceipt | CosmodromeError
# Brokers of ours keep a queue that is chosen by the client; the reference's choose again.
QUEUE_ID = "x-cosmodrome-queue-id"


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
    deadline_s: float
    request_timeout_s: float

    async def send(
        self, topic: str, messages: list[pb.Message], queue: MessageQueue | None = None
    ) -> list[Outcome]:
        """One outcome per message, in order. Never raises a CosmodromeError.

        Args:
            topic: Where to.
            messages: What is sent in one request.
            queue: Where exactly; None for wherever the rules say.
        """
        state = _Sending(topic, messages, _now_s() + self.deadline_s, queue)
        attempt = 0
        candidates: list[MessageQueue] = []
        while attempt < self.max_attempts and state.left and _now_s() < state.ends_s:
            attempt += 1
            try:
                candidates = self._candidates(await self.find_route(topic), state)
                answered = await self._attempt(candidates[(attempt - 1) % len(candidates)], state)
                if isinstance(answered[0], TopicNotFound):
                    raise answered[0]
                state.take(answered)
                failure = state.failure
            except TopicNotFound as error:
                state.fail(error)
                if state.has_fresh_route or not await self._has_fresh_route(topic):
                    break
                state.has_fresh_route = True
                attempt -= 1
                continue
            except CosmodromeError as error:
                state.fail(error)
                failure = error
            if failure is None or not failure.is_retryable:
                break
            if attempt < self.max_attempts:
                await self._rest(failure, attempt, candidates, state.ends_s)
        return state.outcomes()

    def _candidates(self, found: Route, state: "_Sending") -> list[MessageQueue]:
        writable = found.writable
        if state.queue is not None:
            return [state.queue]
        group = state.left_messages()[0].system_properties.message_group
        if group:
            return [route.queue_for_group(writable, group)]
        isolated = self.isolation.isolated(_now_ms())
        return self.round_robin.candidates(writable, self.max_attempts, isolated)

    async def _attempt(self, queue: MessageQueue, state: "_Sending") -> list[Outcome]:
        messages = state.left_messages()
        for message in messages:
            message.system_properties.queue_id = queue.queue_id
        is_chosen = state.queue is not None
        if len(messages) > 1 and messages[0].system_properties.message_group and not is_chosen:
            # Each its own queue; all are of one broker, see `by_broker`.
            writable = (await self.find_route(state.topic)).writable
            for message in messages:
                group = message.system_properties.message_group
                message.system_properties.queue_id = route.queue_for_group(writable, group).queue_id
        started = _now_s()
        try:
            answer = await self.rpc.call(
                queue.endpoints,
                "SendMessage",
                rpc.SendMessageRequest(messages=messages),
                timeout_s=max(0.001, min(state.ends_s - started, self.request_timeout_s)),
                more=((QUEUE_ID, str(queue.queue_id)),) if is_chosen else (),
            )
        except TransportError:
            self.isolation.failed(queue.endpoints)
            raise
        latency_ms = (_now_s() - started) * 1000
        self.isolation.answered(queue.endpoints, latency_ms, _now_ms())
        return outcomes(answer, state.topic, messages)

    async def _has_fresh_route(self, topic: str) -> bool:
        try:
            await self.refresh_route(topic)
        except CosmodromeError:
            return False
        return True

    async def _rest(
        self, error: CosmodromeError, attempt: int, tried: list[MessageQueue], ends: float
    ) -> None:
        brokers = {queue.endpoints for queue in tried}
        if isinstance(error, ConnectionFailed) and len(brokers) == 1:
            wait_s = min(self.request_timeout_s, ends - _now_s())
            await self.rpc.reach(brokers.pop(), max(0.0, wait_s))
        # A broker that lost our settings is told them again at once; that takes a moment, too.
        if isinstance(error, TooManyRequests | UnrecognizedClientType):
            rest_s = self.policy().delay_ms(attempt) / 1000
            await asyncio.sleep(min(rest_s, max(0.0, ends - _now_s())))


def by_broker(found: Route, messages: list[pb.Message]) -> list[list[int]]:
    """Indexes of messages with a group that may share a request: those of one broker."""
    if len(messages) == 1 or len(found.endpoints) < 2:
        return [list(range(len(messages)))]
    parts: dict[Endpoints, list[int]] = {}
    for index, message in enumerate(messages):
        group = message.system_properties.message_group
        queue = route.queue_for_group(found.writable, group)
        parts.setdefault(queue.endpoints, []).append(index)
    return list(parts.values())


class _Sending:
    """The messages of one send: what is known of each, and which are still to be tried.

    A message of a group is tried again only while none behind it in the group is stored: else it
    would come after it.
    """

    def __init__(
        self, topic: str, messages: list[pb.Message], ends_s: float, queue: MessageQueue | None
    ) -> None:
        self.topic = topic
        self.queue = queue
        self.ends_s = ends_s
        self.has_fresh_route = False
        self.failure: CosmodromeError | None = None
        self.left = list(range(len(messages)))
        self._messages = messages
        self._known: list[Outcome | None] = [None] * len(messages)

    def left_messages(self) -> list[pb.Message]:
        """Those that are still to be tried."""
        if len(self.left) == len(self._messages):
            return self._messages
        return [self._messages[index] for index in self.left]

    def fail(self, error: CosmodromeError) -> None:
        """A try failed for all."""
        for index in self.left:
            self._note(index, error)

    def take(self, outcomes: list[Outcome]) -> None:
        """A try was answered message by message; those that may be tried again stay left."""
        again: list[int] = []
        stored_groups: set[str] = set()
        self.failure = None
        for index, outcome in zip(reversed(self.left), reversed(outcomes), strict=True):
            group = self._messages[index].system_properties.message_group
            if isinstance(outcome, SendReceipt):
                self._known[index] = outcome
                stored_groups.add(group)
                continue
            self._note(index, outcome)
            if outcome.is_retryable and not (group and group in stored_groups):
                again.append(index)
                self.failure = outcome
        self.left = again[::-1]

    def outcomes(self) -> list[Outcome]:
        """What came of each message."""
        unsent = DeadlineExceeded(f"{self.topic}: no time was left for a try")
        return [outcome or unsent for outcome in self._known]

    def _note(self, index: int, error: CosmodromeError) -> None:
        before = self._known[index]
        if isinstance(before, CosmodromeError) and before is not error:
            error.attempts = (*before.attempts, before)
            error.maybe_stored = error.maybe_stored or before.maybe_stored
        self._known[index] = error


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
    if len(entries) < len(messages):
        _raise_if_refused(answer, entries[0])
        return [_unplaced(message, topic, answer.endpoint) for message in messages]
    # A slice, because a protobuf list iterates through Python.
    return [
        _outcome(entry, message, topic, answer)
        for entry, message in zip(entries[:], messages, strict=False)
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
    message_id = message.system_properties.message_id
    if entry.status.code == pb.OK:  # nearly always
        return convert.receipt(entry, topic, message_id, answer.endpoint)
    error = _error(entry, answer)
    if error is None:
        return convert.receipt(entry, topic, message_id, answer.endpoint)
    if error.code in status.STORED_CODES:
        error.receipt = convert.receipt(entry, topic, message_id, answer.endpoint)
    return error


def _unplaced(message: pb.Message, topic: str, endpoint: str) -> SendReceipt:
    message_id = message.system_properties.message_id
    return SendReceipt(message_id, topic, queue_offset=-1, endpoint=endpoint)


def _now_s() -> float:
    return asyncio.get_running_loop().time()


def _now_ms() -> int:
    return int(_now_s() * 1000)
