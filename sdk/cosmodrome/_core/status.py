"""From a `Status` to an error of ours: one table.

Source: the code families of the Java client (`StatusChecker`), completed by the codes it has
no home for. Codes whose message is stored all the same carry `maybe_stored`.
"""

from cosmodrome import errors
from cosmodrome_proto import definition_pb2 as pb

# Exact codes first; families below.
_EXACT: dict[int, type[errors.StatusError]] = {
    pb.INVALID_RECEIPT_HANDLE: errors.InvalidReceiptHandle,
    pb.UNRECOGNIZED_CLIENT_TYPE: errors.UnrecognizedClientType,
    pb.MESSAGE_NOT_FOUND: errors.MessageNotFound,
    pb.TOPIC_NOT_FOUND: errors.TopicNotFound,
    pb.CONSUMER_GROUP_NOT_FOUND: errors.ConsumerGroupNotFound,
    pb.OFFSET_NOT_FOUND: errors.OffsetNotFound,
    pb.MESSAGE_BODY_EMPTY: errors.PayloadEmpty,
    pb.LITE_TOPIC_QUOTA_EXCEEDED: errors.LiteTopicQuotaExceeded,
    pb.LITE_SUBSCRIPTION_QUOTA_EXCEEDED: errors.LiteSubscriptionQuotaExceeded,
    pb.FAILED_TO_CONSUME_MESSAGE: errors.InternalError,
}
_FAMILIES: dict[int, type[errors.StatusError]] = {
    400: errors.BadRequest,
    401: errors.Unauthorized,
    402: errors.PaymentRequired,
    403: errors.Forbidden,
    404: errors.NotFound,
    408: errors.RequestTimeout,
    413: errors.PayloadTooLarge,
    428: errors.PreconditionFailed,
    429: errors.TooManyRequests,
    431: errors.HeaderFieldsTooLarge,
    500: errors.InternalError,
    501: errors.NotImplementedByServer,
    504: errors.ProxyTimeout,
    505: errors.Unsupported,
}
# The broker stored the message and could not confirm the rest of its promise.
STORED_CODES = frozenset(
    {
        pb.MASTER_PERSISTENCE_TIMEOUT,
        pb.SLAVE_PERSISTENCE_TIMEOUT,
        pb.HA_NOT_AVAILABLE,
    }
)
_MAYBE_STORED = STORED_CODES | {pb.PROXY_TIMEOUT, pb.REQUEST_TIMEOUT}
_FINE = frozenset({pb.OK, pb.MULTIPLE_RESULTS})


def error_of(
    status: pb.Status, *, endpoint: str = "", request_id: str = ""
) -> errors.StatusError | None:
    """The error a status means; None for one that is fine."""
    code = int(status.code)
    if code in _FINE:
        return None
    kind = _EXACT.get(code) or _FAMILIES.get(code // 100, errors.Unsupported)
    message = status.message or f"code {code}"
    error = kind(message, code=code, endpoint=endpoint, request_id=request_id)
    error.maybe_stored = code in _MAYBE_STORED
    return error
