"""The notebook and the example configurations do what they say."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cosmodrome import Message
from cosmodrome.sync import Producer
from cosmodrome_spark.jobs.config import load
from tests.pipeline.conftest import missing_for_spark
from tests.support.cosmodrome_process import CosmodromeProcess

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


@pytest.mark.usefixtures("spark")  # which build_session then takes
@pytest.mark.parametrize(("page", "code"), spark_snippets())
def test_a_snippet_of_a_page_reads_messages(page: str, code: str, tmp_path: Path) -> None:
    names: dict[str, Any] = {}
    with CosmodromeProcess(tmp_path / "data") as server:
        with Producer(server.endpoints) as producer:
            producer.send(Message("orders", b"1", tag="new"))
        exec(code.replace("127.0.0.1:8081", server.endpoints), names)
        orders = names["orders"]
        if not orders.isStreaming:
            assert [bytes(row.body) for row in orders.collect()] == [b"1"], page

    assert orders.schema["queue_offset"].dataType.simpleString() == "bigint", page
