"""The verbs of producers."""

from collections.abc import Sequence

from cosmodrome_server.broker.catalogue_verbs import CatalogueVerbs
from cosmodrome_server.core.send import check_acceptance, plan_send
from cosmodrome_server.model.message import NewMessage, SendReceipt


class SendVerbs(CatalogueVerbs):
    """Implements the producers' part of `broker.interface.Messaging`."""

    def send(self, topic: str, messages: Sequence[NewMessage]) -> list[SendReceipt]:
        """See `Messaging`."""
        state = self._topic(topic)
        check_acceptance(state, messages)
        records = plan_send(state, messages, self._now())
        self._put_messages(records)
        self._count_sent(topic, messages)
        return [
            SendReceipt(message.message_id, record.queue_offset, "")
            for message, record in zip(messages, records, strict=True)
        ]

    def _count_sent(self, topic: str, messages: Sequence[NewMessage]) -> None:
        # Almost always one type; the rest is exact too, message by message.
        first = messages[0].message_type
        if all(message.message_type is first for message in messages):
            body_bytes = sum(len(message.body) for message in messages)
            self._counters.sent(topic, first, len(messages), body_bytes)
        else:
            for message in messages:
                self._counters.sent(topic, message.message_type, 1, len(message.body))
