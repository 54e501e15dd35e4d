"""The notebook and the example configurations do what they say."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cosmodrome_spark.jobs.config import load
from tests.pipeline.conftest import missing_for_spark
from tests.support.cosmodrome_process import CosmodromeProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "pipeline"
WAIT_S = 240


@pytest.mark.slow
@pytest.mark.skipif(bool(missing_for_spark()), reason=missing_for_spark() or "-")
def test_the_notebook_runs_from_its_first_cell_to_its_last(tmp_path: Path) -> None:
    cells = json.loads((EXAMPLES / "topic_to_table.ipynb").read_text())["cells"]
    source = "\n\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "code")
    script = tmp_path / "notebook.py"
    script.write_text(source)
    with CosmodromeProcess(tmp_path / "data") as server:
        where = {"COSMODROME_ENDPOINT": server.endpoints, "COSMODROME_LAKE": str(tmp_path / "lake")}
        done = subprocess.run(
            [sys.executable, str(script)],
            env={**os.environ, **where},
            timeout=WAIT_S,
            check=False,
            capture_output=True,
            text=True,
        )

    assert done.returncode == 0, done.stderr[-3000:]
    assert "<svg" in (tmp_path / "lake" / "revenue.svg").read_text()


@pytest.mark.parametrize("name", ["archive", "decode"])
def test_an_example_configuration_is_accepted(name: str) -> None:
    config = load(name, EXAMPLES / f"{name}.toml", [])

    assert config.must_table().path
    assert config.must_checkpoint()


def spark_snippets() -> list[tuple[str, str]]:
    """(page, code) of what the pages show of Spark."""
    found = []
    for page in (ROOT / "README.md", ROOT / "docs" / "pipeline.md"):
        blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
        found += [(page.name, code) for code in blocks if "spark" in code]
    return found


@pytest.mark.parametrize(("page", "code"), spark_snippets())
def test_a_snippet_of_a_page_makes_a_stream(
    page: str, code: str, spark: "SparkSession", tmp_path: Path
) -> None:
    body = code.strip()
    if "=" not in body.partition("(")[0] and not body.startswith("import"):
        body = f"shown = {body}"
    with CosmodromeProcess(tmp_path / "data") as server:
        names: dict[str, Any] = {"spark": spark}
        exec(body.replace("127.0.0.1:8081", server.endpoints), names)

    streams = [value for value in names.values() if getattr(value, "isStreaming", False)]
    assert [each.schema["queue_offset"].dataType.simpleString() for each in streams] == ["bigint"]
