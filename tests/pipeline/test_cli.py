from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from cosmodrome_spark.cli import app, told_by_spark
from cosmodrome_spark.errors import InvalidOption
from cosmodrome_spark.jobs.registry import JOBS, job

run = CliRunner().invoke


def test_help_lists_every_job() -> None:
    said = run(app, ["--help"]).output

    assert [name for name in JOBS if name not in said] == []


@pytest.mark.parametrize("name", JOBS)
def test_every_job_has_a_function(name: str) -> None:
    assert callable(job(name))


def test_a_job_that_is_none_is_refused_with_the_list() -> None:
    done = run(app, ["archiv"])

    assert done.exit_code == 2
    assert "archive" in done.output


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--config", "nowhere.toml"], "nowhere.toml"),
        (["--set", "table.path=x"], "endpoints is required"),
        (["--set", "source.endpoints=h:1", "--set", "source.subscrib=x"], "did you mean subscribe"),
    ],
)
def test_a_configuration_that_cannot_work_ends_with_2_before_spark_starts(
    tmp_path: Path, arguments: list[str], reason: str
) -> None:
    done = run(app, ["archive", *arguments, "--set", f"stream.checkpoint={tmp_path}"])

    assert done.exit_code == 2
    assert reason in done.output


def test_what_spark_hands_over_as_a_traceback_is_said_in_a_line(spark: SparkSession) -> None:
    with pytest.raises(PySparkException) as raised:
        spark.read.format("rocketmq").options(endpoints="h:1", subscrib="x").load().collect()
    with pytest.raises(PySparkException) as other:
        spark.sql("SELECT nothing")

    error = told_by_spark(str(raised.value))
    assert isinstance(error, InvalidOption)
    assert str(error) == "unknown option 'subscrib'; did you mean subscribe?"
    assert "nothing" in str(told_by_spark(str(other.value))).partition("\n")[0]
