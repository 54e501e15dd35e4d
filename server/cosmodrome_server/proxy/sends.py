"""Sends as they are read: one that holds more things than any may is refused before they are made.

    SendMessageRequest ──▶ 1 MiB at most ──▶ SentMessages
                       └─▶ more ──▶ its messages and their fields counted ──▶ SentMessages

Two bytes are a message, which takes 80 once it is read: of nothing but such, the largest request
would be 5 GB, and the loop held for minutes.
"""

from itertools import islice

from cosmodrome_proto.sent_pb2 import SentMessages
from cosmodrome_server.config import Limits
from cosmodrome_server.errors import MessageCorrupted, MessagePropertiesTooLarge
from cosmodrome_server.model import wire

# Smaller ones are made in 20 ms, whatever they hold.
COUNTED_BYTES = 1 << 20
_MESSAGES = 1
# A message has three fields beside its user properties; a newer client's may have more.
_OTHER_FIELDS = 16


class Sends:
    """Reads requests within the limits of this server."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits

    def read(self, payload: bytes) -> SentMessages:
        """The messages of a request; what they hold is not checked yet.

        Raises:
            MessageCorrupted: More messages than a request may have.
            MessagePropertiesTooLarge: More fields than a message may have.
            DecodeError: The bytes are none.
        """
        if len(payload) > COUNTED_BYTES:
            self._count(payload)
        sent = SentMessages.FromString(payload)
        if len(sent.messages) > self._limits.batch_messages:
            self._refuse()
        return sent

    def _count(self, payload: bytes) -> None:
        """Count until there are too many; where that ends before the bytes, the parser says why."""
        most = self._limits.batch_messages + _OTHER_FIELDS
        most_fields = self._limits.user_properties + _OTHER_FIELDS
        for count, (number, start, end) in enumerate(wire.spans(payload, 0, len(payload))):
            if count == most:
                self._refuse()
            if number == _MESSAGES:
                inside = islice(wire.spans(payload, start, end), most_fields)
                if sum(1 for _ in inside) == most_fields:
                    raise MessagePropertiesTooLarge(
                        f"the message has more than {self._limits.user_properties} user "
                        "properties, the most limits.user_properties allows"
                    )

    def _refuse(self) -> None:
        raise MessageCorrupted(
            f"the request has more than {self._limits.batch_messages} messages, the most "
            "limits.batch_messages allows"
        )
