"""What the event loop does before it sleeps, with waits that only count."""

import asyncio
import time
from collections.abc import Coroutine

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
            await asyncio.sleep(0)
        assert limits_us == []
        await asyncio.sleep(0.002)
        assert limits_us
        assert max(limits_us) <= 2_000, "never beyond the next timer"
        own_loop().linger_by(None)
        seen = len(limits_us)
        await asyncio.sleep(0.001)
        assert len(limits_us) == seen

    run(main())


def test_what_was_lingered_is_not_slept_again() -> None:
    async def main() -> None:
        loop, clock = own_loop(), time.monotonic
        # A clock on which an hour passes at once, a second a wait.
        passed_s = 0.0

        def linger(limit_us: int) -> int:
            nonlocal passed_s
            passed_s += limit_us / 1e6
            return limit_us

        loop.linger_by(linger)
        loop.time = lambda: clock() + passed_s  # type: ignore[method-assign] # a clock of its own
        began_s = clock()
        await asyncio.sleep(3600)
        assert 3599 <= passed_s <= 3600
        assert clock() - began_s < 3600

    run(main())


def test_calls_from_other_threads_are_heard_after_it() -> None:
    async def main() -> None:
        woken = asyncio.Event()
        loop = own_loop()

        def linger(limit_us: int) -> int:
            assert limit_us == 1_000_000, "nothing else to wait for"
            loop.linger_by(None)
            loop.call_soon_threadsafe(woken.set)
            return 5

        loop.linger_by(linger)
        await woken.wait()

    run(main())
