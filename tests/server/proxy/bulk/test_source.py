"""The budget of bulk reads: answers wait for it, and not for longer than who asks does."""

import asyncio
from typing import Any, cast

import pytest

from cosmodrome_server.errors import OverloadedError
from cosmodrome_server.proxy.bulk.source import BulkSource

MIB = 1 << 20
Answer = bytes | Exception


def source(bytes_per_s: int) -> BulkSource:
    return BulkSource(cast("Any", None), cast("Any", None), bytes_per_s)


def asked(reads: BulkSource, size: int) -> "asyncio.Future[Answer]":
    """One read that gives so many bytes."""
    answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
    reads.run(lambda: bytes(size), len, answer.set_result)
    return answer


async def test_without_a_budget_answers_come_at_once() -> None:
    reads = source(0)

    answers = await asyncio.gather(*(asked(reads, 8 * MIB) for _ in range(8)))

    assert [len(cast("bytes", each)) for each in answers] == [8 * MIB] * 8
    reads.close()


async def test_who_would_wait_for_too_long_is_told_to_ask_later() -> None:
    reads = source(MIB)

    first, second, third = (asked(reads, 8 * MIB) for _ in range(3))

    # The first two wait for their turns, 8 and 16 s from now.
    assert isinstance(await asyncio.wait_for(third, 7), OverloadedError)
    assert not first.done()
    assert not second.done()
    with pytest.raises(OverloadedError, match="mib_per_s is spent"):
        asked(reads, 1)
    reads.close()
