"""One Spark session for all tests of the pipeline; without Spark or Java they are skipped."""

import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cosmodrome_spark.java import java
from tests.support.pull_server import PullServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def missing_for_spark() -> str:
    """What Spark tests lack here; "" for nothing."""
    try:
        import pyspark  # noqa: F401  # is it there?
    except ImportError:
        return "Spark tests need pyspark: pip install 'cosmodrome[spark]'"
    if java() is None:
        return "Spark tests need Java 17 or later: apt-get install openjdk-17-jre-headless"
    return ""


def missing_packages() -> list[str]:
    """Packages that the modules under test import and that are not installed."""
    return [name for name in ("hpack", "numpy", "pyarrow", "pyspark") if find_spec(name) is None]


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave these tests out where they cannot be imported, and say so once."""
    missing = missing_packages()
    if not missing:
        return None
    if collection_path.name == "test_cli.py":
        print(
            f"skipped tests/pipeline: {', '.join(missing)} not installed, "
            "pip install 'cosmodrome[spark]'",
            file=sys.stderr,
        )
    return True


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator["SparkSession"]:
    missing = missing_for_spark()
    if missing:
        pytest.skip(missing)
    from cosmodrome_spark.session import SessionOptions, build_session

    session = build_session(
        SessionOptions(
            app_name="tests",
            master="local[2,4]",
            conf={"spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse"))},
        )
    )
    yield session
    session.stop()


@pytest.fixture
def server() -> Iterator[PullServer]:
    with PullServer(batch_size_max=1024) as running:
        yield running
