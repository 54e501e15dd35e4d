"""Messages by the column: decoding many stored or received messages at once.

Used by the bulk road of the proxy and by the Spark pipeline; nothing else of the broker
needs numpy and pyarrow here. `protobuf` walks encoded messages, `envelope` makes Arrow.
"""
