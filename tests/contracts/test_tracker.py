"""What a tracker must do: MLflow, and that of another package on docs/reference/mlflow.md."""

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from unlearnbench.analysis.results import Results
from unlearnbench.api.registry import load, names
from unlearnbench.api.tracker import MetricPoint, TrackedRun, TrackedSweep
from unlearnbench.base.errors import PluginError
from unlearnbench.cli.main import main
from unlearnbench.config.resources import TrackingSettings
from unlearnbench.report.sweep_tracker import SweepTracker, sweep_config
from unlearnbench.report.wandb_tracker import WandbTracker
from unlearnbench.results.records import read_records

ROOT = Path(__file__).resolve().parents[2]
OLD = ROOT / "tests" / "data" / "small_sweep"
PAGE = (ROOT / "docs" / "reference" / "mlflow.md").read_text(encoding="utf-8")
TUTORIAL = (ROOT / "docs" / "tutorials" / "add-a-tracker.md").read_text(encoding="utf-8")


def install(folder: Path, name: str, page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the file of a page and its entry point, as a package would."""
    module = name.replace("-", "_")
    (code,) = re.findall(rf'```python title="{module}.py"\n(.*?)```', page, re.DOTALL)
    (line,) = re.findall(rf"^{name} = .*$", page, re.MULTILINE)
    info = folder / f"{module}-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / f"{module}.py").write_text(code, encoding="utf-8")
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    points = f"[unlearnbench.trackers]\n{line.replace(chr(34), '')}\n"
    (info / "entry_points.txt").write_text(points, encoding="utf-8")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, module, raising=False)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with the page's file and its entry point; returns where its runs go."""
    (code,) = re.findall(r'```python title="json_lines.py"\n(.*?)```', PAGE, re.DOTALL)
    assert len(code.splitlines()) <= 40
    install(tmp_path / "site", "json-lines", PAGE, monkeypatch)
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


def test_the_logbook_of_the_tutorial_has_a_line_for_each_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path / "site", "logbook", TUTORIAL, monkeypatch)
    config, results = sweep_config(OLD), Results.read(OLD)
    tracking = TrackingSettings(tracker="logbook", uri=str(tmp_path / "books"))
    for logged in (len(results.records), 0):
        warnings: list[str] = []
        with SweepTracker(tracking, OLD, config, warn=warnings.append) as tracker:
            tracker.log_results(results)
            tracker.summarize(results)
            tracker.settle()
            tracker.log_files([])
        assert (tracker.logged, warnings) == (logged, [])
    text = (tmp_path / "books" / f"{config.name}.md").read_text(encoding="utf-8")
    row = next(row for row in reversed(results.rows) if row.kind == "run")
    assert f"utility {row.kept}" in text
    assert text.count("\n- ") == len(results.records)
    assert text.startswith("Status: finished")
    assert "Artifacts:" in text, "the conclusion"


RUN = TrackedRun(
    id="aa",
    name="npo",
    status="finished",
    parameters={"beta": "0.1"},
    tags={"kind": "run", "unlearnbench.run_id": "aa"},
    points=[
        MetricPoint("model_utility", 0.5, 1, 1),
        MetricPoint("model_utility", 0.25, 2, 1),
        MetricPoint("kept", 0.75, 2, 1),
    ],
    artefacts={"record.json": lambda: "{}"},
    started=1,
    ended=2,
)
Curves = Mapping[str, Mapping[str, list[tuple[int, float]]]]
"""Step and value of each point, by run and metric."""


def curves_in_lines(folder: Path) -> Curves:
    curves: dict[str, dict[str, list[tuple[int, float]]]] = {}
    for line in map(json.loads, (folder / "s.jsonl").read_text(encoding="utf-8").splitlines()):
        assert line["id"] not in curves, "a run is there once"
        of_run = curves.setdefault(line["id"], {})
        for name, step, value in line["curves"]:
            of_run.setdefault(name, []).append((step, value))
    return curves


