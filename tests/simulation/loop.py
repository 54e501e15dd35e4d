"""An event loop on which nothing depends on the machine: its time stands still, and jobs for
other threads run where they are given."""

import asyncio
from collections.abc import Callable
from typing import Any


class SimulatedLoop(asyncio.SelectorEventLoop):
    """See the module. Timers never fire: the simulation wakes whom it wants."""

    def time(self) -> float:
        return 0.0

    def run_in_executor(  # type: ignore[override]  # the types say less than the base's, on purpose
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> "asyncio.Future[Any]":
        done = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:
            done.set_exception(error)
        return done
