"""Deployment files: valid by their own tools, and true about what the broker exports."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from cosmodrome_server.proxy.metrics.catalogue import CATALOGUE, Kind

ROOT = Path(__file__).parent.parent.parent
DEPLOY = ROOT / "deploy"
TOOLS = Path(sys.executable).parent


def exported() -> set[str]:
    names = {"up", "process_resident_memory_bytes"}
    for metric in CATALOGUE:
        for name in filter(None, (metric.name, metric.alias)):
            if metric.kind is Kind.COUNTER:
                names.add(name + "_total")
            elif metric.kind is Kind.HISTOGRAM:
                names |= {name + suffix for suffix in ("_bucket", "_sum", "_count")}
            else:
                names.add(name)
    return names


def names_in(expression: str) -> set[str]:
    without_labels = re.sub(r"\{[^}]*\}|by \([^)]*\)|\[[^\]]*\]", "", expression)
    words = set(re.findall(r"[a-zA-Z_:][a-zA-Z0-9_:]*(?!\s*\()\b", without_labels))
    functions = {"sum", "rate", "histogram_quantile", "predict_linear", "increase", "max", "deriv"}
    return words - functions - {"and", "or", "by", "unless"}


def panels() -> list[dict[str, object]]:
    board = json.loads((DEPLOY / "grafana/dashboards/cosmodrome.json").read_text())
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def alerts() -> list[dict[str, str]]:
    groups = yaml.safe_load((DEPLOY / "prometheus/alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def test_every_panel_shows_what_the_broker_exports() -> None:
    for panel in panels():
        targets = panel["targets"]
        assert isinstance(targets, list)
        for target in targets:
            assert names_in(target["expr"]) <= exported(), panel["title"]


def test_every_alert_watches_what_the_broker_exports() -> None:
    assert len(alerts()) >= 12
    for alert in alerts():
        assert names_in(alert["expr"]) <= exported(), alert["alert"]


def test_the_board_is_what_its_script_makes(tmp_path: Path) -> None:
    script = (DEPLOY / "grafana/make_dashboard.py").read_text()
    namespace: dict[str, object] = {"__name__": "board", "__file__": str(tmp_path / "x.py")}
    exec(compile(script, "make_dashboard.py", "exec"), namespace)
    board = namespace["board"]
    assert callable(board)
    assert json.loads((DEPLOY / "grafana/dashboards/cosmodrome.json").read_text()) == board()


def test_hadolint_finds_nothing_in_the_dockerfiles() -> None:
    files = sorted(str(path) for path in ROOT.glob("Dockerfile*"))
    subprocess.run([TOOLS / "hadolint", *files], check=True)


def test_the_compose_file_fits_its_schema() -> None:
    command: list[str | Path] = [
        TOOLS / "check-jsonschema",
        "--builtin-schema",
        "vendor.compose-spec",
    ]
    subprocess.run([*command, ROOT / "docker-compose.yml"], check=True, stdout=subprocess.DEVNULL)


def test_workflows_fit_their_schema() -> None:
    workflows = sorted((ROOT / ".github/workflows").glob("*.yml"))
    command: list[str | Path] = [
        TOOLS / "check-jsonschema",
        "--builtin-schema",
        "vendor.github-workflows",
    ]
    if workflows:
        subprocess.run([*command, *workflows], check=True, stdout=subprocess.DEVNULL)


def test_actionlint_finds_nothing_in_the_workflows() -> None:
    actionlint = shutil.which("actionlint") or shutil.which(
        "actionlint", path=str(Path.home() / "go" / "bin")
    )
    if actionlint is None:
        pytest.skip("actionlint is missing (go install github.com/rhysd/actionlint/cmd/actionlint)")
    subprocess.run([actionlint], cwd=ROOT, check=True)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is missing (prometheus)")
def test_promtool_accepts_rules_and_configuration() -> None:
    subprocess.run(
        ["promtool", "check", "config", "prometheus.yml"],
        check=True,
        cwd=DEPLOY / "prometheus",
        stdout=subprocess.DEVNULL,
    )


def test_every_file_the_compose_file_mounts_is_there() -> None:
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    mounts = [
        mount.partition(":")[0]
        for service in compose["services"].values()
        for mount in service.get("volumes", [])
        if mount.startswith("./")
    ]
    assert mounts
    assert [mount for mount in mounts if not (ROOT / mount).exists()] == []
