"""Runs cells of the catalogue, a scenario with a client each, many at a time against one server.

    drivers ─┬─ python ─ cell cell cell …
             ├─ node   ─ cell cell cell …        one process a client, a few cells at a time in it:
             ├─ java   ─ …                       most scenarios wait more than they work
             └─ …

Cells do not touch each other: each has topics, groups and clients of its own.
"""

import asyncio
import contextlib
import enum
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import pytest

from tests.conformance import setup
from tests.conformance.bench import Bench, Exchange, NotApplicable, Scenario
from tests.conformance.broker import Broker, ServerFailed, under_test
from tests.conformance.client import Connection
from tests.conformance.driver import Driver, DriverDied, Refused
from tests.conformance.known import KNOWN
from tests.conformance.languages import Language

CELLS_AT_ONCE = 8
EXCHANGE_SECONDS_MAX = 120.0

Cell = tuple[str, str]  # scenario, language


class Result(enum.Enum):
    PASSED = "passed"
    LACKING = "lacking"  # the client has no such feature
    INAPPLICABLE = "inapplicable"  # the server under test cannot be asked this
    EXCUSED = "excused"  # fails for a reason that is the client's, written down in known.py
    MISSING = "missing"  # the client's tools are not installed
    FAILED = "failed"


@dataclass(frozen=True)
class Outcome:
    result: Result
    remark: str = ""
    seconds: float = 0.0


class Laboratory:
    """One server, the drivers of the clients that cells ask for, and what came of each cell."""

    def __init__(
        self,
        cells: Iterable[tuple[Scenario, Language]],
        on_outcome: Callable[[Cell, Outcome], None] = lambda _cell, _outcome: None,
        *,
        is_strict: bool = False,
    ) -> None:
        self._is_strict = is_strict
        self._cells = list(cells)
        self._on_outcome = on_outcome
        self._done = {
            (scenario.ident, language.name): asyncio.get_running_loop().create_future()
            for scenario, language in self._cells
        }
        self.versions: dict[str, str] = {}

    async def outcome(self, cell: Cell) -> Outcome:
        outcome: Outcome = await self._done[cell]
        return outcome

    @property
    def is_done(self) -> bool:
        """Whether every cell has its outcome; drivers and server may still be ending."""
        return all(future.done() for future in self._done.values())

    def outcomes(self) -> dict[Cell, Outcome]:
        return {cell: future.result() for cell, future in self._done.items() if future.done()}

    async def run(self) -> None:
        """Run every cell; what goes wrong for all of them is the outcome of each."""
        try:
            async with under_test(is_strict=self._is_strict) as broker:
                await self._run_all(broker)
        except (ServerFailed, OSError, ExceptionGroup) as error:
            self._conclude(Outcome(Result.FAILED, f"{type(error).__name__}: {error}"))
            raise
        finally:
            self._conclude(Outcome(Result.FAILED, "the run ended before this cell"))

    def _conclude(self, outcome: Outcome) -> None:
        for future in self._done.values():
            if not future.done():
                future.set_result(outcome)

    async def _run_all(self, broker: Broker) -> None:
        languages = list({language.name: language for _, language in self._cells}.values())
        programs: dict[str, setup.Program] = {}
        for language in languages:
            try:
                programs[language.name] = await asyncio.to_thread(setup.program, language)
            except setup.Unavailable as error:
                result = Result.FAILED if language.is_required else Result.MISSING
                for scenario in self._of(language):
                    self._done[scenario.ident, language.name].set_result(
                        Outcome(result, str(error))
                    )
        present = [language for language in languages if language.name in programs]
        exchange = await self._exchange(broker, present)
        async with asyncio.TaskGroup() as tasks:
            for language in present:
                tasks.create_task(
                    self._run_client(broker, language, programs[language.name], exchange)
                )

    async def _exchange(self, broker: Broker, languages: list[Language]) -> Exchange:
        topic = f"c-exchange-{time.time_ns()}"
        takes_part = [
            language.name for language in languages if (("E-1", language.name) in self._done)
        ]
        if takes_part:
            await broker.create_topic(topic, "normal", 0)
        loop = asyncio.get_running_loop()
        return Exchange(topic, {name: loop.create_future() for name in takes_part})

    def _of(self, language: Language) -> list[Scenario]:
        return [scenario for scenario, of in self._cells if of is language]

    async def _run_client(
        self, broker: Broker, language: Language, program: setup.Program, exchange: Exchange
    ) -> None:
        room = asyncio.Semaphore(CELLS_AT_ONCE)
        async with Driver(language, program) as driver:
            self.versions[language.name] = driver.client_version

            async def run(scenario: Scenario) -> None:
                async with room:
                    bench = Bench(
                        broker=broker,
                        language=language,
                        driver=driver,
                        program=program,
                        exchange=exchange,
                        connection=Connection(driver, broker.endpoint),
                        scenario=scenario.ident,
                    )
                    outcome = await run_cell(scenario, bench)
                self._done[scenario.ident, language.name].set_result(outcome)
                self._on_outcome((scenario.ident, language.name), outcome)
                if scenario.ident == "E-1" and not exchange.sent[language.name].done():
                    lost = NotApplicable(f"{language.title} did not get to send")
                    exchange.sent[language.name].set_exception(lost)

            async with asyncio.TaskGroup() as tasks:
                for scenario in self._of(language):
                    tasks.create_task(run(scenario))


async def run_cell(scenario: Scenario, bench: Bench) -> Outcome:
    """Run one scenario with one client, and say what came of it."""
    lacking = sorted(scenario.needs - bench.language.features)
    if lacking:
        return Outcome(Result.LACKING, "no " + ", ".join(lacking))
    known = KNOWN.get((scenario.ident, bench.language.name))
    started = time.monotonic()
    try:
        async with asyncio.timeout(scenario.seconds_max):
            remark = await scenario.run(bench) or ""
        result = Result.PASSED
    except NotApplicable as reason:
        result, remark = Result.INAPPLICABLE, str(reason)
    except (Exception, pytest.fail.Exception) as error:
        result, remark = Result.FAILED, _told(error)
    finally:
        with contextlib.suppress(Refused, DriverDied):
            await bench.close()
    if known and result is Result.FAILED:
        result, remark = Result.EXCUSED, known.reason
    elif known and known.is_certain and result is Result.PASSED:
        result, remark = Result.FAILED, f"passes now: take it out of known.py ({known.reason})"
    return Outcome(result, remark, time.monotonic() - started)


def _told(error: BaseException) -> str:
    """The error with the line of the scenario it came from."""
    if isinstance(error, BaseExceptionGroup):
        return " | ".join(_told(each) for each in error.exceptions)
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "/scenarios/" in f.filename]
    where = f" ({frames[-1].name}:{frames[-1].lineno}: {frames[-1].line})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"
