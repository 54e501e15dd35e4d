"""Blocking twin of the pull consumer."""

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Self

from cosmodrome import pull_consumer as _pull
from cosmodrome.builders import PullConsumerBuilder
from cosmodrome.config import ClientConfiguration
from cosmodrome.errors import NotRunning
from cosmodrome.filters import Filter
from cosmodrome.message import MessageView
from cosmodrome.offsets import FileOffsetStore, Place
from cosmodrome.sync._blocking import BlockingClient, made_by


class PullConsumer(BlockingClient[_pull.PullConsumer]):
    """Blocking twin of `cosmodrome.PullConsumer`."""

    @made_by(_pull.PullConsumer)
    def __init__(self) -> None:
        """Arguments are those of `cosmodrome.PullConsumer`."""

    @classmethod
    def builder(cls) -> PullConsumerBuilder[Self]:
        """Build step by step, in the manner of Java's builders."""
        return PullConsumerBuilder(cls)

    @classmethod
    def broadcast(
        cls,
        configuration: ClientConfiguration | str,
        *,
        group: str,
        topics: Iterable[str],
        offsets: Path,
    ) -> Self:
        """A reader that reads everything for itself, its offsets in a file of its own."""
        store = FileOffsetStore(offsets)
        return cls(configuration, group=group, topics=topics, offset_store=store)

    @property
    def group(self) -> str:
        """Under which name offsets are kept."""
        return self._client.group

    @property
    def assignment(self) -> list[Place]:
        """The queues it reads: (topic, queue id)."""
        return self._client.assignment

    def subscribe(self, topic: str, expression: Filter | str = "*") -> None:
        """Read a topic's queues, all or this member's share."""
        self._run(self._client.subscribe(topic, expression))

    def assign(self, queues: Iterable[Place]) -> None:
        """Read exactly these queues."""
        self._run(self._client.assign(queues))

    def seek(self, topic: str, queue_id: int, offset: int) -> None:
        """Read on at an offset."""
        self._run(self._client.seek(topic, queue_id, offset))

    def seek_to_beginning(self) -> None:
        """Read every queue from its first message."""
        self._run(self._client.seek_to_beginning())

    def seek_to_end(self) -> None:
        """Read only what is stored from now on."""
        self._run(self._client.seek_to_end())

    def seek_to_time(self, moment: datetime) -> None:
        """Read every queue from the first message stored at or after a moment."""
        self._run(self._client.seek_to_time(moment))

    def position(self, topic: str, queue_id: int) -> int:
        """The offset that the next message of `poll` has at least."""
        return self._call(self._client.position, topic, queue_id)

    def pause(self, *queues: Place) -> None:
        """Read nothing more of these queues, or of any."""
        self._call(self._client.pause, *queues)

    def resume(self, *queues: Place) -> None:
        """Read again."""
        self._call(self._client.resume, *queues)

    def poll(self, max_messages: int = 32, timeout: timedelta | float = 5) -> list[MessageView]:
        """Take what was read, waiting for the first."""
        return self._run(self._client.poll(max_messages, timeout))

    def commit(self) -> None:
        """Keep how far `poll` got."""
        self._run(self._client.commit())

    def __iter__(self) -> Iterator[MessageView]:
        """Read for ever, message by message, until the consumer is closed."""
        while self.is_running:
            try:
                messages = self.poll()
            except NotRunning:
                return
            yield from messages
