"""Which queue a message goes to: RocketMQ 4's message queue selectors.

    Producer(address, queue_selector=by_hash(lambda message: message.properties["order"]))

A selector is any callable `(queues, message) -> one of them`; queues come in the order of the
route. Messages of one key that must stay in order are better sent with a `message_group`, which
every broker keeps together. Ours keeps a queue that is chosen here; the reference's proxies choose
again (clients.md 4-01).
"""

import random
import zlib
from collections.abc import Callable, Mapping, Sequence

from cosmodrome._core.route import MessageQueue, Route
from cosmodrome.errors import CosmodromeError, IllegalArgument, NotFound
from cosmodrome.message import Message
from cosmodrome.receipt import SendReceipt

__all__ = ["MessageQueue", "QueueSelector", "by_hash", "by_machine_room", "by_random", "placed"]

QueueSelector = Callable[[Sequence[MessageQueue], Message], MessageQueue]


def by_hash(key: Callable[[Message], str]) -> QueueSelector:
    """The same queue for the same key, while the topic's queues stay the same.

    Args:
        key: What of a message decides.
    """

    def select(queues: Sequence[MessageQueue], message: Message) -> MessageQueue:
        return queues[zlib.crc32(key(message).encode()) % len(queues)]

    return select


def by_random(source: random.Random | None = None) -> QueueSelector:
    """Any queue.

    Args:
        source: Where chance comes from; the system's unless given.
    """
    chance = source or random.SystemRandom()

    def select(queues: Sequence[MessageQueue], _message: Message) -> MessageQueue:
        return chance.choice(queues)

    return select


def by_machine_room(
    rooms: Mapping[str, str], mine: frozenset[str], inner: QueueSelector | None = None
) -> QueueSelector:
    """Only queues of brokers in the given rooms.

    Args:
        rooms: Broker → room.
        mine: The rooms to send to.
        inner: Chooses among those; at random unless given.
    """
    choose = inner or by_random()

    def select(queues: Sequence[MessageQueue], message: Message) -> MessageQueue:
        near = [queue for queue in queues if rooms.get(queue.broker) in mine]
        if not near:
            raise IllegalArgument(
                f"no queue of {message.topic} is in the rooms {', '.join(sorted(mine))}"
            )
        return choose(near, message)

    return select


def placed(
    selector: QueueSelector, found: Route, messages: Sequence[Message]
) -> tuple[dict[MessageQueue, list[int]], dict[int, SendReceipt | CosmodromeError]]:
    """Ask a selector about each message: queue → indexes, and index → why there is none.

    Raises:
        NotFound: The topic has no queue that takes messages.
    """
    if not found.writable:
        raise NotFound(f"topic {found.topic} has no queue that takes messages")
    parts: dict[MessageQueue, list[int]] = {}
    failed: dict[int, SendReceipt | CosmodromeError] = {}
    for index, message in enumerate(messages):
        try:
            parts.setdefault(selector(found.writable, message), []).append(index)
        except CosmodromeError as error:
            failed[index] = error
        except Exception as error:
            failed[index] = refused = IllegalArgument(f"the queue selector failed: {error!r}")
            refused.__cause__ = error
    return parts, failed