def curves_in_mlflow(folder: Path) -> Curves:
    from mlflow import MlflowClient

    client: Any = MlflowClient(f"sqlite:///{folder}/mlflow.db")
    experiments = [item.experiment_id for item in client.search_experiments()]
    curves: dict[str, dict[str, list[tuple[int, float]]]] = {}
    for run in client.search_runs(experiments, "tags.kind = 'run'"):
        id_ = run.data.tags["unlearnbench.run_id"]
        assert id_ not in curves, "a run is there once"
        curves[id_] = {
            name: [(p.step, p.value) for p in client.get_metric_history(run.info.run_id, name)]
            for name in run.data.metrics
        }
    return curves


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated")
@pytest.mark.parametrize(
    ("name", "curves_in"), [("mlflow", curves_in_mlflow), ("json-lines", curves_in_lines)]
)
def test_a_run_is_replaced_if_anything_of_it_has_changed(
    name: str, curves_in: Any, package: Path, tmp_path: Path
) -> None:
    folder = package if name == "json-lines" else tmp_path
    uri = str(folder) if name == "json-lines" else f"sqlite:///{folder}/mlflow.db"
    sweep = TrackedSweep("1", "s", "mine", tmp_path, uri, best=["model_utility"])

    def logged(*runs: TrackedRun) -> list[bool]:
        tracker = load("trackers", name)()
        tracker.start(sweep)
        answers = [tracker.log(run) for run in runs]
        tracker.finish("finished")
        return answers

    other = replace(RUN, id="bb", tags={**RUN.tags, "unlearnbench.run_id": "bb"})
    later = replace(RUN, points=[point._replace(moment=9) for point in RUN.points])
    assert logged(RUN, other, RUN) == [True, True, False]
    assert logged(later) == [False], "another moment is no other number"
    # One number has changed, one is gone, and one is new.
    points = [MetricPoint("model_utility", 0.5, 1, 1), MetricPoint("model_utility", 0.125, 2, 1)]
    changed = replace(RUN, points=[*points, MetricPoint("forgotten", 1.0, 2, 1)])
    assert logged(changed, changed) == [True, False]
    assert curves_in(folder) == {
        "aa": {"model_utility": [(1, 0.5), (2, 0.125)], "forgotten": [(2, 1.0)]},
        "bb": {"model_utility": [(1, 0.5), (2, 0.25)], "kept": [(2, 0.75)]},
    }
    chosen = replace(changed, tags={**changed.tags, "chosen": "report"})
    ended = replace(chosen, status="stopped")
    assert logged(chosen, ended, replace(ended, parameters={"beta": "0.5"})) == [True, True, True]
    assert curves_in(folder).keys() == {"aa", "bb"}


def test_a_configuration_names_it(package: Path, tmp_path: Path) -> None:
    wanted = ["plan", "quickstart", "--set", "tracking.tracker=json-lines"]
    assert main([*wanted, "--set", f"tracking.uri={package}", "--set", f"output={tmp_path}"]) == 0


@pytest.mark.skipif(find_spec("wandb") is not None, reason="the package is installed")
@pytest.mark.parametrize("command", ["plan", "sweep"])
def test_wandb_without_its_package_is_refused_before_training(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if "wandb" not in names("trackers"):
        pytest.skip("plug-ins are offered after the next installation")
    options = ["--set", "tracking.tracker=wandb", "--set", f"output={tmp_path}"]
    assert main([command, "quickstart", *options]) == 2
    output = capsys.readouterr()
    assert "pip install 'unlearnbench[wandb]'" in " ".join((output.err + output.out).split())
    assert not list(tmp_path.iterdir())


def test_wandb_names_its_extra() -> None:
    if find_spec("wandb") is not None:
        WandbTracker.check()
        return
    with pytest.raises(PluginError, match=r"pip install 'unlearnbench\[wandb\]'"):
        WandbTracker.check()
