"""Receives are made side by side while there is a backlog, never of an ordered group."""

import asyncio
import logging

import pytest

from cosmodrome import Filter, MessageView
from cosmodrome._client.receive_loop import BESIDE_MAX, ReceiveLoop
from cosmodrome._client.receiving import Received
from cosmodrome._core import endpoints
from cosmodrome._core.process_queue import ProcessQueue, Thresholds
from cosmodrome._core.route import MessageQueue
from cosmodrome.errors import ConnectionFailed, CosmodromeError, TooManyRequests

BATCH = 4


class Source:
    """A broker's side: receives wait here until a test answers them."""

    def __init__(self) -> None:
        self.waiting: list[asyncio.Future[int]] = []
        self.attempts: list[str] = []
        self.asked: list[int] = []

    async def fetch(self, _queue: ProcessQueue, messages: int, attempt_id: str) -> Received:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.waiting.append(future)
        self.attempts.append(attempt_id)
        self.asked.append(messages)
        try:
            count = await future
        finally:
            self.waiting.remove(future)
        return Received([MessageView("m", "t", b"x") for _ in range(count)], None, count >= BATCH)

    async def fail(self, error: CosmodromeError) -> None:
        """Refuse the oldest receive."""
        self.waiting[0].set_exception(error)
        await turn()

    async def answer(self, count: int) -> None:
        """Answer the oldest receive, and let the loop go on."""
        self.waiting[0].set_result(count)
        await turn()


async def turn() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


class Running:
    """A loop under way."""

    def __init__(self, *, is_ordered: bool, room: int = 1_000) -> None:
        place = MessageQueue("t", -1, "b", endpoints.parse("127.0.0.1:1"))
        self.queue = ProcessQueue(place, Filter())
        self.source = Source()
        self.delivered = 0
        allowed = asyncio.Event()
        allowed.set()
        loop = ReceiveLoop(
            self.queue,
            self.source.fetch,
            lambda: BATCH,
            lambda: Thresholds(room, 1_000_000),
            self._take,
            allowed,
            asyncio.Event(),
            lambda: is_ordered,
        )
        self.task = asyncio.create_task(loop.run())

    def _take(self, _queue: ProcessQueue, messages: list[MessageView]) -> None:
        self.delivered += len(messages)

    async def end(self) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])
        assert not self.source.waiting


async def test_full_receives_are_made_side_by_side_up_to_a_bound() -> None:
    running = Running(is_ordered=False)
    await turn()
    assert len(running.source.waiting) == 1
    for _ in range(3 * BESIDE_MAX):
        await running.source.answer(BATCH)
    assert len(running.source.waiting) == 1 + BESIDE_MAX
    assert running.delivered == 3 * BESIDE_MAX * BATCH
    assert len(set(running.source.attempts)) == len(running.source.attempts)
    await running.end()


@pytest.mark.parametrize("last", [0, 1, BATCH - 1])
async def test_where_less_comes_than_was_asked_for_one_receive_is_left(last: int) -> None:
    running = Running(is_ordered=False)
    await turn()
    for _ in range(2 * BESIDE_MAX):
        await running.source.answer(BATCH)
    for _ in range(2 * BESIDE_MAX):
        await running.source.answer(last)
    assert len(running.source.waiting) == 1
    await running.end()


async def test_an_ordered_group_has_one_receive_at_a_time() -> None:
    running = Running(is_ordered=True)
    await turn()
    for _ in range(10):
        await running.source.answer(BATCH)
        assert len(running.source.waiting) == 1
    await running.end()


async def test_receives_side_by_side_never_ask_for_more_than_there_is_room_for() -> None:
    running = Running(is_ordered=False, room=3 * BATCH - 1)
    await turn()
    while running.source.waiting:
        await running.source.answer(running.source.asked[-1])
        assert running.delivered <= 3 * BATCH - 1
    assert running.delivered == 3 * BATCH - 1
    await running.end()


@pytest.mark.parametrize("how", ["dropped", "cancelled"])
async def test_a_loop_that_ends_leaves_no_receive(how: str) -> None:
    running = Running(is_ordered=False)
    await turn()
    for _ in range(3):
        await running.source.answer(BATCH)
    assert len(running.source.waiting) == 4
    if how == "dropped":
        running.queue.is_dropped = True
        while not running.task.done():
            await running.source.answer(0)
    await running.end()


async def test_4_35_throttling_rests_20_ms_any_other_failure_a_second_and_nothing_not_at_all(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rests: list[float] = []
    sleep, loop = asyncio.sleep, asyncio.get_running_loop()

    async def rest(seconds: float) -> None:
        if asyncio.get_running_loop() is not loop:
            return await sleep(seconds)  # of a broker that serves other tests
        if seconds:
            rests.append(seconds)
        return await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", rest)
    running = Running(is_ordered=False)
    await turn()
    await running.source.fail(TooManyRequests("slow down"))
    await running.source.fail(ConnectionFailed("gone"))
    await running.source.answer(0)
    assert rests == [0.02, 1.0]
    assert len(running.source.waiting) == 1
    await running.source.fail(ConnectionFailed("gone again"))
    await running.source.fail(ConnectionFailed("still gone"))
    told = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
    assert told == [
        "receive of t fails, again in 1 s: gone",
        "receive of t fails, again in 1 s: gone again",
    ]
    assert len(set(running.source.attempts)) == 1, "one attempt until something was received"
    await running.end()
