"""One laboratory a session: it runs the selected cells in the background, tests wait for theirs."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future, wait
from typing import Any

import pytest

from tests.conformance.laboratory import Laboratory, Outcome
from tests.conformance.languages import SDK
from tests.conformance.report import write_if_complete

END_SECONDS = 60.0


class Background:
    """An event loop in a thread of its own, with the laboratory in it."""

    def __init__(self, cells: list[Any], *, is_strict: bool = False) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="laboratory")
        self._thread.start()
        self.laboratory = self._submit(self._made(cells, is_strict)).result()
        self._running = self._submit(self.laboratory.run())

    async def _made(self, cells: list[Any], is_strict: bool) -> Laboratory:
        return Laboratory(cells, is_strict=is_strict)

    def _submit(self, coroutine: Any) -> "Future[Any]":
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def outcome(self, scenario: str, language: str) -> Outcome:
        outcome: Outcome = self._submit(self.laboratory.outcome((scenario, language))).result()
        return outcome

    def close(self) -> None:
        if self.laboratory.is_done:
            # Cancelling what ends by itself would leave processes behind.
            wait([self._running], timeout=END_SECONDS)
        self._running.cancel()
        self._submit(_others_ended()).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _others_ended() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    await asyncio.gather(*others, return_exceptions=True)


@pytest.fixture(scope="session")
def laboratory(request: pytest.FixtureRequest) -> Iterator[Background]:
    cells = [
        (item.callspec.params["scenario"], item.callspec.params["language"])
        for item in request.session.items
        if isinstance(item, pytest.Function)
        and hasattr(item, "callspec")
        and {"scenario", "language"} <= item.callspec.params.keys()
    ]
    background = Background(cells)
    yield background
    background.close()
    write_if_complete(background.laboratory)


@pytest.fixture(scope="module")
def strict_laboratory(request: pytest.FixtureRequest) -> Iterator[Background]:
    """The same against a server in strict mode, with our SDK alone."""
    cells = [
        (item.callspec.params["strict_scenario"], SDK)
        for item in request.session.items
        if isinstance(item, pytest.Function)
        and hasattr(item, "callspec")
        and "strict_scenario" in item.callspec.params
    ]
    background = Background(cells, is_strict=True)
    yield background
    background.close()
