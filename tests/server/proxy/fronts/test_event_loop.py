"""What the event loop does before it sleeps, with waits that only count."""

import asyncio
import threading
from collections.abc import Coroutine
from selectors import DefaultSelector, SelectorKey

import pytest

from cosmodrome_server.proxy.fronts.event_loop import EventLoop


def run(main: Coroutine[None, None, None]) -> None:
    with asyncio.Runner(loop_factory=EventLoop) as runner:
        runner.run(main)


def own_loop() -> EventLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, EventLoop)
    return loop


def test_it_is_asked_before_each_sleep_and_not_while_there_is_work() -> None:
    async def main() -> None:
        limits_us: list[int] = []

        def linger(limit_us: int) -> int:
            limits_us.append(limit_us)
            return 0

        own_loop().linger_by(linger)
        for _ in range(3):
            await asyncio.sleep(0)  # a turn of the loop
        assert limits_us == []
        # A loop that gets no processor until then has no timer left to wait for.
        while not limits_us:  # noqa: ASYNC110 - the sleep is what is watched
            await asyncio.sleep(0.0005)
        assert max(limits_us) <= 500, "never beyond the next timer"
        own_loop().linger_by(None)
        seen = len(limits_us)
        await asyncio.sleep(0.001)  # the same, and nobody lingers
        assert len(limits_us) == seen

    run(main())


def test_what_was_lingered_is_not_slept_again(monkeypatch: pytest.MonkeyPatch) -> None:
    slept_s: list[float | None] = []
    select = DefaultSelector.select

    def recorded(
        selector: DefaultSelector, timeout: float | None = None
    ) -> list[tuple[SelectorKey, int]]:
        if threading.current_thread() is not threading.main_thread():
            return select(selector, timeout)  # of a loop that serves other tests
        slept_s.append(timeout)
        return select(selector, 0)

    async def main() -> None:
        own_loop().linger_by(lambda limit_us: 300)
        with monkeypatch.context() as patch:
            patch.setattr(DefaultSelector, "select", recorded)
            await asyncio.sleep(0.0005)  # the wait that is watched

    run(main())
    waits_s = [wait_s for wait_s in slept_s if wait_s]
    assert waits_s == [] or max(waits_s) <= 0.0005 - 0.0003


def test_calls_from_other_threads_are_heard_after_it() -> None:
    async def main() -> None:
        woken = asyncio.Event()
        loop = own_loop()

        def linger(limit_us: int) -> int:
            assert limit_us == 1_000, "nothing else to wait for"
            loop.linger_by(None)
            loop.call_soon_threadsafe(woken.set)
            return 5

        loop.linger_by(linger)
        await woken.wait()

    run(main())
