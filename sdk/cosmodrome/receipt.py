"""What a producer gets for a message; errors of sends carry it, too."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SendReceipt:
    """What the broker said of one stored message.

    Attributes:
        message_id: Ours, made before the send.
        topic: Where it went.
        queue_offset: Its place in its queue; -1 where the broker does not say.
        transaction_id: What ends its transaction.
        recall_handle: What takes a delayed message back; "" otherwise.
        endpoint: Which broker stored it.
    """

    message_id: str
    topic: str
    queue_offset: int
    transaction_id: str = ""
    recall_handle: str = ""
    endpoint: str = ""
