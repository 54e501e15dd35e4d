"""Nothing is left behind: by many clients, by failed starts."""

import asyncio
from collections.abc import Callable
from datetime import timedelta

import pytest

from cosmodrome import (
    ClientConfiguration,
    ConsumeResult,
    MessageView,
    Producer,
    PushConsumer,
    SimpleConsumer,
    errors,
)
from cosmodrome.testing import TestBroker
from tests.support.footprint import Footprint, channels_open, resident_kib

Names = Callable[[str], str]


async def listener(message: MessageView) -> ConsumeResult:
    return ConsumeResult.SUCCESS


def clients(broker: TestBroker, topic: str) -> list[Producer | SimpleConsumer | PushConsumer]:
    return [
        Producer(broker.endpoint, topics=[topic]),
        SimpleConsumer(broker.endpoint, group="leaks", subscriptions={topic: "*"}),
        PushConsumer(broker.endpoint, group="leaks", subscriptions={topic: "*"}, listener=listener),
    ]


async def cycles(broker: TestBroker, topic: str, times: int) -> None:
    """Open and close three clients so often."""
    for _ in range(times):
        for client in clients(broker, topic):
            async with client:
                pass
    await asyncio.sleep(0.1)  # the kernel closes sockets when it gets to it


async def nothing_stays(before: Footprint) -> None:
    """Sockets and what gRPC keeps of a call are gone a moment after their client."""
    stayed: dict[str, int] = {}
    for _ in range(2_000):
        after = Footprint()
        stayed = {
            "channels": channels_open(),
            "tasks": max(0, len(after.tasks) - len(before.tasks)),
            "threads": max(0, after.threads - before.threads - 1),
            "descriptors": max(0, after.descriptors - before.descriptors - 5),
        }
        if not any(stayed.values()):
            return
        await asyncio.sleep(0.01)
    raise AssertionError(stayed)


async def test_two_hundred_clients_leave_no_task_thread_channel_or_descriptor(
    broker: TestBroker, name: Names
) -> None:
    broker.create_topic(name("t"), queues=1)
    await cycles(broker, name("t"), 5)  # whatever is made once
    before = Footprint()
    await cycles(broker, name("t"), 67)
    await nothing_stays(before)


@pytest.mark.slow
async def test_a_thousand_clients_need_no_more_memory(broker: TestBroker, name: Names) -> None:
    broker.create_topic(name("t"), queues=1)
    await cycles(broker, name("t"), 167)  # allocators have what they want, caches are full
    before = Footprint()
    grown_kib = []
    for _ in range(4):
        await cycles(broker, name("t"), 84)
        grown_kib.append(resident_kib() - before.resident_kib)
    await nothing_stays(before)
    # The broker is in this process, too.
    assert grown_kib[-1] < 4_096, grown_kib


async def test_a_start_that_fails_leaves_nothing() -> None:
    before = Footprint()
    nowhere = ClientConfiguration(
        "127.0.0.1:1", request_timeout=timedelta(milliseconds=200), max_startup_attempts=1
    )
    for _ in range(3):
        with pytest.raises(errors.CosmodromeError):
            await Producer(nowhere, topics=["t"]).start()
    assert asyncio.all_tasks() <= before.tasks
    await nothing_stays(before)
