"""The verbs about topics, groups and kept values."""

from cosmodrome_server.broker.engine import Engine
from cosmodrome_server.broker.interface import BrokerEvents
from cosmodrome_server.core.catalogue import GroupState, TopicState
from cosmodrome_server.errors import OverloadedError
from cosmodrome_server.model.group import SYSTEM_GROUP_PREFIX, Group
from cosmodrome_server.model.topic import DEAD_LETTER_PREFIX, RETRY_PREFIX, Topic, TopicType


class NoEvents:
    """Nobody listens yet."""

    def check_transaction(self, message: object, transaction_id: str) -> bool:
        """No producer to ask."""
        del message, transaction_id
        return False

    def topic_changed(self, name: str) -> None:
        """Nothing to do."""

    def group_changed(self, name: str) -> None:
        """Nothing to do."""

    def lite_unsubscribed(self, client_id: str, group: str, lite_topic: str) -> None:
        """Nothing to do."""


class CatalogueVerbs(Engine):
    """Implements `broker.interface.Catalogue`."""

    _events: BrokerEvents = NoEvents()

    def listen(self, events: BrokerEvents) -> None:
        """Say who is told what changes."""
        self._events = events

    def create_topic(self, topic: Topic) -> None:
        """See `Catalogue`."""
        known = self._shard.catalogue.topics
        if topic.name not in known and len(known) >= self._settings.topics_max:
            raise OverloadedError(
                f"there are {len(known)} topics already (topics.topics_max)", "topics.topics_max"
            )
        self._put_catalogue(self._shard.catalogue.plan_topic(topic, self._advance()))
        self._events.topic_changed(topic.name)

    def delete_topic(self, name: str) -> None:
        """See `Catalogue`."""
        self._put_catalogue(self._shard.catalogue.plan_topic_deletion(name, self._advance()))
        self._counters.forget_topic(name, self._shard.catalogue.groups)
        self._events.topic_changed(name)

    def topic(self, name: str) -> Topic:
        """See `Catalogue`."""
        return self._topic(name).topic

    def has_topic(self, name: str) -> bool:
        """See `Catalogue`."""
        return name in self._shard.catalogue.topics

    def topics(self) -> list[Topic]:
        """See `Catalogue`."""
        known = self._shard.catalogue.topics
        return [known[name].topic for name in sorted(known)]

    def create_group(self, group: Group) -> None:
        """See `Catalogue`."""
        known = self._shard.catalogue.groups
        if group.name not in known and len(known) >= self._settings.groups_max:
            raise OverloadedError(
                f"there are {len(known)} consumer groups already (topics.groups_max)",
                "topics.groups_max",
            )
        self._put_catalogue(self._shard.catalogue.plan_group(group, self._advance()))
        self._events.group_changed(group.name)

    def delete_group(self, name: str) -> None:
        """See `Catalogue`."""
        self._put_catalogue(self._shard.catalogue.plan_group_deletion(name, self._advance()))
        self._counters.forget_group(name)
        self._events.group_changed(name)

    def group(self, name: str) -> Group:
        """See `Catalogue`."""
        return self._group(name).group

    def has_group(self, name: str) -> bool:
        """See `Catalogue`."""
        return name in self._shard.catalogue.groups and not name.startswith(SYSTEM_GROUP_PREFIX)

    def groups(self) -> list[Group]:
        """See `Catalogue`."""
        known = self._shard.catalogue.groups
        return [
            known[name].group for name in sorted(known) if not name.startswith(SYSTEM_GROUP_PREFIX)
        ]

    def keep(self, key: str, value: bytes | None) -> None:
        """See `Catalogue`."""
        if self._shard.catalogue.kept.get(key) != value:
            self._put_catalogue(self._shard.catalogue.plan_keep(key, value, self._advance()))

    def kept(self, prefix: str) -> dict[str, bytes]:
        """See `Catalogue`."""
        return {
            key: value
            for key, value in self._shard.catalogue.kept.items()
            if key.startswith(prefix)
        }

    def _topic(self, name: str) -> TopicState:
        found = self._shard.catalogue.topics.get(name)
        if found is not None:
            return found
        is_ours = name.startswith((DEAD_LETTER_PREFIX, RETRY_PREFIX))
        if self._settings.is_auto_create and not is_ours:
            self.create_topic(
                Topic(
                    name,
                    TopicType.MIXED,
                    queues=self._settings.queues,
                    created_ms=self._now(),
                )
            )
        return self._shard.catalogue.topic(name)

    def _group(self, name: str) -> GroupState:
        found = self._shard.catalogue.groups.get(name)
        if found is not None:
            return found
        if self._settings.is_auto_create:
            self.create_group(Group(name, created_ms=self._now()))
        return self._shard.catalogue.group(name)
