"""The notebook and the example configurations do what they say."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cosmodrome_spark.jobs.config import load
from tests.pipeline.conftest import missing_for_spark
from tests.support.cosmodrome_process import CosmodromeProcess

EXAMPLES = Path(__file__).parents[2] / "examples" / "pipeline"
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
