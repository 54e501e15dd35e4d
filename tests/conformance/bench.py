"""What a scenario works with, and the table of all scenarios.

A scenario is a coroutine that takes a `Bench` and raises when the client under test saw something
else than it should; it returns a remark or nothing. It knows no language: what a client lacks is
declared with `needs`, and shows up as "not in this client".
"""

import asyncio
import itertools
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from tests.conformance.broker import Broker, OwnServer, server
from tests.conformance.client import Connection
from tests.conformance.driver import Driver, Outgoing, Refused
from tests.conformance.languages import Language
from tests.conformance.setup import Program

_numbers = itertools.count(1)
_run = secrets.token_hex(3)  # names of this run differ from those of others on one server


class NotApplicable(Exception):
    """The scenario does not fit this server or client; the text says why."""


@dataclass
class Exchange:
    """Where every client leaves one message that every other one must read (scenario E-1)."""

    topic: str
    sent: dict[str, asyncio.Future[tuple[Outgoing, str]]]


@dataclass
class Bench:
    broker: Broker
    language: Language
    driver: Driver
    program: Program
    exchange: Exchange
    connection: Connection
    scenario: str = ""
    _opened: list[Connection] = field(default_factory=list)

    def name(self, what: str) -> str:
        """A name that no other scenario, client or run has."""
        label = self.scenario.lower().replace("/", "-")
        return f"c-{label}-{self.language.name}-{what}-{_run}-{next(_numbers)}"

    async def topic(self, kind: str = "normal", *, queues: int = 0) -> str:
        name = self.name(kind)
        await self.broker.create_topic(name, kind, queues)
        return name

    async def group(
        self, *, is_fifo: bool = False, max_attempts: int = 0, lite_topic_of: str = ""
    ) -> str:
        name = self.name("group")
        await self.broker.create_group(
            name, is_fifo=is_fifo, max_attempts=max_attempts, lite_topic_of=lite_topic_of
        )
        return name

    @asynccontextmanager
    async def fresh_driver(self, **environment: str) -> AsyncIterator[Driver]:
        """A process of this client for settings that hold for all of one, such as its TLS."""
        async with Driver(self.language, self.program, **environment) as driver:
            yield driver

    @asynccontextmanager
    async def own_server(
        self, *flags: str, credentials: tuple[str, str] | None = None
    ) -> AsyncIterator["OwnBench"]:
        """A server for this scenario alone, which may start it otherwise and restart it."""
        if not self.broker.is_ours:
            raise NotApplicable("needs a server that the test starts")
        mode = ("--strict",) if self.broker.is_strict else ()
        async with server(*flags, *mode) as ours:
            connection = self.connect(endpoint=ours.endpoint, credentials=credentials)
            yield OwnBench(
                broker=ours,
                language=self.language,
                driver=self.driver,
                program=self.program,
                exchange=self.exchange,
                connection=connection,
                scenario=self.scenario,
            )
            await connection.close()

    @asynccontextmanager
    async def without_auto_create(self) -> AsyncIterator["Bench"]:
        """A server that makes no topics by itself, as Apache RocketMQ's makes none here."""
        if self.broker.is_ours:
            async with self.own_server() as bench:
                yield bench
        else:
            yield self

    def connect(
        self,
        driver: Driver | None = None,
        *,
        endpoint: str | None = None,
        tls: bool | None = None,
        credentials: tuple[str, str] | None = None,
    ) -> Connection:
        """Another way to the server: other TLS, credentials or process."""
        made = Connection(
            driver or self.driver,
            endpoint or self.broker.endpoint,
            tls=tls,
            credentials=credentials,
        )
        self._opened.append(made)
        return made

    async def close(self) -> None:
        for connection in (self.connection, *self._opened):
            await connection.close()


@dataclass
class OwnBench(Bench):
    """A bench with a server of its own."""

    broker: OwnServer


Run = Callable[[Bench], Awaitable[str | None]]


@dataclass(frozen=True)
class Scenario:
    """One line of the catalogue; `ident` is its number in clients.md section 6, or E-n for ours."""

    ident: str
    title: str
    run: Run
    needs: frozenset[str]
    is_short: bool
    section: str
    seconds_max: float


CATALOGUE: list[Scenario] = []


def scenario(
    ident: str, title: str, *needs: str, short: bool = False, seconds_max: float = 150.0
) -> Callable[[Run], Run]:
    """Put a coroutine into the catalogue; `short` ones are part of the default suite."""

    def register(run: Run) -> Run:
        assert all(known.ident != ident for known in CATALOGUE), ident
        section = run.__module__.rpartition(".")[2]
        entry = Scenario(ident, title, run, frozenset(needs), short, section, seconds_max)
        CATALOGUE.append(entry)
        return run

    return register


async def refused(what: Awaitable[object], *codes: int) -> Refused:
    """Expect a refusal; `codes` are the server's allowed ones. The client may refuse by itself."""
    try:
        outcome = await what
    except Refused as refusal:
        if codes and refusal.code is not None and refusal.code not in codes:
            pytest.fail(f"refused otherwise than with {codes}: {refusal}")
        return refusal
    pytest.fail(f"accepted: {outcome}")


def who(refusal: Refused) -> str:
    """A remark for the report: who refused."""
    return f"server: {refusal.code}" if refusal.code else "by the client itself"
