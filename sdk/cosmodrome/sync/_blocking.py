"""What every blocking twin does: hold the async client, run it on the portal's loop."""

import inspect
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar

from cosmodrome._client.meters import Meters
from cosmodrome._portal import Portal, portal
from cosmodrome.filters import Filter


class Startable(Protocol):
    """An async client."""

    async def start(self) -> Any:  # noqa: ANN401 - itself
        """Connect."""

    async def close(self) -> None:
        """Stop."""


class Known(Startable, Protocol):
    """A client that brokers know by an id."""

    @property
    def client_id(self) -> str:
        """The id brokers know this client by."""

    @property
    def is_running(self) -> bool:
        """Whether it was started and not closed."""

    def measure(self) -> Meters:
        """Measure from now on."""


class Subscribing(Known, Protocol):
    """A consumer of subscriptions."""

    @property
    def group(self) -> str:
        """The consumer group."""

    @property
    def subscriptions(self) -> dict[str, Filter]:
        """What is subscribed to now."""

    async def subscribe(self, topic: str, expression: Filter | str = "*") -> None:
        """Want a topic."""

    async def unsubscribe(self, topic: str) -> None:
        """Want a topic no longer."""


Twin = TypeVar("Twin", bound=Startable)
KnownTwin = TypeVar("KnownTwin", bound=Known)
SubscribingTwin = TypeVar("SubscribingTwin", bound=Subscribing)
Value = TypeVar("Value")
Options = ParamSpec("Options")


def made_by(
    make: Callable[Options, Startable],
) -> Callable[[object], Callable[Concatenate[Any, Options], None]]:
    """A constructor that takes what `make` takes, to readers, editors and type checkers alike.

    Args:
        make: The async client; it is made on the portal's loop.
    """

    def decorate(stands_for: object) -> Callable[Concatenate[Any, Options], None]:
        def init(self: Any, /, *arguments: Options.args, **options: Options.kwargs) -> None:  # noqa: ANN401 - a twin
            async def made() -> Startable:
                return make(*arguments, **options)

            self._portal = portal()
            self._client = self._portal.run(made())

        init.__name__, init.__qualname__ = "__init__", f"{make.__qualname__}.__init__"
        init.__doc__ = getattr(stands_for, "__doc__", None)
        own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
        asked = inspect.signature(make)
        init.__signature__ = asked.replace(  # type: ignore[attr-defined]  # inspect reads it
            parameters=[own, *asked.parameters.values()]
        )
        return init

    return decorate


class Blocking(Generic[Twin]):
    """Runs an async client on the portal's loop; `made_by` makes it."""

    _portal: Portal
    _client: Twin

    def _run(self, work: Coroutine[Any, Any, Value]) -> Value:
        return self._portal.run(work)

    def _call(self, function: Callable[..., Value], *arguments: object) -> Value:
        """Call a function of the client that must run on its loop."""
        return self._run(_calling(function, *arguments))

    def start(self) -> Self:
        """Connect; see the async twin."""
        self._run(self._client.start())
        return self

    def close(self) -> None:
        """Stop; again is fine, and so is a child process, whose parent goes on with it.

        Of a `__del__` that runs when the interpreter ends it is too late: nothing is stopped then.
        """
        if self._portal.is_ending or not self._portal.is_here:
            return
        self._run(self._client.close())

    def __repr__(self) -> str:
        return f"<blocking {self._client!r}>"

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()


class BlockingClient(Blocking[KnownTwin]):
    """A twin with a client id."""

    @property
    def client_id(self) -> str:
        """The id brokers know this client by."""
        return self._client.client_id

    @property
    def is_running(self) -> bool:
        """Whether it was started and not closed."""
        return self._client.is_running

    def measure(self) -> Meters:
        """Measure the six client metrics from now on; `cosmodrome.prometheus` shows them."""
        return self._client.measure()


class BlockingConsumer(BlockingClient[SubscribingTwin]):
    """A twin with subscriptions."""

    @property
    def group(self) -> str:
        """The consumer group."""
        return self._client.group

    @property
    def subscriptions(self) -> dict[str, Filter]:
        """What is subscribed to now, as a copy."""
        return self._client.subscriptions

    def subscribe(self, topic: str, expression: Filter | str = "*") -> None:
        """Want a topic, or something else of it, from now on."""
        self._run(self._client.subscribe(topic, expression))

    def unsubscribe(self, topic: str) -> None:
        """Want a topic no longer."""
        self._run(self._client.unsubscribe(topic))


async def _calling(function: Callable[..., Value], *arguments: object) -> Value:
    return function(*arguments)
