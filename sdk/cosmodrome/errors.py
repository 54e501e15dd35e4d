"""Every error the SDK raises on purpose.

    CosmodromeError
    ├── ClientError                 misuse here; nothing was sent
    │   ├── NotRunning              not started yet, or closed already
    │   ├── IllegalArgument         a value that no broker would take
    │   ├── ConfigurationError      endpoints, TLS, environment
    │   └── BufferFull              in-flight bounds reached and waiting was not wanted
    ├── TransportError              no answer came
    │   ├── ConnectionFailed        nobody there, TLS refused, connection lost
    │   └── DeadlineExceeded        there, but too late; the broker may have done it
    └── StatusError                 the broker said no (code, request_id, endpoint)
        ├── BadRequest              400xx: the request must change
        │   ├── InvalidReceiptHandle
        │   └── UnrecognizedClientType
        ├── Unauthorized            40100
        ├── PaymentRequired         40200
        ├── Forbidden               40300
        ├── NotFound                40400 … 40404
        │   ├── TopicNotFound · ConsumerGroupNotFound · MessageNotFound · OffsetNotFound
        ├── RequestTimeout          40800
        ├── PayloadTooLarge         41300, 41301
        ├── PayloadEmpty            41302
        ├── PreconditionFailed      42800
        ├── TooManyRequests         42900
        │   ├── LiteTopicQuotaExceeded · LiteSubscriptionQuotaExceeded
        ├── HeaderFieldsTooLarge    43100, 43101
        ├── InternalError           500xx
        ├── NotImplementedByServer  50100
        ├── ProxyTimeout            504xx
        └── Unsupported             505xx, and codes this version does not know

Two questions every error answers: `is_retryable`, may the same call succeed later
unchanged; `maybe_stored`, may the broker have done it although it looks like a failure.
"""

from typing import ClassVar

from cosmodrome.receipt import SendReceipt


class CosmodromeError(Exception):
    """Anything the SDK raises on purpose.

    Attributes:
        is_retryable: Whether the same call may succeed later, unchanged.
        maybe_stored: Whether the broker may have done it nevertheless.
        attempts: Of a send: how the tries before this last one failed, in order.
        receipt: Of a send that was stored although the broker could not keep the rest of its
            promise (a replica or the disk was late): what it said of the message.
    """

    is_retryable: ClassVar[bool] = False
    maybe_stored: bool = False
    attempts: "tuple[CosmodromeError, ...]" = ()
    receipt: SendReceipt | None = None


class ClientError(CosmodromeError):
    """Misuse on this side; nothing was sent."""


class NotRunning(ClientError):
    """The client is not started yet, or closed already."""


class IllegalArgument(ClientError, ValueError):
    """A value that no broker would take."""


class ConfigurationError(ClientError, ValueError):
    """Endpoints, TLS files or environment variables that make no sense."""


class BufferFull(ClientError):
    """The producer's in-flight bounds are reached."""

    is_retryable = True


class TransportError(CosmodromeError):
    """No answer came.

    Attributes:
        endpoint: Where the call went.
        request_id: The x-mq-request-id of the call, for the broker's log.
    """

    is_retryable = True

    def __init__(self, message: str, *, endpoint: str = "", request_id: str = "") -> None:
        super().__init__(message)
        self.endpoint = endpoint
        self.request_id = request_id


class ConnectionFailed(TransportError):
    """Nobody there, TLS refused, or the connection was lost on the way."""

    maybe_stored = True


class DeadlineExceeded(TransportError):
    """The answer did not come in time; the broker may have done what was asked."""

    maybe_stored = True


class StatusError(CosmodromeError):
    """The broker said no.

    Attributes:
        code: The number of `apache.rocketmq.v2.Code`.
        endpoint: Who said it.
        request_id: The x-mq-request-id of the call.
    """

    def __init__(
        self, message: str, *, code: int = 0, endpoint: str = "", request_id: str = ""
    ) -> None:
        super().__init__(message)
        self.code = code
        self.endpoint = endpoint
        self.request_id = request_id

    def __str__(self) -> str:
        if not self.code:  # found out on this side
            return super().__str__()
        where = f" from {self.endpoint}" if self.endpoint else ""
        request = f", request {self.request_id}" if self.request_id else ""
        return f"{super().__str__()} [code {self.code}{where}{request}]"


class BadRequest(StatusError):
    """The request must change before it can succeed."""


class InvalidReceiptHandle(BadRequest):
    """The delivery is over: acknowledged, expired, or named by a newer handle."""


class UnrecognizedClientType(BadRequest):
    """The broker lost the client's settings; the session sends them again."""

    is_retryable = True


class Unauthorized(StatusError):
    """Wrong credentials, or no permission."""


class PaymentRequired(StatusError):
    """The account is not allowed to go on."""


class Forbidden(StatusError):
    """The topic, queue or group does not allow this to anybody now."""


class NotFound(StatusError):
    """What the call is about does not exist."""


class TopicNotFound(NotFound):
    """The topic does not exist."""


class ConsumerGroupNotFound(NotFound):
    """The consumer group does not exist."""


class MessageNotFound(NotFound):
    """The message does not exist, or no more."""


class OffsetNotFound(NotFound):
    """The group committed nothing on this queue."""


class RequestTimeout(StatusError):
    """The broker gave up on the request."""

    is_retryable = True


class PayloadTooLarge(StatusError):
    """The body exceeds the broker's limit."""


class PayloadEmpty(StatusError):
    """The body is empty."""


class PreconditionFailed(StatusError):
    """A condition of the request does not hold."""


class TooManyRequests(StatusError):
    """A bound of the broker is reached; slow down."""

    is_retryable = True


class LiteTopicQuotaExceeded(TooManyRequests):
    """The broker holds as many lite topics as it may."""

    is_retryable = False


class LiteSubscriptionQuotaExceeded(TooManyRequests):
    """The client or the broker holds as many lite subscriptions as it may."""

    is_retryable = False


class HeaderFieldsTooLarge(StatusError):
    """Metadata or message properties exceed the broker's limit."""


class InternalError(StatusError):
    """The broker failed."""

    is_retryable = True


class NotImplementedByServer(StatusError):
    """The broker does not have this method."""


class ProxyTimeout(StatusError):
    """Something behind the broker's front did not answer in time."""

    is_retryable = True


class Unsupported(StatusError):
    """The broker has this switched off, or answered a code this version does not know."""
