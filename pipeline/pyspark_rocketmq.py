"""Where Spark finds `format("rocketmq")` by itself: it imports every `pyspark_*` module.

It looks for `DefaultSource` in modules that are installed with the Python of its workers.
Where they are not (`--py-files`), call `cosmodrome_spark.register(spark)`.
"""

from cosmodrome_spark.source.data_source import RocketMQDataSource as DefaultSource

__all__ = ["DefaultSource"]
