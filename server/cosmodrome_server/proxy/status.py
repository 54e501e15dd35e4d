"""From what went wrong to what the client reads: one table, and encoded `Status` messages.

A business error travels as `Status` in a response that is gRPC OK (protocol.md 1.0.3).
`status` is field 1 of every response of ours, so an answer that is nothing but an
error is the same few bytes for every RPC.
"""

from functools import lru_cache

from cosmodrome_proto import definition_pb2 as pb
from cosmodrome_server import errors
from cosmodrome_server.errors import BrokerError
from cosmodrome_server.proxy.encoding import bytes_field, varint_field

# Nearest in the MRO wins; tests/server/proxy/test_status.py walks `errors`.
CODES: dict[type[BrokerError], int] = {
    errors.BrokerError: pb.INTERNAL_SERVER_ERROR,
    errors.RequestError: pb.BAD_REQUEST,
    errors.BadRequest: pb.BAD_REQUEST,
    errors.IllegalTopic: pb.ILLEGAL_TOPIC,
    errors.IllegalConsumerGroup: pb.ILLEGAL_CONSUMER_GROUP,
    errors.IllegalFilterExpression: pb.ILLEGAL_FILTER_EXPRESSION,
    errors.IllegalMessageTag: pb.ILLEGAL_MESSAGE_TAG,
    errors.IllegalMessageKey: pb.ILLEGAL_MESSAGE_KEY,
    errors.IllegalMessageGroup: pb.ILLEGAL_MESSAGE_GROUP,
    errors.IllegalMessagePropertyKey: pb.ILLEGAL_MESSAGE_PROPERTY_KEY,
    errors.IllegalMessageId: pb.ILLEGAL_MESSAGE_ID,
    errors.IllegalLiteTopic: pb.ILLEGAL_LITE_TOPIC,
    errors.MessageCorrupted: pb.MESSAGE_CORRUPTED,
    errors.MessageBodyEmpty: pb.MESSAGE_BODY_EMPTY,
    errors.MessageBodyTooLarge: pb.MESSAGE_BODY_TOO_LARGE,
    errors.MessagePropertiesTooLarge: pb.MESSAGE_PROPERTIES_TOO_LARGE,
    errors.MessageTypeConflict: pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
    errors.IllegalDeliveryTime: pb.ILLEGAL_DELIVERY_TIME,
    errors.IllegalInvisibleTime: pb.ILLEGAL_INVISIBLE_TIME,
    errors.IllegalPollingTime: pb.ILLEGAL_POLLING_TIME,
    errors.IllegalOffset: pb.ILLEGAL_OFFSET,
    errors.InvalidReceiptHandle: pb.INVALID_RECEIPT_HANDLE,
    errors.InvalidTransactionId: pb.INVALID_TRANSACTION_ID,
    errors.NotFound: pb.NOT_FOUND,
    errors.TopicNotFound: pb.TOPIC_NOT_FOUND,
    errors.ConsumerGroupNotFound: pb.CONSUMER_GROUP_NOT_FOUND,
    errors.OffsetNotFound: pb.OFFSET_NOT_FOUND,
    errors.MessageNotFound: pb.MESSAGE_NOT_FOUND,
    errors.ClientIdRequired: pb.CLIENT_ID_REQUIRED,
    errors.UnrecognizedClientType: pb.UNRECOGNIZED_CLIENT_TYPE,
    errors.InvalidClientProperties: pb.INVALID_CLIENT_PROPERTIES,
    errors.Unauthorized: pb.UNAUTHORIZED,
    errors.Forbidden: pb.FORBIDDEN,
    errors.Unsupported: pb.UNSUPPORTED,
    errors.OverloadedError: pb.TOO_MANY_REQUESTS,
    errors.LiteTopicQuotaExceeded: pb.LITE_TOPIC_QUOTA_EXCEEDED,
    errors.LiteSubscriptionQuotaExceeded: pb.LITE_SUBSCRIPTION_QUOTA_EXCEEDED,
    errors.ClientTimeout: pb.PROXY_TIMEOUT,
    errors.StoreError: pb.INTERNAL_SERVER_ERROR,
}

# What is wrong with a text, errors say by showing it, and it comes from outside: an answer must not
# be as long, nor what is remembered of it; and at the end of a stream it travels as a header.
MESSAGE_CHARS = 500

INTERNAL_MESSAGE = "internal error; the server's log says more"


def code_of(error: BaseException) -> int:
    """The code of an error; INTERNAL_SERVER_ERROR for one that is a bug."""
    for kind in type(error).__mro__:
        code = CODES.get(kind)
        if code is not None:
            return code
    return pb.INTERNAL_SERVER_ERROR


def message_of(error: BaseException) -> str:
    """What the client is told, in `MESSAGE_CHARS` at most; nothing of a bug's inside."""
    if not isinstance(error, BrokerError):
        return INTERNAL_MESSAGE
    text = str(error) or pb.Code.Name(pb.Code.ValueType(code_of(error)))
    return text if len(text) <= MESSAGE_CHARS else text[: MESSAGE_CHARS - 1] + "…"


@lru_cache(maxsize=1024)
def status_field(code: int, message: str = "OK", *, number: int = 1) -> bytes:
    """A `Status` as field `number` of a message: whole responses where nothing else is there."""
    return bytes_field(number, varint_field(1, code) + bytes_field(2, message.encode()))


def error_field(error: BaseException, *, number: int = 1) -> bytes:
    """The `Status` of an error, as `status_field`."""
    return status_field(code_of(error), message_of(error), number=number)


OK = status_field(pb.OK)
MULTIPLE_RESULTS = status_field(pb.MULTIPLE_RESULTS, "MULTIPLE_RESULTS")


def overall(statuses: set[bytes]) -> bytes:
    """The status of a response from those of its entries (each encoded as field 1).

    One status that all share stands for all; several are MULTIPLE_RESULTS.
    Source: protocol.md F.15.
    """
    return next(iter(statuses)) if len(statuses) == 1 else MULTIPLE_RESULTS


def status(code: int, message: str = "OK") -> pb.Status:
    """A `Status` as a message."""
    return pb.Status(code=pb.Code.ValueType(code), message=message)


OK_STATUS = status(pb.OK)
