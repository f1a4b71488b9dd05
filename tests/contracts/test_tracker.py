"""A tracker of another package, as docs/reference/mlflow.md has it, through its entry point."""

import json
import re
import sys
from pathlib import Path

import pytest

from unlearnbench.cli.main import main
from unlearnbench.config.resources import TrackingSettings
from unlearnbench.report.sweep_tracker import SweepTracker, sweep_config
from unlearnbench.results.records import read_records

ROOT = Path(__file__).resolve().parents[2]
OLD = ROOT / "tests" / "data" / "small_sweep"
PAGE = (ROOT / "docs" / "reference" / "mlflow.md").read_text(encoding="utf-8")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with the page's file and its entry point; returns where its runs go."""
    (code,) = re.findall(r'```python title="json_lines.py"\n(.*?)```', PAGE, re.DOTALL)
    (line,) = re.findall(r"^json-lines = .*$", PAGE, re.MULTILINE)
    assert len(code.splitlines()) <= 40
    folder = tmp_path / "site"
    info = folder / "json_lines-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / "json_lines.py").write_text(code, encoding="utf-8")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: json-lines\nVersion: 1.0\n")
    points = f"[unlearnbench.trackers]\n{line.replace(chr(34), '')}\n"
    (info / "entry_points.txt").write_text(points, encoding="utf-8")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "json_lines", raising=False)
    return tmp_path / "lines"


def settings(uri: Path) -> TrackingSettings:
    return TrackingSettings(tracker="json-lines", uri=str(uri))


def test_runs_are_read_back(package: Path, tmp_path: Path) -> None:
    config, records = sweep_config(OLD), read_records(OLD)
    warnings: list[str] = []
    page = tmp_path / "report.html"
    page.write_text("<p>")
    for logged in (len(records), 0):  # a second time nothing is logged twice
        with SweepTracker(settings(package), OLD, config, warn=warnings.append) as tracker:
            for record in records:
                tracker.log(record)
            tracker.settle()
            tracker.log_files([page])
        assert (tracker.logged, warnings) == (logged, [])
    text = (package / f"{config.name}.jsonl").read_text(encoding="utf-8")
    lines = {line["id"]: line for line in map(json.loads, text.splitlines())}
    assert lines.keys() == {record.id for record in records}
    run = next(record for record in records if record.kind == "run")
    line, last = lines[run.id], run.epochs[-1]
    assert line["parameters"]["method"] == run.method
    assert ["model_utility", last.epoch, last.metrics["model_utility"]] in line["curves"]
    assert (package / "report.html").read_text() == "<p>"
    assert (package / "plan.json").is_file()
    assert (package / "status").read_text() == "finished"
    assert not (OLD / "links.json").exists(), "it has no addresses"


def test_a_configuration_names_it(package: Path, tmp_path: Path) -> None:
    wanted = ["plan", "quickstart", "--set", "tracking.tracker=json-lines"]
    assert main([*wanted, "--set", f"tracking.uri={package}", "--set", f"output={tmp_path}"]) == 0
