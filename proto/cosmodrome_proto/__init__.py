"""The RocketMQ 5 wire protocol as Python classes, in a descriptor pool of our own.

`definition_pb2` holds the nouns, `service_pb2` the verbs, `admin_pb2` the operator's verbs.
`Timestamp` and `Duration` are the well-known types of this pool: those of
`google.protobuf` are other classes and cannot be assigned to fields of ours.

`METHODS` of each service come from the descriptors: see `methods`.
"""

from cosmodrome_proto._pool import POOL, Duration, Method, Timestamp, methods

__all__ = ["POOL", "Duration", "Method", "Timestamp", "methods"]
