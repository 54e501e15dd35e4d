"""An event loop on which nothing depends on the machine: its time stands still, and jobs for
other threads run where they are given."""

import asyncio
from collections.abc import Callable, Mapping
from selectors import BaseSelector, SelectorKey
from typing import Any


class _NothingComes(BaseSelector):
    """Nothing comes from outside: to look there takes a tenth of the time, and never succeeds."""

    def register(self, fileobj: Any, events: int, data: Any = None) -> SelectorKey:
        """See `BaseSelector`; the loop registers the pipe by which threads wake it."""
        return SelectorKey(fileobj, 0, events, data)

    def unregister(self, fileobj: Any) -> SelectorKey:
        """See `BaseSelector`."""
        return SelectorKey(fileobj, 0, 0, None)

    def get_key(self, fileobj: Any) -> SelectorKey:
        """See `BaseSelector`."""
        raise KeyError(fileobj)

    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        """See `BaseSelector`."""
        assert timeout == 0, "the simulation waits for what never comes"
        return []

    def get_map(self) -> Mapping[Any, SelectorKey]:
        """See `BaseSelector`."""
        return {}


class SimulatedLoop(asyncio.SelectorEventLoop):
    """See the module. Timers never fire: the simulation wakes whom it wants."""

    def __init__(self) -> None:
        super().__init__(_NothingComes())

    @property
    def is_quiet(self) -> bool:
        """Whether nobody but the task that asks has anything to do."""
        return not self._ready  # type: ignore[attr-defined]  # nothing public says so

    def _write_to_self(self) -> None:
        """Nobody sleeps who must be woken: each call would be a system call."""

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
