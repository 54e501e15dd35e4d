"""Which road a range is read on.

    auto    sealed segments, where the files can be seen from here, up to the seal
            the bulk RPC for the rest
            PullMessage on a server that has neither

The choice is made where the reading is done, on the executor: whether segment files can be
seen differs from machine to machine.
"""

from collections.abc import Iterator

import pyarrow as pa

from cosmodrome_spark.offsets import QueueRange
from cosmodrome_spark.options import Connection, ReadQuery
from cosmodrome_spark.read.base import Cluster
from cosmodrome_spark.read.cluster import WireCluster
from cosmodrome_spark.read.pull import PullReader


def open_cluster(connection: Connection) -> Cluster:
    """What the driver asks."""
    return WireCluster(connection)


def read_ranges(
    connection: Connection, spans: tuple[QueueRange, ...], query: ReadQuery
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of some ranges, one range after the other, on the best road.

    Raises:
        UnsupportedByServer: `query.read_mode` names a road that this server lacks.
        DataLoss, BrokerRefused, BrokerUnreachable: See `TopicReader.read`.
    """
    with PullReader(connection) as reader:
        for span in spans:
            yield from reader.read(span, query)
