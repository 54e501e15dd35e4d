"""What every blocking twin does: hold the async client, run it on the portal's loop."""

import inspect
from collections.abc import Callable, Coroutine
from typing import Any, Generic, Protocol, Self, TypeVar

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


class Blocking(Generic[Twin]):
    """Runs an async client on the portal's loop.

    Arguments are those of the async client.
    """

    _make: Callable[..., Twin]

    def __init_subclass__(cls) -> None:
        if "_make" in cls.__dict__:
            # What editors, `help` and the signature test see.
            cls.__signature__ = inspect.signature(cls._make)  # type: ignore[attr-defined]

    def __init__(self, configuration: Any, **options: Any) -> None:  # noqa: ANN401 - the twin's
        self._portal: Portal = portal()
        self._client: Twin = self._portal.run(self._made(configuration, options))

    async def _made(self, configuration: object, options: dict[str, Any]) -> Twin:
        return type(self)._make(configuration, **options)

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
        """Stop; again is fine, and so is a child process, whose parent goes on with it."""
        if not self._portal.is_here:
            return
        self._run(self._client.close())

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
