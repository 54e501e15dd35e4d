import pytest
from pyspark.sql import SparkSession

from cosmodrome_spark.errors import InvalidOption
from cosmodrome_spark.schema import ALL_COLUMNS, arrow_schema, check_columns, columns_of, ddl


def test_arrow_types_are_the_ones_spark_derives(spark: SparkSession) -> None:
    from pyspark.sql.pandas.types import to_arrow_schema

    schema = spark.createDataFrame([], ddl()).schema

    assert to_arrow_schema(schema, timezone="UTC").types == arrow_schema().types
    assert columns_of(schema) == ALL_COLUMNS


def test_a_column_under_another_type_is_refused(spark: SparkSession) -> None:
    schema = spark.createDataFrame([], "body STRING").schema

    with pytest.raises(InvalidOption, match="body' is binary, not string"):
        columns_of(schema)


def test_a_column_that_is_named_twice_is_refused() -> None:
    with pytest.raises(InvalidOption, match="twice"):
        check_columns(["body", "body"])
