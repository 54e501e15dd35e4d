"""`format("rocketmq")`: what Spark looks up by name, makes on the driver, and asks for parts."""

from collections.abc import MutableMapping
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from cosmodrome_spark.errors import InvalidOption
from cosmodrome_spark.option_values import names
from cosmodrome_spark.options import SourceOptions, sink_options, source_options
from cosmodrome_spark.schema import check_columns, columns_of, ddl
from cosmodrome_spark.source.batch import BatchReader, PushdownReader
from cosmodrome_spark.source.partition import WRITTEN
from cosmodrome_spark.source.stream import StreamReader

if TYPE_CHECKING:
    from cosmodrome_spark.sink.writers import StreamTopicWriter, TopicWriter


class RocketMQDataSource(DataSource):
    """Topics as DataFrames, in batches and streams.

    Example:
        >>> spark.read.format("rocketmq").options(endpoints="127.0.0.1:8081",
        ...     subscribe="orders").load()  # doctest: +SKIP
    """

    options: MutableMapping[str, str]

    @classmethod
    def name(cls) -> str:
        """The word for `format`."""
        return "rocketmq"

    def schema(self) -> str:
        """The columns that the option `columns` asks for, or all."""
        if self.options.get("writeFiles"):
            return WRITTEN
        chosen = self.options.get("columns")
        if chosen is None:
            return ddl()
        try:
            return ddl(check_columns(names(chosen)))
        except InvalidOption as error:
            raise InvalidOption(f"option columns = {chosen!r}: {error}") from error

    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch read of the columns in `schema`."""
        options = self._source_options(schema, streaming=False)
        return PushdownReader(options) if options.filter_pushdown else BatchReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's
        """A streaming read of the columns in `schema`."""
        return StreamReader(self._source_options(schema, streaming=True))

    def writer(self, schema: StructType, overwrite: bool) -> "TopicWriter":  # noqa: FBT001  # Spark's
        """A batch write; a topic only ever grows, so `overwrite` is refused."""
        from cosmodrome_spark.sink.writers import batch_writer  # noqa: PLC0415  # reads go without

        return batch_writer(sink_options(self.options), schema, overwrite=overwrite)

    def streamWriter(  # noqa: N802  # Spark's
        self,
        schema: StructType,
        overwrite: bool,  # noqa: FBT001  # Spark's
    ) -> "StreamTopicWriter":
        """A streaming write in append mode."""
        from cosmodrome_spark.sink.writers import stream_writer  # noqa: PLC0415  # as above

        return stream_writer(sink_options(self.options), schema, overwrite=overwrite)

    def _source_options(self, schema: StructType, *, streaming: bool) -> SourceOptions:
        options = source_options(self.options, streaming=streaming)
        if options.write_files is not None:
            return options
        return replace(options, query=replace(options.query, columns=columns_of(schema)))
