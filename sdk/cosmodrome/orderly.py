"""The orderly listener of RocketMQ 4: a queue's messages in order, with a say in when they count.

    async def replay(messages, context):
        context.auto_commit = False
        apply(messages)
        return COMMIT if is_end_of_transaction(messages[-1]) else SUCCESS

    PushConsumer(address, group="replay", subscriptions={"binlog": "*"}, orderly_listener=replay)

| returned | auto_commit (default) | not auto_commit |
|---|---|---|
| SUCCESS | acknowledged | kept, not acknowledged yet |
| COMMIT | warned of, as SUCCESS | acknowledged with all that was kept |
| ROLLBACK | warned of, as SUCCESS | comes again after `suspend`, with all that was kept |
| SUSPEND_CURRENT_QUEUE_A_MOMENT | comes again after `suspend` | comes again without what was kept |
| None, or an exception | as SUSPEND…, and counts as an attempt | the same |

Source: RocketMQ 4 (clients.md 4-03 to 4-06). Brokers of RocketMQ 5 give nothing of an ordered
queue behind what is not acknowledged, so what is kept is one fetch at most: see `remaining`.
"""

from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from enum import Enum
from typing import Protocol

from cosmodrome.message import MessageView

SUSPEND_DEFAULT = timedelta(seconds=1)
SUSPEND_SHORTEST, SUSPEND_LONGEST = timedelta(milliseconds=10), timedelta(seconds=30)


class ConsumeOrderlyStatus(Enum):
    """What an orderly listener made of its messages; see the module's table."""

    SUCCESS = "success"
    COMMIT = "commit"
    ROLLBACK = "rollback"
    SUSPEND_CURRENT_QUEUE_A_MOMENT = "suspend_current_queue_a_moment"


class Uncommitted(Protocol):
    """What was consumed of a queue and not acknowledged."""

    def __len__(self) -> int:
        """How many messages."""

    async def commit(self) -> None:
        """Acknowledge all of it."""

    async def rollback(self) -> None:
        """Let all of it come again."""


class ConsumeOrderlyContext:
    """What a call of an orderly listener may see and decide; a new one for every call.

    Attributes:
        topic, queue_id: Which queue.
        remaining: Messages of the same fetch behind these. The broker gives no others before
            they are acknowledged: commit at 0 at the latest.
        auto_commit: Acknowledge on SUCCESS. Set it to False in the listener for COMMIT and
            ROLLBACK to mean something.
    """

    def __init__(self, topic: str, queue_id: int, remaining: int, uncommitted: Uncommitted) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.remaining = remaining
        self.auto_commit = True
        self._uncommitted = uncommitted
        self._suspend = SUSPEND_DEFAULT

    @property
    def suspend(self) -> timedelta:
        """How long the queue rests before messages come again: 1 s, of 10 ms to 30 s."""
        return self._suspend

    @suspend.setter
    def suspend(self, duration: timedelta) -> None:
        self._suspend = min(max(duration, SUSPEND_SHORTEST), SUSPEND_LONGEST)

    @property
    def uncommitted(self) -> int:
        """Messages consumed before these and not acknowledged yet."""
        return len(self._uncommitted)

    async def commit(self) -> None:
        """Acknowledge all that was kept; also after the listener returned, from any task."""
        await self._uncommitted.commit()

    async def rollback(self) -> None:
        """Let all that was kept come again, once the listener has returned; from any task."""
        await self._uncommitted.rollback()


OrderlyListener = Callable[
    [Sequence[MessageView], ConsumeOrderlyContext],
    "ConsumeOrderlyStatus | Awaitable[ConsumeOrderlyStatus | None] | None",
]
