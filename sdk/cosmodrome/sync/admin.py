"""Blocking twin of the admin client."""

from datetime import datetime, timedelta

from cosmodrome import admin as _admin
from cosmodrome.admin import Lag, TopicInfo
from cosmodrome.message import MessageView
from cosmodrome.sync._blocking import Blocking, made_by


class AdminClient(Blocking[_admin.AdminClient]):
    """Blocking twin of `cosmodrome.AdminClient`."""

    @made_by(_admin.AdminClient)
    def __init__(self) -> None:
        """Arguments are those of `cosmodrome.AdminClient`."""

    def create_topic(
        self,
        name: str,
        *,
        topic_type: str = "",
        queues: int = 0,
        retention: timedelta | None = None,
    ) -> None:
        """Create a topic, or change what is given of one."""
        self._run(
            self._client.create_topic(
                name, topic_type=topic_type, queues=queues, retention=retention
            )
        )

    def delete_topic(self, name: str) -> None:
        """Delete a topic with its messages."""
        self._run(self._client.delete_topic(name))

    def topics(self, prefix: str = "") -> list[TopicInfo]:
        """List topics by name."""
        return self._run(self._client.topics(prefix))

    def create_group(
        self,
        name: str,
        *,
        fifo: bool | None = None,
        max_attempts: int = 0,
        consume_from: str = "",
        lite_bind_topic: str = "",
        paused: bool | None = None,
    ) -> None:
        """Create a consumer group, or change what is given of one."""
        self._run(
            self._client.create_group(
                name,
                fifo=fifo,
                max_attempts=max_attempts,
                consume_from=consume_from,
                lite_bind_topic=lite_bind_topic,
                paused=paused,
            )
        )

    def delete_group(self, name: str) -> None:
        """Delete a group with its progress."""
        self._run(self._client.delete_group(name))

    def groups(self, prefix: str = "") -> list[str]:
        """Names of consumer groups."""
        return self._run(self._client.groups(prefix))

    def lag(self, group: str) -> list[Lag]:
        """How far behind a group is, topic by topic."""
        return self._run(self._client.lag(group))

    def reset_offset(
        self, group: str, topic: str, to: datetime | str, *, queue_id: int | None = None
    ) -> dict[int, int]:
        """Move a group to a moment, "first" or "last"; returns queue → offset."""
        return self._run(self._client.reset_offset(group, topic, to, queue_id=queue_id))

    def redrive(self, group: str, *, topic: str = "", max_messages: int = 0, rate: int = 0) -> int:
        """Send dead letters back where they came from, `rate` a second; returns how many went."""
        return self._run(
            self._client.redrive(group, topic=topic, max_messages=max_messages, rate=rate)
        )

    def find(
        self, topic: str, *, message_id: str = "", key: str = "", max_messages: int = 32
    ) -> list[MessageView]:
        """Find stored messages by id or key; none for none."""
        return self._run(
            self._client.find(topic, message_id=message_id, key=key, max_messages=max_messages)
        )

    def consumers(self, group: str) -> list[str]:
        """Client ids of the consumers of a group that are online."""
        return self._run(self._client.consumers(group))

    def verify(self, client_id: str, group: str, topic: str, message_id: str) -> None:
        """Have one connected consumer consume one stored message, beside its deliveries."""
        self._run(self._client.verify(client_id, group, topic, message_id))

    def stacks(self, client_id: str, group: str = "") -> str:
        """The stacks of a connected client's threads and tasks."""
        return self._run(self._client.stacks(client_id, group))
