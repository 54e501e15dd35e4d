"""Every error the broker raises on purpose.

    BrokerError
    ├── RequestError                     the caller must change the request
    │   ├── BadRequest
    │   ├── IllegalTopic · IllegalConsumerGroup · IllegalFilterExpression
    │   ├── IllegalMessage…              one class per rule a message can break
    │   ├── IllegalInvisibleTime · IllegalPollingTime · IllegalOffset · IllegalDeliveryTime
    │   ├── InvalidReceiptHandle · InvalidTransactionId · MessageTypeConflict
    │   ├── TopicNotFound · ConsumerGroupNotFound · OffsetNotFound · MessageNotFound · NotFound
    │   ├── ClientIdRequired · UnrecognizedClientType · InvalidClientProperties
    │   ├── Unauthorized                 who are you, or you may not
    │   ├── Forbidden                    nobody may: the queue is not readable, not writable
    │   └── Unsupported                  this server has it switched off
    ├── OverloadedError                  the caller may retry later, unchanged
    │   ├── LiteTopicQuotaExceeded
    │   └── LiteSubscriptionQuotaExceeded
    ├── ClientTimeout                    a client asked over Telemetry did not answer
    └── StoreError                       an operator must look
        ├── StoreFull                    no space for messages; receive and ack go on
        ├── StoreFailed                  a write failed: the broker stops
        ├── StoreLocked                  another process owns the directory
        ├── StateUnreadable              another version wrote what is there
        ├── ReadFailed                   bytes that cannot be read now; perhaps later
        ├── TornFrame                    the bytes end early: a crash, or the wrong position
        └── CorruptFrame                 the bytes are all there and wrong

No class here knows protobuf. `cosmodrome_server.proxy.status` turns each into a `Code`.
A bug is none of these: it is an `assert` or a `TypeError`, and reaches the client as
INTERNAL_SERVER_ERROR with its traceback in the log.

Messages say what happened, why, and which limit or setting decides; lower case, no full stop.
"""


class BrokerError(Exception):
    """Anything the broker refuses or cannot do, said on purpose."""


class RequestError(BrokerError):
    """The caller must change the request before it can succeed."""


class BadRequest(RequestError):
    """The request contradicts itself, the protocol, or an earlier request."""


class IllegalTopic(RequestError):
    """A topic name that is not allowed, or a topic that is not for this use."""


class IllegalConsumerGroup(RequestError):
    """A consumer group name that is not allowed."""


class IllegalFilterExpression(RequestError):
    """A filter that does not parse; the message names the position and the reason."""


class IllegalMessageTag(RequestError):
    """A tag that is blank or holds `|` or a control character."""


class IllegalMessageKey(RequestError):
    """A message key that is blank or holds a control character."""


class IllegalMessageGroup(RequestError):
    """A message group that is blank, too long or holds a control character."""


class IllegalMessagePropertyKey(RequestError):
    """A user property whose key is reserved, or that holds a control character."""


class IllegalMessageId(RequestError):
    """A message without an id."""


class IllegalLiteTopic(RequestError):
    """A lite topic name that is not allowed."""


class MessageCorrupted(RequestError):
    """No message, messages of several topics, or a digest that does not fit its body."""


class MessageBodyEmpty(RequestError):
    """A message without a body."""


class MessageBodyTooLarge(RequestError):
    """A body above the limit."""


class MessagePropertiesTooLarge(RequestError):
    """Too many user properties, or too many bytes of them."""


class MessageTypeConflict(RequestError):
    """A message whose type the topic does not accept."""


class IllegalDeliveryTime(RequestError):
    """A delivery time further off than the limit."""


class IllegalInvisibleTime(RequestError):
    """An invisible duration outside its bounds."""


class IllegalPollingTime(RequestError):
    """A deadline too short for long polling."""


class IllegalOffset(RequestError):
    """A queue offset that does not exist.

    Attributes:
        corrected: The nearest offset that does.
    """

    def __init__(self, message: str, *, corrected: int = 0) -> None:
        super().__init__(message)
        self.corrected = corrected


class InvalidReceiptHandle(RequestError):
    """A receipt handle that is malformed, foreign, expired or replaced by a newer one."""


class InvalidTransactionId(RequestError):
    """A transaction id that is blank or unknown."""


class NotFound(RequestError):
    """Something else that does not exist: a subscription, a client."""


class TopicNotFound(RequestError):
    """The topic does not exist."""


class ConsumerGroupNotFound(RequestError):
    """The consumer group does not exist."""


class OffsetNotFound(RequestError):
    """The group has committed nothing on this queue."""


class MessageNotFound(RequestError):
    """The message does not exist, or exists no more."""


class ClientIdRequired(RequestError):
    """The metadata lacks x-mq-client-id."""


class UnrecognizedClientType(RequestError):
    """The server does not know this client: it must send its settings first."""


class InvalidClientProperties(RequestError):
    """Client properties that break a rule of the settings."""


class Unauthorized(RequestError):
    """The caller is not who it says, or may not do this."""


class Forbidden(RequestError):
    """The queue, the topic or the group does not allow this to anybody now."""


class Unsupported(RequestError):
    """A feature this server has switched off, or this kind of client does not have."""


class OverloadedError(BrokerError):
    """A bound is reached; the same request may succeed later.

    Attributes:
        setting: What the bound is called in the settings; "" for one that nobody can set.
    """

    def __init__(self, message: str, setting: str = "") -> None:
        super().__init__(message)
        self.setting = setting


class LiteTopicQuotaExceeded(OverloadedError):
    """The broker holds as many lite topics as it may."""


class LiteSubscriptionQuotaExceeded(OverloadedError):
    """The client or the broker holds as many lite subscriptions as it may."""


class ClientTimeout(BrokerError):
    """A client that was asked something over Telemetry did not answer in time."""


class StoreError(BrokerError):
    """The storage cannot do its part; an operator must look."""


class StoreFull(StoreError):
    """No space for new messages. Receive and ack go on from a reserve."""


class StoreFailed(StoreError):
    """A write or fsync failed. The broker refuses everything and stops."""


class StoreLocked(StoreError):
    """Another process owns the data directory."""


class StateUnreadable(StoreError):
    """A record or row is whole and not of a form that this version knows."""


class ReadFailed(StoreError):
    """The disk would not give the bytes now; what they say is not lost yet."""


class TornFrame(StoreError):
    """The bytes end before the frame does."""


class CorruptFrame(StoreError):
    """The frame is whole but fails its checksum or its bounds."""
