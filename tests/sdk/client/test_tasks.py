"""Tasks that a caller leaves behind end with it, and in silence."""

import asyncio
import gc
from typing import Any

from cosmodrome._client.tasks import end


async def test_an_error_of_a_task_that_nobody_waits_for_any_more_is_nobodys_business() -> None:
    logged: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: logged.append(context))
    begun = asyncio.Event()

    async def fails() -> None:
        raise ValueError("before")

    async def fails_when_cancelled() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError("at the end")

    tasks = [asyncio.ensure_future(fails()), asyncio.ensure_future(fails_when_cancelled())]
    await begun.wait()
    await end(tasks)
    assert [str(task.exception()) for task in tasks] == ["before", "at the end"]
    again = [asyncio.ensure_future(fails())]
    await asyncio.wait(again)
    await end(again)
    del again
    gc.collect()
    assert logged == []
