"""Malformed calls of every RPC through the boundary: always an answer, never an internal error.

One case of Hypothesis is a seed, and a seed is a world with a few hundred calls in it: what
one leaves behind (handles, sessions, deleted topics) the next one meets. To see a failure
again: the seed is in the report, and the call with its bytes.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from cosmodrome_proto import Method
from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_proto import service_pb2 as rpc
from cosmodrome_server.model.group import Group
from cosmodrome_server.model.topic import Topic
from cosmodrome_server.proxy.front import GrpcStatus
from tests.fuzz.inputs import METHODS, Inputs
from tests.fuzz.judge import story, verdict
from tests.support.proxy_world import (
    FakeCall,
    ProxyWorld,
    ack_request,
    handle_of,
    message,
    run,
)

CALLS = 250
CASES, MANY_CASES = 40, 4_000
SEEDS = st.integers(0, 2**63)
# Waits of consumers, and of operators for a client's answer, are over by then.
LONGEST_WAIT_MS = 60_000
SETTLE_EVERY = 5


@pytest.fixture(autouse=True)
def _level_kept() -> Iterator[None]:
    """ChangeLogLevel is one of the RPCs."""
    logger = logging.getLogger("cosmodrome_server")
    level = logger.level
    yield
    logger.setLevel(level)


class Complaints(logging.Handler):
    """What was logged with a traceback: a bug, whatever the client was told."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.found.append(logging.Formatter().format(record))


class Attack:
    """Calls upon calls, and what they brought."""

    def __init__(self, world: ProxyWorld, seed: int) -> None:
        self.world = world
        self.inputs = Inputs(seed)
        self.under_way: list[tuple[Method, bytes, FakeCall]] = []
        self.codes: Counter[tuple[str, int]] = Counter()

    def begin(self, method: Method, payload: bytes) -> None:
        """Make a call; its answer is judged when it is there."""
        headers = self.inputs.headers()
        call = FakeCall(
            b"" if method.client_streams else payload,
            client_id=None,
            headers=headers,
            deadline_ms=self.inputs.deadline_ms(),
        )
        try:
            self.world.handlers[method.path](call)
            if method.client_streams:
                assert call._on_message is not None
                call._on_message(payload)
                if self.inputs.random.random() < 0.9:
                    call._on_message(None)
        except Exception as error:
            raise AssertionError(f"{method.name} raises\n{story(method, payload)}") from error
        if not method.client_streams and self.inputs.random.random() < 0.03:
            call.cancel()
        self.under_way.append((method, payload, call))

    def judge(self) -> None:
        """Look at the calls that were answered since, and learn from them."""
        waiting = []
        for method, payload, call in self.under_way:
            if call.is_gone:
                continue
            if call.ended is None:
                waiting.append((method, payload, call))
                continue
            assert call.ended[0] in {GrpcStatus.OK, GrpcStatus.INVALID_ARGUMENT}, (
                f"{method.name} ends {call.ended}\n{story(method, payload)}"
            )
            answers = [method.response.FromString(one) for one in call.messages]
            wrong = verdict(method, payload, answers)
            assert not wrong, wrong
            for answer in answers:
                self.inputs.learn(answer)
        self.under_way = waiting

    async def go_on(self, calls: int) -> None:
        """So many calls of any method."""
        for number in range(calls):
            method = self.inputs.method()
            self.begin(method, self.inputs.payload(method))
            if number % SETTLE_EVERY == 0:
                await self.world.world.settle()
                self.judge()
            if self.inputs.random.random() < 0.01:
                await self.world.later(self.inputs.random.choice((10, 1_000, 20_000)))

    async def end(self) -> None:
        """Let every wait run out: then nothing but open streams is left."""
        for _ in range(2):
            await self.world.later(LONGEST_WAIT_MS)
        self.judge()
        for method, payload, call in self.under_way:
            assert method.client_streams, (
                f"{method.name} is never answered\n{story(method, payload)}"
            )
            call.cancel()


async def still_works(world: ProxyWorld) -> None:
    """The broker takes, delivers once, and settles."""
    broker = world.world.broker
    broker.create_topic(Topic("afterwards", queues=1))
    broker.create_group(Group("survivors"))
    await world.world.settle()
    sent = await world.send(message(topic="afterwards", body=b"still here"))
    assert sent.status.code == pb.OK
    (received,) = await world.receive(topic="afterwards", group="survivors")
    assert received.body == b"still here"
    ack = ack_request(handle_of(received), topic="afterwards", group="survivors")
    assert await world.code("AckMessage", ack) == pb.OK
    assert await world.receive_nothing(topic="afterwards", group="survivors")
    assert world.world.fatal == []


def attack(seed: int, calls: int = CALLS) -> None:
    """One world under fire."""
    complaints = Complaints()
    unhandled: list[str] = []

    async def scenario(world: ProxyWorld) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: unhandled.append(str(context)))
        await world.send(
            *[message(bytes([number]), message_id=f"m{number}") for number in range(9)]
        )
        one = Attack(world, seed)
        for received in await world.receive(batch=3):
            one.inputs.learn(rpc.ReceiveMessageResponse(message=received))
        await one.go_on(calls)
        await one.end()
        await still_works(world)

    logging.getLogger().addHandler(complaints)
    try:
        run(scenario)
    finally:
        logging.getLogger().removeHandler(complaints)
    assert complaints.found == []
    assert unhandled == []


@settings(max_examples=CASES, suppress_health_check=list(HealthCheck))
@given(SEEDS)
@example(1)
def test_ten_thousand_malformed_calls(seed: int) -> None:
    attack(seed)


@pytest.mark.slow
@settings(max_examples=MANY_CASES, suppress_health_check=list(HealthCheck))
@given(SEEDS)
def test_a_million_malformed_calls(seed: int) -> None:
    attack(seed)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_each_rpc_by_itself(method: Method) -> None:
    async def scenario(world: ProxyWorld) -> None:
        one = Attack(world, seed=7)
        one.begin(method, b"")
        for _ in range(30):
            one.begin(method, one.inputs.payload(method))
        await world.world.settle()
        one.judge()
        await one.end()
        await still_works(world)

    run(scenario)
