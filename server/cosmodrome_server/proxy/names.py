"""Which names of topics and groups are allowed (protocol.md 4, 5.5).

Names that were found good are remembered: one dictionary look-up per call instead of a
regular expression.
"""

import re
from functools import lru_cache

from cosmodrome_server.config import Limits
from cosmodrome_server.errors import IllegalConsumerGroup, IllegalLiteTopic, IllegalTopic

_ALLOWED = re.compile(r"[%|a-zA-Z0-9_-]+")
_LITE_ALLOWED = re.compile(r"[a-zA-Z0-9_-]+")

SYSTEM_TOPICS = frozenset(
    {
        "TBW102",
        "SCHEDULE_TOPIC_XXXX",
        "BenchmarkTest",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRACE_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
        "CHECKPOINT_TOPIC",
    }
)
SYSTEM_TOPIC_PREFIX = "rmq_sys_"
SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"


class Names:
    """Checks names against the limits of this server."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        # Per server, because limits differ; bounded, because names come from outside.
        self.topic = lru_cache(maxsize=65_536)(self._topic)
        self.group = lru_cache(maxsize=65_536)(self._group)

    def _topic(self, name: str) -> str:
        """Return a topic name that clients may use.

        Raises:
            IllegalTopic: Blank, too long, other characters, or a system topic.
        """
        if not name.strip():
            raise IllegalTopic("the topic is blank")
        if len(name) > self._limits.topic_chars:
            raise IllegalTopic(
                f"the topic has {len(name)} characters, limits.topic_chars allows "
                f"{self._limits.topic_chars}"
            )
        if not _ALLOWED.fullmatch(name):
            raise IllegalTopic(f"the topic {name!r} has other characters than a-z A-Z 0-9 _ - %|")
        if name in SYSTEM_TOPICS or name.startswith(SYSTEM_TOPIC_PREFIX):
            raise IllegalTopic(f"{name} is a system topic, which clients cannot use")
        return name

    def _group(self, name: str) -> str:
        """Return a consumer group name that clients may use.

        Raises:
            IllegalConsumerGroup: Blank, too long, other characters, or a system group.
        """
        if not name.strip():
            raise IllegalConsumerGroup("the consumer group is blank")
        if len(name) > self._limits.group_chars:
            raise IllegalConsumerGroup(
                f"the consumer group has {len(name)} characters, limits.group_chars allows "
                f"{self._limits.group_chars}"
            )
        if not _ALLOWED.fullmatch(name):
            raise IllegalConsumerGroup(
                f"the consumer group {name!r} has other characters than a-z A-Z 0-9 _ - %|"
            )
        if name.startswith(SYSTEM_GROUP_PREFIX):
            raise IllegalConsumerGroup(f"{name} is a system group, which clients cannot use")
        return name

    def lite_topic(self, name: str) -> str:
        """Return a lite topic name that clients may use.

        Raises:
            IllegalLiteTopic: Blank, too long, or other characters.
        """
        longest = self._limits.lite_topic_bytes
        if len(name) > longest or not _LITE_ALLOWED.fullmatch(name):
            raise IllegalLiteTopic(
                f"a lite topic has 1 to {longest} characters of a-z A-Z 0-9 _ -, not {name[:80]!r}"
            )
        return name
