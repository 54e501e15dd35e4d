"""Beyond 6: what operators do to a server under its clients: TLS, credentials, restarts, drains."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from cosmodrome_proto import definition_pb2 as code
from tests.conformance.bench import Bench, OwnBench, refused, scenario, who
from tests.conformance.certificates import Certificate, issued
from tests.conformance.client import (
    Connection,
    Producer,
    PushConsumer,
    SimpleConsumer,
    everything,
)
from tests.conformance.driver import DriverDied, Outgoing, Refused
from tests.conformance.languages import PUSH, TLS, TLS_SWITCH
from tests.conformance.scenarios.delivery import consumer_of

WORKING_AGAIN_SECONDS_MAX = 15.0
DRAIN_SECONDS_MAX = 10.0
LEASE_SECONDS = 60.0


async def round_trip(bench: Bench, connection: Connection) -> None:
    """Send, receive and ack one message over `connection`."""
    topic, group = bench.name("topic"), bench.name("group")
    await bench.broker.create_topic(topic, "normal", 0)
    await bench.broker.create_group(group)
    await use(connection, topic, group)


async def use(connection: Connection, topic: str, group: str) -> None:
    consumer = await connection.simple(group, everything(topic))
    producer = await connection.producer(topic)
    receipt = await producer.send(Outgoing(topic, b"round trip"))
    (received,) = await consumer.take(1, within=30)
    assert received.message_id == receipt.message_id


def tls_flags(certificate: Certificate, mode: str) -> tuple[str, ...]:
    settings = {"certificate": certificate.certificate, "key": certificate.key}
    pairs = [f"tls.{name}={path}" for name, path in settings.items()]
    return ("--dev", "--tls", mode, *(word for pair in pairs for word in ("--set", pair)))


@asynccontextmanager
async def with_tls(bench: Bench, mode: str) -> AsyncIterator[tuple[OwnBench, Connection]]:
    """A server in a TLS mode, with a certificate that a client process of its own trusts."""
    with issued() as certificate:
        async with (
            bench.own_server(*tls_flags(certificate, mode)) as own,
            bench.fresh_driver(**certificate.trusted()) as driver,
        ):
            connection = own.connect(driver, endpoint=own.broker.endpoint, tls=True)
            yield own, connection
            await connection.close()


@scenario(
    "E-12", "TLS and plaintext on one port: the mode that is not the client's default", TLS_SWITCH
)
async def other_mode(bench: Bench) -> str:
    if bench.language.has_tls_by_default:
        async with bench.fresh_driver() as driver:
            connection = bench.connect(driver, tls=False)
            await round_trip(bench, connection)
            await connection.close()
        return "plaintext"
    async with with_tls(bench, "auto") as (own, connection):
        await round_trip(own, connection)
    return "TLS"


@scenario("E-13", "TLS required: a client with TLS works, one without is refused", TLS)
async def tls_required(bench: Bench) -> str:
    async with with_tls(bench, "required") as (own, connection):
        await use(connection, own.name("topic"), own.name("group"))
        async with bench.fresh_driver() as driver:
            plain = own.connect(driver, endpoint=own.broker.endpoint, tls=False)
            return who(await refused(_started(plain)))


@scenario("E-14", "TLS off: a client without TLS works, one with it is refused", TLS_SWITCH)
async def tls_off(bench: Bench) -> str:
    async with bench.own_server("--dev", "--tls", "off") as own:
        async with bench.fresh_driver() as driver:
            plain = own.connect(driver, endpoint=own.broker.endpoint, tls=False)
            await use(plain, own.name("topic"), own.name("group"))
            await plain.close()
        async with bench.fresh_driver() as driver:
            secured = own.connect(driver, endpoint=own.broker.endpoint, tls=True)
            return who(await refused(_started(secured)))


async def _started(connection: Connection) -> None:
    producer = await connection.producer("any")
    await producer.send(Outgoing("any", b"never"))


USER = ("admin-user", "a-long-admin-secret")
ACL = (
    *("--dev", "--set", "security.authentication=true"),
    *("--set", f"security.admin_user={USER[0]}", "--set", f"security.admin_secret={USER[1]}"),
)


@scenario("E-15", "right credentials: the client works")
async def right_credentials(bench: Bench) -> None:
    async with bench.own_server(*ACL, credentials=USER) as own:
        await use(own.connection, own.name("topic"), own.name("group"))


async def _turned_away(bench: Bench, credentials: tuple[str, str] | None, kind: str) -> str:
    async with bench.own_server(*ACL, credentials=credentials) as own:
        topic = own.name("topic")

        async def attempt() -> None:
            if kind == "push":
                await own.connection.push(own.name("group"), everything(topic))
            else:
                producer = await own.connection.producer(topic)
                await producer.send(Outgoing(topic, b"never"))

        return who(await refused(attempt(), code.UNAUTHORIZED))


@scenario("PR-2", "a producer with a wrong access key is refused")
async def producer_wrong_key(bench: Bench) -> str:
    return await _turned_away(bench, ("nobody", USER[1]), "producer")


@scenario("PR-3", "a producer with a wrong secret is refused")
async def producer_wrong_secret(bench: Bench) -> str:
    return await _turned_away(bench, (USER[0], "a-wrong-secret"), "producer")


@scenario("PR-5/6/7", "a producer without credentials is refused where they are needed")
async def producer_without_credentials(bench: Bench) -> str:
    return await _turned_away(bench, None, "producer")


@scenario("PC-2", "a push consumer with a wrong access key is refused", PUSH)
async def push_wrong_key(bench: Bench) -> str:
    return await _turned_away(bench, ("nobody", USER[1]), "push")


@scenario("PC-3", "a push consumer with a wrong secret is refused", PUSH)
async def push_wrong_secret(bench: Bench) -> str:
    return await _turned_away(bench, (USER[0], "a-wrong-secret"), "push")


@dataclass
class Load:
    """A producer and a consumer that go on whatever the server does, and what they saw."""

    topic: str
    acked: dict[str, float] = field(default_factory=dict)
    seen: dict[str, float] = field(default_factory=dict)
    failures: int = 0
    is_sending: bool = True

    async def send(self, producer: Producer) -> None:
        number = 0
        clock = asyncio.get_running_loop()
        while self.is_sending:
            number += 1
            body = f"load {number}"
            try:
                await producer.send(Outgoing(self.topic, body.encode()))
            except (Refused, DriverDied):
                self.failures += 1
                await asyncio.sleep(0.1)
            else:
                self.acked[body] = clock.time()
                await asyncio.sleep(0.01)

    async def receive(self, bench: Bench, group: str) -> None:
        consumer = await consumer_of(bench, group, self.topic)
        while True:
            with suppress(Refused):
                await self._take(consumer)

    async def _take(self, consumer: PushConsumer | SimpleConsumer) -> None:
        """Messages are seen before they are acked: the server may die behind an ack it took."""
        if isinstance(consumer, PushConsumer):
            messages = await consumer.deliveries(1, within=1)
        else:
            messages = await consumer.take(1, within=1, ack=False)
        for message in messages:
            self.seen.setdefault(message.body.decode(), message.at)
        if isinstance(consumer, SimpleConsumer):
            for message in messages:
                await consumer.ack(message)

    def missing(self) -> set[str]:
        return self.acked.keys() - self.seen.keys()

    def sent_since(self, moment: float) -> bool:
        return any(at > moment for at in self.acked.values())

    def received_since(self, moment: float) -> bool:
        """A message sent after `moment` was received."""
        return any(self.acked.get(body, 0) > moment for body in self.seen)


async def until(condition: Callable[[], bool], within: float, what: str) -> float:
    """Seconds until `condition` holds; fails when `within` is over."""
    clock = asyncio.get_running_loop()
    started = clock.time()
    while not condition():
        assert clock.time() - started < within, f"not {what} within {within:.0f} s"
        await asyncio.sleep(0.05)
    return clock.time() - started


@asynccontextmanager
async def under_load(own: OwnBench) -> AsyncIterator[Load]:
    """Sends and receives until the body ends; then everything acked must have arrived."""
    topic, group = await own.topic(), await own.group()
    load = Load(topic)
    producer = await own.connection.producer(topic)
    async with asyncio.TaskGroup() as tasks:
        sending = tasks.create_task(load.send(producer))
        receiving = tasks.create_task(load.receive(own, group))
        await until(lambda: load.received_since(0), 30, "receiving")
        yield load
        load.is_sending = False
        await sending
        # What was under way to the consumer when the server died is its own until its lease,
        # one minute for push consumers, ends.
        with suppress(AssertionError):
            await until(lambda: not load.missing(), LEASE_SECONDS + 60, "all acked received")
        assert not load.missing(), await _whereabouts(own, load)
        receiving.cancel()


async def _whereabouts(own: OwnBench, load: Load) -> str:
    """What became of acked messages that never came: lost, or stored and not delivered."""
    reader = await own.connection.simple(await own.group(), everything(load.topic))
    stored = {m.body.decode() for m in await reader.take(len(load.acked) * 2, within=25)}
    missing = sorted(load.missing())
    lost = [body for body in missing if body not in stored]
    return f"of {len(load.acked)} acked {missing} did not come; not stored: {lost}"


async def _restarted(own: OwnBench, load: Load, end: Callable[[], Awaitable[int]]) -> float:
    """End the server, start it again, and measure until sends and receives work."""
    await end()
    await own.broker.start()
    moment = asyncio.get_running_loop().time()
    limit = WORKING_AGAIN_SECONDS_MAX
    await until(lambda: load.sent_since(moment), limit, "sending again")
    await until(lambda: load.received_since(moment), limit, "receiving again")
    waited = asyncio.get_running_loop().time() - moment
    assert waited <= limit, f"{waited:.1f} s"
    return waited


@scenario(
    "E-9",
    "killed and restarted under load, twice: nothing acked is lost, works within 15 s",
    seconds_max=300,
)
async def killed_under_load(bench: Bench) -> str:
    async with bench.own_server() as own, under_load(own) as load:
        first = await _restarted(own, load, own.broker.kill)
        await asyncio.sleep(2)  # load, before it dies again
        second = await _restarted(own, load, own.broker.kill)
    return f"{first:.1f} and {second:.1f} s, {len(load.acked)} acked, {load.failures} refused"


@scenario(
    "E-16",
    "drained by SIGTERM under load and restarted: exits 0 in 10 s, nothing is lost",
    seconds_max=300,
)
async def drained_under_load(bench: Bench) -> str:
    async with bench.own_server() as own, under_load(own) as load:
        clock = asyncio.get_running_loop()
        started = clock.time()
        exit_code = await own.broker.stop()
        took = clock.time() - started
        assert exit_code == 0, own.broker.last_words()
        assert took <= DRAIN_SECONDS_MAX + 1, f"{took:.1f} s"
        waited = await _restarted(own, load, own.broker.stop)
    return f"drained in {took:.1f} s, works after {waited:.1f} s"
